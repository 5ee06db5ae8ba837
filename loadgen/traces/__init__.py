"""Traces of arrivals: formats, files, and changes to them."""
