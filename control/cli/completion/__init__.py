"""Completion by the shell: the names of functions, at once."""
