"""`tidegate load`."""
