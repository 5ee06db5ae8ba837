"""What the request path needs of one function, prepared once per route table."""

from bisect import bisect_right
from itertools import accumulate

from tidegate.function import Protocol
from tidegate.records import FunctionRoute
from tidegate.wire.head import RequestHead
from tidegate.wire.v2 import SEARCHED_BYTES, batch_size, stated_batch


class Front:
    """One function as the front door sees it."""

    __slots__ = ("_batch_header", "_bounds", "_revisions", "_speaks_v2", "latency_s", "name", "route", "timeout_s")

    def __init__(self, route: FunctionRoute) -> None:
        self.route = route
        self.name = route.name
        self.timeout_s = route.timeout_s
        self.latency_s = route.latency_s
        self._batch_header = route.batch_header.lower().encode()
        self._speaks_v2 = route.protocol == Protocol.V2
        serving = [revision for revision in route.revisions if revision.percent > 0.0]
        self._revisions = tuple(revision.id for revision in serving)
        self._bounds = tuple(accumulate(revision.percent for revision in serving))

    def revision(self, draw: float) -> str | None:
        """The revision that a draw in [0, 1) falls to, by the revisions' percent; None: none takes traffic."""
        revisions = self._revisions
        if len(revisions) == 1:
            return revisions[0]
        if not revisions:
            return None
        return revisions[min(bisect_right(self._bounds, draw * self._bounds[-1]), len(revisions) - 1)]

    def inferences(self, head: RequestHead, body: bytes) -> int:
        """How many inferences a request carries; 0: it states more than the function's ``max-batch``.

        What it states itself (header, V2 shape) counts as it is; an estimate from its length is at most ``max-batch``.
        """
        route = self.route
        if not self._speaks_v2:
            body = b""
        if stated := stated_batch(head, body, self._batch_header):
            return stated if stated <= route.max_batch else 0
        return batch_size(
            head,
            b"",
            header=self._batch_header,
            bytes_per_item=route.bytes_per_item,
            overhead_bytes=route.overhead_bytes,
            max_batch=route.max_batch,
        )

    def tells_size_in_body(self, head: RequestHead, body: bytes) -> bool:
        """Whether body bytes still to come may tell more than those that are there: V2 without a stated batch."""
        return (
            self._speaks_v2
            and len(body) < SEARCHED_BYTES
            and (head.chunked or bool(head.content_length))
            and not head.expect_continue
            and not stated_batch(head, body, self._batch_header)
        )

    @property
    def failure(self) -> str | None:
        """Why nothing of the function can be served now; None: something can, or may soon."""
        serving = [revision for revision in self.route.revisions if revision.percent > 0.0]
        failures = [revision.failure for revision in serving if revision.failure is not None]
        return failures[0] if serving and len(failures) == len(serving) else None

    def __repr__(self) -> str:
        return f"<Front {self.name}, revisions {', '.join(self._revisions) or 'none'}>"
