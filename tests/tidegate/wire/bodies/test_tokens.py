"""Tokens before and during a response: estimates that learn, streams that are counted in any split."""

import gzip
import json
import random
import zlib

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.fuzz.bytes_plan import cut
from tidegate.wire.bodies.openai import USAGE_BYTES
from tidegate.wire.bodies.sse import EVENT_BYTES
from tidegate.wire.bodies.tokens import (
    ALPHABETIC,
    ESCAPED,
    MAX_UNPACKED_BYTES,
    PLAIN,
    WIDE,
    AnswerLength,
    BodyReader,
    CodedReader,
    PromptEstimate,
    StreamReader,
    is_output,
    script,
)

# --- prompts --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", PLAIN),
        ("The quick brown fox. " * 50, PLAIN),
        ("Les élèves ont passé l'été à Genève avec leurs parents. " * 50, PLAIN),
        ("def f(x):\n    return [x for x in range(10)]\n" * 50, PLAIN),
        ("Съешь же ещё этих мягких французских булок. " * 50, ALPHABETIC),
        ("Ξεσκεπάζω την ψυχοφθόρα βδελυγμία. " * 50, ALPHABETIC),
        ("敏捷的棕色狐狸跳过了懒狗。" * 50, WIDE),
        ("いろはにほへと ちりぬるを " * 50, WIDE),
        ("ऋषियों को सताने वाले दुष्ट " * 50, WIDE),
        ("🦊🐶" * 50, WIDE),
    ],
)
def test_scripts(text: str, expected: int) -> None:
    assert script(text.encode()) == expected
    chat = json.dumps([{"role": "user", "content": text}], ensure_ascii=False)
    assert script(chat.encode()[:4095]) == expected, "keys are ASCII, and the last character may be cut off"
    escaped = json.dumps(text).encode()
    assert script(escaped) == (PLAIN if expected == PLAIN else ESCAPED)


def test_the_first_estimate_is_about_what_tokenizers_make_of_text() -> None:
    estimate = PromptEstimate()
    assert estimate.of(4000, PLAIN) == 1000
    assert estimate.of(2000, ALPHABETIC) == 500, "a thousand letters"
    assert estimate.of(3000, WIDE) == 750, "a thousand characters"
    assert estimate.of(6000, ESCAPED) == 750, "the same, escaped"
    assert estimate.of(0, PLAIN) == 1


def test_each_script_is_learnt_by_itself() -> None:
    estimate = PromptEstimate()
    rng = random.Random(1)
    for _ in range(300):
        size = rng.randrange(100, 20_000)
        estimate.learn(size, PLAIN, round(size / 4.7))
        estimate.learn(size, WIDE, round(size / 2.1))
    assert estimate.of(47_000, PLAIN) == pytest.approx(10_000, rel=0.02)
    assert estimate.of(21_000, WIDE) == pytest.approx(10_000, rel=0.02)
    assert estimate.of(4_000, ALPHABETIC) == 1000, "nothing was said of it"


def test_another_tokenizer_is_followed_within_a_few_hundred_answers() -> None:
    estimate = PromptEstimate()
    for tokens in (250, 500):
        for _ in range(300):
            estimate.learn(1000, PLAIN, tokens)
        assert estimate.of(1000, PLAIN) == pytest.approx(tokens, rel=0.02)


def test_the_length_of_answers() -> None:
    length = AnswerLength()
    assert (length.expected(None), length.expected(16), length.expected(4096)) == (256, 16, 256)
    for _ in range(300):
        length.learn(40)
    assert (length.expected(None), length.expected(16)) == (40, 16)
    assert AnswerLength(0.0).expected(None) == 0


def test_the_mean_of_answers_forgets_a_fiftieth_at_each_and_bounds_it() -> None:
    length = AnswerLength()
    length.learn(1 << 17)
    assert length.expected(None) == round((0.98 * 256 + (1 << 17)) / 1.98)
    before = length.expected(None)
    length = AnswerLength()
    length.learn(1 << 20)
    assert length.expected(None) == before
    length = AnswerLength()
    length.learn((1 << 17) - 2)
    assert length.expected(None) == before - 1
    length = AnswerLength(1000.0)
    length.learn(0)
    length.learn(500_000)
    assert length.expected(None) == round((0.98 * 980 + (1 << 17)) / (0.98 * 1.98 + 1))
    assert (AnswerLength(10.0).expected(9), AnswerLength(10.0).expected(10), AnswerLength(10.0).expected(11)) == (
        9,
        10,
        10,
    )
    assert repr(AnswerLength(10.0)) == "<AnswerLength 10.0 tokens>"


