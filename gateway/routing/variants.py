"""Requests that another variant of their model serves (``tidegate.activator.variants``), and what changes of them.

They become requests of that function: its revision, its counters, its model's name in the path. Their answers name it.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final
from urllib.parse import quote, unquote_to_bytes

from tidegate.activator.room import WaitingRoom
from tidegate.activator.variants import FamilyMember, VariantChoice, stand_ins
from tidegate.gateway.counting.counters import Report, RevisionCounters
from tidegate.gateway.routing.function import FunctionRouter
from tidegate.gateway.routing.request_state import RequestState

if TYPE_CHECKING:
    from tidegate.aio.proxy.exchange import Exchange

_MODEL_PATHS: Final = (b"/v2/models/", b"/v1/models/")
_MODEL_ENDS: Final = (b"/", b":", b"?")


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

    __slots__ = ("_choice", "_report")

    def __init__(self, room: WaitingRoom, report: Report) -> None:
        self._choice = VariantChoice(room)
        self._report = report

    def choose(
        self, ex: "Exchange", state: RequestState, router: FunctionRouter, counters: RevisionCounters, now: float
    ) -> tuple[FunctionRouter, RevisionCounters]:
        """Returns the function and the revision that serve a request: those that it is for, or those of another
        variant."""
        if ex.is_rpc or ex.head.upgrade is not None or not self._choice.is_needed(counters.revision, ex.inferences):
            return router, counters
        others: dict[str, tuple[FunctionRouter, RevisionCounters]] = {}
        for other in router.variants:
            found = other.counters or other.draw_counters(self._report)
            if found is not None:
                others[found.revision] = (other, found)
        chosen = self._choice.choose(router.name, counters.revision, tuple(others), ex.inferences, now)
        if chosen is None:
            return router, counters
        counters.switched += 1
        other, other_counters = others[chosen]
        state.target = state.target.of_variant(other, renamed(ex.head.target, state.target.strip, router, other))
        state.counters = other_counters
        return other, other_counters

    def forget_except(self, revisions: frozenset[str]) -> None:
        """Drops what is kept of revisions that have left the route table."""
        self._choice.forget_except(revisions)

    def __repr__(self) -> str:
        return f"<VariantSwitch {self._choice!r}>"


def renamed(target: bytes, strip: int, wanted: FunctionRouter, other: FunctionRouter) -> bytes | None:
    """Returns the request target for the other variant's model server, where it names the wanted one's model; else
    None."""
    path = target[strip:]
    for prefix in _MODEL_PATHS:
        if path.startswith(prefix):
            end = min((at for mark in _MODEL_ENDS if (at := path.find(mark, len(prefix))) >= 0), default=len(path))
            name = unquote_to_bytes(path[len(prefix) : end]).decode("utf-8", "replace")
            if name in (wanted.route.models or (wanted.name,)):
                model = (other.route.models or (other.name,))[0]
                return prefix + quote(model, safe="").encode() + path[end:]
    return None
