"""The outline of a JSON object: json.loads agrees; any split agrees; hostile bytes cost few steps."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fuzz.bytes_plan import cut
from tidegate.wire.bodies.json_scan import (
    BINARY_BYTES,
    MAX_DEPTH,
    VALUE_BYTES,
    FoundMembers,
    Keys,
    ObjectScan,
    _read_compact,
    read_object,
)
from tidegate.wire.http1.fields import Rejected

KEYS = Keys(("model", "stream", "n"), ("messages", "input"), ("input",))


def scanned(pieces: list[bytes]) -> FoundMembers | Rejected:
    scan = ObjectScan(KEYS)
    for piece in pieces:
        scan.feed(piece)
    return scan.end() or scan.found


def facts(found: FoundMembers | Rejected) -> object:
    """Returns the comparable part; of a refusal only that it is one: the split decides which of two faults is seen
    first."""
    if type(found) is Rejected:
        assert found.status == 400
        return "refused"
    assert type(found) is FoundMembers
    extents = {key: (extent.start, extent.size, extent.items) for key, extent in found.extents.items()}
    return found.chosen, extents


def expected(pairs: list[tuple[str, Any]]) -> object:
    """Returns the result of json.loads, with the members of the first level as pairs."""
    names = [key for key, _ in pairs if key in KEYS.chosen | KEYS.measured]
    if len(set(names)) < len(names):
        return "refused"
    return {key: value for key, value in pairs if key in KEYS.chosen | KEYS.measured}


_TEXT = st.one_of(
    st.text(max_size=8),
    st.sampled_from(['"model": "evil"', '\\"', "\\", '"', 'x","model":"evil', "[", "}", "é", "\U0001f600", "a" * 70]),
)
_VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), _TEXT),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.dictionaries(st.one_of(_TEXT, st.sampled_from(["model", "input"])), inner, max_size=4),
    ),
    max_leaves=12,
)
_KEYS = st.one_of(st.sampled_from(["model", "stream", "n", "messages", "input", "role", ""]), _TEXT)
_CUTS = st.binary(min_size=1, max_size=6)


def escaped(key: str) -> str:
    """Returns a key with each letter as an escape."""
    return '"' + "".join(f"\\u{unit:04x}" for unit in memoryview(key.encode("utf-16-le")).cast("H")) + '"'


@st.composite
def bodies(draw: st.DrawFn) -> tuple[bytes, list[tuple[str, Any]]]:
    """Draws an object in any writing, and its members."""
    pairs = draw(st.lists(st.tuples(_KEYS, _VALUES), max_size=6))
    ascii_only = draw(st.booleans())
    comma, colon = draw(st.sampled_from([(",", ":"), (", ", ": "), (" ,\n ", "\t:\r\n")]))
    written = []
    for key, value in pairs:
        name = escaped(key) if draw(st.integers(0, 7)) == 0 else json.dumps(key, ensure_ascii=ascii_only)
        written.append(
            name + colon + json.dumps(value, ensure_ascii=ascii_only, separators=(comma.rstrip("\n ") or ",", colon))
        )
    space = draw(st.sampled_from(["", "", " ", "\n"]))
    return (space + "{" + comma.join(written) + "}" + space).encode("utf-8", "surrogatepass"), pairs


@settings(deadline=None)
@given(bodies(), _CUTS)
def test_what_json_says_however_it_is_cut(case: tuple[bytes, list[tuple[str, Any]]], cuts: bytes) -> None:
    body, pairs = case
    found = scanned([body])
    assert facts(found) == facts(scanned(cut(body, cuts))) == facts(read_object(body, KEYS))
    wanted = expected(pairs)
    if type(found) is Rejected:
        assert wanted == "refused"
        return
    assert type(found) is FoundMembers and type(wanted) is dict
    assert {*found.chosen, *found.extents} == set(wanted)
    for key, value in found.chosen.items():
        assert json.loads(value) == wanted[key]
    for key, extent in found.extents.items():
        assert json.loads(body[extent.start : extent.start + extent.size]) == wanted[key]
    if "input" in wanted:
        items = wanted["input"] if type(wanted["input"]) is list else []
        assert found.extents["input"].items == sum(type(item) in (str, list, dict) for item in items)


_PIECES = st.sampled_from(
    [b"{", b"}", b"[", b"]", b'"', b"\\", b":", b",", b'"model"', b'"input"', b'"a"', b"1", b"tru", b" ", b"\\u006d",
     b"\xc3\xa9", b"\xc3", b"\xff", b'"model":"x"', b'"n":[1,', b"a" * 70, b"\0", b"\xef\xbb\xbf"]
)  # fmt: skip


@settings(deadline=None)
@given(st.lists(_PIECES, max_size=16).map(b"".join), st.booleans(), _CUTS)
def test_any_bytes_however_they_are_cut(tail: bytes, opened: bool, cuts: bytes) -> None:
    body = b'{"model":' + tail if opened else tail
    found = scanned([body])
    assert facts(found) == facts(scanned(cut(body, cuts))) == facts(read_object(body, KEYS))
    try:
        theirs = json.loads(body.decode())
    except ValueError:
        return
    if type(theirs) is not dict:
        assert type(found) is Rejected
    elif type(found) is FoundMembers:
        assert {key: json.loads(value) for key, value in found.chosen.items()} == {
            key: value for key, value in theirs.items() if key in KEYS.chosen
        }


@pytest.mark.parametrize(
    "body",
    [
        b'{"model":"a","model":"b"}',
        b'{"model": "a", "model": "b"}',
        b'{"model":"a","x":1,"mod\\u0065l":"b"}',
        b'{"input":[],"input":[]}',
        b'{"model":"a"}{',
        b'{"model":"a"} x',
        b'{"model":"a",}',
        b'{,"model":"a"}',
        b'{"model":}',
        b'{"model" "a"}',
        b"{'model':'a'}",
        b'{"model":"a"',
        b'{"model":"a',
        b"[]",
        b'"model"',
        b"",
        b"  ",
        b'\xef\xbb\xbf{"model":"a"}',
        b'{"model":"\xff"}',
        b'{"messages":["\xed\xa0\x80"]}',
        '{"model":"a"}'.encode("utf-16-le"),
        b'{"model":"' + b"a" * VALUE_BYTES + b'"}',
        b"{" + b",".join(b'"%d":1' % number for number in range(1001)) + b"}",
    ],
)
@pytest.mark.parametrize("step", [1, 7, 1 << 20])
def test_what_is_refused(body: bytes, step: int) -> None:
    pieces = [body[at : at + step] for at in range(0, len(body), step)]
    assert type(scanned(pieces)) is Rejected
    assert type(read_object(body, KEYS)) is Rejected


@pytest.mark.parametrize("step", [1, 7, 1 << 20])
def test_depth_is_bounded(step: int) -> None:
    for levels in (MAX_DEPTH, MAX_DEPTH + 1):
        body = b'{"a":' + b"[" * levels + b"]" * levels + b"}"
        found = scanned([body[at : at + step] for at in range(0, len(body), step)])
        assert type(found) is (FoundMembers if levels == MAX_DEPTH else Rejected)


def test_spaces_that_are_not_there_do_not_hide_a_second_key() -> None:
    """Seven members without spaces and one more of 13 bytes are as long as seven with spaces."""
    body = b'{"model":"bb","a":1,"b":1,"c":1,"d":1,"e":1,"f":1,"model":"c"}'
    assert len(body) == len(json.dumps(json.loads(body)))
    assert type(read_object(body, KEYS)) is Rejected


@pytest.mark.parametrize("body", [b'{ "a":1 ,"input":["x"] }', b'{"a":1,"input" : ["x"] }'])
def test_spaces_in_other_places_move_no_value(body: bytes) -> None:
    """They are as many as behind each colon and comma."""
    assert len(body) == len(json.dumps(json.loads(body)))
    found = read_object(body, KEYS)
    assert type(found) is FoundMembers
    assert found.extents["input"].start == body.index(b"[")


@pytest.mark.parametrize("escapes", range(5))
@pytest.mark.parametrize("front", [10, 100])
def test_escapes_far_apart_and_close_together_wherever_it_is_cut(front: int, escapes: int) -> None:
    r"""An odd run of backslashes before a quote means that the string goes on."""
    text = "a" * front + "\\" * escapes
    for prompt in (text, text + '"', text + '"' + "b" * 100 + '","model":"evil'):
        body = json.dumps({"messages": [prompt, "next"], "x": prompt, "model": "good"}).encode()
        for at in range(len(body)):
            found = scanned([body[:at], body[at:]])
            assert type(found) is FoundMembers and found.chosen == {"model": b'"good"'}


def test_the_model_is_known_before_the_end_and_final_at_it() -> None:
    scan = ObjectScan(KEYS)
    assert scan.feed(b'{"model":"a","messages":["') is None
    assert scan.found.chosen == {"model": b'"a"'}
    bad = scan.feed(b'"],"model":"b"}')
    assert type(bad) is Rejected and bad.why == "the body has the key 'model' twice"
    assert scan.end() is bad


def test_images_count_some_kilobytes() -> None:
    image, text = b'"data:image/png;base64,' + b"iVBO" * 5000 + b'"', b'"' + b"word " * 4000 + b'"'
    slashes = b'"' + rb"\/9j\/" * 4000 + b'"'  # As PHP writes them.
    chinese, path = b'"' + rb"\u654f\u6377" * 2000 + b'"', b'"' + rb"C:\\" * 4000 + b'"'
    whole = [(each, len(each)) for each in (text, chinese, path)]
    for value, size in ((image, BINARY_BYTES + 2), (slashes, BINARY_BYTES + 2), *whole):
        body = b'{"messages":[%b]}' % value
        for found in (read_object(body, KEYS), scanned([body]), scanned(cut(body, b"\7\0"))):
            assert type(found) is FoundMembers
            assert found.extents["messages"].size == size + 2


_HOSTILE = {
    "brackets": b"[" * 1_000_000,
    "arrays": b'["",' + b"[]," * 300_000,
    "strings": b"[" + b'"",' * 300_000,
    "quotes": b'"' + b'\\"' * 500_000,
    "strings with escapes": b"[[" + b'"a\\n\\"b\\"",' * 100_000,
    "sparse quotes": b'"' + (b"a" * 61 + b'\\"') * 16_000,
    "backslashes": b'"' + b"\\" * 1_000_001,
    "runs of backslashes": b'"' + (b"\\" * 70 + b'\\"') * 14_000,
    "numbers": b"[" + b"1," * 500_000,
    "members": b"1" + b',"a":1' * 160_000,
    "escaped keys": b"1" + b',"\\u0061":1' * 90_000,
    "spaces": b" " * 1_000_000,
}


@pytest.mark.parametrize("name", sorted(_HOSTILE))
@pytest.mark.parametrize("step", [4096, 65536])
def test_hostile_bodies_take_few_steps(name: str, step: int) -> None:
    """Each step of Python is of bounded work or one pass of a regular expression; a megabyte takes a few thousand."""
    body = b'{"messages":' + _HOSTILE[name]
    scan = ObjectScan(KEYS)
    for at in range(0, len(body), step):
        scan.feed(body[at : at + step])
    assert type(scan.end()) is Rejected
    assert scan.steps <= len(body) // 32


def test_brackets_that_are_not_flat_take_a_step_each_at_most() -> None:
    body = b'{"messages":[' + b"[[]]," * 100_000
    scan = ObjectScan(KEYS)
    scan.feed(body)
    assert scan.steps <= len(body) / 2


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b"", "is empty"),
        (b" \n", "is empty"),
        (b"[]", "is not a JSON object"),
        (b"  x", "is not a JSON object"),
        (b"}", "is not a JSON object"),
        (b'\xef\xbb\xbf{"model":"a"}', "begins with a byte order mark"),
        (b' \xef\xbb\xbf{"model":"a"}', "begins with a byte order mark"),
        (b"\xff", "is not UTF-8"),
        (b'{"model":"a"', "ends before its JSON object does"),
        (b'{"model"', "ends before its JSON object does"),
        (b"{", "ends before its JSON object does"),
        (b'{"a":1,}', "is malformed JSON at byte 7"),
        (b"{,}", "is malformed JSON at byte 1"),
        (b'{"a";1}', "is malformed JSON at byte 4"),
        (b'{"a":}', "is malformed JSON at byte 5"),
        (b'{"a":1 ;', "is malformed JSON at byte 7"),
        (b'{"a":1:', "is malformed JSON at byte 6"),
        (b'{"a" , 1}', "is malformed JSON at byte 5"),
        (b'{"a" :: 1}', "is malformed JSON at byte 6"),
        (b'{"a":1 "b":1}', "is malformed JSON at byte 7"),
        (b'{"a":1}}', "is malformed JSON at byte 7"),
        (b'{"a":1},', "is malformed JSON at byte 7"),
        (b'{"a":1} :', "is malformed JSON at byte 8"),
        (b'{"a":1} "', "is malformed JSON at byte 8"),
        (b'{"a":1}{', "is malformed JSON at byte 7"),
        (b'{"mo\\xdel":1}', "has a malformed key before byte 10"),
        (b'{"model":1,"model":2}', "has the key 'model' twice"),
        (b'{"input":1,"a":2,"input":2}', "has the key 'input' twice"),
        (b'{"Model":1}', "has the key 'Model': write it 'model'"),
        (b'{"model":"' + b"a" * (VALUE_BYTES - 1) + b'"}', "has more than 4096 bytes in 'model'"),
        (b'{"model":[' + b"1" * (VALUE_BYTES - 1) + b"]}", "has more than 4096 bytes in 'model'"),
        (b'{"model":' + b"1" * (VALUE_BYTES + 1) + b"}", "has more than 4096 bytes in 'model'"),
        (b"{" + b",".join([b'"a":1'] * 1001) + b"}", "has more than 1000 members"),
        (b'{"a":' + b"[" * (MAX_DEPTH + 1) + b"]}", "is nested deeper than 1000 levels"),
    ],
)
@pytest.mark.parametrize("step", [1, 7, 1 << 20])
def test_a_refusal_says_why(body: bytes, why: str, step: int) -> None:
    if step < 3 and "byte order" in why:
        return  # Its character is not whole yet.
    scan = ObjectScan(Keys(("model",), ("input",), ("input",), ("model",)))
    for at in range(0, len(body), step):
        scan.feed(body[at : at + step])
    bad = scan.end()
    assert type(bad) is Rejected
    assert (bad.status, bad.why) == (400, f"the body {why}")
    assert scan.feed(b"{") is scan.end() is bad


@pytest.mark.parametrize("step", [1, 7, 1 << 20])
@pytest.mark.parametrize("spare", [b"", b" "])
@pytest.mark.parametrize(
    "value",
    [
        b'"' + b"a" * (VALUE_BYTES - 2) + b'"',
        b"[" + b"1" * (VALUE_BYTES - 2) + b"]",
        b"1" * VALUE_BYTES,
        b'"' + b"\\n" * (VALUE_BYTES // 2 - 1) + b'"',
    ],
    ids=["text", "array", "number", "escapes"],
)
def test_a_wanted_value_may_have_4096_bytes(value: bytes, spare: bytes, step: int) -> None:
    body = b'{"a":%b1,"model":%b%b%b}' % (spare, spare, value, spare)
    for found in (scanned([body[at : at + step] for at in range(0, len(body), step)]), read_object(body, KEYS)):
        assert type(found) is FoundMembers
        assert found.chosen == {"model": value}


@pytest.mark.parametrize("step", [7, 1 << 20])
def test_a_thousand_members_are_read(step: int) -> None:
    body = b"{" + b",".join([b'"a%d":1' % number for number in range(999)]) + b',"model":2}'
    for found in (scanned([body[at : at + step] for at in range(0, len(body), step)]), read_object(body, KEYS)):
        assert type(found) is FoundMembers
        assert found.chosen == {"model": b"2"}


@pytest.mark.parametrize("count", range(1, 12))
@pytest.mark.parametrize("separators", [(",", ":"), (", ", ": ")])
def test_the_form_of_most_clients_is_read_without_the_scan(separators: tuple[str, str], count: int) -> None:
    members = {"model": "m", "input": ["a", "b"], **{f"a{'b' * number}": number for number in range(10)}}
    body = json.dumps(dict([*members.items()][-count:]), separators=separators).encode()
    quick = _read_compact(body, KEYS)
    assert quick is not None
    assert facts(quick) == facts(scanned([body]))
    for other in (body + b" ", b" " + body, body.replace(b":", b" :", 1), body.replace(b"}", b",}")):
        assert _read_compact(other, KEYS) is None


def test_a_thousand_members_are_read_without_the_scan_and_no_more() -> None:
    for count, is_read in ((1000, True), (1001, False), (0, False)):
        body = b"{" + b",".join([b'"a%d":1' % number for number in range(count)]) + b"}"
        assert (_read_compact(body, KEYS) is not None) is is_read


def test_a_value_of_4096_bytes_is_read_without_the_scan_and_an_image_is_not() -> None:
    for size in (VALUE_BYTES, VALUE_BYTES + 1):
        text = b'"' + b"a b " * (size // 4) + b"a" * (size % 4)
        value = text[: size - 1] + b'"'
        assert len(value) == size
        assert (_read_compact(b'{"model":%b}' % value, KEYS) is not None) is (size == VALUE_BYTES)
        assert _read_compact(b'{"messages":[%b]}' % value, KEYS) is not None
    for size in (BINARY_BYTES - 4, BINARY_BYTES - 3):
        image = b'["' + b"a" * size + b'"]'
        assert (_read_compact(b'{"messages":%b}' % image, KEYS) is not None) is (len(image) <= BINARY_BYTES)


def test_a_small_body_takes_a_step_for_each_member() -> None:
    body = b'{ "x":1, "model": "a", "stream" :true, "role":"u" }'
    scan = ObjectScan(KEYS)
    assert scan.feed(body) is None
    assert scan.steps == 5, "the opening and four members, the last with the closing"
    assert (
        repr(scan) == f"<ObjectScan {len(body)} bytes, <FoundMembers {{'model': b'\"a\"', 'stream': b'true'}}, {{}}>>"
    )


@pytest.mark.parametrize("value", [b'["a b"%b]', b"[[[1]%b]]"])
def test_a_long_list_in_one_piece_is_counted_whole(value: bytes) -> None:
    body = b'{"input": ' + value % (b',"c d"' * 50_000) + b' , "model":"m"}'
    found = scanned([body])
    assert type(found) is FoundMembers
    assert found.extents["input"].items == (50_001 if value[:2] == b'["' else 1)
    assert found.chosen == {"model": b'"m"'}
