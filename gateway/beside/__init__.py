"""Side processes of a gateway worker: they write, export or deliver what the worker only collects."""
