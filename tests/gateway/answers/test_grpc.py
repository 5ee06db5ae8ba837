"""gRPC calls at the gateway: their functions, the calls that are answered without starting a replica, and errors."""

import json
from dataclasses import replace
from typing import Any

import pytest

from tests.support.http2.grpc_client import framed
from tests.support.worlds.fake_grpc_call import INFER, FakeRpc, call
from tests.support.worlds.gateway_chain import ONE, TWO, Door, table
from tidegate.records.route_table import GroupRoute, HeaderMatch, RouteMatch, RouteTable
from tidegate.records.tenants import AccessRule
from tidegate.wire.grpc import messages
from tidegate.wire.grpc.protobuf import Message
from tidegate.wire.http2.grpc_fields import (
    DEADLINE_EXCEEDED,
    INVALID_ARGUMENT,
    NOT_FOUND,
    OK,
    RESOURCE_EXHAUSTED,
    UNAUTHENTICATED,
    UNAVAILABLE,
    UNIMPLEMENTED,
)

SERVICE = "/inference.GRPCInferenceService"
HEALTH = "/grpc.health.v1.Health"
REFLECTION = "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo"
FORWARDED = ["to 10.0.0.1:1"]


def infer(model: str = "m", batch: int = 1, size: int = 0) -> bytes:
    entry = {"name": "x", "datatype": "UINT8", "shape": [batch]}
    fields = {"model_name": model, "inputs": [entry], "raw_input_contents": [bytes(size)]}
    return messages.MODEL_INFER_REQUEST.encode(fields)


def awake(**settings: Any) -> Door:
    door = Door(table(1, ONE, **settings))
    door.ready(ONE, 1, 2, 3, 4)
    return door


def named_rpc(door: Door, method: str, **fields: Any) -> FakeRpc:
    return call(door, f"{SERVICE}/{method}", messages.MODEL_READY_REQUEST.encode(fields))


def only(made: FakeRpc, response: Message) -> dict[str, Any]:
    """The one message of a call that was answered well here."""
    assert (made.code, made.log) == (OK, [])
    (message,) = made.messages
    return response.decode(message)


def with_rule(first: RouteTable, rule: RouteMatch) -> RouteTable:
    (function,) = first.functions
    return replace(first, functions=(replace(function, matches=(rule,)),))


# --- whose a call is --------------------------------------------------------------------------------------------------


def test_an_inference_goes_to_the_function_of_its_model_with_its_batch() -> None:
    door = awake()
    made = call(door, INFER, infer("m", 7))
    assert (made.log, made.inferences) == (FORWARDED, 7)
    assert b"tidegate-batch-size: 7\r\n" in made.sent
    made.gets_answer(door.now)
    assert (door.demand().arrivals_inferences, door.demand().answered) == (7, 1)


def test_the_authority_comes_before_the_models_name() -> None:
    door = awake()
    assert call(door, INFER, infer("other", 3), authority="f.localhost:8080").log == FORWARDED
    lost = call(door, INFER, infer("m"), authority="missing.localhost")
    assert lost.code == NOT_FOUND
    assert "no function or model is called 'missing' here (deployed: f, m); name a deployed function" in lost.message


def test_a_rule_about_metadata_names_a_function() -> None:
    rule = RouteMatch(headers=(HeaderMatch(name="x-team", value="a"),))
    door = Door(with_rule(table(1, ONE), rule))
    door.ready(ONE, 1)
    assert call(door, "/any.Service/Method", b"", fields=[("x-team", "a")]).log == FORWARDED
    assert call(door, "/any.Service/Method", b"", fields=[("x-team", "b")]).code == UNIMPLEMENTED


def test_any_service_goes_to_the_default_function_and_is_unimplemented_without_one() -> None:
    answer = call(awake(), "/any.Service/Method", b"")
    assert answer.code == UNIMPLEMENTED
    assert "no function takes the call /any.Service/Method" in answer.message
    door = Door(replace(table(1, ONE), default="f"))
    door.ready(ONE, 1, 2)
    assert call(door, "/any.Service/Method", b"").log == FORWARDED
    assert call(door, INFER, infer("undeclared")).log == FORWARDED, "it may serve models that it does not declare"


def test_an_unknown_model_is_not_found() -> None:
    door = awake()
    for method in ("ModelInfer", "ModelStreamInfer"):
        made = call(door, f"{SERVICE}/{method}", infer("other"))
        assert (made.code, made.log) == (NOT_FOUND, [])
        assert "no function or model is called 'other' here" in made.message
        assert b"x-request-id: " in made.extra
    assert door.report.unmatched == 2


