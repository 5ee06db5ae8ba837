"""The format of a recording: JSON lines, a header and then one line for each decision.

A *header* describes what decides (the function as deployed, without environment, secrets and arguments; its revision)
and its state at that moment, as plain data (``tidegate.autoscaler.policies.policy_state``). Each *step* that follows
has the observation, the activation if one was answered, and the decision. Headers follow each other in numbered parts,
and every few of them have the state. So a recording that has lost its beginning, or a part in the middle, replays bit
for bit from the next such header on.
"""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from tidegate.autoscaler.measure.observation import Observation
from tidegate.autoscaler.policies.policy_state import Plain
from tidegate.errors import Fault
from tidegate.function import Function, Revision
from tidegate.records.codec import CodecError, decode, encode
from tidegate.records.decision import Decision
from tidegate.records.gateway_sample import Activation

FORMAT = "tidegate-recording"
VERSION = 1
MAX_FAULTS = 100
"""Faults of one file that are listed; a file of another kind has one in each line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    format: str = FORMAT
    version: int = VERSION
    function: Function
    revision: int
    part: int = 0
    """Counts up from 1, where control of the revision began, new or after a restart of the control process."""
    at: float
    state: Plain = None
    """State of decider and policy before the next step; None if it is the one after the part before."""

    @property
    def deployed(self) -> Revision:
        return Revision(self.function, self.revision)


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One decision at ``observation.at``. ``decision`` is None in a trace of observations alone."""

    observation: Observation
    activation: Activation | None = None
    decision: Decision | None = None


Line = Header | Step


def header(revision: Revision, at: float, state: Plain) -> Header:
    """Returns the first header of a recording. Environment, secrets and arguments are left out: no policy reads them,
    and recordings are shown to other people."""
    function = revision.function
    function = replace(function, env={}, secrets={}, server=replace(function.server, argv=()))
    return Header(function=function, revision=revision.number, at=at, state=state)


def to_line(line: Line) -> bytes:
    return encode(line) + b"\n"


def read(lines: Iterable[str], faults: list[Fault]) -> Iterator[tuple[int, Line]]:
    """Yields (line number, header or step) of every readable line. Unreadable ones are added to ``faults``; with any
    fault nothing of the recording is to be used."""
    has_header, last = False, -math.inf
    for number, text in enumerate(lines, 1):
        if not text.strip():
            continue
        line = _line(text, number, faults)
        if isinstance(line, Step):
            at = line.observation.at
            if not has_header:
                _fault(faults, "line", text[:40], "a header before the first step", number)
            elif at < last:
                _fault(faults, "observation.at", repr(at), f"not before the step above, at {last}", number)
            last = max(last, at)
        elif line is not None:
            has_header = True
            if line.part <= 1:  # control begins here: the wall clock may have been set back meanwhile
                last = -math.inf
        if len(faults) > MAX_FAULTS:
            return
        if line is not None:
            yield number, line
    if not has_header:
        _fault(faults, "file", "no header", f'a first line {{"format": "{FORMAT}", ...}}', None)


def _line(text: str, number: int, faults: list[Fault]) -> Line | None:
    try:
        keys = msgspec.json.decode(text, type=dict[str, msgspec.Raw])
        if "observation" in keys:
            return decode(text, Step)
        fields: dict[str, Any] = decode(text, dict[str, Any])
        if fields.get("format") != FORMAT:
            _fault(faults, "format", repr(fields.get("format")), FORMAT, number)
            return None
        if fields.get("version") != VERSION:
            _fault(faults, "version", repr(fields.get("version")), f"{VERSION}, the version of this program", number)
            return None
        return decode(text, Header)
    except (CodecError, msgspec.DecodeError, msgspec.ValidationError) as error:
        _fault(faults, "line", text[:40].strip(), f"a header or a step ({error})", number)
        return None


def _fault(faults: list[Fault], where: str, value: str, allowed: str, line: int | None) -> None:
    if len(faults) < MAX_FAULTS:
        faults.append(Fault(where, value, allowed, line))
    elif len(faults) == MAX_FAULTS:
        faults.append(Fault("file", "more faults", f"the first {MAX_FAULTS} are listed"))
