"""FunctionRouter: the facts that the request path needs of one function, prepared once per route table.

FunctionMemory has the facts that are kept across tables.
"""

from bisect import bisect_right
from dataclasses import replace
from itertools import accumulate
from typing import Final

from tidegate.flow.lateness import Lateness
from tidegate.flow.retry_budget import RetryBudget
from tidegate.flow.wants import ORIENTED
from tidegate.function import Protocol
from tidegate.gateway.counting.counters import Report, RevisionCounters
from tidegate.gateway.counting.tokens import FunctionTokens
from tidegate.gateway.routing.affinity import FROM_BODY, READ_BYTES, hash_key
from tidegate.gateway.routing.grpc_methods import UNREAD
from tidegate.headers import INTERNAL_PREFIX
from tidegate.records.pipeline import PipelineRoute
from tidegate.records.route_table import FunctionRoute, Spread
from tidegate.wire.bodies.charged import LaterShapes, charged_batch, unpacked
from tidegate.wire.bodies.v2 import JSON_LENGTH, SEARCHED_BYTES, batch_size, positive, shape_batch, stated_batch
from tidegate.wire.message_heads import AnyRequestHead

KEPT_LINES: Final = 64
"""Header lines are kept ready for this many batch sizes of a function."""
REVISION_STEP: Final = 0.6180339887498949
SHADOW_STEP: Final = 0.4142135623730951
"""The fractions of the golden ratio and of the root of two. Multiples of an irrational number, modulo 1, fill every
share of [0, 1) evenly (Weyl), also those of every second or third request. Multiples of two independent ones fill all
pairs of shares evenly as well."""


class FunctionMemory:
    """The state of a function that a worker keeps while its route changes."""

    __slots__ = ("budget", "draw", "lateness", "shadow_draw", "tokens")

    def __init__(self, now: float, draw: float = 0.0) -> None:
        """``draw``, in [0, 1): where the sampling of revisions begins, so that workers do not go in step."""
        self.budget = RetryBudget(now)
        self.lateness: Lateness[object] = Lateness()
        self.draw = self.shadow_draw = draw
        self.tokens = FunctionTokens()


