"""Counters of requests, tokens and tenants, reported to the autoscaler."""
