"""The access log: collected in the worker, written by a process of its own."""
