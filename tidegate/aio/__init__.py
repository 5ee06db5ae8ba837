"""Asyncio drivers of the protocol engines: loop, proxy, upstreams, admin endpoint."""
