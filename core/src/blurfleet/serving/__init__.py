"""What gateway, agent and Triton say to each other on one node: routing file, frame samples, inference."""
