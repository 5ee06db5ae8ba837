"""HetSev's policies: instance types by cost, launch latency and SLO (Mo et al., Electronics 2023, 12, 240)."""
