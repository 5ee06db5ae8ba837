"""A gateway worker's view of replicas: channel, credits, wants told."""


class Replica:
    """One replica of one group, as this worker sees it."""

    __slots__ = ("address", "id")

    def __init__(self, id: str, address: str) -> None:  # noqa: A002 - the record's field
        self.id = id
        self.address = address
