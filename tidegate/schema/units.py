"""Numbers with units as people write them, read strictly: ``200ms``, ``256Mi``, ``98%``.

ASCII only, and without the leniency of ``int()`` and ``float()``: no sign, no underscore, no exponent, no ``nan``, no
digits of other scripts, no blanks. Arithmetic is decimal, so ``0.1s`` is exactly ``100ms``.

The second half reads the formats of Knative and Kubernetes (Go's durations and numbers, resource quantities): a
manifest that is valid there is valid here.
"""

import re
from decimal import Decimal
from fractions import Fraction
from typing import Final

_WHOLE: Final = re.compile(r"0|[1-9][0-9]{0,17}")
_NUMBER: Final = re.compile(r"(?:0|[1-9][0-9]{0,17})(?:\.[0-9]{1,18})?")
_WITH_UNIT: Final = re.compile(rf"({_NUMBER.pattern})([A-Za-z]{{0,3}})")
_SHARE: Final = r"([0-9]{1,3}(?:\.[0-9]{1,3})?)%?"
_LATENCY_AT: Final = re.compile(rf"([0-9][^@=]*)(?:@p?{_SHARE})?")
_SHARE_IS: Final = re.compile(rf"p{_SHARE}=([^@=]+)")

SECONDS: Final = {
    "us": Decimal("0.000001"),
    "ms": Decimal("0.001"),
    "s": Decimal(1),
    "m": Decimal(60),
    "h": Decimal(3600),
}
BYTES: Final = {
    "": 1,
    "B": 1,
    "k": 10**3,
    "K": 10**3,
    "kB": 10**3,
    "KB": 10**3,
    "M": 10**6,
    "MB": 10**6,
    "G": 10**9,
    "GB": 10**9,
    "T": 10**12,
    "TB": 10**12,
    "Ki": 2**10,
    "KiB": 2**10,
    "Mi": 2**20,
    "MiB": 2**20,
    "Gi": 2**30,
    "GiB": 2**30,
    "Ti": 2**40,
    "TiB": 2**40,
}


class UnreadableError(ValueError):
    """The text is not of the requested kind."""


class UnreadablePartsError(UnreadableError):
    """Parts of a text are not of the requested kind; the message names them."""


def whole(text: str) -> int:
    """Reads ``12`` as 12; at most 18 digits, no leading zeros."""
    if not _WHOLE.fullmatch(text):
        raise UnreadableError(text)
    return int(text)


def number(text: str) -> float:
    """Reads ``0.25`` as 0.25; digits with an optional fraction."""
    if not _NUMBER.fullmatch(text):
        raise UnreadableError(text)
    return float(text)


def duration(text: str, *, bare: str | None = None) -> float:
    """Reads ``200ms`` as 0.2 seconds. A number without unit is read in the unit ``bare``, or refused."""
    amount, unit = _split(text)
    scale = SECONDS.get(unit or bare or "")
    if scale is None:
        raise UnreadableError(text)
    return float(amount * scale)


def size(text: str, *, bare: str = "B") -> int:
    """Reads ``256Mi`` as 268435456 bytes and ``4GB`` as 4000000000; the result must be a whole number of bytes."""
    amount, unit = _split(text)
    scale = BYTES.get(unit or bare)
    if scale is None or amount * scale != int(amount * scale):
        raise UnreadableError(text)
    return int(amount * scale)


def gigabytes(text: str) -> float:
    """Reads ``16`` and ``16GB`` as 16.0 (10^9 bytes each), ``16Gi`` as 17.179869184."""
    amount, unit = _split(text)
    scale = BYTES.get(unit or "GB")
    if scale is None:
        raise UnreadableError(text)
    return float(amount * scale / 10**9)


def percent(text: str) -> float:
    """Reads ``98`` and ``98%`` as 98.0."""
    return number(text.removesuffix("%"))


OBJECTIVE: Final = (
    "LATENCY@PERCENT or pPERCENT=LATENCY, such as 200ms@98 or p98=200ms; with a time per token p98=500ms,50ms/token"
)


def objective(text: str) -> tuple[str, str | None, str | None]:
    """Splits ``200ms@98``, ``p98=200ms``, ``200ms`` or ``p98=500ms,50ms/token`` into latency, percentile and
    time per token, as texts. None for a part that is not there."""
    if found := _SHARE_IS.fullmatch(text):
        targets, share = found[2], found[1]
    elif found := _LATENCY_AT.fullmatch(text):
        targets, share = found[1], found[2]
    else:
        raise UnreadableError(text)
    latency, comma, paced = targets.partition(",")
    per_token = paced.removesuffix("/token")
    if not latency or (comma and (per_token == paced or not per_token)):
        raise UnreadableError(text)
    return latency, share, per_token if comma else None


def yes_or_no(text: str) -> bool:
    """Reads ``true`` or ``false``, and nothing else."""
    if text not in ("true", "false"):
        raise UnreadableError(text)
    return text == "true"