def test_a_failure_names_its_function_once() -> None:
    answer = call(awake(), INFER, infer("m"), fields=[("tidegate-tag", "other")])
    assert (answer.code, answer.message.count("f has no tag 'other'")) == (NOT_FOUND, 1)
    assert answer.message.startswith("f has no tag")
    for field in ("tidegate-priority", "tidegate-task-class"):
        assert call(awake(), INFER, infer("m"), fields=[(field, "x")]).message.startswith(f"f: {field} must be ")


@pytest.mark.parametrize("method", ["ModelConfig", "ModelStatistics"])
def test_other_questions_about_a_model_go_to_its_function(method: str) -> None:
    door = awake()
    assert named_rpc(door, method, name="m").log == FORWARDED
    assert named_rpc(door, method, name="other").code == NOT_FOUND


def test_the_first_message_is_waited_for() -> None:
    door = awake()
    body = framed(infer("m", 5, size=9000))
    made = call(door, INFER, body=body[:9], complete=False)
    assert made.log == []
    made.body_comes(body[:40], complete=False)
    assert made.log == [], "model and batch are known, and the message is not whole"
    made.body_comes(body, complete=False)
    assert (made.log, made.inferences) == (FORWARDED, 5)
    small = framed(messages.MODEL_READY_REQUEST.encode({"name": "m"}))
    asked = call(door, f"{SERVICE}/ModelReady", body=small[:3], complete=False)
    assert asked.code is None
    asked.body_comes(small)
    assert asked.code == OK


def test_each_call_has_a_group_of_its_own_by_its_size() -> None:
    first = table(1, ONE, TWO)
    (function,) = first.functions
    (revision,) = function.revisions
    small = GroupRoute(accelerator="small", weight=0.5, largest=7, replicas=(ONE,))
    large = GroupRoute(accelerator="large", weight=0.5, smallest=8, replicas=(TWO,))
    revision = replace(revision, groups=(small, large))
    door = Door(replace(first, functions=(replace(function, revisions=(revision,)),)))
    for replica in (ONE, TWO):
        door.ready(replica, 1, 2, 3)
    went = [call(door, INFER, infer("m", batch)).log for batch in (1, 8, 7, 24)]
    assert went == [["to 10.0.0.1:1"], ["to 10.0.0.2:1"], ["to 10.0.0.1:1"], ["to 10.0.0.2:1"]]


# --- sizes and limits -------------------------------------------------------------------------------------------------


def test_a_batch_above_the_functions_maximum_is_refused() -> None:
    made = call(awake(), INFER, infer("m", 65))
    assert (made.code, made.log) == (RESOURCE_EXHAUSTED, [])
    assert made.message == "f: its batch is larger than 64, f's max-batch; split the batch"


def test_the_batch_of_another_service_is_what_it_states_or_the_length_of_its_message() -> None:
    door = awake(bytes_per_item=100.0)
    host = "f.localhost"
    assert call(door, "/any.Service/Method", bytes(300), authority=host).inferences == 3
    stated = call(door, "/any.Service/Method", bytes(300), authority=host, fields=[("tidegate-batch-size", "9")])
    assert stated.inferences == 9
    assert call(door, "/any.Service/Method", authority=host).inferences == 1
    looks_like_json = b'"shape": [40]'
    plain = awake()
    assert call(plain, "/any.Service/Method", looks_like_json, authority=host).inferences == 1


def test_deadlines_are_the_calls_own_within_the_functions() -> None:
    door = awake()
    made = call(door, INFER, infer(), fields=[("grpc-timeout", "2S")])
    assert made.deadline == door.now + 2.0
    assert b"tidegate-timeout-ms: 2000\r\n" in made.sent
    assert call(door, INFER, infer(), fields=[("grpc-timeout", "soon")]).code == INVALID_ARGUMENT


def test_a_call_that_waits_too_long_or_finds_no_room_is_reported_in_grpcs_words() -> None:
    door = Door(table(1))
    waits = [call(door, INFER, infer()) for _ in range(2)]
    assert door.activations()[0] == 1
    refused = call(door, INFER, infer())
    assert refused.code == RESOURCE_EXHAUSTED
    assert b"retry-after: " in refused.extra
    assert "retry after the seconds in retry-after" in refused.message
    waits[0].expires(door.now + 10.0)
    assert waits[0].code == DEADLINE_EXCEEDED
    assert waits[0].message == ("f: its deadline passed before a replica was free for it; allow the call more time")
    waits[1].client_leaves(door.now + 10.0)
    assert door.demand().waiting == 0


def test_a_stream_is_measured_to_its_first_byte() -> None:
    door = awake()
    made = call(door, f"{SERVICE}/ModelStreamInfer", infer(), complete=False)
    made.gets_answer(door.now + 0.1, length=None, ends=False)
    made.first_byte = door.now + 0.1
    made.ends(door.now + 5.0)
    assert door.demand().within_sla == 1
    late = call(door, INFER, infer())
    late.gets_answer(door.now + 0.1, length=None, ends=False)
    late.ends(door.now + 5.0)
    assert door.demand().within_sla == 1


