"""The routes of OpenAI's API that a model of this server can answer: ``/v1/models``, ``/v1/embeddings``."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from tidegate.aio.endpoint import Request, Response
from tidegate.runtime import embeddings, protocol
from tidegate.runtime.bodies import decompress
from tidegate.runtime.errors import RequestError
from tidegate.runtime.protocol import InferRequest
from tidegate.runtime.tensors import Tensor

if TYPE_CHECKING:
    from tidegate.runtime.service import Service


async def answer(service: "Service", request: Request, parts: list[str], body_bytes: int) -> Response:
    """The answer to ``/v1/`` and these parts of a path. Raises RequestError and the service's Refusal."""
    match parts:
        case ["models"]:
            _only(request, "GET")
            return _told({"object": "list", "data": [_model(name) for name in service.names]})
        case ["models", *name]:
            _only(request, "GET")
            _check(service, "/".join(name))
            return _told(_model("/".join(name)))
        case ["embeddings"]:
            _only(request, "POST")
            return await _embed(service, request, body_bytes)
    raise RequestError(f"there is no {request.path[:200]} here", 404)


async def _embed(service: "Service", request: Request, body_bytes: int) -> Response:
    asked = embeddings.parse(decompress(request.body, request.headers.get("content-encoding"), body_bytes))
    _check(service, asked.model)
    made = embeddings.embedder(service.spec_of(asked.model))
    if made is None:
        raise RequestError(f"model '{asked.model}' makes no embeddings of texts", 404)

    def render(inference: InferRequest, outputs: Mapping[str, Tensor]) -> Response:
        return _told(made.answer(asked, outputs))

    return await service.infer(asked.model, lambda: made.inputs(asked), render)


def _check(service: "Service", model: str) -> None:
    if model not in service.names:
        raise RequestError(f"the model '{model[:200]}' does not exist; this server has {', '.join(service.names)}", 404)


def _only(request: Request, method: str) -> None:
    if request.method != method and (request.method, method) != ("HEAD", "GET"):
        raise RequestError(f"{method} only", 405)


def _model(name: str) -> dict[str, object]:
    return {"id": name, "object": "model", "created": 0, "owned_by": protocol.SERVER_NAME}


def _told(document: object) -> Response:
    return Response(body=protocol.dump(document))


def failure(status: int, message: str) -> Response:
    """OpenAI's error object."""
    kind = "invalid_request_error" if status < 500 else "server_error"
    code = "model_not_found" if status == 404 and "does not exist" in message else None
    error = {"message": message, "type": kind, "param": None, "code": code}
    return Response(status, protocol.dump({"error": error}))
