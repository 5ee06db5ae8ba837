"""Retries, hedges, outlier ejection and shadow traffic."""
