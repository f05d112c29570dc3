"""What the gateway is measured beside, in an environment of its own."""
