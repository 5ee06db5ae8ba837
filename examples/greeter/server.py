"""A gRPC server with a unary and a streaming method, as one would write it without Tidegate; its port is the argument.

Its messages are protobuf's own wrappers, so nothing is generated from ``greeter.proto``.
"""

import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import grpc
from google.protobuf.wrappers_pb2 import StringValue


def greet(request: StringValue, context: grpc.ServicerContext) -> StringValue:
    """Greets by name, or without one."""
    if not request.value:
        context.abort(grpc.StatusCode.INVALID_ARGUMENT, "who is to be greeted?")
    return StringValue(value=f"Hello, {request.value}!")


def spell(request: StringValue, context: grpc.ServicerContext) -> Iterator[StringValue]:
    """One message for each letter."""
    return (StringValue(value=letter) for letter in request.value)


def main() -> None:
    coding = {"request_deserializer": StringValue.FromString, "response_serializer": StringValue.SerializeToString}
    handlers = {
        "Greet": grpc.unary_unary_rpc_method_handler(greet, **coding),
        "Spell": grpc.unary_stream_rpc_method_handler(spell, **coding),
    }
    server = grpc.server(ThreadPoolExecutor(8))
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("greeter.Greeter", handlers),))
    server.add_insecure_port(f"127.0.0.1:{sys.argv[1]}")
    server.start()
    server.wait_for_termination()


if __name__ == "__main__":
    main()
