"""Tables of the gRPC services that Tidegate implements: Open Inference Protocol V2, health, reflection.

Numbers and names are those of the public protocols: ``inference`` of the Open Inference Protocol with Triton's
``ModelStreamInfer``, ``grpc.health.v1`` and ``grpc.reflection.v1`` with its older twin ``v1alpha``. Other methods of
these services are forwarded if there is an upstream; their messages are not needed for that.
"""

from collections.abc import Iterator
from typing import Final, NamedTuple

from tidegate.wire.grpc.protobuf import (
    BOOL,
    BYTES,
    DOUBLE,
    ENUM,
    FLOAT,
    INT32,
    INT64,
    MESSAGE,
    STRING,
    UINT32,
    UINT64,
    Enum,
    Field,
    Message,
    map_entry,
)


class Method(NamedTuple):
    """One method of a service."""

    name: str
    request: Message
    response: Message
    streams_requests: bool = False
    streams_responses: bool = False


class Service(NamedTuple):
    name: str
    """Full name, with its package."""
    methods: tuple[Method, ...]


class File(NamedTuple):
    """One ``.proto`` file."""

    name: str
    package: str
    messages: tuple[Message, ...]
    services: tuple[Service, ...]

    def symbols(self) -> Iterator[str]:
        """Yields every full name that is declared in the file."""
        for service in self.services:
            yield service.name
            yield from (f"{service.name}.{method.name}" for method in service.methods)
        queue = list(self.messages)
        while queue:
            message = queue.pop()
            yield message.name
            yield from (f"{message.name}.{field.name}" for field in message.fields)
            yield from (enum.name for enum in message.enums)
            queue += message.nested


def _strings(name: str, *fields: str) -> Message:
    """Returns a message of strings, numbered in order."""
    return Message(name, *(Field(number, field, STRING) for number, field in enumerate(fields, 1)))


def _flag(name: str, field: str) -> Message:
    return Message(name, Field(1, field, BOOL))


# --- inference --------------------------------------------------------------------------------------------------------

_I: Final = "inference."
SERVER_LIVE_REQUEST: Final = Message(_I + "ServerLiveRequest")
SERVER_LIVE_RESPONSE: Final = _flag(_I + "ServerLiveResponse", "live")
SERVER_READY_REQUEST: Final = Message(_I + "ServerReadyRequest")
SERVER_READY_RESPONSE: Final = _flag(_I + "ServerReadyResponse", "ready")
MODEL_READY_REQUEST: Final = _strings(_I + "ModelReadyRequest", "name", "version")
MODEL_READY_RESPONSE: Final = _flag(_I + "ModelReadyResponse", "ready")
SERVER_METADATA_REQUEST: Final = Message(_I + "ServerMetadataRequest")
SERVER_METADATA_RESPONSE: Final = Message(
    _I + "ServerMetadataResponse",
    Field(1, "name", STRING),
    Field(2, "version", STRING),
    Field(3, "extensions", STRING, repeated=True),
)
MODEL_METADATA_REQUEST: Final = _strings(_I + "ModelMetadataRequest", "name", "version")
_TENSOR_METADATA: Final = Message(
    _I + "ModelMetadataResponse.TensorMetadata",
    Field(1, "name", STRING),
    Field(2, "datatype", STRING),
    Field(3, "shape", INT64, repeated=True),
)
MODEL_METADATA_RESPONSE: Final = Message(
    _I + "ModelMetadataResponse",
    Field(1, "name", STRING),
    Field(2, "versions", STRING, repeated=True),
    Field(3, "platform", STRING),
    Field(4, "inputs", MESSAGE, _TENSOR_METADATA, repeated=True),
    Field(5, "outputs", MESSAGE, _TENSOR_METADATA, repeated=True),
    nested=(_TENSOR_METADATA,),
)
PARAMETER: Final = Message(
    _I + "InferParameter",
    Field(1, "bool_param", BOOL, oneof="parameter_choice"),
    Field(2, "int64_param", INT64, oneof="parameter_choice"),
    Field(3, "string_param", STRING, oneof="parameter_choice"),
    Field(4, "double_param", DOUBLE, oneof="parameter_choice"),
    Field(5, "uint64_param", UINT64, oneof="parameter_choice"),
)
CONTENTS: Final = Message(
    _I + "InferTensorContents",
    Field(1, "bool_contents", BOOL, repeated=True),
    Field(2, "int_contents", INT32, repeated=True),
    Field(3, "int64_contents", INT64, repeated=True),
    Field(4, "uint_contents", UINT32, repeated=True),
    Field(5, "uint64_contents", UINT64, repeated=True),
    Field(6, "fp32_contents", FLOAT, repeated=True),
    Field(7, "fp64_contents", DOUBLE, repeated=True),
    Field(8, "bytes_contents", BYTES, repeated=True),
)


