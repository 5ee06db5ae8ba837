"""Knative's pod autoscaler: windows, parameters and scale to zero."""
