"""Commands of operators, each checked as a whole before anything changes: deploys, traffic, cores and batches."""
