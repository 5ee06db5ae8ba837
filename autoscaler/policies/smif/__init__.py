"""SMIF's SLA policy: rule, load and scale-in."""
