"""The championship: every policy on the same traces, fleets and start-up times."""
