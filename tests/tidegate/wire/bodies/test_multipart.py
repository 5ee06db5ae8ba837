"""Fields of a form: found in any pieces; forms that two parsers may read differently are refused."""

from collections.abc import Callable

import httpx
import pytest
import requests
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fuzz.bytes_plan import cut
from tidegate.wire.bodies.multipart import HEAD_BYTES, MAX_PARTS, VALUE_BYTES, FormScan, boundary_of
from tidegate.wire.http1.fields import Rejected

BOUNDARY = b"----b0undary"


def part(value: bytes, parameters: bytes = b'; name="model"', more: bytes = b"") -> bytes:
    return b"--%b\r\nContent-Disposition: form-data%b\r\n%b\r\n%b\r\n" % (BOUNDARY, parameters, more, value)


def form(*parts: bytes, end: bytes = b"--\r\n") -> bytes:
    return b"".join(parts) + b"--" + BOUNDARY + end


def scanned(pieces: list[bytes]) -> dict[str, str] | Rejected:
    scan = FormScan(BOUNDARY, ("model", "stream"))
    for piece in pieces:
        scan.feed(piece)
        assert len(scan._held) <= HEAD_BYTES + VALUE_BYTES + 1000
    return scan.end() or scan.fields


FILE = part(
    b"RIFF\r\n--" + BOUNDARY[:-1] + b"\r\n" * 50 + b"x--" + BOUNDARY + b"\r\n---" + BOUNDARY + b"\r\r\n\n",
    b'; name="file"; filename="a.wav"',
    b"Content-Type: audio/wav\r\n",
)


@settings(deadline=None)
@given(
    st.lists(st.sampled_from([FILE, part(b"whisper-1"), part(b"true", b"; name=stream"), part(b"", b'; name="x"')]),
             max_size=5, unique=True),
    st.sampled_from([b"", b"\r\n"]),
    st.sampled_from([b"--\r\n", b"--", b"--\r\nepilogue --" + BOUNDARY]),
    st.binary(min_size=1, max_size=6),
)  # fmt: skip
def test_any_pieces(parts: list[bytes], preamble: bytes, end: bytes, cuts: bytes) -> None:
    body = preamble + form(*parts, end=end)
    expected = {}
    if part(b"whisper-1") in parts:
        expected["model"] = "whisper-1"
    if part(b"true", b"; name=stream") in parts:
        expected["stream"] = "true"
    assert scanned([body]) == scanned(cut(body, cuts)) == expected


@settings(deadline=None)
@given(
    st.lists(
        st.sampled_from(
            [b"--" + BOUNDARY, b"\r\n", b"\r", b"\n", b"--", b"-", b"Content-Disposition: form-data", b'; name="model"',
             b"; name=stream", b'; filename="x"', b"a", b" ", b"x: y", b"\r\n\r\n", b"\r\n--" + BOUNDARY, b"\xff"]
        ),
        max_size=20,
    ).map(b"".join),
    st.binary(min_size=1, max_size=4),
)  # fmt: skip
def test_any_bytes(body: bytes, cuts: bytes) -> None:
    whole, pieces = scanned([body]), scanned(cut(body, cuts))
    assert type(whole) is type(pieces)
    if type(whole) is dict:
        assert whole == pieces


