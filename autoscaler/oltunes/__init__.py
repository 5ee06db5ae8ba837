"""OLTunes (Kim, Ha, Kim): a predictor of latency and throughput that learns online, and the tuner above it."""