def test_one_answer_that_says_it_was_endless_does_not_tell_of_all() -> None:
    length = AnswerLength()
    for _ in range(300):
        length.learn(40)
    length.learn(1 << 26)
    assert length.expected(None) < 3000
    estimate = PromptEstimate()
    for _ in range(300):
        estimate.learn(4000, PLAIN, 1000)
    estimate.learn(4000, PLAIN, 1 << 26)
    assert 1000 < estimate.of(4000, PLAIN) < 1500


# --- events ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("event", "expected"),
    [
        (b'{"choices":[{"index":0,"delta":{"role":"assistant","content":""}}]}', False),
        (b'{"choices":[{"index":0,"delta":{"content":"Hi"}}],"usage":null}', True),
        (b'{"choices": [{"index": 0, "delta": {"content": "Hi"}}]}', True),
        (b'{"choices":[{"index":0,"delta":{"reasoning":"Hm"}}]}', True),
        (b'{"choices":[{"index":0,"delta":{"reasoning_content":"Hm"}}]}', True),
        (b'{"choices":[{"index":0,"delta":{"content":"","reasoning":"Hm"}}]}', True),
        (b'{"choices":[{"index":0,"delta":{"role":"assistant","refusal":null,"reasoning":null}}]}', False),
        (b'{"choices":[{"index":0,"delta":{"refusal":"I cannot"}}]}', True),
        (b'{"type":"response.created","response":{"reasoning":{"effort":"high"},"output":[]}}', False),
        (b'{"choices":[{"text":"Hi"}]}', True),
        (b'{"choices":[{"delta":{"content":"say \\"type\\":\\"response.done\\""}}]}', True),
        (b'{"choices":[{"delta":{},"finish_reason":"stop"}]}', False),
        (b'{"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":2}}', False),
        (b'{"type":"message_start","message":{"content":[],"usage":{"input_tokens":3}}}', False),
        (b'{"type":"content_block_start","content_block":{"type":"text","text":""}}', False),
        (b'{"type":"content_block_delta","delta":{"type":"text_delta","text":"Hi"}}', True),
        (b'{"type":"response.output_text.delta","delta":"Hi"}', True),
        (b'{"type": "response.function_call_arguments.delta", "delta": "{"}', True),
        (b'{"type":"response.output_text.done","text":"Hi there"}', False),
        (b'{"type":"response.completed","response":{"output":[{"content":[{"text":"Hi there"}]}]}}', False),
        (b'{"content":"', False),
        (b"", False),
    ],
)
def test_events_with_output(event: bytes, expected: bool) -> None:
    assert is_output(event) is expected
    assert StreamReader().feed(b"data: " + event + b"\n\n") == expected


def chunk(text: str, **more: object) -> bytes:
    return json.dumps({"choices": [{"delta": {"content": text}}], **more}, separators=(",", ":")).encode()


USAGE = b'{"choices":[],"usage":{"prompt_tokens":11,"completion_tokens":3,"total_tokens":14}}'
LINES = [
    b"data: " + chunk("a"),
    b"data: " + chunk(" b", usage=None),
    b"data: " + chunk(" c", usage=None, x_more={"usage": {"prompt_tokens": 2, "completion_tokens": 1}}),
    b"data: " + chunk(""),
    b"data: " + chunk("x" * 5000),
    b"data: " + USAGE,
    b'data: {"type":"response.output_text.done","text":"a b"}',
    b"event: content_block_delta\nid: 7\ndata: " + b'{"delta":{"type":"text_delta",\ndata:"text":"c"}}',
    b"data: [DONE]",
    b": a comment",
    b"",
    b'"usage"',
    b'{"prompt_tokens": 7}',
    b'data: {"usage" :  {"input_tokens":5,"output_tokens":6}}',
    b'event: message_stop\ndata: {"type":"message_stop"}',
    b'event: response.output_text.delta\ndata: {"type":"response.output_text.delta","delta":" b"}',
    b'event: message_delta\ndata: {"type":"message_delta","usage":{"output_tokens":7}}',
    b"event: ping\ndata: ",
    b"event: ping\nid: 3",
    b"event: " + b"e" * 4095 + b"\ndata: " + chunk("late"),
]


