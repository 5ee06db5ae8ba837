"""Themis: cores at once, instances when the load is stable."""
