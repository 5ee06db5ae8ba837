"""A gRPC server as anybody would write it, with grpcio, reflection and health: a program that takes its port.

``plain.Test`` speaks bytes: ``Unary`` and ``Sleep`` echo, ``Join`` answers a stream of messages with all of them in
one, ``Count`` answers a number with so many messages, ``Echo`` echoes a stream, ``Fail`` ends with a status, ``Who``
tells the process.
"""

import os
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection


def unary(request: bytes, context: Any) -> bytes:
    metadata = {key: value for key, value in context.invocation_metadata() if key.startswith("x-test-")}
    context.send_initial_metadata([("x-test-head", metadata.get("x-test-word", "none"))])
    context.set_trailing_metadata([("x-test-end-bin", metadata.get("x-test-bytes-bin", b""))])
    return request


def sleep(request: bytes, context: Any) -> bytes:
    time.sleep(float(request))
    return request


def fail(request: bytes, context: Any) -> bytes:
    context.abort(grpc.StatusCode.FAILED_PRECONDITION, request.decode())
    raise AssertionError


def who(request: bytes, context: Any) -> bytes:
    return str(os.getpid()).encode()


def join(requests: Iterator[bytes], context: Any) -> bytes:
    return b",".join(requests)


def count(request: bytes, context: Any) -> Iterator[bytes]:
    return (str(number).encode() for number in range(int(request)))


def echo(requests: Iterator[bytes], context: Any) -> Iterator[bytes]:
    yield from requests


HANDLERS = {
    "Unary": grpc.unary_unary_rpc_method_handler(unary),
    "Sleep": grpc.unary_unary_rpc_method_handler(sleep),
    "Fail": grpc.unary_unary_rpc_method_handler(fail),
    "Who": grpc.unary_unary_rpc_method_handler(who),
    "Join": grpc.stream_unary_rpc_method_handler(join),
    "Count": grpc.unary_stream_rpc_method_handler(count),
    "Echo": grpc.stream_stream_rpc_method_handler(echo),
}


def main() -> None:
    options = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
    server = grpc.server(ThreadPoolExecutor(8), options=options)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("plain.Test", HANDLERS),))
    state = health.HealthServicer()
    state.set("plain.Test", health_pb2.HealthCheckResponse.SERVING)
    health_pb2_grpc.add_HealthServicer_to_server(state, server)
    reflection.enable_server_reflection(("plain.Test", reflection.SERVICE_NAME), server)
    server.add_insecure_port(f"127.0.0.1:{sys.argv[1]}")
    server.start()
    server.wait_for_termination()


if __name__ == "__main__":
    main()
