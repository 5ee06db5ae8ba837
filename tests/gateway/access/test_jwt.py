"""JSON Web Tokens: those of an issuer are accepted, look-alikes are not; no message shows a part of a token."""

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization
from hypothesis import given
from hypothesis import strategies as st

from tests.support.live.tokens import AUDIENCE, ISSUER, Issuer, claims, part, signed_with_secret, unsigned
from tidegate.gateway.access.credentials import NoKeysError, TokenError, UnknownKeyError
from tidegate.gateway.access.jwt import REMEMBERED, Verified, Verifier
from tidegate.gateway.access.key_algorithms import algorithms_of
from tidegate.records.tenants import JwtRule, KeySet

NOW = 1_800_000_000.0
RULE = JwtRule(jwks="keys", issuer=ISSUER, audience=(AUDIENCE, "other"), tenant_claim="tenant", leeway_s=10.0)
KEYS = Issuer().rsa("r").ec("e").ed25519("d").rsa("r2")


def verifier(rule: JwtRule = RULE, issuer: Issuer = KEYS, **more: Any) -> Verifier:
    keys = [{**issuer.public(kid), **more} for kid in issuer.keys]
    return Verifier(rule, KeySet(source="keys", keys=tuple(map(json.dumps, keys))))


def refused(token: str, rule: JwtRule = RULE, now: float = NOW) -> str:
    with pytest.raises(TokenError) as raised:
        verifier(rule).verify(token.encode(), now)
    for piece in token.split("."):
        assert len(piece) < 12 or piece not in str(raised.value)
    return str(raised.value)


@pytest.mark.parametrize("kid", ["r", "e", "d"])
def test_a_token_of_each_kind_of_key_names_its_tenant(kid: str) -> None:
    token = KEYS.sign(kid, claims(NOW)).encode()
    assert verifier().verify(token, NOW) == Verified("acme", NOW + 60 + 10)
    assert verifier(replace(RULE, tenant_claim=None)).verify(token, NOW).tenant is None


@pytest.mark.parametrize("audience", [["x", AUDIENCE], "other"])
def test_one_of_the_audiences_is_enough(audience: object) -> None:
    verifier().verify(KEYS.sign("r", claims(NOW, aud=audience)).encode(), NOW)


@pytest.mark.parametrize(
    ("others", "message"),
    [
        ({"exp": NOW - 10}, "expired"),
        ({"exp": None}, "claim exp is missing"),
        ({"exp": "tomorrow"}, "claim exp is no time"),
        ({"exp": True}, "claim exp is no time"),
        ({"exp": 10**400}, "claim exp is no time"),
        ({"nbf": NOW + 11}, "not valid yet"),
        ({"nbf": "x"}, "claim nbf is no time"),
        ({"iss": "https://evil.example"}, "another issuer"),
        ({"iss": None}, "claim iss is missing"),
        ({"aud": "somebody"}, "another audience"),
        ({"aud": None}, "claim aud is missing"),
        ({"aud": 7}, "another audience"),
        ({"tenant": None}, "does not name a tenant"),
        ({"tenant": ["acme"]}, "does not name a tenant"),
        ({"tenant": "x" * 129}, "does not name a tenant"),
    ],
)
def test_claims_that_do_not_fit(others: dict[str, object], message: str) -> None:
    assert message in refused(KEYS.sign("r", claims(NOW, **others)))


def test_clocks_may_differ_by_the_leeway() -> None:
    verifier().verify(KEYS.sign("r", claims(NOW, exp=NOW - 9, nbf=NOW + 9)).encode(), NOW)


def public_pem() -> bytes:
    form = serialization.PublicFormat.SubjectPublicKeyInfo
    return bytes(KEYS.keys["r"].public_key().public_bytes(serialization.Encoding.PEM, form))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda body: unsigned({"alg": "none", "kid": "r"}, body), "its algorithm is none of"),
        (lambda body: unsigned({"alg": "None", "kid": "r"}, body), "its algorithm is none of"),
        (lambda body: unsigned({"alg": ["RS256"], "kid": "r"}, body), "its algorithm is none of"),
        (lambda body: signed_with_secret({"alg": "HS256", "kid": "r"}, body, public_pem()), "its algorithm is none of"),
        (lambda body: signed_with_secret({"alg": "RS256", "kid": "r"}, body, public_pem()), "signature does not fit"),
        (lambda body: unsigned({"alg": "RS256", "kid": "r"}, body), "signature does not fit"),
        (lambda body: unsigned({"alg": "ES256", "kid": "e"}, body, b"\0" * 64), "signature does not fit"),
        (lambda body: unsigned({"alg": "ES256", "kid": "r"}, body), "does not fit its key"),
        (lambda body: KEYS.sign("r2", body, head={"kid": "r"}), "signature does not fit"),
        (lambda body: KEYS.sign("r", body, head={"kid": None}), "does not say which"),
        (lambda body: unsigned({"alg": "RS256", "kid": "r", "crit": ["exp"], "exp": 1}, body), "no token"),
        (lambda body: unsigned({"alg": "RS256", "kid": "r", "crit": ["b64"], "b64": True}, body), "extensions"),
        (lambda body: unsigned({"alg": "RS256", "kid": {"a": 1}}, body), "no token"),
        (lambda body: KEYS.sign("r", body)[:-21], "no token"),
        (lambda body: f"{part(b'{')}.{part(body)}.", "no token"),
        (lambda body: f"{part([])}.{part(body)}.", "no token"),
        (lambda body: "a.b.c", "no token"),
        (lambda body: "...", "no token"),
        (lambda body: "", "no token"),
        (lambda body: "eyJ" + "A" * 8000, "no token"),
        (lambda body: f"{part(b'[' * 4000)}.{part(body)}.", "no token"),
    ],
)
def test_what_no_issuer_has_signed_is_refused(make: Callable[[dict[str, Any]], str], message: str) -> None:
    assert message in refused(make(claims(NOW)))


