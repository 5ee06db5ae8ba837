"""gRPC as users run it: ``tidegate up``, ``deploy``, and the clients of Triton and gRPC themselves, unmodified."""

import asyncio
import json
import queue
import re
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import httpx
import numpy
import pytest
import tritonclient.grpc as triton
import tritonclient.grpc.aio as triton_aio
from google.protobuf.descriptor_pool import DescriptorPool
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

from tests.support.deadline import Patience
from tests.support.live.certificates import make_certificate
from tests.support.live.deployment import Deployment, deployment, places
from tests.support.models import grpc_plain_server

pytestmark = [pytest.mark.live, pytest.mark.early(60), pytest.mark.timeout(120)]

PLAIN = f"""
apiVersion: tidegate.dev/v1alpha1
kind: Function
metadata:
  name: plain
  annotations: {{tidegate.dev/min-scale: "1", tidegate.dev/max-scale: "1"}}
spec:
  server: {{command: {json.dumps([sys.executable, grpc_plain_server.__file__, "{port}"])}}}
  protocol: grpc
  concurrency: 8
"""
UNLIMITED = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]


def address_of(world: Deployment) -> str:
    return world.gateway.partition("://")[2]


def named(function: str) -> list[tuple[str, str]]:
    """Options of a channel whose calls are for this function."""
    return [("grpc.default_authority", f"{function}.localhost")]


def tensor(*rows: tuple[float, float]) -> list[Any]:
    made = triton.InferInput("x", [len(rows), 2], "FP32")
    made.set_data_from_numpy(numpy.array(rows, "f4"))
    return [made]


def waiting(world: Deployment, name: str) -> int:
    with world.sdk() as sdk:
        return sdk.function(name).traffic.waiting


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    """A V2 function from a Python class and a plain gRPC server behind one front door."""
    folder = tmp_path_factory.mktemp("grpc")
    with deployment(folder, *places(folder, 3)) as made:
        made.up()
        made.deploy(made.handler(), "--min-scale", "1", "--wait")
        (folder / "plain.yaml").write_text(PLAIN)
        made.cli("deploy", "plain.yaml")
        yield made


@pytest.fixture
def plain(world: Deployment) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(address_of(world), options=[*named("plain"), *UNLIMITED]) as channel:
        yield channel


# --- Triton's clients -------------------------------------------------------------------------------------------------


def test_tritons_client_finds_the_function_by_the_models_name(world: Deployment) -> None:
    client = triton.InferenceServerClient(address_of(world))
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("echo")
    assert client.get_server_metadata().name == "tidegate"
    assert [each.name for each in client.get_model_metadata("echo").inputs] == ["x"]
    for compression in (None, "gzip", "deflate"):
        result = client.infer("echo", tensor((1, 2), (3, 4)), request_id="7", compression_algorithm=compression)
        assert result.as_numpy("y").tolist() == [[2, 4], [6, 8]]
        assert result.get_response().id == "7"
    with pytest.raises(triton.InferenceServerException, match="no function or model is called 'other'") as caught:
        client.infer("other", tensor((1, 2)))
    assert caught.value.status() == "StatusCode.NOT_FOUND"
    with pytest.raises(triton.InferenceServerException, match=r"input 'x' is missing|unknown input 'z'"):
        wrong = triton.InferInput("z", [1], "FP32")
        wrong.set_data_from_numpy(numpy.zeros(1, "f4"))
        client.infer("echo", [wrong])
    client.close()


def test_tritons_stream_and_its_asyncio_client(world: Deployment) -> None:
    client = triton.InferenceServerClient(address_of(world))
    reported: list[tuple[Any, Any]] = []
    client.start_stream(lambda result, error: reported.append((result, error)))
    for at in range(20):
        client.async_stream_infer("echo", tensor((at, 0)), request_id=str(at))
    client.stop_stream()
    client.close()
    assert [error for _, error in reported] == [None] * 20
    assert [float(result.as_numpy("y")[0, 0]) for result, _ in reported] == [2.0 * at for at in range(20)]

    async def main() -> list[float]:
        async with triton_aio.InferenceServerClient(address_of(world)) as client:
            found = await asyncio.gather(*(client.infer("echo", tensor((at, 0))) for at in range(50)))
            return [float(result.as_numpy("y")[0, 0]) for result in found]

    assert asyncio.run(main()) == [2.0 * at for at in range(50)]


