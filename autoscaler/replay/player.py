"""Replays a recording under the clock that it carries: with the policy that was recorded, or with another one.

Observations stay as recorded: nothing here answers a decision, neither with replicas nor with latencies. So another
policy sees the consequences of the recorded one. Its decision *at each of these moments* is shown beside the recorded
one.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from tidegate.autoscaler.decider import Decider
from tidegate.autoscaler.policies.policy_state import OtherVersionError, StateError
from tidegate.autoscaler.replay.recording import Header, Line, Step
from tidegate.errors import Fault, InvalidInputError
from tidegate.function import Function, Revision
from tidegate.records.codec import encode
from tidegate.records.decision import Decision


@dataclass(frozen=True, slots=True)
class Difference:
    """The place at which a replay departs from its recording."""

    line: int
    at: float
    where: str
    """Path in the decision."""
    recorded: object
    replayed: object


@dataclass(frozen=True, slots=True)
class Moment:
    """One step with the decision of the replay; the recorded decision is in the step."""

    step: Step
    replayed: Decision
    is_missed: bool | None
    """True if the observation misses the SLA; None if there is no SLA or no latency."""


@dataclass(frozen=True, slots=True)
class Played:
    function: Function
    """The function that the replay decided with."""
    revision: str
    moments: tuple[Moment, ...]
    compared: int
    """Number of recorded decisions that the replay's were compared with."""
    difference: Difference | None
    """The first difference; None if there is none, or nothing was compared."""
    left_out: int = 0
    """Steps without a state to continue from: a part before them is missing, or of another version of this program."""


def again(lines: Sequence[tuple[int, Line]]) -> Played:
    """Replays with the recorded policy, from its recorded state at the headers that have one; compares every decision.
    If a part is missing, or is of another version of this program, its steps and those up to the next such header are
    left out."""
    decider, revision, moments = Decider(), None, list[Moment]()
    compared, difference, left_out = 0, None, 0
    unlike: InvalidInputError | None = None
    before: Header | None = None
    is_known = False
    if all(line.state is None for _, line in lines if isinstance(line, Header)):
        fault = Fault("state", "none", "a header that says what the policy remembered")
        raise InvalidInputError("recording", [fault])
    for number, line in lines:
        if isinstance(line, Header):
            revision = line.deployed
            is_known = line.state is not None or (is_known and before is not None and line.part == before.part + 1)
            before = line
            if line.state is not None and (refused := _restore(decider, line, number)) is not None:
                is_known, unlike = False, unlike or refused
            continue
        assert revision is not None
        if not is_known:
            left_out += 1
            continue
        replayed = _decide(decider, line, number)
        moments.append(Moment(line, replayed, is_missed(line, revision.function)))
        if line.decision is not None:
            compared += 1
            if difference is None:
                difference = _difference(number, line.decision, replayed)
    assert revision is not None
    if unlike is not None and not moments:
        raise unlike
    return Played(revision.function, revision.id, tuple(moments), compared, difference, left_out)


def instead(lines: Sequence[tuple[int, Line]], function: Function) -> Played:
    """Replays with ``function`` (another policy, other parameters), from the initial state that it would have had."""
    decider, revision, moments = Decider(), None, list[Moment]()
    begins: Header | None = None
    for number, line in lines:
        if isinstance(line, Header):
            if revision is None or line.part <= 1:
                begins, revision = line, Revision(function, line.revision)
            continue
        assert revision is not None
        if begins is not None:
            is_fresh = isinstance(begins.state, dict) and bool(begins.state.get("is_initial"))
            decider.forget(revision.id)
            decider.apply(revision, line.observation.at, fresh=is_fresh, ready=line.observation.ready)
            begins = None
        replayed = _decide(decider, line, number)
        moments.append(Moment(line, replayed, is_missed(line, function)))
    assert revision is not None
    return Played(function, revision.id, tuple(moments), 0, None)


def is_missed(step: Step, function: Function) -> bool | None:
    """Returns whether the SLA was missed in the window of the observation."""
    limit_s, seen = function.sla.latency_s, step.observation
    if limit_s is None or seen.latency_s is None:
        return None
    return seen.latency_s > limit_s


def _restore(decider: Decider, line: Header, number: int) -> InvalidInputError | None:
    """Continues from the state of a header. Returns the fault if the state is of another version. Raises
    InvalidInputError if it is no state."""
    allowed = "what the policy remembered, as this version of the program writes it; with --policy or --set any will do"
    try:
        decider.restore(line.deployed, line.state)
    except StateError as error:
        fault = InvalidInputError("recording", [Fault("state", str(error), allowed, number)])
        if isinstance(error, OtherVersionError):
            return fault
        raise fault from error
    return None


def _decide(decider: Decider, step: Step, number: int) -> Decision:
    seen = step.observation
    if decider.revision(seen.revision) is None:
        known = ", ".join(each.id for each in decider.revisions)
        raise InvalidInputError("recording", [Fault("observation.revision", seen.revision, known, number)])
    try:
        if step.activation is not None:
            return decider.activate(step.activation, seen.at, seen)
        return decider.tick(seen.at, seen)
    except (TypeError, AttributeError) as error:
        # Valid figures never get here (a test sends all sorts): a state was written by hand.
        fault = Fault("state", f"{type(error).__name__}: {error}", "what the policy remembered", number)
        raise InvalidInputError("recording", [fault]) from error


def _difference(number: int, recorded: Decision, replayed: Decision) -> Difference | None:
    one, other = encode(recorded), encode(replayed)
    if one == other:
        return None
    where, left, right = _first_difference(msgspec.json.decode(one), msgspec.json.decode(other), "")
    return Difference(number, recorded.at, where, left, right)


def _first_difference(one: Any, other: Any, path: str) -> tuple[str, Any, Any]:
    """Returns the first place, in the order of the fields, at which two plain values differ."""
    pairs: Iterable[tuple[str, Any, Any]] = ()
    if isinstance(one, dict) and isinstance(other, dict):
        names = [*one, *(name for name in other if name not in one)]
        pairs = ((f"{path}.{name}" if path else name, one.get(name), other.get(name)) for name in names)
    elif isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        pairs = ((f"{path}[{index}]", *both) for index, both in enumerate(zip(one, other, strict=True)))
    for name, left, right in pairs:
        if encode(left) != encode(right):
            return _first_difference(left, right, name)
    return path or "decision", one, other
