"""The access rule of a function, from ``spec.access`` of its manifest (docs/use/tenants.md)::

access:
  api-keys: true
  jwt:
    issuer: https://id.example
    audience: [tidegate]
    jwks: https://id.example/jwks.json
    tenant-claim: tenant
  forward-credential: false
"""

from dataclasses import replace
from enum import StrEnum
from typing import Any, Final
from urllib.parse import urlsplit

from tidegate.manifest.builder import FunctionBuilder, SourceLocation
from tidegate.records.tenants import AccessRule, JwtRule
from tidegate.schema.files import Found
from tidegate.schema.rows import Duration, Row, Text, YesNo, accepts, allowed_for
from tidegate.schema.units import UnreadableError
from tidegate.schema.yaml_nodes import Scalar, Section


class Algorithm(StrEnum):
    """Signature algorithms (RFC 7518, RFC 8037) that a public key can verify. ``none`` and the symmetric ones are
    excluded, so that a public key can never be taken for a secret (RFC 8725, section 2.1)."""

    RS256 = "RS256"
    RS384 = "RS384"
    RS512 = "RS512"
    PS256 = "PS256"
    PS384 = "PS384"
    PS512 = "PS512"
    ES256 = "ES256"
    ES384 = "ES384"
    ES512 = "ES512"
    EDDSA = "EdDSA"


MAX_AUDIENCES: Final = 16
WORD: Final = Text(r"[!-~]{1,512}", "1 to 512 printable ASCII characters without blanks")
CLAIM: Final = Text(r"[!-~]{1,128}", "the name of a claim, 1 to 128 printable ASCII characters")
JWKS_WORDS: Final = (
    "the path of a file, or https://HOST/... (http:// on loopback alone), at most 512 characters, without a user"
)
_LOOPBACK: Final = ("127.0.0.1", "localhost", "::1")

ACCESS_ROWS: Final[tuple[Row, ...]] = (
    Row(
        key="api-keys",
        kind=YesNo(),
        field="api_keys",
        default="false",
        description="Callers may authenticate with an API key of the tenants' file.",
    ),
    Row(
        key="forward-credential",
        kind=YesNo(),
        field="forward_credential",
        default="false",
        description="Whether the key or token is passed to the model server; it is removed otherwise.",
    ),
)
JWT_ROWS: Final[tuple[Row, ...]] = (
    Row(key="issuer", kind=WORD, field="issuer", description="Required `iss` of a token."),
    Row(
        key="tenant-claim",
        kind=CLAIM,
        field="tenant_claim",
        default_words="none: every valid token may call, without quotas",
        description="Claim that contains the name of a tenant of the tenants' file.",
    ),
    Row(
        key="leeway",
        kind=Duration(0, 600),
        field="leeway_s",
        default="1m",
        description="Maximum difference between the clocks of issuer and gateway.",
    ),
)


def read_access(spec: Section, builder: FunctionBuilder) -> AccessRule | None:
    """Returns the rule of ``spec.access``, or None if the function is public. Errors become faults."""
    section = spec.section("access")
    if section is None:
        if (line := spec.empty("access")) is not None:  # Its content may have been lost: it must not open the function.
            allowed = "api-keys: true, jwt, or both; no such key for public access"
            spec.faults.report(spec.path("access"), "nothing", allowed, line)
        return None
    values = _values(section, ACCESS_ROWS)
    inner = section.section("jwt")
    jwt = None if inner is None else _jwt(inner, builder)
    section.close()
    if inner is None and section.node.get("jwt") is None and not values.get("api_keys"):
        section.faults.report(
            section.where, "no way to authenticate", "api-keys: true, jwt, or both", section.node.line
        )
    return AccessRule(**values, jwt=jwt)


def _jwt(section: Section, builder: FunctionBuilder) -> JwtRule | None:
    values = _values(section, JWT_ROWS)
    if (line := section.empty("tenant-claim")) is not None:
        section.faults.report(section.path("tenant-claim"), "nothing", f"{CLAIM.allowed}, or no such key", line)
    values["audience"] = _words(section, "audience", WORD)
    algorithms = _words(section, "algorithms", Text("|".join(Algorithm), ", ".join(Algorithm)))
    jwks = _jwks(section, builder)
    section.close()
    for key in ("issuer", "audience", "jwks"):
        if section.node.get(key) is None:
            section.faults.report(section.path(key), "nothing", "a value", section.node.line)
    if jwks is None or not values["audience"] or "issuer" not in values:
        return None
    rule = JwtRule(jwks=jwks, **values)
    return replace(rule, algorithms=algorithms) if algorithms else rule


def _values(section: Section, rows: tuple[Row, ...]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for row in rows:
        node = section.scalar(row.key)
        if node is None:
            continue
        try:
            values[row.field] = row.kind.read(node.text)
        except UnreadableError:
            section.faults.add(section.path(row.key), node, allowed_for(row.kind, node.text))
    return values


def _words(section: Section, key: str, kind: Text) -> tuple[str, ...]:
    """Returns one word, or a list of unique words."""
    node = section.take(key)
    nodes = (node,) if isinstance(node, Scalar) else section.texts(key) or ()
    if node is not None and not 1 <= len(nodes) <= MAX_AUDIENCES:
        section.faults.report(section.path(key), f"{len(nodes)} entries", f"1 to {MAX_AUDIENCES}", section.node.line)
    found = (section.text_of(section.path(key), each, kind) for each in nodes[:MAX_AUDIENCES])
    return tuple(dict.fromkeys(word for word in found if word is not None))


def _jwks(section: Section, builder: FunctionBuilder) -> str | None:
    """Returns the URL, or the absolute path, of an issuer's keys."""
    node = section.scalar("jwks")
    if node is None:
        return None
    origin = SourceLocation(section.path("jwks"), node.text, node.line)
    if "://" not in node.text:
        return builder.place(node.text, origin, Found.FILE)
    if is_usable(node.text):
        return node.text
    section.faults.report(origin.where, "another value (not shown)", JWKS_WORDS, node.line)
    return None


def is_usable(url: str) -> bool:
    """Returns whether keys may be fetched from ``url``."""
    if not accepts(WORD, url):
        return False
    try:
        parts = urlsplit(url)
        port_fits = parts.port is None or parts.port > 0
    except ValueError:
        return False
    is_private = parts.scheme == "https" or (parts.scheme == "http" and parts.hostname in _LOOPBACK)
    return is_private and bool(parts.hostname) and port_fits and "@" not in parts.netloc and not parts.fragment
