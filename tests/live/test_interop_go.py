"""grpc-go's own interoperability suite, client and server, grpcurl, and a load client, with our processes between.

The suite's programs are installed by their ordinary ``go install`` into ``build/go``; `make test-interop` runs these.
"""

import contextlib
import json
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.macro.harness import find_tools, free_port
from tests.support.http.echo import KINDS, doors
from tests.support.live.go_tools import GRPCURL, INTEROP_CLIENT, INTEROP_SERVER, tool

pytestmark = [pytest.mark.live, pytest.mark.timeout(600), pytest.mark.needs(tool="go")]

CASES = (
    "empty_unary",
    "large_unary",
    "client_streaming",
    "server_streaming",
    "ping_pong",
    "empty_stream",
    "timeout_on_sleeping_server",
    "cancel_after_begin",
    "cancel_after_first_response",
    "status_code_and_message",
    "special_status_message",
    "custom_metadata",
    "unimplemented_method",
    "unimplemented_service",
)
"""All of the suite's that need no identity, no name resolution and no load balancing of the client's."""


@pytest.fixture(scope="module")
def client() -> Path:
    return tool(INTEROP_CLIENT)


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    """Address of the suite's server."""
    binary = tool(INTEROP_SERVER)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    process = subprocess.Popen([str(binary), f"--port={port}"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        until = time.monotonic() + 10.0
        while True:
            assert process.poll() is None, "the suite's server has ended"
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1.0):
                break
            assert time.monotonic() < until
            time.sleep(0.02)
        yield f"127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait()


@pytest.fixture(scope="module")
def addresses(server: str) -> Iterator[dict[str, str]]:
    """Of the doors before that server, by kind; ``direct``: the server itself."""
    with doors([(kind, "uvloop") for kind in KINDS], server) as found:
        yield {"direct": server} | {kind: "{}:{}".format(*door.address) for (kind, _), door in found.items()}


@pytest.mark.parametrize("kind", ["direct", *KINDS])
@pytest.mark.parametrize("case", CASES)
def test_case_of_the_suite(case: str, kind: str, addresses: dict[str, str], client: Path) -> None:
    host, _, port = addresses[kind].rpartition(":")
    words = [f"--server_host={host}", f"--server_port={port}", f"--test_case={case}", "--use_tls=false"]
    done = subprocess.run([str(client), *words], capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 0, done.stderr[-2000:]


def test_grpcurl_by_reflection(addresses: dict[str, str]) -> None:
    """The gateway's reflection names the service; with its description grpcurl calls it."""
    binary = tool(GRPCURL)
    words = [str(binary), "-plaintext", "-max-time", "10"]
    listed = subprocess.run([*words, addresses["gateway"], "list"], capture_output=True, text=True, check=False)
    assert listed.returncode == 0, listed.stderr
    assert "inference.GRPCInferenceService" in listed.stdout.split()
    assert "grpc.health.v1.Health" in listed.stdout.split()
    health = [*words, addresses["gateway"], "grpc.health.v1.Health/Check"]
    checked = subprocess.run(health, capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stderr
    assert json.loads(checked.stdout) == {"status": "SERVING"}


LOADS = {
    "unary": ["-calls", "5000"],
    "a deadline and a trace on every call": ["-calls", "3000", "-unique"],
    "streams of 10 messages": ["-calls", "500", "-messages", "10"],
    "600 KB": ["-calls", "200", "-size", "600000", "-in-flight", "8"],
}


@pytest.fixture(scope="module")
def loaded() -> Iterator[tuple[str, dict[str, str]]]:
    """The benchmark's load program, and addresses of the doors before its server."""
    with tempfile.TemporaryDirectory(prefix="gogrpc-") as folder:
        tools, absent = find_tools(Path(folder))
        if "gogrpc" not in tools:
            pytest.fail(absent["gogrpc"])
        address = f"127.0.0.1:{free_port()}"
        with subprocess.Popen([tools["gogrpc"], "serve", address]) as process:
            try:
                with doors([(kind, "uvloop") for kind in KINDS], address) as found:
                    yield tools["gogrpc"], {kind: "{}:{}".format(*door.address) for (kind, _), door in found.items()}
            finally:
                process.kill()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("load", LOADS)
def test_a_load_client_loses_no_call(load: str, kind: str, loaded: tuple[str, dict[str, str]]) -> None:
    """32 calls in flight over four connections; the client checks status and length of each answer."""
    program, addresses = loaded
    words = [program, "load", *LOADS[load], addresses[kind]]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["calls"] == 4 * int(LOADS[load][1])
