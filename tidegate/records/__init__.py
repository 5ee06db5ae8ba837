"""Frozen records that cross a process border or are kept, as JSON by ``tidegate.records.codec``."""
