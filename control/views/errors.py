"""The body of each API answer that is not a success."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultView:
    where: str
    value: str
    allowed: str
    line: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorDetail:
    code: str
    message: str
    faults: tuple[FaultView, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorView:
    error: ErrorDetail
