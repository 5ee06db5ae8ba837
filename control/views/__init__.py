"""Records that the control API returns."""
