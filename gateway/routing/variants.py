"""Requests that another variant of their model serves (``tidegate.activator.variants``), and what changes of them.

They become requests of that function: its revision, its counters, its model's name in the path. Their answers name it.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final
from urllib.parse import quote, unquote_to_bytes

from tidegate.activator.room import WaitingRoom
from tidegate.activator.variants import FamilyMember, VariantChoice, stand_ins
from tidegate.function import Protocol
from tidegate.gateway.counting.counters import Report, RevisionCounters
from tidegate.gateway.routing.function import FunctionRouter
from tidegate.gateway.routing.request_state import RequestState
from tidegate.wire.message_heads import AnyRequestHead

if TYPE_CHECKING:
    from tidegate.aio.proxy.exchange import Exchange

_MODEL_PATHS: Final = (b"/v2/models/", b"/v1/models/")
_MODEL_ENDS: Final = (b"/", b":")
_SERVER_PATHS: Final = (b"/v2/", b"/v1/")
_INFERENCES: Final = (b"/infer", b"/infer_stream", b"/generate", b"/generate_stream", b":predict", b":explain")
"""How paths of requests end that any variant answers."""


def link_variants(routers: Mapping[str, FunctionRouter]) -> None:
    """Gives each router of a table those that may serve its requests."""
    members = [
        FamilyMember(router.name, router.route.variant, (router.route.protocol, router.access))
        for router in routers.values()
        if router.route.variant is not None
    ]
    for name, others in stand_ins(members).items():
        routers[name].stand_ins(tuple(routers[other] for other in others))


class VariantSwitch:
    """Moves requests of one worker to other variants."""

    __slots__ = ("_choice", "_open_circuits", "_report")

    def __init__(self, room: WaitingRoom, report: Report, open_circuits: Mapping[str, object]) -> None:
        """``open_circuits``: has the revisions of which everything fails."""
        self._choice = VariantChoice(room)
        self._open_circuits = open_circuits
        self._report = report

    def choose(
        self, ex: "Exchange", state: RequestState, router: FunctionRouter, counters: RevisionCounters, now: float
    ) -> tuple[FunctionRouter, RevisionCounters]:
        """Returns the function and the revision that serve a request: those that it is for, or those of another
        variant."""
        if ex.is_rpc or ex.head.upgrade is not None or not self._choice.is_needed(counters.revision, ex.inferences):
            return router, counters
        strip = state.target.strip
        others: dict[str, tuple[FunctionRouter, RevisionCounters, bytes]] = {}
        for other in router.variants:
            target = target_for(ex.head, strip, router, other) if ex.inferences <= other.max_batch else None
            found = None if target is None else other.counters or other.draw_counters(self._report)
            if target is not None and found is not None and found.revision not in self._open_circuits:
                others[found.revision] = (other, found, target)
        chosen = self._choice.choose(router.name, counters.revision, tuple(others), ex.inferences, now)
        if chosen is None:
            return router, counters
        counters.switched += 1
        other, other_counters, target = others[chosen]
        state.target = state.target.of_variant(other, None if target == ex.head.target[strip:] else target)
        state.counters = other_counters
        return other, other_counters

    def forget_except(self, revisions: frozenset[str]) -> None:
        """Drops what is kept of revisions that have left the route table."""
        self._choice.forget_except(revisions)

    def __repr__(self) -> str:
        return f"<VariantSwitch {self._choice!r}>"


def target_for(head: AnyRequestHead, strip: int, wanted: FunctionRouter, other: FunctionRouter) -> bytes | None:
    """Returns the request target for the other variant's model server, where its own model has the place of the wanted
    one. None if that cannot serve the request: V2 and V1 calls that are no inference, such as metadata, are about the
    wanted model itself, and a model that the wanted function does not declare is its server's alone."""
    target = head.target[strip:]
    if wanted.route.protocol != Protocol.V2:
        return target
    path = target.partition(b"?")[0]
    prefix = next((each for each in _MODEL_PATHS if path.startswith(each)), None)
    if prefix is None:
        is_about_server = path.startswith(_SERVER_PATHS) or path == b"/v2"
        return None if head.method in (b"GET", b"HEAD") or is_about_server else target
    if not path.endswith(_INFERENCES):
        return None
    end = min(at for mark in _MODEL_ENDS if (at := path.find(mark, len(prefix))) >= 0)
    name = unquote_to_bytes(path[len(prefix) : end]).decode("utf-8", "replace")
    own, others = wanted.route.models or (wanted.name,), other.route.models or (other.name,)
    if name not in own:
        return None
    if name in others:
        return target
    return prefix + quote(others[0], safe="").encode() + target[end:] if len(own) == len(others) == 1 else None
