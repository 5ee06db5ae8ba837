"""The store of small versioned records: embedded or Redis."""
