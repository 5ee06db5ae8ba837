"""Placement of replicas on accelerators."""