def test_rest_and_grpc_share_a_port_and_a_function(world: Deployment) -> None:
    assert world.infer().json()["outputs"][0]["data"] == [2, 4]
    client = triton.InferenceServerClient(address_of(world), channel_args=named("echo"))
    assert client.infer("echo", tensor((1, 2))).as_numpy("y").tolist() == [[2, 4]]
    client.close()


# --- a plain gRPC server ----------------------------------------------------------------------------------------------


def test_every_kind_of_call_to_a_server_that_knows_nothing_of_us(plain: grpc.Channel) -> None:
    metadata = [("x-test-word", "a b"), ("x-test-bytes-bin", bytes(range(256)))]
    answer, call = plain.unary_unary("/plain.Test/Unary").with_call(b"hi", timeout=10, metadata=metadata)
    assert answer == b"hi"
    assert dict(call.initial_metadata())["x-test-head"] == "a b"
    assert dict(call.trailing_metadata())["x-test-end-bin"] == bytes(range(256))
    assert plain.stream_unary("/plain.Test/Join")(iter([b"a", b"b", b"c"]), timeout=10) == b"a,b,c"
    assert list(plain.unary_stream("/plain.Test/Count")(b"100", timeout=10)) == [str(n).encode() for n in range(100)]
    words = [str(number).encode() * 100 for number in range(100)]
    assert list(plain.stream_stream("/plain.Test/Echo")(iter(words), timeout=10)) == words
    large = bytes(range(256)) * (64 << 10)
    assert plain.unary_unary("/plain.Test/Unary")(large, timeout=20) == large
    for compression in (grpc.Compression.Gzip, grpc.Compression.Deflate):
        assert plain.unary_unary("/plain.Test/Unary")(b"z" * 9999, timeout=10, compression=compression) == b"z" * 9999


def test_statuses_of_the_server_and_of_a_deadline_reach_the_client(plain: grpc.Channel) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        plain.unary_unary("/plain.Test/Fail")("müde\n100%".encode(), timeout=10)
    assert (caught.value.code(), caught.value.details()) == (grpc.StatusCode.FAILED_PRECONDITION, "müde\n100%")
    with pytest.raises(grpc.RpcError) as caught:
        plain.unary_unary("/plain.Test/Missing")(b"", timeout=10)
    assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED
    with pytest.raises(grpc.RpcError) as caught:
        plain.unary_unary("/plain.Test/Sleep")(b"5", timeout=0.3)
    assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED


def test_rest_to_a_grpc_function_is_refused_with_words(world: Deployment) -> None:
    answer = httpx.post(f"{world.gateway}/functions/plain/x", content=b"{}", trust_env=False, verify=False)
    assert (answer.status_code, answer.json()["error"]["code"]) == (415, "not_grpc")


# --- health and reflection --------------------------------------------------------------------------------------------


def test_health_and_reflection_of_the_front_door(world: Deployment) -> None:
    with grpc.insecure_channel(address_of(world)) as channel:
        health = health_pb2_grpc.HealthStub(channel)
        for service in ("", "echo", "plain", "inference.GRPCInferenceService"):
            answer = health.Check(health_pb2.HealthCheckRequest(service=service), timeout=10)
            assert answer.status == health_pb2.HealthCheckResponse.SERVING
        with pytest.raises(grpc.RpcError) as caught:
            health.Check(health_pb2.HealthCheckRequest(service="other"), timeout=10)
        assert caught.value.code() is grpc.StatusCode.NOT_FOUND
        database = ProtoReflectionDescriptorDatabase(channel)
        assert set(database.get_services()) >= {"inference.GRPCInferenceService", "grpc.health.v1.Health"}
        service = DescriptorPool(database).FindServiceByName("inference.GRPCInferenceService")
        assert service.methods_by_name["ModelInfer"].output_type.full_name == "inference.ModelInferResponse"


def test_reflection_of_a_function_is_its_servers(plain: grpc.Channel) -> None:
    assert "plain.Test" in ProtoReflectionDescriptorDatabase(plain).get_services()


def test_a_call_that_names_none_is_reported(world: Deployment) -> None:
    with grpc.insecure_channel(address_of(world)) as channel:
        with pytest.raises(grpc.RpcError, match="it names none, and there is no default one") as caught:
            channel.unary_unary("/plain.Test/Unary")(b"", timeout=10)
        assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED
    with grpc.insecure_channel(address_of(world), options=named("missing")) as channel:
        with pytest.raises(grpc.RpcError, match="no function or model is called 'missing'") as caught:
            channel.unary_unary("/plain.Test/Unary")(b"", timeout=10)
        assert caught.value.code() is grpc.StatusCode.NOT_FOUND


