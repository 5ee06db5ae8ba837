"""Pipelines as the autoscaler sees them: the budget of each stage, and decisions over all stages at once."""
