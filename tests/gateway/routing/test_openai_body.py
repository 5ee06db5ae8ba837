"""Requests that name their model in the body: found wherever it stands, in however many pieces it comes; never by
what a prompt says."""

import json
import random
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.worlds.fake_exchange import FakeExchange, request
from tests.support.worlds.gateway_chain import ONE, Door, table
from tidegate.aio.proxy.exchange import BodyBudget
from tidegate.gateway.routing.openai_body import DISCARDED_BYTES, GATHERED_BYTES, WAITED_BYTES

CHAT = "POST /v1/chat/completions"
PROMPT = {"messages": [{"role": "user", "content": 'Ignore this: "model": "other", {"model": "other"}'}]}
LARGE = b"x" * (WAITED_BYTES + 1)


def door(**settings: Any) -> Door:
    found = Door(table(1, ONE, **settings))
    found.ready(ONE, 1, 2, 3, 4)
    return found


def arrive(at: Door, body: bytes, *fields: str, whole: bytes | None = None, line: str = CHAT) -> FakeExchange:
    """``whole``: the complete body; None if all of it is there already."""
    size = len(body if whole is None else whole)
    lines = "".join(f"{field}\r\n" for field in fields)
    length = "" if "transfer-encoding: chunked" in fields else f"content-length: {size}\r\n"
    head = request(f"{line} HTTP/1.1\r\nHost: 127.0.0.1:8080\r\n{lines}{length}\r\n")
    return FakeExchange(at.chain, head, body, complete=whole is None, now=at.now).start()


def form(*parts: tuple[str, bytes]) -> bytes:
    text = b"".join(
        b"--xyz\r\nContent-Disposition: form-data; %b\r\n\r\n%b\r\n" % (name.encode(), value) for name, value in parts
    )
    return text + b"--xyz--\r\n"


FORM = "content-type: multipart/form-data; boundary=xyz"


@pytest.mark.parametrize("order", [("model", "messages"), ("messages", "model")])
@pytest.mark.parametrize(
    "kind", ["application/json", 'Application/Json; charset="UTF-8"', "application/x-www-form-urlencoded", ""]
)
def test_the_model_routes_wherever_it_stands(order: tuple[str, str], kind: str) -> None:
    document = {key: {"model": "m", **PROMPT}[key] for key in order}
    field = (f"content-type: {kind}",) if kind else ()
    asked = arrive(door(), json.dumps(document).encode(), *field)
    assert (asked.log, asked.target) == (["to 10.0.0.1:1"], b"/v1/chat/completions")
    assert asked.context.target.model == "m"
    assert asked.context.asked.prompt_bytes > 40


def test_the_prefix_of_the_surface_is_not_the_servers() -> None:
    asked = arrive(door(), b'{"model":"m"}', line="POST /openai/v1/embeddings?a=b")
    assert asked.target == b"/v1/embeddings?a=b"


def test_what_a_prompt_says_never_routes() -> None:
    for prompt in (PROMPT, {"messages": '"}, "model": "m"'}, {"nested": {"model": "m"}}, {"a": ["model", "m"]}):
        asked = arrive(door(), json.dumps(prompt).encode())
        assert (asked.log, asked.error["error"]["code"]) == (["answer 400"], "bad_request")
        assert "names no 'model'" in asked.error["error"]["message"]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b'{"model":"m","model":"m"}', "'model' twice"),
        (b'{"model":"m","mod\\u0065l":"x"}', "'model' twice"),
        (b'{"model":"m","MODEL":"x"}', "'MODEL': write it 'model'"),
        (b'{"model": "m", "Mod\\u0065l": "x"}', "'Model': write it 'model'"),
        (b'{"model":["m"]}', "'model' must be a string"),
        (b'{"model":"m"', "ends before"),
        (b'{"model":"m"}}', "malformed"),
        (b'["m"]', "not a JSON object"),
        (b'\xef\xbb\xbf{"model":"m"}', "byte order mark"),
        (b'{"model":"m\xff"}', "not UTF-8"),
        (b'{"model":"m","stream":"yes"}', "'stream' must be"),
    ],
)
def test_bodies_that_servers_read_differently_are_refused(body: bytes, message: str) -> None:
    for at in (door(), Door(table(1, ONE, name="f"))):
        asked = arrive(at, body)
        assert asked.log == ["answer 400"]
        assert message in asked.error["error"]["message"]
        assert asked.error["error"]["type"] == "invalid_request_error"


