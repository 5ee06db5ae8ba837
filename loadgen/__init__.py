"""The laboratory: load generator, traces, simulator and experiments."""
