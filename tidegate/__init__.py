"""Tidegate: a serverless inference gateway and autoscaler. This package is the base that all components import."""

__version__ = "0.1.0"
