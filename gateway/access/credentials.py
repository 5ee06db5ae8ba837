"""The credential of a caller, read from its request's head: one API key or token, or none.

``Authorization: Bearer ...`` (RFC 6750) or ``x-api-key: ...`` (sent by Anthropic's clients); in gRPC the metadata of
the same names. A head with two different credentials is refused: two programs on its way could read it differently.
"""

from typing import Final, Protocol

AUTHORIZATION: Final = b"authorization"
API_KEY: Final = b"x-api-key"
FIELDS: Final = (AUTHORIZATION, API_KEY)
MAX_BYTES: Final = 8192
"""Longest credential in bytes. Our choice: half of a head."""
_BEARER: Final = b"bearer "


class Head(Protocol):
    """The head of a request or an RPC."""

    def get(self, name: bytes) -> bytes | None: ...

    def received_fields(self) -> bytes: ...

    def drop(self, *names: bytes) -> None: ...


class TokenError(Exception):
    """The token proves nothing. The message says why, and shows no part of it."""


class UnknownKeyError(TokenError):
    """The token is signed with a key that the set does not contain, or not yet."""


class NoKeysError(TokenError):
    """The issuer's keys have not been read, so the token cannot be checked."""


class CredentialError(Exception):
    """The head has something that is no single credential. The message does not show it."""


def credential(head: Head) -> bytes | None:
    """Returns the key or token; None if the head has none. Raises CredentialError."""
    given, key = head.get(AUTHORIZATION), head.get(API_KEY)
    if not given and not key:
        return None
    fields = b"\n" + head.received_fields().lower()
    if any(fields.count(b"\n%b:" % name) > 1 for name in FIELDS):
        raise CredentialError("a credential is there more than once")
    found = None
    if given:
        if given[: len(_BEARER)].lower() != _BEARER:
            raise CredentialError("authorization has another scheme than Bearer")
        found = given[len(_BEARER) :].strip(b" ")
        if not found:
            raise CredentialError("authorization has no credential after Bearer")
    if key and found is not None and key != found:
        raise CredentialError("authorization and x-api-key differ")
    found = found or key
    if found is not None and len(found) > MAX_BYTES:
        raise CredentialError(f"the credential is longer than {MAX_BYTES} bytes")
    return found


def looks_like_token(given: bytes) -> bool:
    """Returns whether a credential has the three parts of a signed JSON Web Token (RFC 7515, section 7.1)."""
    return given.startswith(b"eyJ") and given.count(b".") == 2