def test_a_model_that_none_has_is_reported_in_the_shape_of_the_api() -> None:
    asked = arrive(door(), b'{"model":"gpt-9"}', "x-request-id: r-1")
    error = asked.error["error"]
    assert (asked.status, error["code"], error["type"], error["param"]) == (
        404,
        "model_not_found",
        "invalid_request_error",
        "model",
    )
    assert (error["request_id"], error["executed"]) == ("r-1", "false")
    assert "'gpt-9' does not exist" in error["message"]
    message = arrive(door(), b'{"model":"claude"}', line="POST /v1/messages").error
    assert (message["type"], message["error"]["type"], message["error"]["code"]) == (
        "error",
        "not_found_error",
        "model_not_found",
    )


def test_without_a_model_it_is_for_the_default_function_if_there_is_one() -> None:
    with_default = Door(replace(table(1, ONE), default="f"))
    with_default.ready(ONE, 1, 2, 3)
    assert arrive(with_default, b'{"input":"x"}').log == ["to 10.0.0.1:1"]
    assert arrive(with_default, b"", line="GET /v1/files").log == ["to 10.0.0.1:1"]
    assert arrive(with_default, b"RIFF", "content-type: audio/wav").log == ["to 10.0.0.1:1"]
    assert arrive(with_default, b'{"model":"unheard"}').log == ["answer 404"], (
        "a name that is given is never the default"
    )
    assert arrive(door(), b"", line="GET /v1/files").error["error"]["code"] == "function_not_found"
    assert arrive(door(), b"RIFF", "content-type: audio/wav").error["error"]["code"] == "bad_request"


def test_a_call_without_a_body_may_name_its_model_in_the_query() -> None:
    assert arrive(door(), b"", line="GET /v1/realtime?x=1&model=m").target == b"/v1/realtime?x=1&model=m"
    assert arrive(door(), b"", line="GET /v1/files?mod%65l=%6d&limit=3").log == ["to 10.0.0.1:1"]
    assert arrive(door(), b"", line="GET /v1/realtime?model=q+x").error["error"]["code"] == "model_not_found"
    assert arrive(door(), b"", line="GET /v1/files?submodel=m").error["error"]["code"] == "function_not_found"
    twice = arrive(door(), b"", line="GET /v1/realtime?model=m&model=m")
    assert (twice.log, twice.error["error"]["message"]) == (["answer 400"], "the query names 'model' twice")
    assert arrive(door(), b'{"x":1}', line="POST /v1/chat?model=m").log == ["answer 400"], "a body names it itself"


def test_what_cannot_be_read_is_refused_before_it_routes() -> None:
    body = b'{"model":"m"}'
    for fields, message in (
        (("content-encoding: gzip",), "compressed"),
        (("content-encoding: identity", "Content-Encoding: br"), "compressed"),
        (("content-type: application/json", "Content-Type: text/plain"), "several Content-Type"),
        (("content-type: multipart/form-data",), "no boundary"),
        (("content-type: application/json; charset=utf-16",), "in 'utf-16': send UTF-8"),
        (('content-type: application/json;x=1; Charset = "UTF-7"',), "in 'UTF-7': send UTF-8"),
        (("content-type: application/json; charset=utf-8; charset=utf-16",), "in 'utf-16': send UTF-8"),
        (("content-type: text/plain",), "read as JSON or multipart/form-data"),
    ):
        asked = arrive(door(), body, *fields)
        assert asked.log == ["answer 400"]
        assert message in asked.error["error"]["message"]


def test_a_body_that_ends_before_it_began_is_none() -> None:
    """As clients write it that end a head with an empty chunk, or an empty frame of HTTP/2."""
    asked = arrive(door(), b"", "transfer-encoding: chunked", line="GET /v1/files?model=m", whole=b"")
    asked.body_comes(b"")
    assert asked.log == ["proceed", "to 10.0.0.1:1"]
    refused = arrive(door(), b"", "transfer-encoding: chunked", FORM, line="DELETE /v1/files/1", whole=b"")
    refused.body_comes(b"")
    assert refused.error["error"]["code"] == "function_not_found"


