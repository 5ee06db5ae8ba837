"""Frozen records that cross a process border, and their codec."""
