"""Experiments: definitions, setups, runs, and verdicts on the figures."""
