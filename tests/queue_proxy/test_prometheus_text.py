"""Reading Prometheus text: what is taken, what is left out, and that no text is too much."""

import math
import time

import pytest

from tidegate.queue_proxy.prometheus_text import (
    LINE_BYTES,
    MAX_BYTES,
    MAX_LINES,
    MAX_SAMPLES,
    PART,
    ExpositionError,
    Scan,
    read_labels,
    scan,
)

WANTED = frozenset({b"up", b"vllm:x"})


def read(text: bytes) -> Scan:
    parts = scan(text, WANTED)
    while True:
        try:
            next(parts)
        except StopIteration as done:
            found: Scan = done.value
            return found


def values(text: bytes) -> list[float]:
    return [sample.value for sample in read(text).samples]


@pytest.mark.parametrize(
    ("line", "value"),
    [
        (b"up 1", 1.0),
        (b"up\t 2.50", 2.5),
        (b"up .5e-3 1700000000", 0.0005),
        (b'up{a="1"}3', 3.0),
        (b'up {a="1",} -4\r', -4.0),
        (b'up{ a = "1" , b="}{,\\"\\\\" } +5', 5.0),
        (b"up{} 6.", 6.0),
        (b'vllm:x{le="+Inf"} 7 # {trace_id="abc"} 0.3 1.7e9', 7.0),
        (b"up +Inf", math.inf),
        (b"up 8 1700000000.123", 8.0),
    ],
)
def test_a_sample_as_the_formats_write_it(line: bytes, value: float) -> None:
    found = read(b"# TYPE up gauge\n\n" + line + b"\n")
    assert [sample.value for sample in found.samples] == [value]
    assert found.malformed == 0


def test_not_a_number_is_a_number_of_the_format() -> None:
    assert math.isnan(values(b"up NaN")[0])


@pytest.mark.parametrize(
    "line",
    [
        b"up",
        b"up one",
        b"up 1_000",
        b"up 0x10",
        b"up 1 2 3",
        b"1 up",
        b'up{a="1" 1',
        b"up{a=1} 1",
        b'up{a="1",a="2"} 1',
        b'up{a="1",,} 1',
        b'up{="1"} 1',
        b'{"up"} 1',
        b"<html>",
        b'up{a="' + b"x" * LINE_BYTES + b'"} 1',
        b"up{" + b'"' * 4096,
    ],
)
def test_what_is_not_written_so_is_counted_and_left_out(line: bytes) -> None:
    found = read(b"up 1\n" + line + b"\nup 2\n")
    assert [sample.value for sample in found.samples if sample.key == b""][-1] == 2.0
    assert found.malformed == 1


def test_the_end_mark_of_openmetrics_ends_it() -> None:
    assert values(b"up 1\n# EOF\nup 2\n") == [1.0]


def test_other_names_cost_a_look() -> None:
    found = read(b"go_threads 3\nup 1\ngo_threads_total{ broken\n")
    assert (len(found.samples), found.others, found.malformed, found.lines) == (1, 2, 0, 3)


def test_labels_are_read_with_their_escapes() -> None:
    assert read_labels(b'a="x\\ny\\"\\\\",b="\xc3\xa9"') == {"a": 'x\ny"\\', "b": "é"}
    assert read_labels(b" ") == {}
    assert read_labels(b'a="1"b="2"') is None


@pytest.mark.parametrize(
    "text",
    [
        b"\n" * (MAX_LINES + 1),
        b"x" * (MAX_BYTES + 1),
        b"".join(b'up{n="%d"} 1\n' % n for n in range(MAX_SAMPLES + 1)),
    ],
    ids=["lines", "bytes", "samples"],
)
def test_beyond_a_bound_the_whole_text_is_refused(text: bytes) -> None:
    with pytest.raises(ExpositionError, match="more than"):
        read(text)


def test_a_large_text_is_read_in_parts() -> None:
    assert sum(1 for _ in scan(b"other 1\n" * (PART * 10), WANTED)) == 10


@pytest.mark.parametrize(
    "line",
    [b"up{" + b'a="\\' * 3000, b"up{" + b'"a"' * 5000 + b'"', b"up{" + b"a" * 16000, b"up " + b"1" * 16000 + b"x"],
)
def test_no_line_takes_long(line: bytes) -> None:
    began = time.perf_counter()
    read(b"\n".join([line] * 20))
    assert time.perf_counter() - began < 1.0
