"""Deployment: plans of replicas, placement on accelerators, and the backends that carry them out."""
