"""Pipelines: the stages that a request runs through, each a function of its own."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

REQUEST: Final = "request"
"""Stands for the client's request where a stage names what its inputs come from."""
CHAIN: Final = ("",)
"""``Stage.after`` of a stage that follows the one before it in the manifest."""


class Comparison(StrEnum):
    """How a condition compares a value."""

    IS = "is"
    NOT = "not"
    ABOVE = "above"
    BELOW = "below"


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """A stage runs only if this holds of the answers before it."""

    field: str
    """V2: the name of an output, whose first value counts. Else the path of a value in a JSON object (``a.b.0``)."""
    test: Comparison
    values: tuple[str, ...]
    """For *is* and *not*: texts, of which one must match. For *above* and *below*: one number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """One stage of a pipeline."""

    function: str
    path: str | None = None
    """Target of its requests. None: of a V2 function the inference of its first model, else ``/``."""
    inputs: tuple[tuple[str, str], ...] = ()
    """Pairs of an input and the output that fills it, ``OUTPUT``, ``STAGE.OUTPUT`` or ``request.INPUT``. Empty: each
    output of the stages before fills the input of its own name. Between V2 functions only."""
    after: tuple[str, ...] = CHAIN
    """Functions of the stages whose answers it gets; empty: the client's request. :data:`CHAIN`: the stage before."""
    when: Condition | None = None
    profile: str | None = None
    """Latency by batch and cores, for the policies that decide over all stages at once; None: measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineRoute:
    """The stages of one revision of a pipeline, each behind those whose answers it gets."""

    stages: tuple[Stage, ...]
    body_bytes: int
    """Maximum bytes of a request's body, and of an answer that becomes the next stage's request."""


def before(stages: Sequence[Stage]) -> tuple[tuple[int, ...], ...]:
    """Returns for each stage the indices of those whose answers it gets. Raises KeyError for an unknown name."""
    at = {stage.function: index for index, stage in enumerate(stages)}
    return tuple(
        ((index - 1,) if index else ()) if stage.after == CHAIN else tuple(at[name] for name in stage.after)
        for index, stage in enumerate(stages)
    )


def ancestors(stages: Sequence[Stage], at: int) -> frozenset[int]:
    """Returns the indices of all stages that come before one, each behind those whose answers it gets."""
    waits, found = before(stages), set[int]()
    rest = list(waits[at])
    while rest:
        each = rest.pop()
        if each not in found:
            found.add(each)
            rest += waits[each]
    return frozenset(found)


def is_chain(stages: Sequence[Stage]) -> bool:
    """Returns whether each stage follows the one before it, whatever the answers are."""
    chain = tuple((at - 1,) if at else () for at in range(len(stages)))
    return before(stages) == chain and all(each.when is None for each in stages)


def in_order(stages: Sequence[Stage]) -> tuple[Stage, ...]:
    """Returns the stages so that each follows those whose answers it gets, otherwise in their order. Raises ValueError
    with the names of those on a cycle, KeyError for an unknown name."""
    waits = before(stages)
    done: list[int] = []
    while len(done) < len(stages):
        free = [at for at in range(len(stages)) if at not in done and all(each in done for each in waits[at])]
        if not free:
            raise ValueError(", ".join(stages[at].function for at in range(len(stages)) if at not in done))
        done.append(free[0])
    if done == list(range(len(stages))):
        return tuple(stages)
    named = {at: tuple(stages[each].function for each in waits[at]) for at in done}
    return tuple(replace(stages[at], after=named[at]) for at in done)
