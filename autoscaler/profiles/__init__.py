"""Learnt profiles: service rates, concurrency limits, admission, tuning."""
