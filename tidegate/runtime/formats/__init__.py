"""Formats of model files, each loaded by its own library in a file of its own."""