def _with_parameters(name: str, number: int, *fields: Field, nested: tuple[Message, ...] = ()) -> Message:
    """Returns a message with a map ``parameters`` as the field of this number."""
    entry = map_entry(name, "parameters", Field(1, "key", STRING), Field(2, "value", MESSAGE, PARAMETER))
    parameters = Field(number, "parameters", MESSAGE, entry, repeated=True)
    ordered = sorted((*fields, parameters), key=lambda field: field.number)
    return Message(name, *ordered, nested=(*nested, entry))


def _tensor(name: str) -> Message:
    return _with_parameters(
        name,
        4,
        Field(1, "name", STRING),
        Field(2, "datatype", STRING),
        Field(3, "shape", INT64, repeated=True),
        Field(5, "contents", MESSAGE, CONTENTS),
    )


_INPUT: Final = _tensor(_I + "ModelInferRequest.InferInputTensor")
_WANTED: Final = _with_parameters(_I + "ModelInferRequest.InferRequestedOutputTensor", 2, Field(1, "name", STRING))
_OUTPUT: Final = _tensor(_I + "ModelInferResponse.InferOutputTensor")
MODEL_INFER_REQUEST: Final = _with_parameters(
    _I + "ModelInferRequest",
    4,
    Field(1, "model_name", STRING),
    Field(2, "model_version", STRING),
    Field(3, "id", STRING),
    Field(5, "inputs", MESSAGE, _INPUT, repeated=True),
    Field(6, "outputs", MESSAGE, _WANTED, repeated=True),
    Field(7, "raw_input_contents", BYTES, repeated=True),
    nested=(_INPUT, _WANTED),
)
MODEL_INFER_RESPONSE: Final = _with_parameters(
    _I + "ModelInferResponse",
    4,
    Field(1, "model_name", STRING),
    Field(2, "model_version", STRING),
    Field(3, "id", STRING),
    Field(5, "outputs", MESSAGE, _OUTPUT, repeated=True),
    Field(6, "raw_output_contents", BYTES, repeated=True),
    nested=(_OUTPUT,),
)
MODEL_STREAM_INFER_RESPONSE: Final = Message(
    _I + "ModelStreamInferResponse",
    Field(1, "error_message", STRING),
    Field(2, "infer_response", MESSAGE, MODEL_INFER_RESPONSE),
)
INFERENCE: Final = Service(
    _I + "GRPCInferenceService",
    (
        Method("ServerLive", SERVER_LIVE_REQUEST, SERVER_LIVE_RESPONSE),
        Method("ServerReady", SERVER_READY_REQUEST, SERVER_READY_RESPONSE),
        Method("ModelReady", MODEL_READY_REQUEST, MODEL_READY_RESPONSE),
        Method("ServerMetadata", SERVER_METADATA_REQUEST, SERVER_METADATA_RESPONSE),
        Method("ModelMetadata", MODEL_METADATA_REQUEST, MODEL_METADATA_RESPONSE),
        Method("ModelInfer", MODEL_INFER_REQUEST, MODEL_INFER_RESPONSE),
        Method("ModelStreamInfer", MODEL_INFER_REQUEST, MODEL_STREAM_INFER_RESPONSE, True, True),
    ),
)
INFERENCE_FILE: Final = File(
    "inference/grpc_service.proto",
    "inference",
    (
        *dict.fromkeys(message for method in INFERENCE.methods for message in (method.request, method.response)),
        PARAMETER,
        CONTENTS,
    ),
    (INFERENCE,),
)

# --- health -----------------------------------------------------------------------------------------------------------

