"""Events are seen as they pass, whatever the pieces are."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fuzz.bytes_plan import cut
from tidegate.wire.bodies.sse import EVENT_BYTES, EventStream, has_output

_EVENTS = st.lists(
    st.tuples(
        st.sampled_from([b"", b": ping\n", b"event: delta\n", b"id: 1\nretry: 5\n"]),
        st.lists(st.sampled_from([b'{"a":1}', b"x", b"", b" y", b"data: z", b"long" * 2000]), max_size=3),
    ),
    max_size=6,
)


@settings(deadline=None)
@given(_EVENTS, st.sampled_from([b"\n", b"\r\n", b"\r"]), st.binary(min_size=1, max_size=6))
def test_each_event_is_seen_once(events: list[tuple[bytes, list[bytes]]], eol: bytes, cuts: bytes) -> None:
    text, expected = b"", []
    for front, lines in events:
        block = front + b"".join(b"data: %b\n" % line for line in lines)
        text += block + b"\n"
        if lines:
            expected.append(b"\n".join(lines))
    stream = EventStream()
    seen = [event for piece in cut(text.replace(b"\n", eol) + eol + b"x", cuts) for event in stream.feed(piece)]
    assert len(seen) == len(expected)
    for event, whole in zip(seen, expected, strict=True):
        assert whole.startswith(event) and (event == whole or len(event) >= EVENT_BYTES - 200)


def test_a_piece_that_is_one_event_is_reported_with_it() -> None:
    stream = EventStream()
    assert stream.feed(b'data: {"a":1}\n\n') == [b'{"a":1}']
    assert stream.feed(b": keep-alive\n\n") == []
    assert stream.feed(b'data: {"b"') == []
    assert stream.feed(b":2}\n\ndata: [DONE]\n\n") == [b'{"b":2}']
    assert stream.done


@pytest.mark.parametrize("step", [1, 100])
def test_a_stream_may_begin_with_a_byte_order_mark(step: int) -> None:
    stream, text = EventStream(), b'\xef\xbb\xbfdata: {"a":1}\n\ndata: {"b":2}\n\n'
    seen = [event for at in range(0, len(text), step) for event in stream.feed(text[at : at + step])]
    assert [*seen, *stream.feed(b"x")] == [b'{"a":1}', b'{"b":2}']


def test_an_endless_event_takes_no_memory() -> None:
    stream = EventStream()
    for _ in range(100):
        assert stream.feed(b"data: " + b"x" * 60_000) == []
    assert len(stream._front) + len(stream._tail) <= EVENT_BYTES + 3
    assert len(stream.feed(b"\n\n")) == 1


@pytest.mark.parametrize(
    ("event", "expected"),
    [
        (b'{"choices":[{"delta":{"role":"assistant","content":""}}]}', False),
        (b'{"choices":[{"delta":{"content":"Hi"}}]}', True),
        (b'{"choices": [{"text": "Hi"}]}', True),
        (b'{"choices":[{"delta":{"tool_calls":[{"function":{"arguments":"{"}}]}}]}', True),
        (b'{"type":"response.output_text.delta","delta":"Hi"}', True),
        (b'{"type":"message_start","message":{"content":[],"usage":{"input_tokens":3}}}', False),
        (b'{"type":"content_block_start","content_block":{"type":"text","text":""}}', False),
        (b'{"type":"content_block_delta","delta":{"type":"text_delta","text":"Hi"}}', True),
        (b'{"type":"message_delta","delta":{"stop_reason":"end_turn"},"usage":{"output_tokens":3}}', False),
        (b'{"choices":[],"usage":{"prompt_tokens":3}}', False),
    ],
)
def test_the_first_event_with_output(event: bytes, expected: bool) -> None:
    assert has_output(event) is expected


@pytest.mark.parametrize(
    "key",
    ["content", "text", "delta", "thinking", "partial_json", "arguments", "reasoning", "reasoning_content", "refusal"],
)
def test_output_is_any_character_behind_a_known_key(key: str) -> None:
    for colon in (":", " : ", ":\n\t"):
        assert has_output(f'{{"{key}"{colon}"a"}}'.encode())
        assert not has_output(f'{{"{key}"{colon}""}}'.encode())
    assert not has_output(f'{{"x{key}":"a","{key}x":"a","{key}":null}}'.encode())


@pytest.mark.parametrize("eol", [b"\n", b"\r\n", b"\r"])
def test_an_event_is_found_wherever_it_is_cut(eol: bytes) -> None:
    text = b": hi\nevent: a\ndata: 1\ndata:2\n\n\ndata:  3\n\nid: 4\n\ndata\n\ndata: [DONE]\n\n".replace(b"\n", eol)
    for at in range(len(text)):
        for more in (0, 1, 2, 3):
            stream = EventStream()
            seen = [*stream.feed(text[:at]), *stream.feed(text[at : at + more]), *stream.feed(text[at + more :])]
            assert [*seen, *stream.feed(b"x")] == [b"1\n2", b" 3"]
            assert stream.done


def test_a_last_line_of_one_byte_is_no_data() -> None:
    assert EventStream().feed(b"data: x\nu\n\n") == [b"x"]
    assert EventStream().feed(b"\n\ndata: x\nu\n\n") == [b"x"]


@pytest.mark.parametrize("size", [EVENT_BYTES - 1, EVENT_BYTES, EVENT_BYTES + 1])
@pytest.mark.parametrize("step", [999, EVENT_BYTES, 1 << 20])
def test_an_event_is_kept_up_to_its_limit_however_it_is_cut(size: int, step: int) -> None:
    text = b"data: " + b"x" * (size - 6) + b"\n\n"
    for before in (b"", b"data: y\n\n"):
        stream, seen = EventStream(), []
        for at in range(0, len(before + text), step):
            seen += stream.feed((before + text)[at : at + step])
        assert [len(event) for event in (*seen, *stream.feed(b"x"))][-1] == min(size, EVENT_BYTES) - 6


def test_what_is_kept_of_an_event_is_shown() -> None:
    stream = EventStream()
    assert repr(stream) == "<EventStream 0 bytes of an event, done: False>"
    stream.feed(b"data: xx")
    assert repr(stream) == "<EventStream 8 bytes of an event, done: False>"
    stream.feed(b"y\n\ndata: [DONE]\n\n")
    assert "done: True" in repr(stream)
