"""Services of one event loop: ticker, batched writes, tasks, sockets, splice, certificates."""
