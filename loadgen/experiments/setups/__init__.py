"""Setups of experiments: each runs a scenario with parameters and a seed, and names its figures."""
