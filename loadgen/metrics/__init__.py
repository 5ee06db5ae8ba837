"""Figures of a simulation: latency, cost, power, fleet."""
