"""Manifests of other systems, read as functions."""
