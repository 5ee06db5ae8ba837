"""Serves an ASGI application of the user's as it is."""
