"""`tidegate experiment`."""
