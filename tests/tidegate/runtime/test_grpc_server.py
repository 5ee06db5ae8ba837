"""Calls to the model server over its HTTP/2 protocol, without sockets."""

import asyncio
import gc
import gzip
import struct
import weakref
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import pytest

from tests.support.http2.grpc_client import Client, framed
from tidegate.runtime.errors import ModelError, RequestError
from tidegate.runtime.execute.model import Inputs, Outputs
from tidegate.runtime.grpc_server import STALLED_S, GrpcServer
from tidegate.runtime.metrics import RuntimeCounters
from tidegate.runtime.protocols.tensors import Tensor
from tidegate.runtime.protocols.v2 import ModelSpec, TensorSpec
from tidegate.runtime.service import ModelService
from tidegate.wire.grpc import messages
from tidegate.wire.grpc.protobuf import Message
from tidegate.wire.http2.grpc_fields import (
    DEADLINE_EXCEEDED,
    INTERNAL,
    INVALID_ARGUMENT,
    NOT_FOUND,
    OK,
    RESOURCE_EXHAUSTED,
    UNAVAILABLE,
    UNIMPLEMENTED,
)

SPEC = ModelSpec(platform="test", inputs=(TensorSpec("x", "FP32", (-1,)),), outputs=(TensorSpec("y", "FP32", (-1,)),))
INFER = "/inference.GRPCInferenceService/ModelInfer"
STREAM = "/inference.GRPCInferenceService/ModelStreamInfer"
WATCH = "/grpc.health.v1.Health/Watch"
BODY_BYTES = 1 << 16


async def double(inputs: Inputs) -> Outputs:
    raw = bytes(inputs[0].data)  # type: ignore[arg-type]  # FP32 is no list
    values = struct.unpack(f"<{len(raw) // 4}f", raw)
    return {"y": Tensor("y", "FP32", inputs[0].shape, struct.pack(f"<{len(values)}f", *(2 * one for one in values)))}


class World:
    """One model server with one client."""

    def __init__(self, infer: Callable[[Inputs], Awaitable[Outputs]] | None = double, *, takes: bool = True) -> None:
        self.counters = RuntimeCounters()
        self.service = ModelService(("m", "n"), self.counters, body_bytes=BODY_BYTES)
        if infer is not None:
            self.service.start(SPEC, infer, lambda: 0)
        self.server = GrpcServer(self.service, body_bytes=BODY_BYTES)
        self.client = Client(self.server.connect(), takes=takes)

    async def ask(self, method: str, request: Message, response: Message, **fields: Any) -> dict[str, Any]:
        call = self.client.call(f"/{method}", request.encode(fields))
        assert await call.ended() == (OK, "")
        (message,) = call.messages
        return response.decode(message)

    async def infer(self, *values: float, model: str = "m") -> list[float]:
        call = self.client.call(INFER, request(*values, model=model))
        assert await call.ended() == (OK, "")
        return outputs(call.messages[0])


def request(*values: float, model: str = "m", **fields: Any) -> bytes:
    entry = {"name": "x", "datatype": "FP32", "shape": [len(values)]}
    raw = struct.pack(f"<{len(values)}f", *values)
    return messages.MODEL_INFER_REQUEST.encode(
        {"model_name": model, "inputs": [entry], "raw_input_contents": [raw], **fields}
    )


def outputs(message: bytes) -> list[float]:
    (raw,) = messages.MODEL_INFER_RESPONSE.decode(message)["raw_output_contents"]
    return list(struct.unpack(f"<{len(raw) // 4}f", raw))


def run(main: Coroutine[Any, Any, None]) -> None:
    async def all_of_it() -> None:
        await asyncio.wait_for(main, 10)

    asyncio.run(all_of_it())


def test_what_can_be_asked_of_the_server_and_the_model() -> None:
    async def main() -> None:
        world = World()
        service = "inference.GRPCInferenceService"
        assert await world.ask(
            f"{service}/ServerLive", messages.SERVER_LIVE_REQUEST, messages.SERVER_LIVE_RESPONSE
        ) == {"live": True}
        ready = await world.ask(f"{service}/ServerReady", messages.SERVER_READY_REQUEST, messages.SERVER_READY_RESPONSE)
        assert ready == {"ready": True}
        ready = await world.ask(
            f"{service}/ModelReady", messages.MODEL_READY_REQUEST, messages.MODEL_READY_RESPONSE, name="n", version="1"
        )
        assert ready == {"ready": True}
        server = await world.ask(
            f"{service}/ServerMetadata", messages.SERVER_METADATA_REQUEST, messages.SERVER_METADATA_RESPONSE
        )
        assert server["name"] == "tidegate"
        model = await world.ask(
            f"{service}/ModelMetadata", messages.MODEL_METADATA_REQUEST, messages.MODEL_METADATA_RESPONSE, name="m"
        )
        assert (model["name"], model["versions"], model["platform"]) == ("m", ["1"], "test")
        assert model["inputs"] == [{"name": "x", "datatype": "FP32", "shape": [-1]}]

    run(main())


