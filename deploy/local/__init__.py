"""The local backend: replicas as processes on this machine."""