def counted(pieces: list[bytes]) -> tuple[int, bool, str]:
    reader = StreamReader()
    found = sum(reader.feed(piece) for piece in pieces)
    assert found == reader.outputs
    return found, reader.is_done, repr(reader.usage())


@settings(deadline=None, max_examples=300)
@given(
    st.lists(st.sampled_from(LINES), max_size=12),
    st.sampled_from([b"\n", b"\r\n", b"\r"]),
    st.binary(max_size=6),
    st.booleans(),
)
@example([LINES[0], LINES[4]], b"\n", b"", True)
def test_how_a_stream_is_cut_changes_no_count(lines: list[bytes], eol: bytes, cuts: bytes, in_events: bool) -> None:
    events = [(line + b"\n\n").replace(b"\n", eol) for line in lines]
    whole = b"".join(events)
    # The last line feed of a stream cut at a carriage return belongs to it: nothing may depend on whether it is there.
    assert counted([whole, b": end\n\n"]) == counted([*(events if in_events else cut(whole, cuts)), b": end\n\n"])


@settings(deadline=None, max_examples=500)
@given(
    st.lists(
        st.sampled_from(
            [b"data: ", b"event: ", b"\n", b"\n\n", b"\r", b"\r\n", b'"usage"', b":", b" ", b"{", b"}", b'"content":"',
             b"x", b'"', b'"prompt_tokens":3', b'"type":"response.done"', b"\xff", b"y" * 4095, b"[DONE]"]
        ),
        max_size=30,
    ),
    st.binary(max_size=8),
)  # fmt: skip
def test_hostile_bytes_are_counted_alike_however_they_are_cut(parts: list[bytes], cuts: bytes) -> None:
    whole = b"".join(parts)
    assert counted([whole + b"\n\n"]) == counted([*cut(whole + b"\n\n", cuts)])


@pytest.mark.parametrize(
    ("event", "expected"),
    [
        (b"data: [DONE]", True),
        (b'event: message_stop\ndata: {"type":"message_stop"}', True),
        (b'data: {"type": "response.completed", "response": {}}', True),
        (b'data: {"type":"response.output_text.done","text":"message_stop"}', False),
        (b"data: " + chunk('"type":"message_stop"'), False),
        (b"data: " + chunk("[DONE]"), False),
        (b"data: " + USAGE, False),
    ],
)
@pytest.mark.parametrize("cuts", [b"", b"\x07"])
def test_the_end_of_an_answer(event: bytes, expected: bool, cuts: bytes) -> None:
    reader = StreamReader()
    for piece in cut(event + b"\n\n", cuts):
        assert not reader.is_done
        reader.feed(piece)
    assert reader.is_done is expected


def test_a_stream_of_single_events_costs_no_more_than_looking_at_each() -> None:
    reader = StreamReader()
    reader.feed(b"data: " + chunk("a") + b"\n\n")
    assert reader._missed, "the finder of usage is not shown what has none"
    reader.feed(b"data: " + USAGE + b"\n\n")
    usage = reader.usage()
    assert usage is not None
    assert (usage.prompt_tokens, usage.completion_tokens) == (11, 3)


@pytest.mark.parametrize("count", [1, 5])
def test_events_with_names_are_distinguished_at_once_as_well(count: int) -> None:
    """Anthropic's streams and those of the Responses API."""
    reader = StreamReader()
    event = b'event: content_block_delta\ndata: {"type":"content_block_delta","delta":{"text":"Hi"}}\n\n'
    assert reader.feed(event * count) == count
    assert reader._missed, "neither the general reader nor the finder of usage has seen it"


