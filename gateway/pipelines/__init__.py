"""Pipelines: a request that runs through several functions, one after the other."""
