"""The control round: roles, replacement, rollouts, plans, route tables."""
