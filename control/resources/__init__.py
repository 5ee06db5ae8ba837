"""The Functions and Pipelines of a cluster, deployed as they are stated there."""
