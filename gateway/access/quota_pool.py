"""The pool of quotas that the control process holds for the gateway workers of its machine (ADR 0040).

Each exchange is one call to its unix socket. A control process that is away is a pool that is lost: the worker goes on
with its even part.
"""

from collections.abc import Sequence
from typing import Final

from tidegate.aio.admin.client import FetchError, fetch
from tidegate.flow.quota import Answer, Report
from tidegate.flow.quota_message import decode_answer, encode_exchange
from tidegate.records.codec import CodecError
from tidegate.store.records import StoreFaultError

CALL_S: Final = 0.4
"""Slower is lost. Longer than a pool in Redis is waited for, shorter than a request waits."""
PATH: Final = "/exchange"


class SocketPool:
    """``address``: ``unix:/path``."""

    def __init__(self, address: str) -> None:
        self._address = address

    async def exchange(self, member: str, reports: Sequence[Report]) -> Answer:
        told = encode_exchange(member, tuple(reports))
        try:
            reply = await fetch(self._address, "POST", PATH, told, timeout_s=CALL_S)
            if reply.status != 200:
                raise StoreFaultError(f"{self._address}: {reply.body[:200].decode(errors='replace')}")
            return decode_answer(reply.body, len(reports))
        except (FetchError, CodecError) as error:
            raise StoreFaultError(f"{self._address}: {error}") from error

    async def close(self) -> None:
        """Nothing stays open between calls."""

    def __repr__(self) -> str:
        return f"<SocketPool {self._address}>"