def test_a_usage_beside_one_that_is_null_is_seen() -> None:
    reader = StreamReader()
    null = b"data: " + chunk("a", usage=None) + b"\n\n"
    assert reader.feed(null) + reader.feed(null * 3) == 4
    assert reader._missed, "the finder is not shown those that are null, alone or together"
    reader.feed(b"data: " + chunk("b", usage=None, x_groq={"usage": {"prompt_tokens": 5}}) + b"\n\n")
    usage = reader.usage()
    assert usage is not None and usage.prompt_tokens == 5


def test_an_endless_line_takes_no_memory_and_hides_nothing_after_it() -> None:
    reader = StreamReader()
    for _ in range(200):
        reader.feed(b'data: {"content":"' + b"x" * 65_536)
    events, finder = reader._events, reader._usage
    assert len(events._front) + len(events._tail) <= EVENT_BYTES + 3
    assert len(finder._first) + len(finder._last) + len(finder._open) + len(finder._tail) <= 4 * USAGE_BYTES
    reader.feed(b'"}\n\n')
    reader.feed(b"data: " + USAGE + b"\n\n")
    assert reader.outputs == 1
    assert reader.usage() is not None


# --- bodies ---------------------------------------------------------------------------------------------------------

BODY = json.dumps(
    {
        "id": "c",
        "choices": [{"message": {"role": "assistant", "content": 'it said "usage": {"prompt_tokens": 99}' * 100}}],
        "usage": {"prompt_tokens": 12, "completion_tokens": 34, "prompt_tokens_details": {"cached_tokens": 5}},
        "model": "m",
    }
).encode()


@settings(deadline=None)
@given(st.binary(max_size=6))
def test_the_usage_of_a_body_however_it_is_cut(cuts: bytes) -> None:
    reader = BodyReader()
    assert sum(reader.feed(piece) for piece in cut(BODY, cuts)) == reader.outputs == 0
    usage = reader.usage()
    assert usage is not None
    assert (usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens) == (12, 34, 5)


def test_a_body_without_usage_tells_nothing() -> None:
    reader = BodyReader()
    reader.feed(b'{"choices":[{"message":{"content":"usage"}}]}')
    assert reader.usage() is None


# --- packed answers: counted as if they were not packed, in bounded time and memory -------------------------------


@settings(deadline=None)
@given(st.lists(st.sampled_from(LINES), max_size=12), st.binary(max_size=6), st.booleans())
def test_a_packed_stream_counts_as_the_plain_one(lines: list[bytes], cuts: bytes, is_gzip: bool) -> None:
    plain, packed = StreamReader(), CodedReader(StreamReader())
    pack = zlib.compressobj(wbits=31 if is_gzip else 15)
    wire = b""
    for line in [*lines, b"data: [DONE]"]:
        plain.feed(line + b"\n\n")
        wire += pack.compress(line + b"\n\n") + pack.flush(zlib.Z_SYNC_FLUSH)
    found = sum(packed.feed(piece) for piece in cut(wire + pack.flush(), cuts))
    assert (found, packed.outputs, packed.is_done) == (plain.outputs, plain.outputs, plain.is_done)
    assert repr(packed.usage()) == repr(plain.usage())


@pytest.mark.parametrize("cuts", [b"", b"\x01", b"\x64"])
def test_the_usage_of_a_packed_body(cuts: bytes) -> None:
    reader = CodedReader(BodyReader())
    for piece in cut(gzip.compress(BODY), cuts):
        reader.feed(piece)
    usage = reader.usage()
    assert usage is not None
    assert (usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens) == (12, 34, 5)


def test_an_event_is_seen_as_soon_as_it_is_there() -> None:
    pack, reader = zlib.compressobj(wbits=31), CodedReader(StreamReader())
    for _ in range(3):
        assert reader.feed(pack.compress(LINES[0] + b"\n\n") + pack.flush(zlib.Z_SYNC_FLUSH)) == 1


def test_what_cannot_be_unpacked_tells_nothing() -> None:
    for wire in (b"plain text", gzip.compress(BODY)[:10] + b"\xff" * 100, b"\x1f"):
        reader = CodedReader(BodyReader())
        assert reader.feed(wire) == reader.feed(gzip.compress(BODY)) == 0
        assert reader.usage() is None


