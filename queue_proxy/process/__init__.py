"""A queue_proxy's process beside its chain: calls to the model server, its metrics, orders of the control process."""
