"""A gateway worker's process beside its chain: front door, slot channels, background calls, figures, end."""
