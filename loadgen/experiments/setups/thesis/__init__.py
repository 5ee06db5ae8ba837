"""Requests in flight against GPU utilisation: the experiments of a master's thesis on two autoscalers (S. Mitra,
University of Groningen)."""
