"""Readers of text that people write: YAML with lines, units, table rows, time windows, files."""
