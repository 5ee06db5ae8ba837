"""The tables of health and reflection against the numbers of the public files; those of inference are compared with
Triton's client in ``test_protobuf.py``."""

from typing import Any

import pytest
from google.protobuf import descriptor_pb2

from tidegate.wire.grpc.messages import FILES, HEALTH_FILE, INFERENCE_FILE, REFLECTION_FILES, File
from tidegate.wire.grpc.reflection import descriptor

INT32, BOOL, STRING, MESSAGE, BYTES, ENUM = 5, 8, 9, 11, 12, 14
ONE, MANY = 1, 3

HEALTH: dict[str, list[tuple[Any, ...]]] = {
    "HealthCheckRequest": [(1, "service", STRING, ONE)],
    "HealthCheckResponse": [(1, "status", ENUM, ONE)],
    "HealthListRequest": [],
    "HealthListResponse": [(1, "statuses", MESSAGE, MANY)],
}
REFLECTION: dict[str, list[tuple[Any, ...]]] = {
    "ServerReflectionRequest": [
        (1, "host", STRING, ONE),
        (3, "file_by_filename", STRING, ONE),
        (4, "file_containing_symbol", STRING, ONE),
        (5, "file_containing_extension", MESSAGE, ONE),
        (6, "all_extension_numbers_of_type", STRING, ONE),
        (7, "list_services", STRING, ONE),
    ],
    "ExtensionRequest": [(1, "containing_type", STRING, ONE), (2, "extension_number", INT32, ONE)],
    "ServerReflectionResponse": [
        (1, "valid_host", STRING, ONE),
        (2, "original_request", MESSAGE, ONE),
        (4, "file_descriptor_response", MESSAGE, ONE),
        (5, "all_extension_numbers_response", MESSAGE, ONE),
        (6, "list_services_response", MESSAGE, ONE),
        (7, "error_response", MESSAGE, ONE),
    ],
    "FileDescriptorResponse": [(1, "file_descriptor_proto", BYTES, MANY)],
    "ExtensionNumberResponse": [(1, "base_type_name", STRING, ONE), (2, "extension_number", INT32, MANY)],
    "ListServiceResponse": [(1, "service", MESSAGE, MANY)],
    "ServiceResponse": [(1, "name", STRING, ONE)],
    "ErrorResponse": [(1, "error_code", INT32, ONE), (2, "error_message", STRING, ONE)],
}


def described(file: File) -> Any:
    return descriptor_pb2.FileDescriptorProto.FromString(descriptor(file))


@pytest.mark.parametrize(
    ("file", "expected"),
    [(HEALTH_FILE, HEALTH), *((file, REFLECTION) for file in REFLECTION_FILES)],
    ids=["health", "reflection v1", "reflection v1alpha"],
)
def test_fields_have_the_public_numbers(file: File, expected: dict[str, list[tuple[Any, ...]]]) -> None:
    found = {
        message.name: [(field.number, field.name, field.type, field.label) for field in message.field]
        for message in described(file).message_type
    }
    assert found == expected


def test_the_statuses_of_health_are_numbered_from_zero() -> None:
    response = next(message for message in described(HEALTH_FILE).message_type if message.name == "HealthCheckResponse")
    (statuses,) = response.enum_type
    assert [(each.name, each.number) for each in statuses.value] == [
        ("UNKNOWN", 0), ("SERVING", 1), ("NOT_SERVING", 2), ("SERVICE_UNKNOWN", 3)
    ]  # fmt: skip
    assert response.field[0].type_name == ".grpc.health.v1.HealthCheckResponse.ServingStatus"


def test_a_map_is_described_by_its_entries() -> None:
    message = next(each for each in described(HEALTH_FILE).message_type if each.name == "HealthListResponse")
    (entry,) = message.nested_type
    assert (entry.name, entry.options.map_entry) == ("StatusesEntry", True)
    assert [(field.number, field.name, field.type, field.type_name) for field in entry.field] == [
        (1, "key", STRING, ""),
        (2, "value", MESSAGE, ".grpc.health.v1.HealthCheckResponse"),
    ]
    assert not message.options.map_entry
    assert message.field[0].type_name == ".grpc.health.v1.HealthListResponse.StatusesEntry"


def test_a_question_and_a_response_have_one_content() -> None:
    for file in REFLECTION_FILES:
        for message in described(file).message_type:
            if not message.name.startswith("ServerReflection"):
                assert [each.name for each in message.oneof_decl] == []
                continue
            assert [each.name for each in message.oneof_decl] == [
                "message_request" if message.name.endswith("Request") else "message_response"
            ]
            least = 3 if message.name.endswith("Request") else 4
            assert [field.number for field in message.field if field.HasField("oneof_index")] == list(range(least, 8))
            assert {field.oneof_index for field in message.field if field.HasField("oneof_index")} == {0}


@pytest.mark.parametrize("file", FILES, ids=[file.name for file in FILES])
def test_a_file_has_its_package_and_the_services_of_its_name(file: File) -> None:
    found = described(file)
    assert (found.name, found.package, found.syntax) == (file.name, file.package, "proto3")
    assert [f"{found.package}.{service.name}" for service in found.service] == [each.name for each in file.services]


def test_the_methods_that_stream() -> None:
    streams = {
        f"{service.name}.{method.name}": (method.client_streaming, method.server_streaming)
        for file in FILES
        for service in described(file).service
        for method in service.method
    }
    both = {name for name, sides in streams.items() if sides == (True, True)}
    assert both == {"GRPCInferenceService.ModelStreamInfer", "ServerReflection.ServerReflectionInfo"}
    assert {name for name, sides in streams.items() if sides == (False, True)} == {"Health.Watch"}
    assert {name for name, sides in streams.items() if sides == (True, False)} == set()
    assert len(streams) == 11


def test_the_symbols_of_a_file_are_all_that_it_declares() -> None:
    assert sorted(HEALTH_FILE.symbols()) == sorted(
        [
            "grpc.health.v1.Health",
            *(f"grpc.health.v1.Health.{method}" for method in ("Check", "List", "Watch")),
            *(f"grpc.health.v1.{message}" for message in HEALTH),
            "grpc.health.v1.HealthCheckRequest.service",
            "grpc.health.v1.HealthCheckResponse.status",
            "grpc.health.v1.HealthCheckResponse.ServingStatus",
            "grpc.health.v1.HealthListResponse.statuses",
            "grpc.health.v1.HealthListResponse.StatusesEntry",
            "grpc.health.v1.HealthListResponse.StatusesEntry.key",
            "grpc.health.v1.HealthListResponse.StatusesEntry.value",
        ]
    )
    assert "inference.ModelInferRequest.InferInputTensor.ParametersEntry.key" in set(INFERENCE_FILE.symbols())
