"""Structural schemas of a manifest's ``spec``, made from the rows and kinds that its reader uses.

A value that is a number, a size or a word is ``int-or-string``: ``concurrency: 4`` and ``concurrency: auto`` are both
accepted, and a number with a fraction is quoted. Each rule's message is the reader's own.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final

from tidegate.deploy.kubernetes.resources.conditions import condition
from tidegate.function import ModelFormat
from tidegate.manifest.access import ACCESS_ROWS, CLAIM, JWT_ROWS, MAX_AUDIENCES, WORD
from tidegate.manifest.builder import NAME_KIND
from tidegate.manifest.pipeline import MAX_STAGES, PIPELINE_SPEC
from tidegate.manifest.routing import FIELD_NAME, FIELD_VALUE, HOST, MAX_MATCH_FIELDS, MAX_MATCHES, PATH_PREFIX
from tidegate.manifest.spec import ACCELERATOR, HANDLER, IMAGE, MODEL_NAME, SPEC, URL_PATH, VARIABLE
from tidegate.records.pipeline import Comparison
from tidegate.schema.rows import Choice, Duration, Kind, Row, Text, WholeSeconds, WordOr, YesNo

Schema = dict[str, Any]

MAX_TEXT: Final = 4096
"""Maximum length of a text without a bound of its own. The API server charges rules by it."""
MAX_PAIRS: Final = 128
"""Maximum variables, secrets, arguments."""
_PATH: Final = {"type": "string", "minLength": 1, "maxLength": MAX_TEXT}
_ANY: Final = {"x-kubernetes-preserve-unknown-fields": True}


def rule(expression: str, message: str) -> dict[str, str]:
    """Returns one entry of ``x-kubernetes-validations``."""
    return {"rule": expression, "message": message}


def mapping(
    properties: Mapping[str, Schema], *, required: Iterable[str] = (), rules: Iterable[dict[str, str]] = ()
) -> Schema:
    """Returns the schema of a mapping with these keys alone."""
    found: Schema = {"type": "object", "properties": dict(properties)}
    if names := list(required):
        found["required"] = names
    if checks := list(rules):
        found["x-kubernetes-validations"] = checks
    return found


def value(kind: Kind, description: str = "", *, longest: int = 256) -> Schema:
    """Returns the schema of one value of a kind."""
    found: Schema = {"description": description} if description else {}
    inner = kind.kind if isinstance(kind, WordOr) else kind
    if isinstance(inner, YesNo):
        return found | {"type": "boolean"}
    if isinstance(kind, Choice):
        return found | {"type": "string", "enum": [word.value for word in kind.words]}
    is_text = isinstance(inner, Text | Duration | WholeSeconds)
    found |= (
        {"type": "string", "maxLength": longest}
        if is_text
        else {"x-kubernetes-int-or-string": True, "maxLength": longest}
    )
    checked = condition(kind, "self" if is_text else "string(self)")
    if checked is not None:
        found["x-kubernetes-validations"] = [rule(checked, f"allowed: {kind.allowed}")]
    return found


def names(kind: Text, description: str, *, most: int = 64, longest: int = 256) -> Schema:
    """Returns the schema of a list of unique names."""
    return {
        "description": description,
        "type": "array",
        "minItems": 1,
        "maxItems": most,
        "x-kubernetes-list-type": "set",
        "items": value(kind, longest=longest),
    }


def rows(table: Iterable[Row]) -> dict[str, Schema]:
    """Returns the properties of the rows of a table; a key with a dot lies in a mapping."""
    found: dict[str, Schema] = {}
    for row in table:
        section, dot, key = row.key.partition(".")
        inner = found.setdefault(section, mapping({}))["properties"] if dot else found
        inner[key or section] = value(
            row.kind, row.description, longest=1024 if isinstance(row.kind, Text | WordOr) else 64
        )
    return found


def pairs(kind: Text, values: Schema, description: str) -> Schema:
    """Returns the schema of a mapping from names of a kind."""
    checked = f"self.all(name, size(name) <= 128 && {condition(kind, 'name')})"
    return {
        "description": description,
        "type": "object",
        "maxProperties": MAX_PAIRS,
        "additionalProperties": values,
        "x-kubernetes-validations": [rule(checked, f"allowed: {kind.allowed}")],
    }


def function_spec() -> Schema:
    """Returns the schema of ``spec`` of a Function."""
    plain_text = {"x-kubernetes-int-or-string": True, "maxLength": MAX_TEXT}
    properties = rows(SPEC) | {
        "server": _server(),
        "socket": _PATH | {"description": "Path of the unix socket on which the model server listens."},
        "warmup": _PATH | {"description": "File with a request body that is sent once before a replica is ready."},
        "workdir": _PATH | {"description": "Folder in which the model server runs."},
        "python": _PATH | {"description": "Interpreter of a model or handler."},
        "models": names(MODEL_NAME, "Names of the models that it serves; default: its own."),
        "accelerators": names(ACCELERATOR, "Accelerators that it may use; default: all that fit.", longest=63),
        "env": pairs(VARIABLE, plain_text, "Variables of the model server."),
        "secrets": pairs(VARIABLE, _PATH, "Files with the values of further variables."),
        "args": {
            "description": "Arguments of a handler's class, or of a model's loader.",
            "type": "object",
            "maxProperties": MAX_PAIRS,
            "additionalProperties": _ANY,
        },
        "match": _match(),
        "access": _access(),
    }
    return mapping(
        properties,
        required=["server"],
        rules=[
            rule("!has(self.socket) || !has(self.port)", "allowed: either port or socket"),
            rule(
                "!has(self.env) || !has(self.secrets) || self.env.all(name, !(name in self.secrets))",
                "allowed: a variable either in env or in secrets",
            ),
            rule(
                "!(has(self.server.command) || has(self.server.image) || has(self.server.asgi)) || !has(self.batching)",
                "allowed: no batching without a model or handler (served by the shipped runtime)",
            ),
        ],
    )


def pipeline_spec() -> Schema:
    """Returns the schema of ``spec`` of a Pipeline."""
    compared = {each.value: _ANY for each in Comparison}
    when = mapping({"field": {"type": "string", "minLength": 1, "maxLength": 255}, **compared}, required=["field"])
    stage = mapping(
        {
            "function": value(NAME_KIND, "Name of the stage's function.", longest=63),
            "path": value(URL_PATH, "Target of its requests.", longest=1024),
            "inputs": {
                "description": "The output that fills an input: OUTPUT, STAGE.OUTPUT or request.INPUT.",
                "type": "object",
                "maxProperties": MAX_PAIRS,
                "additionalProperties": value(MODEL_NAME),
            },
            "after": _ANY | {"description": "Stages whose answers it gets: a name or a list; default: the one before."},
            "when": when | {"description": "Condition on an earlier answer; without it the stage always runs."},
            "profile": {"type": "string", "maxLength": MAX_TEXT, "description": "Latency by batch and cores."},
        },
        required=["function"],
    )
    stages = {
        "description": "Functions that a request runs through.",
        "type": "array",
        "minItems": 1,
        "maxItems": MAX_STAGES,
        "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": ["function"],
        "items": stage,
    }
    return mapping(
        rows(PIPELINE_SPEC) | {"stages": stages, "match": _match(), "access": _access()}, required=["stages"]
    )


def _server() -> Schema:
    kinds = ("model", "handler", "asgi", "command", "image")
    count = " + ".join(f"(has(self.{kind}) ? 1 : 0)" for kind in kinds)
    return mapping(
        {
            "model": _PATH | {"description": "File or folder of a model."},
            "handler": value(HANDLER, "A Python class.", longest=MAX_TEXT),
            "asgi": value(HANDLER, "An ASGI application.", longest=MAX_TEXT),
            "command": {
                "description": "A program and its arguments; {port} stands for its port.",
                "type": "array",
                "minItems": 1,
                "maxItems": 256,
                "items": {"x-kubernetes-int-or-string": True, "maxLength": MAX_TEXT},
            },
            "image": value(IMAGE, "A container image.", longest=512),
            "format": {
                "description": "Format of a model; default: as its path shows.",
                "type": "string",
                "enum": [form.value for form in ModelFormat],
            },
        },
        rules=[
            rule(f"{count} == 1", f"allowed: exactly one of {', '.join(kinds)}"),
            rule("!has(self.format) || has(self.model)", "allowed: no format without a model"),
        ],
    ) | {"description": "The model server."}


def _match() -> Schema:
    fields = condition(FIELD_NAME, "name")
    headers = {
        "type": "object",
        "minProperties": 1,
        "maxProperties": MAX_MATCH_FIELDS,
        "additionalProperties": value(FIELD_VALUE, longest=1024) | {"nullable": True},
        "x-kubernetes-validations": [rule(f"self.all(name, {fields})", f"allowed: {FIELD_NAME.allowed}")],
    }
    entry = mapping(
        {"host": value(HOST, longest=253), "path-prefix": value(PATH_PREFIX, longest=1024), "headers": headers},
        rules=[
            rule(
                "has(self.host) || has(self.path__dash__prefix) || has(self.headers)",
                "allowed: at least one of host, path-prefix, headers",
            )
        ],
    )
    return {
        "description": "Further ways to address the function; all conditions of an entry must hold.",
        "type": "array",
        "minItems": 1,
        "maxItems": MAX_MATCHES,
        "items": entry,
    }


def _access() -> Schema:
    jwt = mapping(
        rows(JWT_ROWS)
        | {
            "audience": _ANY
            | {"description": f"Required `aud` of a token: a word, or a list of at most {MAX_AUDIENCES}."},
            "algorithms": _ANY | {"description": "Signature algorithms; default: those of the keys."},
            "jwks": value(WORD, "File or URL of the issuer's keys.", longest=512),
            "tenant-claim": value(CLAIM, "Claim with the name of a tenant.", longest=128),
        },
        required=["issuer", "audience", "jwks"],
    )
    return mapping(
        rows(ACCESS_ROWS) | {"jwt": jwt},
        rules=[
            rule(
                "has(self.jwt) || (has(self.api__dash__keys) && self.api__dash__keys)",
                "allowed: api-keys: true, jwt, or both",
            )
        ],
    ) | {"description": "Who may call the function; without it, anyone."}