def test_a_restart_ends_watches_and_no_call(world: Deployment, plain: grpc.Channel) -> None:
    with grpc.insecure_channel(address_of(world)) as channel:
        health = health_pb2_grpc.HealthStub(channel)
        watch = health.Watch(health_pb2.HealthCheckRequest(service="plain"))
        assert next(watch).status == health_pb2.HealthCheckResponse.SERVING
        stop = threading.Event()
        failures: list[str] = []
        answered = [0] * 4

        def call(number: int) -> None:
            unary = plain.unary_unary("/plain.Test/Unary")
            while not stop.wait(0.005):
                try:
                    unary(b"x", timeout=10)
                    answered[number] += 1
                except grpc.RpcError as error:
                    failures.append(str(error))

        threads = [threading.Thread(target=call, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        world.cli("restart")
        before = sum(answered)
        world.until(lambda: sum(answered) > before + 20, 10.0, "calls at the new worker")
        stop.set()
        for thread in threads:
            thread.join()
        assert failures == []
        with pytest.raises(grpc.RpcError) as caught:
            list(watch)
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        again = health.Watch(health_pb2.HealthCheckRequest(service="plain"), wait_for_ready=True)
        assert next(again).status == health_pb2.HealthCheckResponse.SERVING
        again.cancel()


def test_a_server_that_dies_ends_its_calls_as_unavailable_and_the_next_one_serves(
    world: Deployment, plain: grpc.Channel
) -> None:
    waits: queue.Queue[bytes | None] = queue.Queue()
    stream = plain.stream_stream("/plain.Test/Echo")(iter(waits.get, None), timeout=60)
    waits.put(b"first")
    assert next(stream) == b"first"
    sleeping = plain.unary_unary("/plain.Test/Sleep").future(b"30", timeout=60)
    world.until(lambda: in_flight(world, "plain") == 2, 10.0, "both calls at the server")
    (server,) = (key for key in world.living() if key.startswith("plain-") and key.endswith(".server"))
    world.end(server)
    with pytest.raises(grpc.RpcError) as caught:
        sleeping.result(timeout=10)
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    assert "broke off" in caught.value.details()
    with pytest.raises(grpc.RpcError) as caught:
        next(stream)
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    waits.put(None)
    assert plain.unary_unary("/plain.Test/Unary")(b"again", timeout=30) == b"again"


def in_flight(world: Deployment, name: str) -> int:
    (revision,) = world.status(name)["revisions"]
    return sum(replica["in_flight"] or 0 for replica in revision["replicas"])


# --- TLS --------------------------------------------------------------------------------------------------------------


def test_grpc_over_tls(tmp_path: Path) -> None:
    certificate, key = make_certificate(tmp_path)
    flags = ("--gateway-tls-cert", str(certificate), "--gateway-tls-key", str(key))
    with deployment(tmp_path, *places(tmp_path, 2), *flags) as world:
        world.up()
        world.deploy(world.handler(), "--min-scale", "1", "--wait")
        port = address_of(world).rpartition(":")[2]
        credentials = triton.InferenceServerClient(f"localhost:{port}", ssl=True, root_certificates=str(certificate))
        assert credentials.infer("echo", tensor((1, 2)), client_timeout=20).as_numpy("y").tolist() == [[2, 4]]
        credentials.close()


# --- two kinds of accelerators ----------------------------------------------------------------------------------------

KINDS = """
accelerators:
- {name: slow, kind: emulated, count: 1, memory: 16Gi, price-per-hour: 1, profile: {base: 10ms, per-item: 20ms}}
- {name: fast, kind: emulated, count: 1, memory: 16Gi, price-per-hour: 3, profile: {base: 40ms, per-item: 2ms}}
"""
BOTH = """
apiVersion: tidegate.dev/v1alpha1
kind: Function
metadata:
  name: echo
  annotations: {tidegate.dev/min-scale: "2", tidegate.dev/max-scale: "2", tidegate.dev/policy: kpa}
spec:
  server: {handler: "echo.py:Echo"}
  concurrency: 1
"""


def of_groups(world: Deployment, what: str) -> dict[str, float]:
    with world.sdk() as sdk:
        text = sdk.metrics()
    found = re.findall(rf'^tidegate_gateway_group_{what}_total{{[^}}]*group="(\w+)"[^}}]*}} (\S+)$', text, re.MULTILINE)
    return {group: float(value) for group, value in found}


@pytest.mark.timeout(240)
def test_each_call_of_one_connection_has_a_group_of_its_own_by_weight_then_by_size(tmp_path: Path) -> None:
    (tmp_path / "kinds.yaml").write_text(KINDS)
    with deployment(tmp_path, "--accelerators-file", str(tmp_path / "kinds.yaml"), "--gateway-workers", "1") as world:
        world.up()
        world.handler()
        (tmp_path / "echo.yaml").write_text(BOTH)
        world.cli("deploy", "echo.yaml")
        client = triton.InferenceServerClient(address_of(world))
        stop = threading.Event()

        def call(number: int) -> None:
            """One large request after two small ones; together they leave the replicas a third of their time."""
            while not stop.wait(0.05):
                number += 1
                client.infer("echo", tensor(*[(1.0, 2.0)] * (16 if number % 3 == 0 else 1)), client_timeout=20)

        def way() -> str:
            found: str = world.status("echo")["revisions"][0]["size_routing"]
            return found

        threads = [threading.Thread(target=call, args=(number,)) for number in range(3)]
        for thread in threads:
            thread.start()
        try:
            world.until(lambda: len(of_groups(world, "requests")) == 2, 20.0, "calls at both groups")
            assert way().startswith("by weights")
            world.until(lambda: way().startswith("cut by size"), 120.0, "cuts")
            world.until(lambda: is_cut(mean_batches(world, 1.0)), 60.0, "groups by size")
        finally:
            stop.set()
            for thread in threads:
                thread.join()
        client.close()


def is_cut(means: dict[str, float]) -> bool:
    """Large requests are at the fast group, small ones at the slow one."""
    return means.get("slow", 0.0) == 1.0 and means.get("fast", 0.0) > 12.0


def mean_batches(world: Deployment, over_s: float) -> dict[str, float]:
    """Inferences per request of each group over the next seconds."""
    requests, inferences = of_groups(world, "requests"), of_groups(world, "inferences")
    time.sleep(over_s)
    calls = {group: count - requests[group] for group, count in of_groups(world, "requests").items()}
    rows = {group: count - inferences[group] for group, count in of_groups(world, "inferences").items()}
    return {group: rows[group] / count for group, count in calls.items() if count}


# --- from zero --------------------------------------------------------------------------------------------------------


def test_a_call_wakes_a_function_and_what_goes_away_leaves_nothing(tmp_path: Path) -> None:
    with deployment(tmp_path, *places(tmp_path, 2)) as world:
        world.up()
        world.deploy(world.handler(load_s=4.0), "--initial-scale", "0")
        client = triton.InferenceServerClient(address_of(world))
        with grpc.insecure_channel(address_of(world)) as channel:
            health = health_pb2_grpc.HealthStub(channel)
            health.Check(health_pb2.HealthCheckRequest(service="echo"), timeout=10)
        assert client.is_model_ready("echo")
        assert world.replicas() == 0, "questions about health wake no function"

        patience = Patience(1.5)
        with pytest.raises(triton.InferenceServerException) as late:
            client.infer("echo", tensor((1, 2)), client_timeout=0.5)
        assert late.value.status() == "StatusCode.DEADLINE_EXCEEDED"
        assert not patience.is_over, "the deadline is kept while the function wakes"

        done = threading.Event()
        gone = client.async_infer("echo", tensor((1, 2)), lambda result, error: done.set(), client_timeout=30)
        answers: list[Any] = []
        kept = [threading.Thread(target=lambda: answers.append(client.infer("echo", tensor((3, 4))))) for _ in range(5)]
        for thread in kept:
            thread.start()
        world.until(lambda: waiting(world, "echo") == 6, 5.0, "six calls that wait")
        gone.cancel()
        world.until(lambda: waiting(world, "echo") == 5, 1.5, "the place of the one that went away")
        for thread in kept:
            thread.join(20)
        assert [answer.as_numpy("y").tolist() for answer in answers] == [[[6, 8]]] * 5
        world.until(lambda: waiting(world, "echo") == 0, 5.0, "an empty room")
        client.close()
