"""Setups of HetSev's experiments (Mo et al., Electronics 2023, 12, 240)."""