def test_rest_to_a_function_that_speaks_grpc_alone_is_refused() -> None:
    door = awake(protocol="grpc")
    answer = door.arrive("POST /functions/f/x")
    assert (answer.status, answer.error["error"]["code"]) == (415, "not_grpc")
    assert call(door, "/any.Service/Method", b"", authority="f.localhost").log == FORWARDED


# --- what wakes no function -------------------------------------------------------------------------------------------


def test_questions_about_the_front_door_and_about_models_wake_none() -> None:
    door = Door(table(1))
    live = call(door, f"{SERVICE}/ServerLive", b"")
    assert only(live, messages.SERVER_LIVE_RESPONSE) == {"live": True}
    for host in ("127.0.0.1:8080", "f.localhost"):
        ready = call(door, f"{SERVICE}/ServerReady", b"", authority=host)
        assert only(ready, messages.SERVER_READY_RESPONSE) == {"ready": True}
        about = call(door, f"{SERVICE}/ServerMetadata", b"", authority=host)
        assert only(about, messages.SERVER_METADATA_RESPONSE)["name"] == "tidegate"
    assert only(named_rpc(door, "ModelReady", name="m"), messages.MODEL_READY_RESPONSE) == {"ready": True}
    assert named_rpc(door, "ModelReady", name="other").code == NOT_FOUND
    assert door.activations() == []


def test_a_function_that_cannot_start_is_not_ready() -> None:
    door = Door(table(1, revision={"failure": "no such file"}))
    assert only(named_rpc(door, "ModelReady", name="m"), messages.MODEL_READY_RESPONSE) == {}, "false is left out"
    check = call(door, f"{HEALTH}/Check", messages.HEALTH_REQUEST.encode({"service": "f"}))
    assert only(check, messages.HEALTH_RESPONSE) == {"status": messages.NOT_SERVING}


def test_metadata_comes_from_the_last_copy_while_the_function_sleeps_else_it_wakes() -> None:
    door = Door(table(1))
    first = named_rpc(door, "ModelMetadata", name="m")
    assert (first.log, door.activations()) == ([], [1]), "nothing known yet: it wakes"
    door.core.apply(table(2, ONE))
    door.ready(ONE, 1)
    assert first.log == FORWARDED
    first.gets_answer(door.now)
    assert door.learnt == [("f-00001", "10.0.0.1:1", "/v2/models/m")]
    tensor = {"name": "x", "datatype": "FP32", "shape": [-1, 2]}
    copy = {"name": "m", "versions": ["1"], "platform": "p", "inputs": [tensor], "outputs": [], "extra": 1}
    door.core.health.copies.keep("f-00001", "/v2/models/m", json.dumps(copy).encode())
    door.core.apply(table(3))
    door.shell.clear()
    metadata = only(named_rpc(door, "ModelMetadata", name="m"), messages.MODEL_METADATA_RESPONSE)
    assert metadata == {"name": "m", "versions": ["1"], "platform": "p", "inputs": [tensor]}
    assert door.activations() == []


@pytest.mark.parametrize("copy", [b"no json", b"[]", b'{"name": 1}', b'{"name": "m", "inputs": [{}]}'])
def test_a_copy_that_is_no_metadata_is_not_used(copy: bytes) -> None:
    door = Door(table(1))
    door.core.health.copies.keep("f-00001", "/v2/models/m", copy)
    assert named_rpc(door, "ModelMetadata", name="m").code is None
    assert door.activations() == [1]


def test_who_may_not_call_a_function_is_sent_nothing_of_its_model() -> None:
    door = Door(table(1, access=AccessRule(api_keys=True)))
    door.core.health.copies.keep("f-00001", "/v2/models/m", b'{"name": "m"}')
    answer = named_rpc(door, "ModelMetadata", name="m")
    assert (answer.code, answer.messages) == (UNAUTHENTICATED, [])
    assert call(door, INFER, infer()).code == UNAUTHENTICATED
    assert door.activations() == []


def test_a_ready_function_is_asked_what_only_its_server_knows() -> None:
    door = awake()
    host = "f.localhost"
    undeclared = messages.MODEL_READY_REQUEST.encode({"name": "undeclared"})
    assert call(door, f"{SERVICE}/ModelReady", undeclared, authority=host).log == FORWARDED
    assert named_rpc(door, "ModelReady", name="m", version="2").log == FORWARDED
    assert call(door, f"{SERVICE}/ServerMetadata", b"", authority=host).log == FORWARDED
    assert call(door, f"{SERVICE}/ModelReady", b"\xff").code == INVALID_ARGUMENT


def test_questions_of_v2_to_a_function_that_does_not_speak_it_are_its_servers() -> None:
    door = awake(protocol="http")
    assert call(door, f"{SERVICE}/ServerReady", b"", authority="f.localhost").log == FORWARDED


