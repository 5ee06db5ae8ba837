"""``tidegate profile``."""
