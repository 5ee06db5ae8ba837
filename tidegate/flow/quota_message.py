"""The exchange between a gateway's quotas and their pool as bytes, for pools in another process.

A window without end is ``null``: JSON has no infinity.
"""

import math
from dataclasses import dataclass

from tidegate.flow.quota import LEAVE_S, Budget, QuotaAnswer, QuotaGrant, QuotaReport
from tidegate.records.codec import CodecError, decode, encode

MEMBER_LENGTH = 128


@dataclass(frozen=True, slots=True)
class _Report:
    key: str
    amount: int
    window_s: float | None
    window: int
    used: int
    want: int
    leave_s: float = LEAVE_S


@dataclass(frozen=True, slots=True)
class _Exchange:
    member: str
    reports: tuple[_Report, ...]


@dataclass(frozen=True, slots=True)
class _Answer:
    grants: tuple[tuple[int, int, int], ...]
    time_s: float
    members: int
    is_part: bool = False
    is_new: bool = False


def encode_exchange(member: str, reports: tuple[QuotaReport, ...]) -> bytes:
    """Returns a gateway's reports as bytes."""
    reported = (
        _Report(
            each.budget.key,
            each.budget.amount,
            None if each.budget.is_bound else each.budget.window_s,
            each.window,
            each.used,
            each.want,
            each.budget.leave_s,
        )
        for each in reports
    )
    return encode(_Exchange(member, tuple(reported)))


def decode_exchange(data: bytes) -> tuple[str, tuple[QuotaReport, ...]]:
    """Returns the gateway and its reports. Raises CodecError."""
    found = decode(data, _Exchange)
    if not 0 < len(found.member) <= MEMBER_LENGTH:
        raise CodecError(f"a member's name has 1 to {MEMBER_LENGTH} characters")
    try:
        reports = tuple(
            QuotaReport(
                Budget(each.key, each.amount, math.inf if each.window_s is None else each.window_s, each.leave_s),
                each.window,
                max(0, each.used),
                max(0, each.want),
            )
            for each in found.reports
        )
    except ValueError as error:
        raise CodecError(str(error)) from error
    return found.member, reports


def encode_answer(answer: QuotaAnswer) -> bytes:
    """Returns the pool's answer as bytes."""
    grants = tuple((each.ceiling, each.free, each.others) for each in answer.grants)
    return encode(_Answer(grants, answer.time_s, answer.members, answer.is_part, answer.is_new))


def decode_answer(data: bytes, reports: int) -> QuotaAnswer:
    """Returns the answer to this number of reports. Raises CodecError."""
    found = decode(data, _Answer)
    if len(found.grants) != reports:
        raise CodecError(f"{len(found.grants)} grants for {reports} reports")
    grants = tuple(QuotaGrant(*grant) for grant in found.grants)
    return QuotaAnswer(grants, found.time_s, found.members, found.is_part, found.is_new)
