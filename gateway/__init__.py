"""The gateway: one request from its match to its count, with routing, access, resilience and answers."""
