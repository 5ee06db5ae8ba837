"""Policies: a file or a folder each, and the registry that names them."""
