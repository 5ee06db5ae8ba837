"""`tidegate demo`."""
