"""Triton's extensions of V2 at the model server, over REST and gRPC. Imported with the first call of one.

Configuration and statistics are read. Of the model repository the index is read, and a load of the loaded model
succeeds. An unload is refused: the server serves its model for its whole life.
"""

import time
from typing import Any, NoReturn

from tidegate.aio.admin.endpoint import Request, Response
from tidegate.clock import LiveClock
from tidegate.runtime.errors import RequestError
from tidegate.runtime.protocols import triton
from tidegate.runtime.protocols import v2 as protocol
from tidegate.runtime.protocols.bodies import decompress
from tidegate.runtime.service import ModelService, ServicePhase, only
from tidegate.wire.grpc import triton_messages
from tidegate.wire.grpc.protobuf import Message, ProtobufError

_STATES = {ServicePhase.LOADING: "LOADING", ServicePhase.READY: "READY", ServicePhase.STOPPING: "UNLOADING"}
"""Triton's states of a model, by the phase of the server."""
_REASONS = {
    ServicePhase.LOADING: "the model is loading",
    ServicePhase.READY: "",
    ServicePhase.STOPPING: "it is stopping",
}
_FAILED_PRECONDITION = 412


async def answer(service: ModelService, request: Request, parts: list[str]) -> Response:
    """Answers a path below ``/v2``, given its parts. Raises RequestError."""
    match parts:
        case ["models", name, "config"]:
            return only(request, "GET") or Response(body=protocol.dump(_config(service, name)))
        case ["models", "stats"]:
            return only(request, "GET") or Response(body=protocol.dump(_statistics(service, "")))
        case ["models", name, "stats"]:
            return only(request, "GET") or Response(body=protocol.dump(_statistics(service, name)))
        case ["repository", "index"]:
            return only(request, "POST") or _answer_index(service, request)
        case ["repository", "models", name, "load" | "unload" as command]:
            return only(request, "POST") or _command(service, request, name, command)
    raise RequestError(f"there is no {request.path[:200]} here", 404)


def call(service: ModelService, method: str, message: bytes) -> bytes:
    """Answers a gRPC method, given its name and its message. Raises RequestError."""
    kind, response = triton_messages.METHODS[method]
    fields = _decoded(kind, message)
    name = fields.get("name", fields.get("model_name", ""))
    found: dict[str, Any] = {}
    match method:
        case "ModelConfig":
            service.check_name(name, fields.get("version", ""))
            found["config"] = _numbered(_config(service, name))
        case "ModelStatistics":
            if name:
                service.check_name(name, fields.get("version", ""))
            found.update(_statistics(service, name))
        case "RepositoryIndex":
            found["models"] = _index(service, fields)
        case "RepositoryModelLoad":
            _load(service, name, fields.get("parameters"))
        case "RepositoryModelUnload":
            _refuse_unload(service, name)
    return response.encode(found)


def _answer_index(service: ModelService, request: Request) -> Response:
    return Response(body=protocol.dump(_index(service, _fields(service, request))))


def _command(service: ModelService, request: Request, name: str, command: str) -> Response:
    if command == "unload":
        _refuse_unload(service, name)
    _load(service, name, _fields(service, request).get("parameters"))
    return Response(body=b"{}")


def _config(service: ModelService, name: str) -> dict[str, Any]:
    return triton.model_config(name, service.spec_of(name), service.batch_delay_s)


def _statistics(service: ModelService, name: str) -> dict[str, Any]:
    """Returns the statistics under this name; an empty one stands for all models, of which there is one."""
    counters, last = service.counters, service.counters.last_answer
    since = None if last is None else time.monotonic() - last
    return {"model_stats": [triton.model_statistics(name or service.names[0], counters, since, LiveClock().now())]}


def _index(service: ModelService, fields: dict[str, Any]) -> list[dict[str, str]]:
    return triton.repository_index(service.names, _STATES[service.phase], _REASONS[service.phase], fields)


def _load(service: ModelService, name: str, parameters: object) -> None:
    service.check_name(name, "")
    triton.check_load(name, _STATES[service.phase], parameters)


def _refuse_unload(service: ModelService, name: str) -> NoReturn:
    service.check_name(name, "")
    raise RequestError(triton.NO_UNLOAD, _FAILED_PRECONDITION)


def _fields(service: ModelService, request: Request) -> dict[str, Any]:
    """Returns the JSON object in a body, which may be empty."""
    body = decompress(request.body, request.headers.get("content-encoding"), service.body_bytes)
    return protocol.load_object(body) if body.strip() else {}


def _decoded(kind: Message, message: bytes) -> dict[str, Any]:
    try:
        return kind.decode(message)
    except ProtobufError as error:
        raise RequestError(str(error)) from None


def _numbered(config: dict[str, Any]) -> dict[str, Any]:
    """Returns a configuration with the numbers of its datatypes."""
    sides = {
        side: [{**tensor, "data_type": triton.DATA_TYPES[tensor["data_type"]]} for tensor in config[side]]
        for side in ("input", "output")
    }
    return {**config, **sides}