def test_a_bomb_is_read_no_further() -> None:
    class Weighing(BodyReader):
        weight = 0

        def feed(self, data: bytes) -> int:
            Weighing.weight += len(data)
            return 0

    reader = CodedReader(Weighing())
    reader.feed(gzip.compress(b"\0" * (64 << 20)))
    assert Weighing.weight <= 2 * MAX_UNPACKED_BYTES
    seen = Weighing.weight
    reader.feed(gzip.compress(BODY))
    assert Weighing.weight == seen


class Sizes(BodyReader):
    """Keeps the sizes of the pieces that it is fed."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes: list[int] = []

    def feed(self, data: bytes) -> int:
        self.sizes.append(len(data))
        return super().feed(data)


@pytest.mark.parametrize(("more", "is_read_on"), [(0, True), (1, False)])
def test_one_piece_is_unpacked_to_4_mb_at_most(more: int, is_read_on: bool) -> None:
    inner, pack = Sizes(), zlib.compressobj(wbits=31)
    reader = CodedReader(inner)
    reader.feed(pack.compress(bytes((4 << 20) + more)) + pack.flush(zlib.Z_SYNC_FLUSH))
    assert sum(inner.sizes) == (4 << 20) + more
    assert max(inner.sizes) == 64 * 1024
    reader.feed(pack.compress(BODY) + pack.flush())
    assert (reader.usage() is not None) is is_read_on


def test_the_next_piece_may_unpack_to_as_much_again() -> None:
    inner, pack = Sizes(), zlib.compressobj(wbits=31)
    reader = CodedReader(inner)
    for _ in range(3):
        reader.feed(pack.compress(bytes(3 << 20)) + pack.flush(zlib.Z_SYNC_FLUSH))
    assert sum(inner.sizes) == 9 << 20


def test_what_follows_the_end_of_a_packed_answer_is_not_read() -> None:
    inner = Sizes()
    reader = CodedReader(inner)
    reader.feed(gzip.compress(b"abc", mtime=0) + gzip.compress(b"defg", mtime=0))
    assert reader.feed(gzip.compress(b"hi", mtime=0)) == 0
    assert inner.sizes == [3]
    assert CodedReader(StreamReader()).feed(b"") == 0


def test_a_reader_shows_what_it_has_read() -> None:
    reader = CodedReader(StreamReader())
    reader.feed(gzip.compress(LINES[0] + b"\n\n", mtime=0))
    assert repr(reader) == "<CodedReader of <StreamReader 1 outputs, <UsageFinder None>>>"
    assert repr(BodyReader()) == "<BodyReader <UsageFinder None>>"


@pytest.mark.parametrize("size", [EVENT_BYTES - 1, EVENT_BYTES, EVENT_BYTES + 1, EVENT_BYTES + 2, EVENT_BYTES + 3])
@pytest.mark.parametrize("name", [b"", b"event: x\n"])
@pytest.mark.parametrize("count", [1, 2])
def test_a_word_at_the_limit_of_an_event_counts_however_it_is_cut(count: int, name: bytes, size: int) -> None:
    """The word ends at ``size`` bytes of the event."""
    front, back = name + b'data: {"pad":"', b'","content":"a'
    event = front + b"x" * (size - len(front) - len(back)) + back + b'"}\n\n'
    counts = []
    for step in (1, 100, 1 << 20):
        reader = StreamReader()
        whole = event * count
        for at in range(0, len(whole), step):
            reader.feed(whole[at : at + step])
        counts.append(reader.outputs)
    assert counts == [count if size <= EVENT_BYTES else 0] * 3


def test_events_that_end_a_stream_among_others_end_it() -> None:
    for tail in (b"data: [DONE]\n\n", b'event: message_stop\ndata: {"type":"message_stop"}\n\n'):
        front = LINES[0] + b"\n\n" if tail[:1] == b"d" else b'event: x\ndata: {"text":"a"}\n\n'
        reader = StreamReader()
        assert reader.feed(front + tail + front) == 2
        assert reader.is_done


def test_an_event_counts_when_its_empty_line_is_there() -> None:
    reader = StreamReader()
    assert reader.feed(b'data: {"content":"a"}\nd') == 0
    assert reader.feed(b"ata: {}\n\n") == 1


@pytest.mark.parametrize("step", [1, 1000, 1 << 20])
def test_a_word_behind_the_limit_of_an_event_is_not_looked_for(step: int) -> None:
    data = b'data: {"pad":"' + b"x" * EVENT_BYTES + b'","content":"a"}\n\n' + b'data: {"content":"b"}\n\n'
    reader = StreamReader()
    for at in range(0, len(data), step):
        reader.feed(data[at : at + step])
    assert reader.outputs == 1


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("aaaa" + "é", PLAIN),
        ("aaa" + "é", ALPHABETIC),
        ("aaaaaa" + "敏", PLAIN),
        ("aaaaa" + "敏", WIDE),
        ("ééé" + "敏敏", WIDE),
        ("éééé" + "敏敏", ALPHABETIC),
        ("é" * 30 + "敏" * 19, ALPHABETIC),
        ("é" * 30 + "敏" * 20, WIDE),
        ("\u0080" + "\u07ff", ALPHABETIC),
        ("\u0800" + "\uffff", WIDE),
        (r"\u0041" + "aaaaaa", PLAIN),
        (r"\u0041" + "aaaaa", ESCAPED),
        (r"\u0041" * 3 + "a" * 18, PLAIN),
        (r"\u0041" * 3 + "a" * 17, ESCAPED),
        (r"\n" * 100, PLAIN),
    ],
)
def test_a_script_begins_at_a_third_of_the_bytes_and_more_than_half_of_its_own(text: str, expected: int) -> None:
    assert script(text.encode()) == expected


def test_estimates_of_each_script_begin_at_four_bytes_a_token() -> None:
    for size in (4, 40, 448):
        wanted = [size // 4, size // 8, size // 4, size // 4]
        assert [PromptEstimate().of(size, each) for each in (PLAIN, ESCAPED, ALPHABETIC, WIDE)] == [
            max(1, each) for each in wanted
        ]


@pytest.mark.parametrize("eol", ["\n", "\r\n"])
@pytest.mark.parametrize("step", [1, 5, 1 << 20])
def test_events_of_any_form_count_alike_however_they_are_cut(step: int, eol: str) -> None:
    events = [
        'data: {"choices":[{"delta":{"content":"Hi"}}]}',
        'data: {"choices":[{"delta":{"content":""}}]}',
        'data: {"choices":[{"delta":{"content":"x"}}],"usage":null}',
        'event: content_block_delta\ndata: {"type":"content_block_delta","delta":{"type":"text_delta","text":"Hi"}}',
        'data: {"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":3,"total_tokens":10}}',
    ]
    text = "".join(event + "\n\n" for event in events).replace("\n", eol).encode()
    reader = StreamReader()
    found = sum(reader.feed(text[at : at + step]) for at in range(0, len(text), step))
    found += reader.feed(b"data: [DONE]\n\n")
    assert (found, reader.outputs, reader.is_done) == (3, 3, True)
    usage = reader.usage()
    assert usage is not None
    assert "7" in repr(usage)


@pytest.mark.parametrize("end", ["message_stop", "response.completed", "response.incomplete", "response.failed"])
def test_each_protocol_ends_a_response_with_an_event_of_its_own(end: str) -> None:
    reader = StreamReader()
    reader.feed(b'event: x\ndata: {"type":"message_delta"}\n\n')
    assert not reader.is_done
    reader.feed(f'event: {end}\ndata: {{"type":"{end}"}}\n\n'.encode())
    assert reader.is_done


def test_a_record_that_is_cut_after_events_without_one_is_read() -> None:
    """Only what was not fed to the finder lies apart from what is."""
    reader = StreamReader()
    reader.feed(LINES[0] + b"\n\n")
    for piece in (b'data: {"usage', b'":{"prompt_tokens":11,', b'"completion_tokens":3}}\n\n'):
        reader.feed(piece)
    usage = reader.usage()
    assert usage is not None
    assert (usage.prompt_tokens, usage.completion_tokens) == (11, 3)
