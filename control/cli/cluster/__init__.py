"""Commands with ``--context``: the custom resources of a cluster."""
