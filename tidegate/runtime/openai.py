"""The routes of OpenAI's API that a model of this server can answer: ``/v1/models``, ``/v1/embeddings``."""

from typing import TYPE_CHECKING

from tidegate.aio.admin.endpoint import Request, Response
from tidegate.runtime import embeddings
from tidegate.runtime.protocols import v2 as protocol
from tidegate.runtime.protocols.bodies import decompress
from tidegate.runtime.protocols.errors import RequestError

if TYPE_CHECKING:
    from tidegate.runtime.service import Infer, Service


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
    spec = service.spec_of(asked.model)
    made = embeddings.embedder(spec)
    if made is None:
        raise RequestError(f"model '{asked.model}' makes no embeddings of texts", 404)

    async def work(infer: "Infer") -> Response:
        # One after the other: others' requests run in between, and the model needs memory for one at a time.
        found = []
        for part in made.parts(asked, spec.max_rows):
            protocol.check_inputs(part, spec)
            found.append(await infer(part.inputs))
        return _told(made.answer(asked, found))

    return await service.run(asked.model, work)


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
