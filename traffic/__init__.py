"""Weights of groups, cuts by size, ramps and canaries."""