UNKNOWN, SERVING, NOT_SERVING, SERVICE_UNKNOWN = range(4)
_H: Final = "grpc.health.v1."
_SERVING_STATUS: Final = Enum(
    _H + "HealthCheckResponse.ServingStatus",
    {"UNKNOWN": UNKNOWN, "SERVING": SERVING, "NOT_SERVING": NOT_SERVING, "SERVICE_UNKNOWN": SERVICE_UNKNOWN},
)
HEALTH_REQUEST: Final = _strings(_H + "HealthCheckRequest", "service")
HEALTH_RESPONSE: Final = Message(
    _H + "HealthCheckResponse", Field(1, "status", ENUM, _SERVING_STATUS), enums=(_SERVING_STATUS,)
)
HEALTH_LIST_REQUEST: Final = Message(_H + "HealthListRequest")
_STATUSES: Final = map_entry(
    _H + "HealthListResponse", "statuses", Field(1, "key", STRING), Field(2, "value", MESSAGE, HEALTH_RESPONSE)
)
HEALTH_LIST_RESPONSE: Final = Message(
    _H + "HealthListResponse", Field(1, "statuses", MESSAGE, _STATUSES, repeated=True), nested=(_STATUSES,)
)
HEALTH: Final = Service(
    _H + "Health",
    (
        Method("Check", HEALTH_REQUEST, HEALTH_RESPONSE),
        Method("List", HEALTH_LIST_REQUEST, HEALTH_LIST_RESPONSE),
        Method("Watch", HEALTH_REQUEST, HEALTH_RESPONSE, streams_responses=True),
    ),
)
HEALTH_FILE: Final = File(
    "grpc/health/v1/health.proto",
    "grpc.health.v1",
    (HEALTH_REQUEST, HEALTH_RESPONSE, HEALTH_LIST_REQUEST, HEALTH_LIST_RESPONSE),
    (HEALTH,),
)

# --- reflection -------------------------------------------------------------------------------------------------------


def _reflection(version: str) -> File:
    package = f"grpc.reflection.{version}"
    extension = Message(
        f"{package}.ExtensionRequest", Field(1, "containing_type", STRING), Field(2, "extension_number", INT32)
    )
    request = Message(
        f"{package}.ServerReflectionRequest",
        Field(1, "host", STRING),
        Field(3, "file_by_filename", STRING, oneof="message_request"),
        Field(4, "file_containing_symbol", STRING, oneof="message_request"),
        Field(5, "file_containing_extension", MESSAGE, extension, oneof="message_request"),
        Field(6, "all_extension_numbers_of_type", STRING, oneof="message_request"),
        Field(7, "list_services", STRING, oneof="message_request"),
    )
    descriptors = Message(f"{package}.FileDescriptorResponse", Field(1, "file_descriptor_proto", BYTES, repeated=True))
    numbers = Message(
        f"{package}.ExtensionNumberResponse",
        Field(1, "base_type_name", STRING),
        Field(2, "extension_number", INT32, repeated=True),
    )
    service = _strings(f"{package}.ServiceResponse", "name")
    services = Message(f"{package}.ListServiceResponse", Field(1, "service", MESSAGE, service, repeated=True))
    error = Message(f"{package}.ErrorResponse", Field(1, "error_code", INT32), Field(2, "error_message", STRING))
    response = Message(
        f"{package}.ServerReflectionResponse",
        Field(1, "valid_host", STRING),
        Field(2, "original_request", MESSAGE, request),
        Field(4, "file_descriptor_response", MESSAGE, descriptors, oneof="message_response"),
        Field(5, "all_extension_numbers_response", MESSAGE, numbers, oneof="message_response"),
        Field(6, "list_services_response", MESSAGE, services, oneof="message_response"),
        Field(7, "error_response", MESSAGE, error, oneof="message_response"),
    )
    method = Method("ServerReflectionInfo", request, response, streams_requests=True, streams_responses=True)
    return File(
        f"grpc/reflection/{version}/reflection.proto",
        package,
        (request, extension, response, descriptors, numbers, services, service, error),
        (Service(f"{package}.ServerReflection", (method,)),),
    )


REFLECTION_FILES: Final = (_reflection("v1"), _reflection("v1alpha"))
FILES: Final = (INFERENCE_FILE, HEALTH_FILE, *REFLECTION_FILES)
"""Files that a server of Tidegate reports to reflection."""
