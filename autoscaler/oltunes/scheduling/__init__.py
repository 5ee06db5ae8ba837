"""Scheduling of tasks on the devices of a cluster: OLTunes' batches over functions, and the two rivals of the paper."""
