"""The start of the Triton server that the user has, with a model repository."""
