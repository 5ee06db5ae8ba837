"""`tidegate gateway`."""
