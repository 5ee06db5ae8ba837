"""What the backends with real replicas share: the state of one that is followed, and the registry of all."""
