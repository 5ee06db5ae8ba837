"""How many client connections a listener has room for, in all and of one address; descriptors of the process."""

import contextlib
import resource
from typing import Final

MOST: Final = 100_000
LEAST: Final = 16
RESERVED: Final = 8192
"""Descriptors that are kept for other work at most: connections to replicas, slot channels, files."""
FEW: Final = 64
"""Descriptors that are kept for it in any case."""


def raise_descriptors() -> int:
    """Raises the soft limit of open files of this process to its hard one. Returns the limit in force."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        return hard
    return soft


def descriptors() -> int:
    """Returns how many files this process may have open."""
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def connection_limit(wanted: int, descriptors: int) -> int:
    """Returns the client connections that fit into so many descriptors; ``wanted``: at most so many, 0 for what fits.

    Half of the descriptors are for other work, 8192 at most: each request in work may need a connection to a replica.
    """
    if descriptors < 0:  # no limit
        return wanted or MOST
    if wanted:
        return max(LEAST, min(wanted, descriptors - FEW))
    return max(LEAST, min(MOST, descriptors - max(FEW, min(descriptors // 2, RESERVED))))


class Places:
    """The places of one listener's connections."""

    __slots__ = ("_by_client", "limit", "per_client", "shed_by_client", "shed_by_limit", "used")

    def __init__(self, limit: int, per_client: int) -> None:
        """``per_client``: at most so many of one address."""
        self.limit = limit
        self.per_client = per_client
        self.used = 0
        self._by_client: dict[bytes, int] = {}
        self.shed_by_limit = 0
        """Connections that were closed because all places were taken."""
        self.shed_by_client = 0
        """Connections that were closed because their address had its part."""

    def take(self, client: bytes | None, others: int = 0) -> bool:
        """Takes a place. Returns False if there is none. ``client``: its address, None if it stands for many clients;
        ``others``: connections that are not counted here."""
        if self.used + others >= self.limit:
            self.shed_by_limit += 1
            return False
        if client is not None:
            count = self._by_client.get(client, 0)
            if count >= self.per_client:
                self.shed_by_client += 1
                return False
            self._by_client[client] = count + 1
        self.used += 1
        return True

    def leave(self, client: bytes | None) -> None:
        """Gives a place back; ``client`` as it was taken."""
        self.used -= 1
        if client is not None:
            count = self._by_client[client] - 1
            if count:
                self._by_client[client] = count
            else:
                del self._by_client[client]

    def __repr__(self) -> str:
        return f"<Places {self.used} of {self.limit}, {len(self._by_client)} clients>"
