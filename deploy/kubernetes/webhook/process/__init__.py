"""Shells of the webhook: keys and certificates, their rotation in the cluster, the server."""