@pytest.mark.parametrize(
    "body",
    [
        form(part(b"a"), part(b"b")),
        form(part(b"a", b'; name="model"; filename="m.txt"')),
        form(part(b"a", b'; name="model"; name="other"')),
        form(part(b"a", b'; name="other"; name="model"')),
        form(part(b"a", b'; name="mod\\el"')),
        form(part(b"a", b"; name=x; name*=utf-8''model")),
        form(part(b"a"), part(b"b", b'; name*0="mo"; name*1="del"')),
        form(part(b"a"), part(b"b", b"; name*0*=utf-8''model")),
        form(part(b"a"), part(b"b", b'; x="\\\\"; y="; name="model"')),
        form(part(b"a"), part(b"b", b'; x="; name=model; "')),
        form(part(b"a"), end=b"--x"),
        form(part(b"a"), end=b"-- \r\n"),
        form(part(b"a"), part(b"b\n--" + BOUNDARY + b"--", b"; name=x")),
        form(part(b"a"), part(b"b\r--" + BOUNDARY, b"; name=x")),
        form(part(b"a"), part(b"--" + BOUNDARY, b"; name=x")),
        form(part(b"--" + BOUNDARY)),
        form(part(b"a"), part((b"x--" + BOUNDARY) * (MAX_PARTS + 1), b"; name=x")),
        form(part(b"x--" + BOUNDARY)),
        form(part(b"a"), b"--" + BOUNDARY + b"\r\n\r\nb\r\n"),
        form(part(b"a"), b"--" + BOUNDARY + b"\r\n\r\n"),
        form(part(b"a"), b"--" + BOUNDARY + b"\r\nContent-Disposition: form-data; name=x\r\n\r\n"),
        form(part(b"a"), part(b"b", b"; name=x", b" y: z\r\n")),
        form(part(b"a"), b"--" + BOUNDARY + b"\r\n\tContent-Disposition: form-data; name=x\r\n\r\nb\r\n"),
        form(part(b"a"), part(b"b", b"; name=x", b"y : z\r\n")),
        form(part(b"a"), part(b"b", b"; name=x", b"y\r\n")),
        form(part(b"a"), part(b"b", b'; name="model')),
        form(part(b"a"), part(b"b", b"; name=model\xa0")),
        form(part(b"a"), part(b"b", b"; name=\x0bmodel")),
        form(part(b"a"), part(b"b", b"; name=model\x0b_")),
        form(part(b"a", b';\r\n name="model"')),
        form(part(b"a", more=b"Content-Disposition: form-data; name=x\r\n")),
        form(part(b"a", more=b"X: y\nContent-Disposition: form-data; name=x\r\n")),
        form(part(b"YQ==", more=b"Content-Transfer-Encoding: base64\r\n")),
        form(part(b"YQ", more=b"Content-Type: text/plain; charset=utf-16\r\n")),
        form(part(b"a", more=b"Content-Type: multipart/mixed; boundary=C\r\n")),
        form(part(b"a", more=b'content-type: text/plain; Charset = "x-utf-8"\r\n')),
        b"preamble\r\n" + form(part(b"a")),
        b"x\n" + form(part(b"b"), part(b"a")),
        b"\n" + form(part(b"a")),
        b"\r\n\r\n" + form(part(b"a")),
        b"\r",
        b"\r\n",
        form(part(b"\xff")),
        form(part(b"a" * (VALUE_BYTES + 1))),
        form(part(b"a", more=b"X: " + b"y" * HEAD_BYTES + b"\r\n")),
        form(*[part(b"", b"; name=x")] * (MAX_PARTS + 1)),
        form(part(b"a"), end=b"x"),
        form(part(b"a"), end=b"\r\n"),
        part(b"a"),
        b"",
    ],
)
@pytest.mark.parametrize("step", [1, 1 << 20])
def test_what_is_refused(body: bytes, step: int) -> None:
    result = scanned([body[at : at + step] for at in range(0, len(body), step)])
    assert type(result) is Rejected and result.status == 400


@pytest.mark.parametrize("step", [1, 1 << 20])
@pytest.mark.parametrize(("size", "is_read"), [(HEAD_BYTES - 1, True), (HEAD_BYTES, True), (HEAD_BYTES + 1, False)])
def test_the_head_of_a_part_has_a_limit_wherever_it_is_cut(size: int, is_read: bool, step: int) -> None:
    head = b'Content-Disposition: form-data; name="model"\r\nX: '
    body = form(b"--" + BOUNDARY + b"\r\n" + head + b"y" * (size - len(head)) + b"\r\n\r\na\r\n")
    result = scanned([body[at : at + step] for at in range(0, len(body), step)])
    assert (result == {"model": "a"}) is is_read


@pytest.mark.parametrize("step", [1, 7, 1 << 20])
def test_a_field_may_be_as_long_as_the_limit(step: int) -> None:
    body = form(part(b"a" * VALUE_BYTES))
    assert scanned([body[at : at + step] for at in range(0, len(body), step)]) == {"model": "a" * VALUE_BYTES}


@pytest.mark.parametrize(
    ("content_type", "expected"),
    [
        (b"multipart/form-data; boundary=abc", b"abc"),
        (b'Multipart/Form-Data; charset=utf-8; Boundary="a b c"', b"a b c"),
        (b"multipart/form-data;boundary=----WebKitFormBoundary7MA4", b"----WebKitFormBoundary7MA4"),
        (b"multipart/form-data; boundary=a; boundary=b", None),
        (b"multipart/form-data; boundary=a; boundary*0=b", None),
        (b'multipart/form-data; boundary=a; x="; boundary=b; "', None),
        (b"multipart/form-data", None),
        (b"multipart/form-data; boundary=", None),
        (b'multipart/form-data; boundary="a "', None),
        (b"multipart/form-data; boundary=" + b"a" * 71, None),
        (b"multipart/mixed; boundary=a", None),
        (b"application/json", None),
    ],
)
def test_boundaries(content_type: bytes, expected: bytes | None) -> None:
    assert boundary_of(content_type) == expected


@pytest.mark.parametrize("front", [b"R", b"RI", b"RIFF"])
def test_a_file_may_have_the_boundary_inside_its_first_line(front: bytes) -> None:
    file = part(front + b"--" + BOUNDARY + b"x", b'; name="file"; filename="a.wav"')
    assert scanned([form(file, part(b"whisper-1"))]) == {"model": "whisper-1"}


