"""Measurements of the control process: traffic, tokens, cold starts, devices."""
