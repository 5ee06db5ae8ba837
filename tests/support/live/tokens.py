"""JSON Web Tokens and the keys that they are signed with: real ones, and ones that no gateway should accept."""

import base64
import hashlib
import hmac
import json
from collections.abc import Mapping
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm

ISSUER = "https://id.example"
AUDIENCE = "tidegate"


class Issuer:
    """Keys by their id."""

    def __init__(self) -> None:
        self.keys: dict[str, Any] = {}

    def rsa(self, kid: str, bits: int = 2048) -> "Issuer":
        self.keys[kid] = rsa.generate_private_key(public_exponent=65537, key_size=bits)
        return self

    def ec(self, kid: str) -> "Issuer":
        self.keys[kid] = ec.generate_private_key(ec.SECP256R1())
        return self

    def ed25519(self, kid: str) -> "Issuer":
        self.keys[kid] = ed25519.Ed25519PrivateKey.generate()
        return self

    def public(self, kid: str) -> dict[str, Any]:
        """One key as a JSON Web Key."""
        key = self.keys[kid].public_key()
        if isinstance(key, rsa.RSAPublicKey):
            shown = RSAAlgorithm.to_jwk(key)
        elif isinstance(key, ec.EllipticCurvePublicKey):
            shown = ECAlgorithm.to_jwk(key)
        else:
            shown = OKPAlgorithm.to_jwk(key)
        return {**json.loads(shown), "kid": kid, "use": "sig"}

    def jwks(self) -> dict[str, Any]:
        return {"keys": [self.public(kid) for kid in self.keys]}

    def algorithm(self, kid: str) -> str:
        key = self.keys[kid]
        if isinstance(key, rsa.RSAPrivateKey):
            return "RS256"
        return "ES256" if isinstance(key, ec.EllipticCurvePrivateKey) else "EdDSA"

    def sign(self, kid: str, claims: Mapping[str, Any], *, head: Mapping[str, Any] | None = None) -> str:
        fields = {"kid": kid, **(head or {})}
        named = {name: value for name, value in fields.items() if value is not None}
        return jwt.encode(dict(claims), self.keys[kid], self.algorithm(kid), headers=named)


def claims(now: float, **others: Any) -> dict[str, Any]:
    """Those of a token that holds for a minute; ``None`` takes one away."""
    found = {"iss": ISSUER, "aud": AUDIENCE, "exp": int(now) + 60, "tenant": "acme", **others}
    return {name: value for name, value in found.items() if value is not None}


def part(value: object) -> str:
    """A part of a token as it is written."""
    data = value if isinstance(value, bytes) else json.dumps(value).encode()
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def unsigned(head: Mapping[str, Any], body: object, signature: bytes = b"") -> str:
    return f"{part(head)}.{part(body)}.{part(signature)}"


def signed_with_secret(head: Mapping[str, Any], body: object, secret: bytes) -> str:
    """With HMAC: what a gateway accepts that takes a public key for a secret."""
    text = f"{part(head)}.{part(body)}"
    return f"{text}.{part(hmac.new(secret, text.encode(), hashlib.sha256).digest())}"
