"""Prediction of latency and throughput: from samples, learnt one by one, and from the graph of a model."""