def test_an_inference_is_answered_and_counted() -> None:
    async def main() -> None:
        world = World()
        assert await world.infer(1, 2, 3) == [2, 4, 6]
        assert await world.infer(5, model="n") == [10]
        assert (world.counters.success, world.service.active) == (2, 0)

    run(main())


@pytest.mark.parametrize(
    ("path", "message", "status", "says"),
    [
        (INFER, request(1, model="other"), NOT_FOUND, "unknown model 'other'; this server has m, n"),
        (INFER, request(1, model_version="3"), NOT_FOUND, "model 'm' has no version '3', only '1'"),
        (INFER, b"\xff", INVALID_ARGUMENT, "the request is no ModelInferRequest"),
        (INFER, request(1, outputs=[{"name": "z"}]), INVALID_ARGUMENT, "unknown output 'z'"),
        (
            "/inference.GRPCInferenceService/ModelReady",
            messages.MODEL_READY_REQUEST.encode({"name": "other"}),
            NOT_FOUND,
            "unknown model 'other'",
        ),
        ("/inference.GRPCInferenceService/TraceSetting", b"", UNIMPLEMENTED, "there is no method"),
        ("/other.Service/Method", b"", UNIMPLEMENTED, "there is no method /other.Service/Method here"),
        (
            "/grpc.health.v1.Health/Check",
            messages.HEALTH_REQUEST.encode({"service": "other"}),
            NOT_FOUND,
            "unknown service 'other'; this server has inference.GRPCInferenceService, m, n",
        ),
    ],
)
def test_a_wrong_call_gets_its_status_and_a_message_that_helps(
    path: str, message: bytes, status: int, says: str
) -> None:
    async def main() -> None:
        call = World().client.call(path, message)
        got, text = await call.ended()
        assert (got, call.http_status, call.body) == (status, 200, b"")
        assert says in text

    run(main())


