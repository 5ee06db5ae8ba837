"""Execution of a model: batching, threads, Python classes, emulated accelerators."""