def _split(text: str) -> tuple[Decimal, str]:
    found = _WITH_UNIT.fullmatch(text)
    if found is None:
        raise UnreadableError(text)
    return Decimal(found[1]), found[2]


# --- written back ----------------------------------------------------------------------------------------------------


def plain(value: float) -> str:
    """Returns a number without exponent: ``0.25``, ``98``, ``1000000``."""
    return _plain(Decimal(repr(value)))


def _plain(exact: Decimal) -> str:
    text = f"{exact:f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def show_duration(seconds: float) -> str:
    """Returns the shortest text that :func:`duration` reads back exactly: ``90s``, ``2m``, ``200ms``."""
    exact = Decimal(repr(seconds))
    if exact and exact < 1:
        return _plain(exact / SECONDS["ms"]) + "ms"
    unit = next(unit for unit in ("h", "m", "s") if exact % SECONDS[unit] == 0 or unit == "s")
    return _plain(exact / SECONDS[unit]) + unit if exact else "0s"


def show_size(count: int) -> str:
    """Returns ``256Mi`` for 268435456; a count that no binary unit divides stays as it is."""
    for unit in ("Ti", "Gi", "Mi", "Ki"):
        if count and count % BYTES[unit] == 0:
            return f"{count // BYTES[unit]}{unit}"
    return str(count)


# --- Go and Kubernetes -----------------------------------------------------------------------------------------------

_GO_PART: Final = re.compile(r"([0-9]{1,18}(?:\.[0-9]{0,18})?|\.[0-9]{1,18})(ns|us|µs|μs|ms|s|m|h)")
_GO_DURATION: Final = re.compile(rf"([-+]?)(0|(?:{_GO_PART.pattern})+)")
_GO_NANOSECONDS: Final = {
    "ns": 1,
    "us": 1_000,
    "µs": 1_000,
    "μs": 1_000,
    "ms": 1_000_000,
    "s": 1_000_000_000,
    "m": 60_000_000_000,
    "h": 3_600_000_000_000,
}
_GO_FLOAT: Final = re.compile(r"[-+]?(?:[0-9]{1,30}(?:\.[0-9]{0,30})?|\.[0-9]{1,30})(?:[eE][-+]?[0-9]{1,2})?")
_GO_INT: Final = re.compile(r"[-+]?[0-9]{1,18}")
_QUANTITY: Final = re.compile(
    r"([0-9]{1,15}(?:\.[0-9]{0,9})?|\.[0-9]{1,9})(n|u|m|k|M|G|T|P|Ki|Mi|Gi|Ti|Pi|[eE][0-9]{1,2})?"
)
_QUANTITY_SCALE: Final = {
    "n": Fraction(1, 10**9),
    "u": Fraction(1, 10**6),
    "m": Fraction(1, 1000),
    "k": Fraction(10**3),
    "M": Fraction(10**6),
    "G": Fraction(10**9),
    "T": Fraction(10**12),
    "P": Fraction(10**15),
    "Ki": Fraction(2**10),
    "Mi": Fraction(2**20),
    "Gi": Fraction(2**30),
    "Ti": Fraction(2**40),
    "Pi": Fraction(2**50),
}


def go_duration_ns(text: str) -> int:
    """Reads a Go duration in nanoseconds: ``1m5s``, ``1500ms``, ``-1s``; a bare number is refused, except ``0``."""
    found = _GO_DURATION.fullmatch(text)
    if found is None:
        raise UnreadableError(text)
    total = sum(int(Fraction(_go_digits(amount)) * _GO_NANOSECONDS[unit]) for amount, unit in _GO_PART.findall(text))
    if total >= 2**63:
        raise UnreadableError(text)
    return -total if found[1] == "-" else total


def _go_digits(amount: str) -> str:
    return f"0{amount}0" if "." in amount else amount


def go_float(text: str) -> float:
    """Reads a decimal number as Go does (``1e3``, ``-.5``), without ``NaN`` and ``Inf``, which have no meaning here."""
    if not _GO_FLOAT.fullmatch(text):
        raise UnreadableError(text)
    return float(text)


def go_int(text: str) -> int:
    """Reads a signed 32-bit number as Go does: ``+3`` and ``007`` are numbers there."""
    if not _GO_INT.fullmatch(text) or not -(2**31) <= int(text) < 2**31:
        raise UnreadableError(text)
    return int(text)


def quantity(text: str) -> Fraction:
    """Reads a Kubernetes resource quantity: ``500m``, ``2``, ``1.5Gi``, ``1e3``."""
    found = _QUANTITY.fullmatch(text)
    if found is None:
        raise UnreadableError(text)
    amount, suffix = Fraction(_go_digits(found[1])), found[2] or ""
    if suffix[:1] in ("e", "E"):
        return amount * Fraction(10 ** int(suffix[1:]))
    return amount * _QUANTITY_SCALE.get(suffix, Fraction(1))
