"""Kubernetes: the custom resources, what a function becomes in a cluster, and the backend whose replicas are Pods."""
