"""Arrival processes: shapes of load, traces' arrivals, paced loops."""
