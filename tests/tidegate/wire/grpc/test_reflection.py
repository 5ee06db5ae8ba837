"""Responses to a client that uses reflection."""

from typing import Any

import pytest
from google.protobuf import descriptor_pb2

from tidegate.wire.grpc.messages import REFLECTION_FILES
from tidegate.wire.grpc.protobuf import ProtobufError
from tidegate.wire.grpc.reflection import Reflection
from tidegate.wire.http2.grpc_fields import INVALID_ARGUMENT, NOT_FOUND

SERVICES = [file.services[0].name for file in REFLECTION_FILES]


def ask(service: str, **question: Any) -> dict[str, Any]:
    method = next(file for file in REFLECTION_FILES if file.services[0].name == service).services[0].methods[0]
    answer = Reflection().answer(service, method.request.encode(question))
    return method.response.decode(answer)


def files_of(answer: dict[str, Any]) -> list[Any]:
    pieces = answer["file_descriptor_response"]["file_descriptor_proto"]
    return [descriptor_pb2.FileDescriptorProto.FromString(bytes(piece)) for piece in pieces]


@pytest.mark.parametrize("service", SERVICES)
def test_the_services_are_listed(service: str) -> None:
    names = [entry["name"] for entry in ask(service, list_services="")["list_services_response"]["service"]]
    assert names == [
        "grpc.health.v1.Health",
        "grpc.reflection.v1.ServerReflection",
        "grpc.reflection.v1alpha.ServerReflection",
        "inference.GRPCInferenceService",
    ]


@pytest.mark.parametrize("service", SERVICES)
@pytest.mark.parametrize(
    ("symbol", "file"),
    [
        ("inference.GRPCInferenceService", "inference/grpc_service.proto"),
        ("inference.GRPCInferenceService.ModelInfer", "inference/grpc_service.proto"),
        ("inference.ModelInferRequest.InferInputTensor", "inference/grpc_service.proto"),
        ("grpc.health.v1.HealthCheckResponse.ServingStatus", "grpc/health/v1/health.proto"),
        ("grpc.reflection.v1.ServerReflection", "grpc/reflection/v1/reflection.proto"),
    ],
)
def test_a_file_is_found_by_symbol_and_by_name(service: str, symbol: str, file: str) -> None:
    assert [found.name for found in files_of(ask(service, file_containing_symbol=symbol))] == [file]
    assert [found.name for found in files_of(ask(service, file_by_filename=file))] == [file]


@pytest.mark.parametrize(
    ("service", "method", "streams"),
    [
        ("inference.GRPCInferenceService", "ModelInfer", (False, False)),
        ("inference.GRPCInferenceService", "ModelStreamInfer", (True, True)),
        ("grpc.health.v1.Health", "Watch", (False, True)),
    ],
)
def test_the_sides_of_a_method_that_stream_are_described(service: str, method: str, streams: tuple[bool, bool]) -> None:
    (file,) = files_of(ask(SERVICES[0], file_containing_symbol=service))
    found = next(each for each in file.service[0].method if each.name == method)
    assert (found.client_streaming, found.server_streaming) == streams


def test_an_answer_repeats_its_question_and_host() -> None:
    answer = ask(SERVICES[0], host="here", file_by_filename="none.proto")
    assert answer["valid_host"] == "here"
    assert answer["original_request"]["file_by_filename"] == "none.proto"
    assert answer["error_response"]["error_code"] == NOT_FOUND
    assert "none.proto" in answer["error_response"]["error_message"]


def test_what_cannot_be_answered_is_an_error_and_not_the_end_of_the_stream() -> None:
    extension = {"containing_type": "inference.ModelInferRequest", "extension_number": 7}
    assert ask(SERVICES[0], file_containing_extension=extension)["error_response"]["error_code"] == NOT_FOUND
    assert ask(SERVICES[0])["error_response"]["error_code"] == INVALID_ARGUMENT
    none = ask(SERVICES[0], all_extension_numbers_of_type="inference.ModelInferRequest")
    assert none["all_extension_numbers_response"] == {"base_type_name": "inference.ModelInferRequest"}


def test_what_is_no_question_is_refused() -> None:
    with pytest.raises(ProtobufError):
        Reflection().answer(SERVICES[0], b"\xff")


def test_services_are_those_that_are_given() -> None:
    reflection = Reflection(["b.B", "a.A"])
    method = REFLECTION_FILES[0].services[0].methods[0]
    answer = method.response.decode(reflection.answer(SERVICES[0], method.request.encode({"list_services": ""})))
    assert [entry["name"] for entry in answer["list_services_response"]["service"]] == ["a.A", "b.B"]
    assert repr(reflection) == "<Reflection a.A, b.B>"


def test_a_long_name_that_is_not_known_is_cut_in_the_error() -> None:
    for asked in ("file_by_filename", "file_containing_symbol", "all_extension_numbers_of_type"):
        error = ask(SERVICES[0], **{asked: "x" * 300})["error_response"]
        assert error == {"error_code": NOT_FOUND, "error_message": f"{asked}: nothing is known of " + "x" * 200}
