"""Credentials: one key or token, wherever clients put it; never one of two different ones."""

import pytest

from tests.support.worlds.fake_exchange import request
from tidegate.gateway.access.credentials import MAX_BYTES, CredentialError, credential, looks_like_token


def given(*fields: str) -> bytes | None:
    lines = "".join(f"{field}\r\n" for field in fields)
    return credential(request(f"POST /v1/x HTTP/1.1\r\nHost: a\r\n{lines}content-length: 2\r\n\r\n"))


@pytest.mark.parametrize(
    ("fields", "found"),
    [
        ((), None),
        (("Authorization: Bearer abc",), b"abc"),
        (("authorization: bEaReR   abc  ",), b"abc"),
        (("X-API-Key: abc",), b"abc"),
        (("x-api-key: abc", "authorization: Bearer abc"), b"abc"),
        (("authorization:", "x-api-key: abc"), b"abc"),
        (("x-api-key-2: abc", "xauthorization: Bearer abc"), None),
        (("cookie: authorization: Bearer abc",), None),
    ],
)
def test_where_clients_put_it(fields: tuple[str, ...], found: bytes | None) -> None:
    assert given(*fields) == found


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (("authorization: Bearer abc", "Authorization: Bearer abc"), "more than once"),
        (("x-api-key: abc", "X-Api-Key: other"), "more than once"),
        (("x-api-key: abc", "authorization: Bearer other"), "differ"),
        (("authorization: Basic abc",), "another scheme"),
        (("authorization: abc",), "another scheme"),
        (("authorization: Bearer ",), "another scheme"),
        (("authorization: Bearerabc",), "another scheme"),
        ((f"x-api-key: {'a' * (MAX_BYTES + 1)}",), "longer than"),
    ],
)
def test_what_is_no_single_credential(fields: tuple[str, ...], message: str) -> None:
    with pytest.raises(CredentialError, match=message) as raised:
        given(*fields)
    assert "abc" not in str(raised.value), "it is never shown"


def test_a_token_has_three_parts() -> None:
    assert looks_like_token(b"eyJhbGciOiJub25lIn0.e30.")
    assert not looks_like_token(b"tg-eyJ.a.b")
    assert not looks_like_token(b"eyJhbGciOiJub25lIn0.e30")
