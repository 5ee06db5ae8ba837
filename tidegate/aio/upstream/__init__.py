"""Connections to upstream addresses, HTTP/1.1 and HTTP/2."""