# --- health and reflection --------------------------------------------------------------------------------------------


def check(door: Door, service: str, authority: str = "127.0.0.1:8080") -> FakeRpc:
    return call(door, f"{HEALTH}/Check", messages.HEALTH_REQUEST.encode({"service": service}), authority=authority)


def test_health_knows_the_front_door_its_services_and_every_function() -> None:
    door = Door(table(1))
    for service in ("", "f", "inference.GRPCInferenceService", "grpc.health.v1.Health"):
        assert only(check(door, service), messages.HEALTH_RESPONSE) == {"status": messages.SERVING}
    assert only(check(door, "any.Service", "f.localhost"), messages.HEALTH_RESPONSE) == {"status": messages.SERVING}
    unknown = check(door, "other")
    assert unknown.code == NOT_FOUND
    assert "no function is called 'other' here" in unknown.message
    assert check(door, "", "missing.localhost").code == NOT_FOUND
    listed = only(call(door, f"{HEALTH}/List", b""), messages.HEALTH_LIST_RESPONSE)["statuses"]
    assert listed["f"] == listed[""] == {"status": messages.SERVING}
    one = only(call(door, f"{HEALTH}/List", b"", authority="f.localhost"), messages.HEALTH_LIST_RESPONSE)["statuses"]
    assert "f" in one
    assert door.activations() == []


def states(made: FakeRpc) -> list[int]:
    return [messages.HEALTH_RESPONSE.decode(message)["status"] for message in made.messages]


def test_health_is_watched_while_the_table_changes_and_until_the_worker_leaves() -> None:
    door = Door(table(1))
    watch = call(door, f"{HEALTH}/Watch", messages.HEALTH_REQUEST.encode({"service": "f"}))
    later = call(door, f"{HEALTH}/Watch", messages.HEALTH_REQUEST.encode({"service": "g"}))
    gone = call(door, f"{HEALTH}/Watch", messages.HEALTH_REQUEST.encode({"service": ""}))
    gone.client_leaves(door.now)
    assert (states(watch), states(later)) == ([messages.SERVING], [messages.SERVICE_UNKNOWN])
    assert watch.deadline == float("inf")
    door.core.apply(table(2))
    assert states(watch) == [messages.SERVING], "nothing new is not sent"
    door.core.apply(table(3, revision={"failure": "broken"}))
    door.core.apply(RouteTable(epoch=1, number=4, workers=1))
    assert states(watch) == [messages.SERVING, messages.NOT_SERVING, messages.SERVICE_UNKNOWN]
    assert states(gone) == [messages.SERVING]
    door.core.grpc.leave(is_draining=True)
    assert (watch.code, later.code) == (UNAVAILABLE, UNAVAILABLE)
    assert only(check(door, ""), messages.HEALTH_RESPONSE) == {"status": messages.NOT_SERVING}
    assert repr(door.core.grpc.watches) == "<Watches 0 open>"


METHOD = messages.REFLECTION_FILES[0].services[0].methods[0]


def ask(**question: Any) -> bytes:
    return METHOD.request.encode(question)


def test_reflection_of_the_front_door_is_answered_question_after_question() -> None:
    door = Door(table(1))
    made = call(door, REFLECTION, ask(list_services=""), complete=False)
    assert len(made.messages) == 1
    made.more(ask(file_containing_symbol="inference.GRPCInferenceService"), ask(file_by_filename="none"))
    assert len(made.messages) == 3
    made.more(complete=True)
    assert made.code == OK
    services = METHOD.response.decode(made.messages[0])["list_services_response"]["service"]
    assert {"name": "inference.GRPCInferenceService"} in services
    assert repr(door.core.grpc.watches) == "<Watches 0 open>"


def test_a_client_that_does_not_read_is_asked_for_no_more_questions() -> None:
    made = call(Door(table(1)), REFLECTION, complete=False)
    made._stream.waiting = 1 << 20
    made.more(ask(list_services=""))
    assert made.messages == []
    made._stream.waiting = 0
    made.more()
    assert len(made.messages) == 1


def test_a_question_that_is_none_ends_the_stream() -> None:
    assert call(Door(table(1)), REFLECTION, b"\xff").code == INVALID_ARGUMENT
    bomb = call(Door(table(1)), REFLECTION, body=framed(b"x", compressed=True))
    assert bomb.code == INVALID_ARGUMENT


def test_reflection_of_a_function_is_its_servers() -> None:
    assert call(awake(), REFLECTION, ask(list_services=""), authority="f.localhost").log == FORWARDED


def test_a_call_leaves_nothing_behind() -> None:
    door = awake()
    for _ in range(3):
        made = call(door, INFER, infer("m", 2))
        made.gets_answer(door.now)
    assert (door.demand().waiting, door.demand().answered) == (0, 3)
