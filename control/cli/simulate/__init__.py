"""`tidegate simulate`."""
