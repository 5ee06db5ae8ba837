"""What helps a developer at work: waiting for a start, an example call, environments, `tidegate init` and `dev`."""
