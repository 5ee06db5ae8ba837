"""The autoscaler: samples in, decisions with reasons out."""