class FunctionRouter:
    """One function, or one tag of it, as the request path uses it."""

    __slots__ = (
        "_bounds",
        "_lines",
        "_memory",
        "_revisions",
        "_searched",
        "_shadow_bounds",
        "_shadows",
        "_speaks_v2",
        "_token_line",
        "access",
        "batch_header",
        "budget",
        "buffers_requests",
        "class_offset",
        "counters",
        "has_shadows",
        "hash_key",
        "header_is_ours",
        "idempotent",
        "is_followed",
        "is_grpc",
        "is_plain",
        "is_tag",
        "latency_s",
        "lateness",
        "max_batch",
        "name",
        "payload",
        "per_token_s",
        "pipelines",
        "priority",
        "route",
        "stages",
        "tagged",
        "timeout_s",
        "tokens",
        "variants",
    )

    def __init__(
        self,
        route: FunctionRoute,
        memory: FunctionMemory,
        token_line: bytes = b"",
        tagged: "dict[bytes, FunctionRouter] | None" = None,
    ) -> None:
        """``token_line``: header line by which a queue_proxy knows this deployment's gateways. ``tagged``: the routers
        of all tags; given for the router of a tag."""
        self.route = route
        self.name = route.name
        self.timeout_s = route.timeout_s
        self.latency_s = route.latency_s
        self.per_token_s = route.per_token_s
        self.max_batch = route.max_batch
        self.class_offset = ORIENTED if route.is_throughput_oriented else 0
        """Added to the priority of its requests by its task class."""
        self.priority = route.priority + self.class_offset
        self.access = route.access
        """The access rule; None if any client may call the function."""
        self.idempotent = route.idempotent
        self.buffers_requests = route.request_buffering
        """A request gets a slot when its body is there; else with its first bytes."""
        self.budget = memory.budget
        self.lateness = memory.lateness if route.idempotent and route.hedging is not None else None
        """Set if late requests get a hedge."""
        if route.hedging is not None:
            memory.lateness.follow(route.hedging)
        self.tokens = memory.tokens if route.protocol == Protocol.OPENAI else None
        """Set if the tokens of requests are counted."""
        self.hash_key = hash_key(route.hash_on, len(route.models)) if route.spread is Spread.HASH else None
        """Returns the affinity key of a request; None if the function has no affinity."""
        self._searched = READ_BYTES if self.hash_key is not None and route.hash_on in FROM_BODY else 0
        """Bytes of a body that the choice of a replica depends on."""
        self.counters: RevisionCounters | None = None
        """Counters of the revision, once it has them, if only one revision takes traffic."""
        self._token_line = token_line
        self._memory = memory
        self._lines: dict[int, bytes] = {}
        self.batch_header = route.batch_header.lower().encode()
        self.header_is_ours = self.batch_header.startswith(INTERNAL_PREFIX)
        """A plain head does not have the batch header."""
        self._speaks_v2 = route.protocol == Protocol.V2
        serving = [revision for revision in route.revisions if revision.percent > 0.0]
        self._revisions = tuple(revision.id for revision in serving)
        self._bounds = tuple(accumulate(revision.percent for revision in serving))
        shadows = [revision for revision in route.revisions if revision.shadow_percent > 0.0]
        self._shadows = tuple(revision.id for revision in shadows)
        self.has_shadows = bool(shadows)
        """Some requests are copied to another revision."""
        self._shadow_bounds = tuple(accumulate(revision.shadow_percent for revision in shadows))
        self.is_grpc = route.protocol == Protocol.GRPC
        """Its server speaks gRPC and may speak nothing else."""
        found = {revision.id: revision.pipeline for revision in route.revisions if revision.pipeline is not None}
        self.pipelines: dict[str, PipelineRoute] | None = found or None
        """The stages by revision; None unless it is a pipeline."""
        self.stages: tuple[FunctionRouter, ...] = ()
        """The routers of a pipeline's stages, once all of the table's are there."""
        self.variants: tuple[FunctionRouter, ...] = ()
        """The functions that may serve its requests while no slot of its own is free, in the order in which they are
        tried."""
        self.is_plain = (
            self.access is None and self.tokens is None and self.hash_key is None and not self.is_grpc and not found
        )
        """No access rule, token counting, affinity, gRPC, stages or variants: only the batch size of a request is
        read."""
        self.payload = route.payload
        """Which of its payloads are sampled; None if none is."""
        self.is_followed = self.lateness is not None or bool(shadows) or route.payload is not None
        """A request may get a hedge or a shadow after it was sent, or its payloads are sampled."""
        self.is_tag = tagged is not None
        """It stands for one tag of the function: its requests are for one revision only."""
        self.tagged: dict[bytes, FunctionRouter] = (
            tagged if tagged is not None else self._tag_routers(memory, token_line)
        )
        """The routers of the function's tags."""

    def _tag_routers(self, memory: FunctionMemory, token_line: bytes) -> "dict[bytes, FunctionRouter]":
        routers: dict[bytes, FunctionRouter] = {}
        for revision in self.route.revisions:
            route = replace(self.route, revisions=(replace(revision, percent=100.0, shadow_percent=0.0),))
            for tag in revision.tags:
                routers[tag.lower().encode("latin-1")] = FunctionRouter(route, memory, token_line, routers)
        return routers

    def stand_ins(self, variants: "tuple[FunctionRouter, ...]") -> None:
        """Sets the functions that may serve its requests while no slot of its own is free. Not for its tags, whose
        requests are for one revision."""
        self.variants = variants
        self.is_plain = False

    def draw_counters(self, report: Report) -> RevisionCounters | None:
        """Returns the counters of the revision that the next request goes to; None if no revision takes traffic."""
        revision = self.revision()
        if revision is None:
            return None
        counters = report.revision(self.name, revision)
        if len(self._revisions) == 1:
            self.counters = counters
        return counters

    def revision(self) -> str | None:
        """Returns the revision that the next request goes to, by the revisions' percent; None if no revision takes
        traffic.

        The shares are exact within one or two requests over any few hundred.
        """
        revisions = self._revisions
        if not revisions:
            return None
        memory = self._memory
        memory.draw = draw = (memory.draw + REVISION_STEP) % 1.0
        return revisions[min(bisect_right(self._bounds, draw * self._bounds[-1]), len(revisions) - 1)]

    def shadow(self) -> str | None:
        """Returns the revision that gets a copy of the next request; None if none does."""
        memory = self._memory
        memory.shadow_draw = draw = (memory.shadow_draw + SHADOW_STEP) % 1.0
        at = bisect_right(self._shadow_bounds, draw * 100.0)
        return self._shadows[at] if at < len(self._shadows) else None

    def lines(self, inferences: int) -> bytes:
        """Returns the header lines to a replica for a request with all of the function's timeout left."""
        lines = self._lines.get(inferences)
        if lines is None:
            lines = self.lines_with(inferences, self.timeout_s)
            if len(self._lines) < KEPT_LINES:
                self._lines[inferences] = lines
        return lines

    def lines_with(self, inferences: int, remaining_s: float) -> bytes:
        """Returns the header lines for a request with this much time left."""
        return b"%btidegate-timeout-ms: %d\r\ntidegate-batch-size: %d\r\n" % (
            self._token_line,
            max(1, int(remaining_s * 1000.0)),
            inferences,
        )

    def inferences(self, head: AnyRequestHead, body: bytes, is_whole: bool = True) -> int:
        """Returns how many inferences a request carries; 0 if it states more than the function's ``max-batch``.

        A size that it states itself (header, else V2 shape) counts as it is; an estimate from its length is at most
        ``max-batch``. Where callers are charged the larger of header and shape counts; UNREAD is returned there if a
        content-encoding hides the shape. ``is_whole``: ``body`` is all of the body.
        """
        if not self._speaks_v2:
            body = b""
        if self.access is not None and body:
            coding = head.get(b"content-encoding")
            if coding is not None:
                text = unpacked(body, coding) if is_whole else None
                if text is None:
                    return UNREAD
                body = text
            stated = charged_batch(head, body, self.batch_header, is_whole=is_whole)
        elif head.plain and self.header_is_ours:
            stated = shape_batch(body) if body else 0
        else:
            stated = stated_batch(head, body, self.batch_header)
        if stated:
            return stated if stated <= self.max_batch else 0
        route = self.route
        if route.bytes_per_item is None:
            return 1
        return batch_size(
            head,
            b"",
            header=self.batch_header,
            bytes_per_item=route.bytes_per_item,
            overhead_bytes=route.overhead_bytes,
            max_batch=route.max_batch,
        )

    def later_shapes(self, head: AnyRequestHead, body: bytes) -> LaterShapes | None:
        """Returns the search for shapes in the rest of a body that begins with ``body``; None if nothing there counts.

        Asked only where callers are charged.
        """
        if not self._speaks_v2:
            return None
        given = head.get(JSON_LENGTH)
        return LaterShapes(body, None if given is None else positive(given))

    def tells_size_in_body(self, head: AnyRequestHead, body: bytes) -> bool:
        """Returns whether body bytes still to come may matter: V2 without a stated batch, or the beginning of a prompt.

        Only functions without buffering go by it (``body_gate.py``).
        """
        if not (head.chunked or head.content_length):
            return False
        if len(body) < self._searched:
            return True
        if not self._speaks_v2 or len(body) >= SEARCHED_BYTES:
            return False
        return self.access is not None or not stated_batch(head, body, self.batch_header)

    @property
    def failure(self) -> str | None:
        """The reason for which nothing of the function can be served now; None if something can, or may soon."""
        serving = [revision for revision in self.route.revisions if revision.percent > 0.0]
        failures = [revision.failure for revision in serving if revision.failure is not None]
        if serving and len(failures) == len(serving):
            return failures[0]
        broken = next((stage.name for stage in self.stages if stage.failure is not None), None)
        return None if broken is None else f"its stage {broken} cannot be served now"

    def __repr__(self) -> str:
        return f"<FunctionRouter {self.name}, revisions {', '.join(self._revisions) or 'none'}>"
