"""The queue_proxy: the sidecar of a replica that enforces its slots."""
