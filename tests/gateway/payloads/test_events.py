"""Events of sampled bodies: their attributes, and each kind of body with and without a redaction list."""

import json
from base64 import b64encode
from typing import Any

import pytest
from msgspec.structs import replace

from tidegate.gateway.payloads.events import Payload, encode_event
from tidegate.records.payload_rules import PayloadRules

PLAIN, LISTED = PayloadRules(percent=10.0), PayloadRules(percent=10.0, redact="Password,prompt")
BODY = b'{"inputs": [{"name": "x", "data": [1, 2.5]}], "password": "canary", "deep": [1, {"PROMPT": ["canary"]}]}'
REQUEST = Payload(
    kind="request",
    rules=PLAIN,
    function="echo",
    revision="echo-00001",
    replica="echo-00001-a",
    request_id="id-1",
    at=1_700_000_100.5,
    content_type="application/json",
    coding="",
    json_bytes=None,
    data=BODY,
    size=len(BODY),
)


def event(payload: Payload = REQUEST, **fields: Any) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(encode_event(replace(payload, **fields)))
    return found


def test_an_event_has_the_attributes_that_cloudevents_wants_and_the_ids_of_the_request() -> None:
    found = event()
    assert {name: found[name] for name in ("specversion", "id", "source", "type", "time")} == {
        "specversion": "1.0",
        "id": "id-1.request",
        "source": "/tidegate/echo/echo-00001",
        "type": "dev.tidegate.inference.request",
        "time": "2023-11-14T22:15:00.500Z",
    }
    assert all(name.isalnum() and name.islower() for name in found.keys() - {"data_base64"}), "as CloudEvents has it"
    assert (found["requestid"], found["replica"], found["bodybytes"]) == ("id-1", "echo-00001-a", len(BODY))
    assert found["data"] == json.loads(BODY)
    answer = event(kind="response", status=200)
    assert (answer["id"], answer["type"], answer["status"]) == ("id-1.response", "dev.tidegate.inference.response", 200)


def test_named_fields_are_redacted_at_any_depth_whatever_their_case() -> None:
    found = event(rules=LISTED)
    assert found["data"] == {
        "inputs": [{"name": "x", "data": [1, 2.5]}],
        "password": "REDACTED",
        "deep": [1, {"PROMPT": "REDACTED"}],
    }


@pytest.mark.parametrize(
    "fields",
    [
        {"data": BODY[:80]},
        {"coding": "gzip"},
        {"content_type": "image/png", "data": b"\x89PNG canary"},
        {"content_type": "text/plain", "data": b"canary"},
        {"json_bytes": 10},
        {"data": b'{"password": "canary"'},
        {"data": b"[" * 100_000},
    ],
)
def test_what_cannot_be_searched_is_withheld_with_a_list_and_only_then(fields: dict[str, Any]) -> None:
    found = event(rules=LISTED, **fields)
    assert "canary" not in json.dumps(found) and b64encode(b"canary")[:6].decode() not in json.dumps(found)
    assert found["withheld"]
    assert {"data", "data_base64"} & event(**fields).keys()


def test_a_body_that_was_cut_is_marked() -> None:
    found = event(data=BODY[:60])
    assert found["truncated"] is True
    assert found["data"] == BODY[:60].decode()
    assert "truncated" not in event()
    other = event(data=BODY[:60], content_type="application/cloudevents+json")
    assert other["data"] == BODY[:60].decode()


def test_of_v2s_binary_form_the_json_part_is_kept_and_the_tensors_are_counted() -> None:
    binary: dict[str, Any] = {
        "content_type": "application/octet-stream",
        "json_bytes": len(BODY),
        "data": BODY + b"\0" * 32,
    }
    found = event(rules=LISTED, size=len(BODY) + 4000, **binary)
    assert found["data"]["password"] == "REDACTED"
    assert (found["binarybytes"], found["datacontenttype"], found["truncated"]) == (4000, "application/json", True)


def test_of_an_event_stream_each_event_is_redacted() -> None:
    text = b'event: token\ndata: {"prompt":"canary","n":1}\n\n: canary\ndata: canary\n\ndata: [DONE]\n\n'
    text += b'data: {"prompt":"can'
    stream: dict[str, Any] = {"content_type": "text/event-stream; charset=utf-8", "data": text}
    assert event(**stream)["data"] == text.decode()
    found = event(rules=LISTED, **stream)["data"]
    assert "can" not in found
    assert 'event: token\ndata: {"prompt":"REDACTED","n":1}\n' in found
    assert "data: [DONE]" in found


def test_other_bodies_are_base64_and_none_is_no_data() -> None:
    assert event(content_type="application/grpc", data=b"\0\xff")["data_base64"] == "AP8="
    assert not {"data", "data_base64", "withheld"} & event(rules=LISTED, data=b"").keys()
