"""Lines of JSON from a stream: the bytes that end a line, and those that do not."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.records.codec import Lines, encode


@pytest.mark.parametrize("mark", ["\x0b", "\x0c", "\x1c", "\x1d", "\x1e", "\x85", "\u2028", "\u2029", "\r"])
def test_only_a_line_feed_ends_a_line(mark: str) -> None:
    text = f"before{mark}after"
    (line,) = Lines().push(encode({"message": text}) + b"\n")
    assert json.loads(line) == {"message": text}


def test_empty_lines_are_left_out_and_an_unfinished_one_waits() -> None:
    lines = Lines()
    assert lines.push(b'\n \n{"a":') == []
    assert lines.push(b'1}\r\n{"b":2}\n{') == [b'{"a":1}\r', b'{"b":2}']
    assert lines.push(b"}\n") == [b"{}"]


@given(st.lists(st.text(max_size=20), max_size=10), st.lists(st.integers(0, 40), max_size=8))
def test_how_a_stream_is_cut_into_pieces_does_not_matter(texts: list[str], cuts: list[int]) -> None:
    stream = b"".join(encode({"text": text}) + b"\n" for text in texts)
    lines, found = Lines(), []
    for size in [*cuts, len(stream)]:
        piece, stream = stream[:size], stream[size:]
        found += [json.loads(line)["text"] for line in lines.push(piece)]
    assert found == texts
