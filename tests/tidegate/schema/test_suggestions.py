"""Values that look like another unit or spelling: the fault suggests what was meant, before what is allowed."""

import pytest

from tidegate.errors import Fault
from tidegate.function import TaskClass
from tidegate.schema.rows import (
    Choice,
    Duration,
    Gigabytes,
    Kind,
    Listen,
    Number,
    Percent,
    Size,
    Text,
    Whole,
    WordOr,
    YesNo,
    allowed_for,
)


@pytest.mark.parametrize(
    ("kind", "text", "meant"),
    [
        (Percent(1, 99.999), "0.98", "98"),
        (Percent(1, 99.999), "0.995", "99.5"),
        (Duration(0, 86_400), "60", "60s"),
        (Duration(0, 86_400), "5 min", "5m"),
        (Duration(0, 86_400), "1.5 hours", "1.5h"),
        (WordOr("none", Duration(0.001, 3600, bare="ms")), "0.2", "0.2s"),
        (WordOr("none", Duration(0.001, 3600, bare="ms")), "200 ms", "200ms"),
        (WordOr("auto", Whole(0, 100)), "Auto", "auto"),
        (YesNo(), "yes", "true"),
        (YesNo(), "False", "false"),
        (Choice(TaskClass), "latency_critical", "latency-critical"),
        (Choice(TaskClass), "throughput", "throughput-oriented"),
        (Whole(0, 2000), "1,000", "1000"),
        (Whole(0, 2000), "3.0", "3"),
        (Size(1024, 2**40), "4 gb", "4GB"),
        (Size(1024, 2**40), "512mi", "512Mi"),
        (Gigabytes(1, 100), "16gi", "16Gi"),
        (Listen(), "8080", "127.0.0.1:8080"),
        (Listen(), ":8080", "127.0.0.1:8080"),
        (Listen(), "http://localhost:8080/", "localhost:8080"),
    ],
)
def test_a_value_that_looks_like_another_unit_is_suggested(kind: Kind, text: str, meant: str) -> None:
    assert allowed_for(kind, text) == f"{kind.allowed} (did you mean `{meant}`?)"


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (Percent(1, 99), "150"),
        (Duration(0, 10), "60"),
        (Whole(0, 9), "many"),
        (Text("a+", "a"), "b"),
        (Number(0, 1), "2"),
    ],
)
def test_nothing_is_suggested_that_would_be_refused_too(kind: Kind, text: str) -> None:
    assert allowed_for(kind, text) == kind.allowed


def test_a_fault_prints_its_suggestion_before_the_allowed_values() -> None:
    fault = Fault("--percentile", "'0.98'", allowed_for(Percent(1, 99.999), "0.98"), 3)
    assert str(fault) == "line 3: --percentile: got '0.98'; did you mean `98`? allowed: percent, 1 to 99.999"
    assert str(Fault("x", "y", "a (did you mean what?)")) == "x: got y; allowed: a (did you mean what?)"
