"""The backend whose replicas are Pods, and its calls to the API server."""
