"""Recordings of what policies saw and decided, and what becomes of them: the same decisions, or another policy's."""
