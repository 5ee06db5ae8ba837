"""Limits that the system enforces on model servers: CPU time and memory; and the pause of those that sleep."""