def test_a_body_that_is_no_object_is_refused() -> None:
    import jwt

    token = jwt.api_jws.encode(b"[1]", KEYS.keys["r"], "RS256", headers={"kid": "r"})
    assert "no valid token" in refused(token)


def test_a_token_that_brings_its_own_key_is_not_believed() -> None:
    stranger = Issuer().rsa("r")
    token = stranger.sign("r", claims(NOW), head={"jwk": stranger.public("r"), "jku": "http://127.0.0.1/keys"})
    assert "signature does not fit" in refused(token)


def test_the_rule_says_which_algorithms_are_taken() -> None:
    only = replace(RULE, algorithms=("ES256",))
    assert "none of ES256" in refused(KEYS.sign("r", claims(NOW)), only)
    verifier(only).verify(KEYS.sign("e", claims(NOW)).encode(), NOW)
    lonely = verifier(only).verify(KEYS.sign("e", claims(NOW), head={"kid": None}).encode(), NOW)
    assert lonely.tenant == "acme", "one key alone fits the algorithm"


def test_keys_of_two_types_with_one_id_are_distinguished_by_the_algorithm() -> None:
    shown = tuple(json.dumps({**KEYS.public(kid), "kid": "one"}) for kid in ("r", "e"))
    found = Verifier(RULE, KeySet(source="keys", keys=shown))
    for kid in ("r", "e"):
        assert found.verify(KEYS.sign(kid, claims(NOW), head={"kid": "one"}).encode(), NOW).tenant == "acme"
    with pytest.raises(TokenError, match="signature does not fit"):
        found.verify(KEYS.sign("r2", claims(NOW), head={"kid": "one"}).encode(), NOW)
    with pytest.raises(TokenError, match="fit its key"):
        found.verify(KEYS.sign("d", claims(NOW), head={"kid": "one"}).encode(), NOW)


def test_an_unknown_key_is_distinguished_so_that_the_set_is_read_again() -> None:
    token = Issuer().ec("new").sign("new", claims(NOW)).encode()
    with pytest.raises(UnknownKeyError):
        verifier().verify(token, NOW)


def test_without_keys_nothing_is_decided() -> None:
    with pytest.raises(NoKeysError):
        Verifier(RULE, KeySet(source="keys")).verify(KEYS.sign("r", claims(NOW)).encode(), NOW)


@pytest.mark.parametrize("more", [{"use": "enc"}, {"key_ops": ["sign"]}, {"alg": "RS512"}, {"kty": "oct"}])
def test_a_key_for_something_else_checks_no_signature(more: dict[str, Any]) -> None:
    found = verifier(RULE, Issuer().rsa("r"), **more)
    key = {**KEYS.public("r"), **more}
    assert "RS256" not in algorithms_of(key)
    with pytest.raises(TokenError, match="fit its key"):
        found.verify(KEYS.sign("r", claims(NOW)).encode(), NOW)


def test_a_known_token_is_checked_again_when_it_has_expired_and_few_are_known() -> None:
    found = verifier()
    token = KEYS.sign("d", claims(NOW)).encode()
    first = found.verify(token, NOW)
    assert found.verify(token, NOW + 69.9) is first, "it is remembered"
    with pytest.raises(TokenError, match="expired"):
        found.verify(token, NOW + 70)
    for number in range(REMEMBERED + 3):
        found.verify(KEYS.sign("d", claims(NOW, jti=str(number))).encode(), NOW)
    assert f"{REMEMBERED} tokens known" in repr(found)


@given(st.binary(max_size=300) | st.text(max_size=100).map(str.encode))
def test_no_bytes_do_more_than_being_refused(token: bytes) -> None:
    with pytest.raises(TokenError):
        ANY.verify(token, NOW)


@given(st.data())
def test_no_change_of_a_token_is_accepted(data: st.DataObject) -> None:
    """One byte of its head or body is another: either it is refused, or it means the same."""
    at = data.draw(st.integers(0, SIGNED.rindex(b".") - 1))
    changed = bytearray(SIGNED)
    changed[at] = data.draw(st.integers(0, 255))
    if bytes(changed) != SIGNED:
        with pytest.raises(TokenError):
            ANY.verify(bytes(changed), NOW)


ANY = verifier()
SIGNED = KEYS.sign("e", claims(NOW)).encode()