def test_files_may_have_odd_names() -> None:
    """RFC 2231 and marks of parameters are valid unless they name a field."""
    for name in (b'filename="a;b=c.wav"', b'filename="name=x.wav"', b"filename=a; filename*=utf-8''a%20b.wav"):
        assert scanned([form(part(b"R", b'; name="file"; ' + name), part(b"whisper-1"))]) == {"model": "whisper-1"}


@pytest.mark.parametrize("kind", [b"text/plain", b"text/plain; charset=utf-8", b'text/plain;charset="UTF-8"'])
def test_fields_may_have_a_type(kind: bytes) -> None:
    """Clients of .NET write them so."""
    assert scanned([form(part(b"whisper-1", more=b"Content-Type: %b\r\n" % kind))]) == {"model": "whisper-1"}


def encoded_by_requests() -> tuple[str, bytes]:
    files = {"file": ("a.wav", b"\r\n--" * 100, "audio/wav")}
    request = requests.Request("POST", "http://a/", data={"model": "whisper-1", "é": "x"}, files=files).prepare()
    assert type(request.body) is bytes
    return request.headers["content-type"], request.body


def encoded_by_httpx() -> tuple[str, bytes]:
    """Returns a form as the openai client sends it."""
    files = {"file": ('a"b.wav', b"\r\n--" * 100, "audio/wav")}
    request = httpx.Request("POST", "http://a/", data={"model": "whisper-1", "language": "de"}, files=files)
    return request.headers["content-type"], request.read()


@pytest.mark.parametrize("encoded", [encoded_by_requests, encoded_by_httpx])
def test_forms_of_clients(encoded: Callable[[], tuple[str, bytes]]) -> None:
    content_type, body = encoded()
    boundary = boundary_of(content_type.encode())
    assert boundary is not None
    scan = FormScan(boundary, ("model",))
    for piece in cut(body, b"\x05"):
        assert scan.feed(piece) is None
    assert scan.end() is None
    assert scan.fields == {"model": "whisper-1"}


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b"x", "does not begin with its boundary"),
        (b"\n", "does not begin with its boundary"),
        (b"-x", "does not begin with its boundary"),
        (b"\r\r", "does not begin with its boundary"),
        (b"\r\n\r", "does not begin with its boundary"),
        (form(end=b"x"), "has a malformed boundary"),
        (form(end=b"\rx"), "has a malformed boundary"),
        (form(end=b"-x"), "has a malformed boundary"),
        (form(part(b"", b"; name=x"), b"--" + BOUNDARY + b"\r\n\n"), None),
        (form(*[part(b"", b"; name=x")] * MAX_PARTS, end=b"\r\n"), f"has more than {MAX_PARTS} parts"),
        (form(end=b"\r\n" + b"a" * (HEAD_BYTES + 4)), f"has a part with a head of more than {HEAD_BYTES} bytes"),
        (form(end=b"\r\n" + b"a" * (HEAD_BYTES + 3)), None),
        (form(part(b"a"), part(b"b")), "has the field 'model' twice"),
        (form(part(b"a", b'; name="model"; filename="m.txt"')), "has an ambiguous part 'model'"),
        (form(part(b"a", more=b"Content-Transfer-Encoding: base64\r\n")), "has an encoding of its own in 'model'"),
        (form(part(b"a"), part(b"b", b"; name=x", b"y\r\n")), "has a part with a malformed head"),
        (form(part(b"\xff")), "is not UTF-8 in 'model'"),
        (form(part(b"x--" + BOUNDARY)), "has a malformed boundary"),
        (form(part(b"a" * (VALUE_BYTES + 1))), f"has more than {VALUE_BYTES} bytes in 'model'"),
    ],
)
def test_a_fault_is_found_with_its_last_byte_and_says_why(body: bytes, why: str | None) -> None:
    """Else what is refused at the end alone would be kept until then."""
    scan = FormScan(BOUNDARY, ("model", "stream"))
    bad = scan.feed(body)
    if why is None:
        assert bad is None
        return
    assert bad is not None
    assert (bad.status, bad.why) == (400, f"the form {why}")
    assert scan.feed(b"x") is bad
    assert scan.end() is bad
    assert scan._held == b""


@pytest.mark.parametrize("begun", [b"", b"\r", b"\r\n", b"-", b"\r\n--", b"--" + BOUNDARY, b"--" + BOUNDARY + b"-"])
def test_a_beginning_is_no_fault_until_the_end(begun: bytes) -> None:
    scan = FormScan(BOUNDARY, ("model",))
    assert scan.feed(begun) is None
    bad = scan.end()
    assert bad is not None
    assert bad.why == "the form ends before its last boundary"