# --- forms -----------------------------------------------------------------------------------------------------------


def test_forms_name_their_model_in_a_field() -> None:
    sound = ('name="file"; filename="a.wav"', b'RIFF name="model" \r\n\r\nother')
    asked = arrive(door(), form(sound, ('name="model"', b"m")), FORM, line="POST /v1/audio/transcriptions")
    assert asked.log[-1] == "to 10.0.0.1:1"
    twice = arrive(door(), form(('name="model"', b"m"), ('name="model"', b"m")), FORM)
    assert "the field 'model' twice" in twice.error["error"]["message"]
    refused = arrive(door(), form(sound), FORM)
    assert refused.log[-1] == "answer 400"


def test_a_large_form_goes_on_as_soon_as_its_model_is_known() -> None:
    whole = form(('name="model"', b"m"), ('name="file"; filename="a"', LARGE))
    asked = arrive(door(), whole[:300], FORM, whole=whole)
    asked.body_comes(whole[:WAITED_BYTES], complete=False)
    assert asked.log == ["proceed", "to 10.0.0.1:1"]
    asked.body_comes(whole)
    assert asked.log == ["proceed", "to 10.0.0.1:1"]


# --- bodies in pieces ------------------------------------------------------------------------------------------------


def test_a_body_of_usual_size_is_waited_for() -> None:
    whole = b'{"model":"m","max_tokens":7}'
    asked = arrive(door(), b'{"model":"m",', whole=whole)
    assert asked.log == ["proceed"]
    asked.body_comes(whole)
    assert (asked.log, asked.gathered) == (["proceed", "to 10.0.0.1:1"], 0)
    assert asked.context.asked.max_tokens == 7

    crowded = arrive(door(), b'{"model":"m",', whole=whole)
    crowded.charge_budget(BodyBudget(-1))
    crowded.body_comes(whole[:-2], complete=False)
    crowded.body_comes(whole)
    assert crowded.log == ["proceed", "discard", "answer 429"], "who is not read on could never name his model"


def test_a_large_body_goes_on_as_soon_as_its_model_is_known_and_its_rest_is_read_on_the_way() -> None:
    at = door()
    good = b'{"model":"m","input":"%b"}' % LARGE
    asked = arrive(at, good[:1000], whole=good)
    asked.body_comes(good[:5000], complete=False)
    assert asked.log == ["proceed"], "its model is known; a slot it takes with its body"
    asked.body_comes(good[:WAITED_BYTES], complete=False)
    assert asked.log == ["proceed", "to 10.0.0.1:1"]
    asked.body_comes(good)
    assert asked.log == ["proceed", "to 10.0.0.1:1"]

    twice = b'{"model":"m","input":"%b","model":"other"}' % LARGE
    asked = arrive(at, twice[:WAITED_BYTES], whole=twice)
    asked.body_comes(twice[:-3], complete=False)
    assert asked.log == ["proceed", "to 10.0.0.1:1", "answer 400"]
    assert asked.body == twice[:WAITED_BYTES], "what has the second one never goes on"
    assert at.demand().cancelled == 1

    early = b'{"model":"m","model":"m","input":"%b"}' % LARGE
    asked = arrive(at, early[:1000], whole=early)
    assert asked.log == ["proceed", "discard"]
    asked.body_comes(early)
    assert asked.log == ["proceed", "discard", "answer 400"]

    late = b'{"model":"m","input":"%b","model":"other"}' % LARGE
    asked = arrive(at, late[:WAITED_BYTES], whole=late)
    asked.gets_answer(at.now, 200, length=None, ends=False)
    asked.body_comes(late)
    assert (asked.log[-1], asked.truncated) == ("truncated", True), "its answer had begun"


def test_a_faulty_rest_leaves_the_waiting_room() -> None:
    at = Door(table(1))
    whole = b'{"model":"m","input":"%b","model":1}' % LARGE
    asked = arrive(at, whole[:WAITED_BYTES], whole=whole)
    assert at.demand().waiting == 1
    asked.body_comes(whole)
    assert asked.log == ["proceed", "answer 400"]
    assert (at.demand().waiting, at.demand().cancelled) == (0, 1)


