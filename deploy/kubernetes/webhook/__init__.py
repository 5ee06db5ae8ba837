"""The mutating webhook: gives a Pod that others make, and that asks for it by a label, a queue_proxy."""
