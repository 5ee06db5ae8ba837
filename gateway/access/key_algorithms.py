"""Algorithms of public keys (JSON Web Keys). Without the library of tokens, which only some processes load."""

from collections.abc import Mapping
from typing import Any, Final

_OF_KEY: Final[Mapping[tuple[str, str], tuple[str, ...]]] = {
    ("RSA", ""): ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"),
    ("EC", "P-256"): ("ES256",),
    ("EC", "P-384"): ("ES384",),
    ("EC", "P-521"): ("ES512",),
    ("OKP", "Ed25519"): ("EdDSA",),
    ("OKP", "Ed448"): ("EdDSA",),
}
"""Algorithms by type and curve of a key (RFC 7518, sections 3.1 and 6; RFC 8037)."""


def algorithms_of(key: Mapping[str, Any]) -> tuple[str, ...]:
    """Returns the algorithms that a key may be used with; () for a key that checks no signatures that we accept."""
    kind = str(key.get("kty", ""))
    found = _OF_KEY.get((kind, "" if kind == "RSA" else str(key.get("crv", ""))), ())
    operations = key.get("key_ops", ["verify"])
    if key.get("use", "sig") != "sig" or not isinstance(operations, list) or "verify" not in operations:
        return ()
    own = key.get("alg")
    return found if own is None else tuple(name for name in found if name == own)