@pytest.mark.parametrize(
    ("error", "status", "text"),
    [
        (RequestError("not so"), INVALID_ARGUMENT, "not so"),
        (RequestError("too many", 429), RESOURCE_EXHAUSTED, "too many"),
        (ModelError("it broke"), INTERNAL, "it broke"),
        (ModelError("no file \udce9t\udce9"), INTERNAL, "no file ?t?"),
        (ModelError("\U0001f600" * 2000), INTERNAL, "\U0001f600" * 340 + "..."),
        (KeyError("secret"), INTERNAL, "the model server failed; its log says why"),
    ],
)
def test_what_a_model_fails_with_is_reported_as_over_rest(
    error: Exception, status: int, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    async def fail(inputs: Inputs) -> Outputs:
        raise error

    async def main() -> None:
        assert await World(fail).client.call(INFER, request(1)).ended() == (status, text)

    run(main())
    assert ("secret" in capsys.readouterr().err) == isinstance(error, KeyError)


def test_a_model_that_is_loading_is_unavailable_and_not_ready() -> None:
    async def main() -> None:
        world = World(None)
        assert await world.client.call(INFER, request(1)).ended() == (UNAVAILABLE, "model 'm' is still loading")
        health = await world.ask("grpc.health.v1.Health/Check", messages.HEALTH_REQUEST, messages.HEALTH_RESPONSE)
        assert health == {"status": messages.NOT_SERVING}

    run(main())


def test_a_stream_is_answered_in_order_and_a_bad_message_does_not_end_it() -> None:
    async def main() -> None:
        call = World().client.call(STREAM, request(1, id="a"), request(2, model="other", id="b"), ends=False)
        await call.has(2)
        call.send(b"\xff", request(3, id="c"), ends=True)
        assert await call.ended() == (OK, "")
        answers = [messages.MODEL_STREAM_INFER_RESPONSE.decode(message) for message in call.messages]
        assert [answer.get("error_message", "") for answer in answers] == [
            "",
            "unknown model 'other'; this server has m, n",
            "the request is no ModelInferRequest: inference.ModelInferRequest: the message is truncated",
            "",
        ]
        assert [answer["infer_response"].get("id") for answer in answers] == ["a", "b", None, "c"]
        good = answers[3]["infer_response"]
        assert struct.unpack("<f", good["raw_output_contents"][0]) == (6,)
        assert good["parameters"]["triton_final_response"]["bool_param"] is True

    run(main())


def test_a_stream_goes_on_after_a_message_that_is_no_text() -> None:
    async def fail(inputs: Inputs) -> Outputs:
        raise ModelError("\udce9")

    async def main() -> None:
        call = World(fail).client.call(STREAM, request(1, id="a"), request(2, id="b"))
        assert await call.ended() == (OK, "")
        answers = [messages.MODEL_STREAM_INFER_RESPONSE.decode(message) for message in call.messages]
        assert [answer["error_message"] for answer in answers] == ["?", "?"]

    run(main())


def test_a_client_that_goes_away_takes_its_work_with_it() -> None:
    async def main() -> None:
        cancelled = asyncio.Event()
        started = asyncio.Event()

        async def hang(inputs: Inputs) -> Outputs:
            started.set()
            try:
                await asyncio.Event().wait()
            finally:
                cancelled.set()
            raise AssertionError

        world = World(hang)
        call = world.client.call(INFER, request(1))
        await started.wait()
        call.cancel()
        await cancelled.wait()
        await asyncio.sleep(0)
        assert (world.service.active, world.counters.canceled) == (0, 1)
        started.clear()
        cancelled.clear()
        world.client.call(INFER, request(1))
        await started.wait()
        world.client.close()
        await cancelled.wait()
        await asyncio.sleep(0)
        assert (world.service.active, len(world.server.tasks), world.server.connections) == (0, 0, set())

    run(main())


def test_a_call_leaves_nothing_for_the_collector() -> None:
    async def main() -> None:
        started, go_on = asyncio.Event(), asyncio.Event()

        async def wait(inputs: Inputs) -> Outputs:
            started.set()
            await go_on.wait()
            return await double(inputs)

        world = World(wait)
        call = world.client.call(INFER, request(1))
        await started.wait()
        (connection,) = world.server.connections
        (stream,) = connection.engine.streams.values()
        kept = weakref.ref(stream.owner.task)  # what the call itself holds
        gc.disable()
        try:
            go_on.set()
            assert await call.ended() == (OK, "")
            del stream
            await asyncio.sleep(0)
            assert kept() is None
        finally:
            gc.enable()

    run(main())


def test_a_deadline_ends_the_call_and_its_work() -> None:
    async def main() -> None:
        async def hang(inputs: Inputs) -> Outputs:
            await asyncio.Event().wait()
            raise AssertionError

        world = World(hang)
        call = world.client.call(INFER, request(1), fields=[(b"grpc-timeout", b"1m")])
        status, text = await call.ended()
        assert status == DEADLINE_EXCEEDED
        assert "deadline" in text
        assert (world.service.active, world.counters.canceled) == (0, 1)
        call = world.client.call(INFER, request(1), fields=[(b"grpc-timeout", b"soon")])
        assert (await call.ended())[0] == INVALID_ARGUMENT

    run(main())


def test_compressed_messages_are_read_within_the_limit() -> None:
    async def main() -> None:
        world = World()

        async def ask(body: bytes, coding: bytes | None, *, compressed: bool = True) -> tuple[int | None, str]:
            fields = [] if coding is None else [(b"grpc-encoding", coding)]
            call = world.client.call(INFER, ends=False, fields=fields)
            call.send_raw(framed(body, compressed=compressed), ends=True)
            return await call.ended()

        assert await ask(gzip.compress(request(1)), b"gzip") == (OK, "")
        assert await ask(request(1), b"gzip", compressed=False) == (OK, "")
        assert (await ask(gzip.compress(bytes(BODY_BYTES + 1)), b"gzip"))[0] == RESOURCE_EXHAUSTED
        assert (await ask(b"x", b"gzip"))[0] == INTERNAL
        assert (await ask(b"x", b"zstd"))[0] == UNIMPLEMENTED
        assert (await ask(b"x", None))[0] == INTERNAL

    run(main())


def test_a_message_that_is_too_large_cut_short_or_one_too_many_is_refused() -> None:
    async def main() -> None:
        world = World()
        large = world.client.call(INFER, ends=False)
        large.send_raw(b"\0" + (BODY_BYTES + 1).to_bytes(4, "big"))
        assert (await large.ended())[0] == RESOURCE_EXHAUSTED
        short = world.client.call(INFER, ends=False)
        short.send_raw(framed(request(1))[:-1], ends=True)
        assert (await short.ended())[0] == INTERNAL
        assert (await world.client.call(INFER, request(1), request(2)).ended())[0] == INTERNAL
        assert (await world.client.call(INFER).ended())[0] == INTERNAL

    run(main())


def test_a_message_may_come_in_any_pieces() -> None:
    async def main() -> None:
        world = World()
        call = world.client.call(STREAM, ends=False)
        for byte in framed(request(1)) + framed(request(2)):
            call.send_raw(bytes((byte,)))
        call.send_raw(b"", ends=True)
        assert await call.ended() == (OK, "")
        assert len(call.messages) == 2

    run(main())


def test_what_is_no_grpc_is_reported_in_http() -> None:
    async def main() -> None:
        world = World()
        call = world.client.call(INFER, method=b"GET")
        await call.is_over.wait()
        assert call.http_status == 405
        call = world.client.call(INFER, b"", content_type=b"application/json")
        await call.is_over.wait()
        assert call.http_status == 415

    run(main())


def test_health_is_watched_until_the_server_stops() -> None:
    async def main() -> None:
        world = World(None)
        known = world.client.call(WATCH, messages.HEALTH_REQUEST.encode({"service": "m"}))
        unknown = world.client.call(WATCH, messages.HEALTH_REQUEST.encode({"service": "other"}))
        await known.has(1)
        await unknown.has(1)
        world.service.start(SPEC, double, lambda: 0)
        await known.has(2)
        world.service.stop()
        await known.has(3)
        statuses = [messages.HEALTH_RESPONSE.decode(message)["status"] for message in known.messages]
        assert statuses == [messages.NOT_SERVING, messages.SERVING, messages.NOT_SERVING]
        assert [messages.HEALTH_RESPONSE.decode(message) for message in unknown.messages] == [
            {"status": messages.SERVICE_UNKNOWN}
        ]
        await world.server.close()
        assert (await known.ended())[0] == UNAVAILABLE
        assert world.client.is_closed

    run(main())


def test_health_lists_the_server_the_service_and_the_models() -> None:
    async def main() -> None:
        answer = await World().ask(
            "grpc.health.v1.Health/List", messages.HEALTH_LIST_REQUEST, messages.HEALTH_LIST_RESPONSE
        )
        names = ("", "inference.GRPCInferenceService", "m", "n")
        assert answer["statuses"] == {name: {"status": messages.SERVING} for name in names}

    run(main())


@pytest.mark.parametrize("version", ["v1", "v1alpha"])
def test_reflection_answers_question_after_question(version: str) -> None:
    async def main() -> None:
        service = f"grpc.reflection.{version}.ServerReflection"
        method = (
            next(file for file in messages.REFLECTION_FILES if file.services[0].name == service).services[0].methods[0]
        )
        world = World()
        call = world.client.call(f"/{service}/{method.name}", method.request.encode({"list_services": ""}), ends=False)
        (listed,) = map(method.response.decode, await call.has(1))
        assert {"name": "inference.GRPCInferenceService"} in listed["list_services_response"]["service"]
        call.send(method.request.encode({"file_containing_symbol": "inference.GRPCInferenceService"}), ends=True)
        assert await call.ended() == (OK, "")
        assert method.response.decode(call.messages[1])["file_descriptor_response"]["file_descriptor_proto"]
        broken = world.client.call(f"/{service}/{method.name}", b"\xff")
        assert (await broken.ended())[0] == INVALID_ARGUMENT

    run(main())


def test_a_client_that_takes_nothing_holds_up_its_stream_alone_and_is_left_in_the_end() -> None:
    async def main() -> None:
        async def large(inputs: Inputs) -> Outputs:
            return {"y": Tensor("y", "FP32", (1 << 18,), bytes(4 << 18))}

        world = World(large, takes=False)
        stuck = world.client.call(STREAM, *[request(1)] * 4, ends=False)
        while len(stuck.body) < 1 << 15:
            stuck.changed.clear()
            await stuck.changed.wait()
        ready = await world.ask(
            "inference.GRPCInferenceService/ServerReady", messages.SERVER_READY_REQUEST, messages.SERVER_READY_RESPONSE
        )
        assert ready == {"ready": True}
        assert world.counters.success <= 2  # it answers no further message while one cannot go out
        world.server.sweep(1.0)
        world.server.sweep(2.0 + STALLED_S)
        await stuck.is_over.wait()
        assert stuck.reset is not None

    run(main())
