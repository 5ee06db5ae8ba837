"""Sampled bodies as CloudEvents 1.0 in structured JSON. Pure.

A request and its answer are two events: ``dev.tidegate.inference.request`` and ``dev.tidegate.inference.response``.

With a redaction list nothing leaves unread: JSON is parsed and the values of the named fields, at any depth, are
replaced; of V2's binary form only the JSON part is kept; of an event stream the JSON of each event. A body that cannot
be read so (cut, compressed, binary) is withheld, and the event reports that.
"""

import json
from base64 import b64encode
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from tidegate.records.payload_rules import PayloadRules

REDACTED: Final = "REDACTED"
_JSON_TYPES: Final = ("application/json", "+json")


class Payload(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """One sampled body. Packed without the names of its fields."""

    kind: str
    """``request`` or ``response``."""
    rules: PayloadRules
    function: str
    revision: str
    replica: str
    request_id: str
    at: float
    """Unix seconds: when the request arrived, or when its answer had ended."""
    content_type: str
    coding: str
    """Content coding; empty without one."""
    json_bytes: int | None
    """Length of the JSON part in V2's binary form; None for any other body."""
    data: bytes
    """The first bytes of the body."""
    size: int
    """Bytes of the whole body."""
    status: int | None = None
    """Status of a response; None for a request."""


def encode_event(payload: Payload) -> bytes:
    """Returns the event, one line of JSON without its end."""
    body = _body(payload)
    event: dict[str, Any] = {
        "specversion": "1.0",
        "id": f"{payload.request_id}.{payload.kind}",
        "source": f"/tidegate/{payload.function}/{payload.revision}",
        "type": f"dev.tidegate.inference.{payload.kind}",
        "time": datetime.fromtimestamp(payload.at, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        "requestid": payload.request_id,
        "function": payload.function,
        "revision": payload.revision,
        "replica": payload.replica,
        "bodybytes": payload.size,
    }
    if payload.content_type:
        event["datacontenttype"] = payload.content_type
    if payload.coding:
        event["contentcoding"] = payload.coding
    if payload.status is not None:
        event["status"] = payload.status
    if len(payload.data) < payload.size:
        event["truncated"] = True
    return json.dumps(event | body, separators=(",", ":")).encode()


def _body(payload: Payload) -> dict[str, Any]:
    """Returns ``data`` or ``data_base64`` of the event, or why it has neither."""
    data, names = payload.data, payload.rules.redacted
    if not data:
        return {}
    if not payload.coding:
        if payload.json_bytes is not None:
            found = _parsed(data[: payload.json_bytes], names)
            if found is not None:
                return {"data": found[0], "datacontenttype": "application/json", "binarybytes": _binary(payload)}
        elif payload.content_type.startswith("text/event-stream"):
            return {"data": _events(data, names)}
        elif _is_json(payload.content_type):
            found = _parsed(data, names)
            if found is not None:
                return {"data": found[0]}
    if names:
        return {"withheld": "what the redaction list names cannot be found in it"}
    if not payload.coding and _is_text(payload.content_type):
        return {"data": data.decode("utf-8", "replace")}
    return {"data_base64": b64encode(data).decode()}


def _is_json(content_type: str) -> bool:
    return any(kind in content_type for kind in _JSON_TYPES)


def _is_text(content_type: str) -> bool:
    return content_type.startswith("text/") or _is_json(content_type)


def _binary(payload: Payload) -> int:
    return payload.size - (payload.json_bytes or 0)


def _parsed(text: bytes, names: frozenset[str]) -> tuple[Any] | None:
    """Returns the value of a JSON text without what is to be redacted; None if it is none, or cut."""
    try:
        return (_redacted(json.loads(text), names),)
    except (ValueError, RecursionError):
        return None


def _redacted(value: Any, names: frozenset[str]) -> Any:
    if not names:
        return value
    if isinstance(value, dict):
        return {key: REDACTED if key.lower() in names else _redacted(each, names) for key, each in value.items()}
    if isinstance(value, list):
        return [_redacted(each, names) for each in value]
    return value


def _events(data: bytes, names: frozenset[str]) -> str:
    """Returns the text of an event stream; with names to redact, only fields ``event`` and JSON that could be read."""
    text = data.decode("utf-8", "replace")
    if not names:
        return text
    lines = []
    for line in text.splitlines():
        field, _, value = line.partition(":")
        value = value.removeprefix(" ")
        found = _parsed(value.encode(), names) if field == "data" else None
        if found is not None and isinstance(found[0], dict | list):
            lines.append(f"data: {json.dumps(found[0], separators=(',', ':'))}")
        elif field in ("", "event") or value == "[DONE]":
            lines.append(line if field else "")
    return "\n".join(lines) + "\n"
