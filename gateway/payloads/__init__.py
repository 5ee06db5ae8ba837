"""Payload sampling: bodies of a share of a function's requests, as CloudEvents for a sink."""
