"""Calls both methods through the gateway: ``python client.py HOST:PORT NAME``."""

import sys

import grpc
from google.protobuf.wrappers_pb2 import StringValue

CODING = {"request_serializer": StringValue.SerializeToString, "response_deserializer": StringValue.FromString}


def main() -> None:
    address, name = sys.argv[1:]
    # The authority says for which function a call is; where the name greeter.localhost resolves, dialling it does too.
    with grpc.insecure_channel(address, options=[("grpc.default_authority", "greeter.localhost")]) as channel:
        greet = channel.unary_unary("/greeter.Greeter/Greet", **CODING)
        print(greet(StringValue(value=name), timeout=30).value)
        spell = channel.unary_stream("/greeter.Greeter/Spell", **CODING)
        print(" ".join(letter.value for letter in spell(StringValue(value=name), timeout=30)))


if __name__ == "__main__":
    main()
