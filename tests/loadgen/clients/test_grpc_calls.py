"""gRPC calls against a scripted server in memory: the client's engine, its statuses, the times of its messages."""

import asyncio
from collections.abc import Callable

import pytest

from tests.support.models.load_servers import GrpcScript, Script, ServedLoop, fixed
from tidegate.aio.loop.services import LoopServices
from tidegate.loadgen.clients.call import Call, Request
from tidegate.loadgen.clients.grpc_calls import GrpcCalls, framed
from tidegate.loadgen.clients.runs import LoadRun


def called(
    script: Callable[[], Script],
    count: int = 1,
    *,
    refused: int = 0,
    path: str = "/pkg.Service/Method",
    **options: bool,
) -> tuple[list[Call], bytes, ServedLoop]:
    """Sends so many calls at once; the calls, what was answered, and the loop."""
    ended: list[Call] = []
    heard = bytearray()
    loop = ServedLoop(script, refused)

    async def drive() -> None:
        services = LoopServices(loop)
        client = GrpcCalls(
            "localhost:80",
            path,
            services=services,
            most=1000,
            timeout_s=2.0,
            clock=loop.time,
            on_data=heard.extend,
            **options,  # type: ignore[arg-type]  # is_stream
        )
        await LoadRun(client, ended.append).open_loop((0.0, Request(framed(b"hello"))) for _ in range(count))
        await client.close()
        services.close()
        await asyncio.sleep(0.1)
        assert all(each.is_closed for each in loop.connections)

    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        runner.run(drive())
    return ended, bytes(heard), loop


def test_calls_share_connections_within_the_limits_of_the_server_and_are_answered() -> None:
    servers: list[GrpcScript] = []

    def script() -> GrpcScript:
        servers.append(GrpcScript(wait_s=0.5))
        return servers[-1]

    calls, heard, loop = called(script, 300)
    assert [(call.code, call.is_good) for call in calls] == [("OK", True)] * 300
    assert heard == b"\0\0\0\0\x010" * 300
    assert [body for server in servers for body in server.bodies] == [framed(b"hello")] * 300
    assert 1 < len(loop.connections) <= 3


@pytest.mark.parametrize(("code", "name"), [(8, "RESOURCE_EXHAUSTED"), (14, "UNAVAILABLE"), (16, "UNAUTHENTICATED")])
def test_a_status_that_is_not_ok_is_no_success(code: int, name: str) -> None:
    (call,), _, _ = called(lambda: GrpcScript(messages=0, code=code))
    assert (call.code, call.is_good, call.error) == (name, False, None)


def test_a_stream_has_the_times_of_its_messages() -> None:
    (call,), _, _ = called(lambda: GrpcScript(messages=3, wait_s=0.5), is_stream=True)
    assert call.is_good
    assert call.first == call.ended > 0.0
    assert call.gaps == [0.0, 0.0]


def test_only_a_stream_that_the_gateway_knows_counts_from_its_head() -> None:
    def judged(path: str) -> tuple[float, float]:
        (call,), _, _ = called(lambda: GrpcScript(messages=3, wait_s=0.5), is_stream=True, path=path)
        return call.began, call.judged - call.ended

    assert judged("/own.Service/Stream") == (0.0, 0.0)
    began, _ = judged("/inference.GRPCInferenceService/ModelStreamInfer")
    assert began > 0.0


def test_silence_is_given_up() -> None:
    calls, _, _ = called(lambda: GrpcScript(wait_s=9.0), 3)
    assert [call.error for call in calls] == ["timeout"] * 3


@pytest.mark.parametrize(
    ("piece", "error"), [(None, "connect"), (b"HTTP/1.1 400 Bad Request\r\n\r\n", "malformed")], ids=["ends", "http/1"]
)
def test_a_server_without_http2_is_reported(piece: bytes | None, error: str) -> None:
    (call,), _, _ = called(fixed((0.0, piece)))
    assert (call.code, call.error) == (None, error)


def test_a_refused_connection_is_reported() -> None:
    (call,), _, _ = called(GrpcScript, refused=1)
    assert call.error == "connect"
