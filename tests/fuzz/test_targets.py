"""The fuzz targets with hypothesis: a few hundred inputs each in every run, and every seed.

``make fuzz`` runs the same targets with atheris, which is guided by coverage.
"""

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from tests.fuzz.bytes_plan import cut
from tests.fuzz.engines import decode, read_answer, read_requests
from tests.fuzz.targets import TARGETS, seeds
from tests.support.searches import part

_SLOW = [HealthCheck.too_slow, HealthCheck.data_too_large]
FAST = part(0.75, suppress_health_check=_SLOW)
_PIECES = st.sampled_from(
    [
        b"GET / HTTP/1.1\r\n", b"POST /p HTTP/1.1\r\n", b"HTTP/1.1 200 OK\r\n", b"HTTP/1.1 204 x\r\n", b"Host: a\r\n",
        b"Content-Length: 3\r\n", b"Transfer-Encoding: chunked\r\n", b"Connection: close\r\n", b"X-A: b\r\n", b"\r\n",
        b"abc", b"3\r\nabc\r\n", b"0\r\n", b"X-T: 1\r\n", b"HEAD", b" ", b"\r", b"\n", b"\0", b":", b"http://b/",
    ]
)  # fmt: skip
_STREAMS = st.lists(st.one_of(_PIECES, _PIECES, st.binary(max_size=8)), max_size=30).map(b"".join)


def _inputs(name: str) -> st.SearchStrategy[bytes]:
    """Returns seeds with a piece removed or inserted, and messages composed of their parts."""
    known = st.sampled_from(seeds(name))
    changed = st.builds(
        lambda seed, at, out, piece: seed[: at % (len(seed) + 1)] + piece + seed[at % (len(seed) + 1) + out :],
        known,
        st.integers(0, 4000),
        st.integers(0, 4),
        st.one_of(_PIECES, st.binary(max_size=6)),
    )
    if name == "driver":
        return st.one_of(changed, st.binary(max_size=400), st.binary(min_size=100, max_size=800))
    return st.one_of(changed, st.builds(lambda front, stream: front + stream, st.binary(max_size=4), _STREAMS))


@pytest.mark.parametrize("name", sorted(TARGETS))
def test_changed_seeds(name: str) -> None:
    target = TARGETS[name]

    @FAST
    @given(_inputs(name))
    def holds(data: bytes) -> None:
        target(data)

    holds()


@pytest.mark.parametrize("name", sorted(TARGETS))
def test_every_seed(name: str) -> None:
    for seed in seeds(name):
        TARGETS[name](seed)


_MESSAGES = (
    b"GET /a HTTP/1.1\r\nHost: a\r\nX-A: b\r\n\r\n",
    b"POST /b HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello",
    b"POST /c HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3;x=y\r\nhel\r\n2\r\nlo\r\n0\r\nX-T: 1\r\n\r\n",
    b"\r\nHEAD http://b/d?e HTTP/1.1\r\nHost: a\r\nConnection: x-f\r\nX-F: g\r\n\r\n",
)


@FAST
@given(st.lists(st.sampled_from(_MESSAGES), min_size=1, max_size=5), st.binary(min_size=1, max_size=12))
def test_requests_in_any_pieces_are_the_same_requests(messages: list[bytes], cuts: bytes) -> None:
    stream = b"".join(messages)
    seen = read_requests(cut(stream, cuts))
    assert seen == read_requests([stream])
    assert len(seen.messages) == len(messages)


_ANSWERS = (
    b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello",
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3;x=y\r\nhel\r\n2\r\nlo\r\n0\r\nX-T: 1\r\n\r\n",
    b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\nHTTP/1.1 200 OK\r\nX-A: b\r\n\r\nhello",
    b"HTTP/1.0 200 OK\r\n\r\nhello",
)


@FAST
@given(st.sampled_from(_ANSWERS), st.binary(min_size=1, max_size=12))
def test_an_answer_in_any_pieces_is_the_same_answer(stream: bytes, cuts: bytes) -> None:
    seen = read_answer(b"GET", cut(stream, cuts), eof=True)
    assert seen == read_answer(b"GET", [stream], eof=True)
    assert (seen.body, seen.complete) == (b"hello", True)


@FAST
@given(st.lists(st.binary(min_size=1, max_size=40), max_size=6), st.binary(min_size=1, max_size=12))
def test_a_chunked_body_in_any_pieces_is_the_same_body(parts: list[bytes], cuts: bytes) -> None:
    stream = b"".join(b"%X;a=b\r\n%b\r\n" % (len(part), part) for part in parts) + b"0\r\nX-T: 1\r\n\r\nnext"
    assert decode(cut(stream, cuts)) == (b"".join(parts), b"X-T: 1\r\n", b"next")
