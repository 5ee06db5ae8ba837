"""Setups of Themis' experiments (Razavi, Salmani et al., "A Tale of Two Scales")."""
