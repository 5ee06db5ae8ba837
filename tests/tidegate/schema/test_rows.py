"""Kinds of values: the accepted texts, and the texts on allowed values."""

import pytest

from tidegate.function import Protocol
from tidegate.manifest.annotations import ANNOTATIONS
from tidegate.manifest.spec import SPEC
from tidegate.schema.rows import (
    Address,
    Choice,
    Duration,
    Listen,
    Networks,
    Number,
    Percent,
    Size,
    Whole,
    WordOr,
    accepts,
    assemble,
    camel,
)
from tidegate.schema.units import UnreadableError
from tidegate.settings import SETTINGS, Settings

ROWS = (*ANNOTATIONS, *SPEC, *SETTINGS)


def test_bounds_are_inclusive_and_said() -> None:
    kind = Whole(2, 5)
    assert [kind.read(text) for text in ("2", "5")] == [2, 5]
    assert not accepts(kind, "1") and not accepts(kind, "6")
    assert kind.allowed == "a whole number, 2 to 5"
    assert Whole(2).allowed == "a whole number, 2 or more"


def test_a_number_may_exclude_its_lower_bound() -> None:
    kind = Number(0, 10, above=True)
    assert accepts(kind, "0.001") and not accepts(kind, "0") and not accepts(kind, "10.1")
    assert kind.allowed == "a number above 0, at most 10"


def test_words_stand_for_none() -> None:
    kind = WordOr("auto", Whole(0, 9))
    assert kind.read("auto") is None and kind.read("0") == 0
    assert kind.allowed == "auto, or a whole number, 0 to 9"


def test_allowed_texts_name_bounds_and_units() -> None:
    assert Duration(0.001, 3600, bare="ms").allowed == (
        "a duration, 1ms to 1h (units us, ms, s, m, h; a bare number is ms)"
    )
    assert Size(1024, 2**30).allowed.startswith("a size, 1Ki to 1Gi")
    assert Percent(1, 100, whole=True).allowed == "whole percent, 1 to 100"
    assert Choice(Protocol).allowed == "v2, openai, http, grpc"


@pytest.mark.parametrize("text", ["127.0.0.1:8080", "[::1]:0", "localhost:65535"])
def test_addresses(text: str) -> None:
    assert str(Listen().read(text)) == text


@pytest.mark.parametrize("text", ["127.0.0.1", ":8080", "::1:8080", "host:65536", "host:٣", "ho st:1", "[]:1"])
def test_what_is_no_address(text: str) -> None:
    with pytest.raises(UnreadableError):
        Listen().read(text)


def test_networks() -> None:
    assert Networks().read("10.0.0.0/8, ::1") == ("10.0.0.0/8", "::1")
    assert Networks().read("") == ()
    for text in ("10.0.0.1/8", "host", "10.0.0.0/8,"):
        with pytest.raises(UnreadableError):
            Networks().read(text)


def test_records_are_assembled_from_paths() -> None:
    made = assemble(Settings(), {"gateway.workers": 3, "gateway.listen": Address("::1", 1), "log.access_sampling": 0.5})
    assert (made.gateway.workers, str(made.gateway.listen), made.log.access_sampling) == (3, "[::1]:1", 0.5)
    assert made.control == Settings().control


def test_camel_case() -> None:
    assert camel("scale-to-zero-after") == "scaleToZeroAfter"
