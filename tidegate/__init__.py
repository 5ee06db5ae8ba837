"""Tidegate: a serverless inference gateway and autoscaler. This package is the ground that all rooms stand on."""

__version__ = "0.1.0"
