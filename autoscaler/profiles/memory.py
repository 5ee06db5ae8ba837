"""What the policy of a function has learnt, as it is kept over a restart and passed to its next revision.

It is for one policy and one model: another model has other service times, and what was learnt is measured in them. The
content of model files is not looked at.
"""

import hashlib
import zlib
from dataclasses import dataclass, replace
from typing import Any

from tidegate.function import Function
from tidegate.records.codec import CodecError, decode, encode


@dataclass(frozen=True, slots=True, kw_only=True)
class LearntMemory:
    """One record in the store."""

    function: str
    policy: str
    model: str
    at: float
    """When it was taken, Unix seconds."""
    state: bytes
    """Plain data (``tidegate.autoscaler.policies.policy_state``) as JSON, compressed by zlib."""


def model_of(function: Function) -> str:
    """Returns a digest of everything that the work of a request depends on, as far as it is declared."""
    return digest(work_of(function))


def work_of(function: Function) -> tuple[object, ...]:
    """Returns what :func:`model_of` is a digest of."""
    return (
        replace(function.server, copy=None),
        function.batching,
        function.resources,
        function.gpu,
        function.dnn,
        function.env,
        function.python,
        function.concurrency_unit,
    )


def digest(parts: tuple[object, ...]) -> str:
    """Returns 16 hexadecimal digits by which these values are known."""
    return hashlib.sha256(encode(parts)).hexdigest()[:16]


def packed(function: Function, state: Any, at: float) -> LearntMemory:
    """Returns the record of ``state``, plain data, as it was at ``at``."""
    return LearntMemory(
        function=function.name,
        policy=function.scaling.policy,
        model=model_of(function),
        at=at,
        state=zlib.compress(encode(state)),
    )


def unpacked(memory: LearntMemory, function: Function) -> Any | None:
    """Returns the plain data if it is of the function's policy and model, else None. Raises CodecError if it cannot be
    read."""
    if (memory.policy, memory.model) != (function.scaling.policy, model_of(function)):
        return None
    try:
        return decode(zlib.decompress(memory.state), object)
    except zlib.error as error:
        raise CodecError(str(error)) from error
