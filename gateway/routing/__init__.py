"""Route matching: which function, revision and model a request names."""