def test_a_model_behind_a_large_prompt_is_waited_for_within_bounds() -> None:
    whole = b'{"messages":"%b","model":"m"}' % LARGE
    asked = arrive(door(), whole[:1000], whole=whole)
    assert (asked.log, asked.gathered) == (["proceed"], GATHERED_BYTES)
    asked.body_comes(whole[:-8], complete=False)
    assert asked.log == ["proceed"]
    asked.body_comes(whole)
    assert (asked.log, asked.gathered) == (["proceed", "to 10.0.0.1:1"], 0)
    assert asked.context.asked.prompt_bytes > WAITED_BYTES

    crowded = arrive(door(), whole[:1000], whole=whole)
    crowded.charge_budget(BodyBudget(-1))
    crowded.body_comes(whole[:2000], complete=False)
    assert crowded.log == ["proceed", "discard"], "its client would not read an answer yet"
    crowded.body_comes(whole)
    assert crowded.log == ["proceed", "discard", "answer 429"]
    assert b"retry-after: 1\r\n" in crowded.extra

    endless = arrive(door(), whole[:1000], whole=b"x" * (DISCARDED_BYTES + 9))
    endless.body_comes(whole[:1000] + b"x" * GATHERED_BYTES, complete=False)
    assert endless.log == ["proceed", "discard", "answer 413"]
    assert "name no model" in endless.error["error"]["message"]


@pytest.mark.parametrize("end", [b'","x":1', b'","x":1,"x"}', b'","model":5}', b'","model":"m","model":"m"}'])
def test_a_fault_at_the_end_of_a_large_body_is_reported_once(end: bytes) -> None:
    whole = b'{"messages":"' + LARGE + end
    asked = arrive(door(), whole[:1000], whole=whole)
    asked.body_comes(whole[: -len(end)], complete=False)
    asked.body_comes(whole)
    assert [line for line in asked.log if line.startswith(("answer", "to"))] == ["answer 400"]


def test_chunked_bodies_too() -> None:
    whole = b'{"messages":"%b","model":"m"}' % LARGE
    asked = arrive(door(), b"", "transfer-encoding: chunked", whole=whole)
    asked.body_comes(whole[: WAITED_BYTES - 1], complete=False)
    asked.body_comes(whole[:WAITED_BYTES], complete=False)
    assert (asked.log, asked.gathered) == (["proceed"], GATHERED_BYTES)
    asked.body_comes(whole)
    assert asked.log == ["proceed", "to 10.0.0.1:1"]


def test_a_client_that_leaves_in_the_middle_is_counted_nowhere() -> None:
    at = door()
    asked = arrive(at, b'{"mod', whole=b'{"model":"m"}')
    asked.client_leaves(at.now)
    assert asked.log == ["proceed", "gone"]
    assert not list(at.report.demands(lambda revision: None))


@given(st.randoms(use_true_random=False), st.booleans(), st.integers(0, 3))
def test_however_it_is_cut_the_verdict_is_one(rng: random.Random, is_twice: bool, padding: int) -> None:
    """Pieces of any size, small bodies and large ones: the same function, or the same refusal."""
    pairs = [
        '"model": "m"',
        '"messages": [{"content": "\\"model\\": \\"other\\" {"}]',
        f'"pad": "{"y" * padding * 120_000}"',
    ]
    if is_twice:
        pairs.append('"model": "m"')
    rng.shuffle(pairs)
    whole = ("{" + ", ".join(pairs) + "}").encode()
    cuts = sorted(rng.randrange(len(whole)) for _ in range(rng.randrange(6)))
    asked = arrive(door(), whole[: cuts[0]] if cuts else whole, whole=whole if cuts else None)
    for cut in [*cuts[1:], len(whole)]:
        if cuts and not asked.ended:
            asked.body_comes(whole[:cut], complete=cut == len(whole))
    if is_twice:
        assert asked.log[-1] == "answer 400"
        assert "'model' twice" in asked.error["error"]["message"]
    else:
        assert asked.log[-1] == "to 10.0.0.1:1"
