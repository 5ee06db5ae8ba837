"""Gateway workers: supervision, links, renewal, quotas, keys, certificates."""
