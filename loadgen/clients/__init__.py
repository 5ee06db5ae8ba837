"""Load clients: they send requests on schedule and record the results."""
