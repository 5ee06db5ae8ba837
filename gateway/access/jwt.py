"""Verification of JSON Web Tokens by one function's rule, with an issuer's public keys; results are kept until they
expire.

The library checks signature, issuer and audience. The key and the algorithm are chosen here before (RFC 8725, section
3.1): the algorithm must be one that the rule names and the key's type has, the key one of the issuer's set. Fields of a
token's head that name keys themselves (``jku``, ``x5u``, ``jwk``) are ignored. Times are checked here too, against the
time that the caller gives.

Imported in a worker only once some function accepts tokens.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Final

import jwt

from tidegate.gateway.access.credentials import NoKeysError, TokenError, UnknownKeyError
from tidegate.gateway.access.key_algorithms import algorithms_of
from tidegate.records.tenants import JwtRule, KeySet

REMEMBERED: Final = 4096
"""Verified tokens kept for a rule; the oldest is dropped first."""
CLAIM_LENGTH: Final = 128
MAX_TIME_S: Final = 1e12
"""Largest Unix seconds that a time may have; also refuses values that are no numbers."""


@dataclass(frozen=True, slots=True)
class Verified:
    tenant: str | None
    """The value of the rule's claim; None if the rule has no claim."""
    until: float
    """End of its validity in Unix seconds."""


class Verifier:
    """Checks the tokens of one rule with one state of its key set."""

    def __init__(self, rule: JwtRule, keys: KeySet) -> None:
        self.rule = rule
        self._by_id: dict[str, list[Mapping[str, Any]]] = {}
        """Keys by id; keys of several types may share an id (RFC 7517, section 4.5)."""
        self._keys = [json.loads(text) for text in keys.keys]
        for key in self._keys:
            self._by_id.setdefault(key.get("kid", ""), []).append(key)
        self._made: dict[tuple[str, str], jwt.PyJWK] = {}
        self._known: dict[bytes, Verified] = {}

    def verify(self, token: bytes, now: float) -> Verified:
        """Returns what a token proves at ``now`` (Unix seconds). Raises TokenError."""
        name = sha256(token).digest()
        known = self._known.get(name)
        if known is not None and now < known.until:
            return known
        found = self._verify(token, now)
        if len(self._known) >= REMEMBERED:
            del self._known[next(iter(self._known))]
        self._known[name] = found
        return found

    def _verify(self, token: bytes, now: float) -> Verified:
        key, algorithm = self._key(token)
        rule = self.rule
        try:
            claims = jwt.decode(
                token,
                key,
                algorithms=[algorithm],
                audience=rule.audience,
                issuer=rule.issuer,
                options={
                    "require": ["exp", "iss", "aud"],
                    "verify_exp": False,
                    "verify_nbf": False,
                    "verify_iat": False,
                },
            )
        except jwt.InvalidSignatureError as error:
            raise TokenError("its signature does not fit") from error
        except jwt.InvalidIssuerError as error:
            raise TokenError("it is of another issuer") from error
        except jwt.InvalidAudienceError as error:
            raise TokenError("it is for another audience") from error
        except jwt.MissingRequiredClaimError as error:
            raise TokenError(f"its claim {error.claim} is missing") from error
        except (jwt.InvalidTokenError, ValueError, TypeError, RecursionError) as error:
            raise TokenError("it is no valid token") from error
        return Verified(self._tenant(claims), self._until(claims, now))

    def _key(self, token: bytes) -> "tuple[jwt.PyJWK, str]":
        """Returns the key that the token names, prepared for the token's algorithm."""
        if not self._keys:
            raise NoKeysError("the issuer's keys are not there")
        try:
            head = jwt.get_unverified_header(token)
        except (jwt.InvalidTokenError, ValueError, RecursionError) as error:
            raise TokenError("it is no token") from error
        algorithm, kid = head.get("alg"), head.get("kid")
        if algorithm not in self.rule.algorithms:
            raise TokenError(f"its algorithm is none of {', '.join(self.rule.algorithms)}")
        if "crit" in head:
            raise TokenError("it names extensions that must be understood")
        named = self._keys if kid is None else self._by_id.get(kid) if isinstance(kid, str) else None
        if named is None:
            raise UnknownKeyError("it is signed with a key that the issuer does not show")
        fitting = [key for key in named if algorithm in algorithms_of(key)]
        if kid is None and len(fitting) != 1:
            raise TokenError("it does not say which of the issuer's keys it is signed with")
        if not fitting:
            raise TokenError("its algorithm does not fit its key")
        return self._prepared(fitting[0], algorithm), algorithm

    def _prepared(self, key: Mapping[str, Any], algorithm: str) -> "jwt.PyJWK":
        name = (json.dumps(key, sort_keys=True), algorithm)
        found = self._made.get(name)
        if found is None:
            try:
                found = self._made[name] = jwt.PyJWK(dict(key), algorithm)
            except (jwt.PyJWTError, ValueError, TypeError) as error:
                raise TokenError("its key cannot be used") from error
        return found

    def _tenant(self, claims: Mapping[str, Any]) -> str | None:
        claim = self.rule.tenant_claim
        if claim is None:
            return None
        found = claims.get(claim)
        if not isinstance(found, str) or not 1 <= len(found) <= CLAIM_LENGTH:
            raise TokenError(f"its claim {claim} does not name a tenant")
        return found

    def _until(self, claims: Mapping[str, Any], now: float) -> float:
        """Returns the end of validity (RFC 7519, sections 4.1.4 and 4.1.5)."""
        leeway = self.rule.leeway_s
        until = _seconds(claims, "exp") + leeway
        if now >= until:
            raise TokenError("it has expired")
        if "nbf" in claims and now < _seconds(claims, "nbf") - leeway:
            raise TokenError("it is not valid yet")
        return until

    def __repr__(self) -> str:
        return f"<Verifier of {self.rule.issuer}: {len(self._keys)} keys, {len(self._known)} tokens known>"


def _seconds(claims: Mapping[str, Any], name: str) -> float:
    value = claims.get(name)
    if not isinstance(value, int | float) or isinstance(value, bool) or not abs(value) < MAX_TIME_S:
        raise TokenError(f"its claim {name} is no time")
    return float(value)
