"""Traces of arrivals: formats and files."""
