"""Measurement: samples to windows, rates and observations."""
