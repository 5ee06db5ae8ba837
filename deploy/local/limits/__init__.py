"""Limits that the system enforces on model servers: CPU time and memory."""
