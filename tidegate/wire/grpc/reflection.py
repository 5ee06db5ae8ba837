"""Server reflection: the list of services and their descriptors (grpc.reflection.v1, v1alpha).

A client (grpcurl, a generic grpcio client) lists the services and fetches the descriptors of those that it wants to
call. The descriptors are made from the tables that the messages are read with, so they cannot differ.
"""

from collections.abc import Sequence
from functools import cache
from typing import Any, Final

from tidegate.wire.grpc.messages import FILES, REFLECTION_FILES, File, Service
from tidegate.wire.grpc.protobuf import BOOL, INT32, MESSAGE, STRING, Enum, Field, Message
from tidegate.wire.http2.grpc_fields import INVALID_ARGUMENT, NOT_FOUND

_OPTIONAL, _REPEATED = 1, 3

# descriptor.proto, as far as the files need it. Its scalars have presence, so each is in a oneof of its own here.
_P: Final = "google.protobuf."
_ENUM_VALUE: Final = Message(
    _P + "EnumValueDescriptorProto", Field(1, "name", STRING), Field(2, "number", INT32, oneof="_number")
)
_ENUM: Final = Message(
    _P + "EnumDescriptorProto", Field(1, "name", STRING), Field(2, "value", MESSAGE, _ENUM_VALUE, repeated=True)
)
_FIELD: Final = Message(
    _P + "FieldDescriptorProto",
    Field(1, "name", STRING),
    Field(3, "number", INT32),
    Field(4, "label", INT32),
    Field(5, "type", INT32),
    Field(6, "type_name", STRING),
    Field(9, "oneof_index", INT32, oneof="_oneof_index"),
)
_ONEOF: Final = Message(_P + "OneofDescriptorProto", Field(1, "name", STRING))
_OPTIONS: Final = Message(_P + "MessageOptions", Field(7, "map_entry", BOOL))


def _descriptor(*nested: Field) -> Message:
    return Message(
        _P + "DescriptorProto",
        Field(1, "name", STRING),
        Field(2, "field", MESSAGE, _FIELD, repeated=True),
        *nested,
        Field(4, "enum_type", MESSAGE, _ENUM, repeated=True),
        Field(7, "options", MESSAGE, _OPTIONS),
        Field(8, "oneof_decl", MESSAGE, _ONEOF, repeated=True),
    )


def _nested(of: Message) -> Field:
    return Field(3, "nested_type", MESSAGE, of, repeated=True)


_MESSAGE: Final = _descriptor(_nested(_descriptor(_nested(_descriptor()))))
"""Three levels: a message, a type inside it, and the map entries of that type."""
_METHOD: Final = Message(
    _P + "MethodDescriptorProto",
    Field(1, "name", STRING),
    Field(2, "input_type", STRING),
    Field(3, "output_type", STRING),
    Field(5, "client_streaming", BOOL),
    Field(6, "server_streaming", BOOL),
)
_SERVICE: Final = Message(
    _P + "ServiceDescriptorProto", Field(1, "name", STRING), Field(2, "method", MESSAGE, _METHOD, repeated=True)
)
_FILE: Final = Message(
    _P + "FileDescriptorProto",
    Field(1, "name", STRING),
    Field(2, "package", STRING),
    Field(4, "message_type", MESSAGE, _MESSAGE, repeated=True),
    Field(6, "service", MESSAGE, _SERVICE, repeated=True),
    Field(12, "syntax", STRING),
)


@cache
def descriptor(file: File) -> bytes:
    """Returns the serialized FileDescriptorProto."""
    return _FILE.encode(
        {
            "name": file.name,
            "package": file.package,
            "message_type": [_described(message) for message in file.messages],
            "service": [_described_service(service) for service in file.services],
            "syntax": "proto3",
        }
    )


class Reflection:
    """Answers reflection requests of one server's clients."""

    def __init__(self, services: Sequence[str] | None = None) -> None:
        """``services`` are full names; None stands for all of ``messages.FILES``."""
        known = [service.name for file in FILES for service in file.services]
        self._services = sorted(known if services is None else services)
        self._by_name = {file.name: file for file in FILES}
        self._by_symbol = {symbol: file for file in FILES for symbol in file.symbols()}

    def answer(self, service: str, question: bytes) -> bytes:
        """Returns the response to one request of ``service``, a full name. Raises ProtobufError for an invalid
        request."""
        method = next(
            method
            for file in REFLECTION_FILES
            for known in file.services
            for method in known.methods
            if known.name == service
        )
        asked = method.request.decode(question)
        kind = asked.pop("message_request", "")
        return method.response.encode(
            {"valid_host": asked.get("host"), "original_request": asked, **self._found(kind, asked.get(kind))}
        )

    def _found(self, kind: str, value: Any) -> dict[str, Any]:
        file = None
        if kind == "list_services":
            return {"list_services_response": {"service": [{"name": name} for name in self._services]}}
        if kind == "file_by_filename":
            file = self._by_name.get(value)
        elif kind == "file_containing_symbol":
            file = self._by_symbol.get(value)
        elif kind == "all_extension_numbers_of_type" and value in self._by_symbol:
            return {"all_extension_numbers_response": {"base_type_name": value}}
        elif not kind:
            return _error(INVALID_ARGUMENT, "the request asks for nothing")
        if file is None:
            return _error(NOT_FOUND, f"{kind}: nothing is known of {str(value)[:200]}")
        return {"file_descriptor_response": {"file_descriptor_proto": [descriptor(file)]}}

    def __repr__(self) -> str:
        return f"<Reflection {', '.join(self._services)}>"


def _error(code: int, message: str) -> dict[str, Any]:
    return {"error_response": {"error_code": code, "error_message": message}}


def _last(name: str) -> str:
    return name.rpartition(".")[2]


def _described(message: Message) -> dict[str, Any]:
    oneofs = list(dict.fromkeys(field.oneof for field in message.fields if field.oneof))
    made: dict[str, Any] = {
        "name": _last(message.name),
        "field": [_described_field(field, oneofs) for field in message.fields],
        "enum_type": [
            {
                "name": _last(enum.name),
                "value": [{"name": name, "number": number} for name, number in enum.values.items()],
            }
            for enum in message.enums
        ],
        "oneof_decl": [{"name": name} for name in oneofs],
    }
    if message.nested:
        made["nested_type"] = [_described(nested) for nested in message.nested]
    if message.is_map_entry:
        made["options"] = {"map_entry": True}
    return made


def _described_field(field: Field, oneofs: list[str]) -> dict[str, Any]:
    made: dict[str, Any] = {
        "name": field.name,
        "number": field.number,
        "label": _REPEATED if field.repeated else _OPTIONAL,
        "type": field.kind,
    }
    if isinstance(field.of, Message | Enum):
        made["type_name"] = f".{field.of.name}"
    if field.oneof:
        made["oneof_index"] = oneofs.index(field.oneof)
    return made


def _described_service(service: Service) -> dict[str, Any]:
    return {
        "name": _last(service.name),
        "method": [
            {
                "name": method.name,
                "input_type": f".{method.request.name}",
                "output_type": f".{method.response.name}",
                "client_streaming": method.streams_requests,
                "server_streaming": method.streams_responses,
            }
            for method in service.methods
        ],
    }
