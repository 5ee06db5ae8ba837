"""Traces of sampled requests: their spans, the OTLP messages that carry them, and the thread that sends these."""
