"""The proxy driver: client connections, exchanges and their contract."""
