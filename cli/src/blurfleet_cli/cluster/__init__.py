"""A real Kubernetes API server on loopback, without containers: for trying blurfleet and for its tests."""
