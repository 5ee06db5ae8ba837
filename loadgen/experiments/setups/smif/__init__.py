"""SMIF: SLA-driven inference on groups of different accelerators (Cho et al.)."""
