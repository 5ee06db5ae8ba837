"""The routes of OpenAI's API that a model of this server can answer: ``/v1/models``, ``/v1/embeddings`` and, in
``rest/chat.py``, ``/v1/chat/completions``."""

from tidegate.aio.admin.endpoint import Request, Response
from tidegate.runtime import embeddings
from tidegate.runtime.errors import RequestError
from tidegate.runtime.protocols import v2 as protocol
from tidegate.runtime.protocols.bodies import decompress
from tidegate.runtime.rest import chat
from tidegate.runtime.service import AnyResponse, Infer, ModelService, Refusal, shortened, status_of


async def answer(service: ModelService, request: Request, parts: list[str]) -> AnyResponse:
    """Answers ``/v1/`` and these parts of a path. Raises nothing but cancellation."""
    try:
        return await _answer(service, request, parts)
    except RequestError as error:
        return _failure(status_of(error), shortened(error.message))
    except Refusal as refusal:
        return _failure(refusal.status, shortened(refusal.message))


async def _answer(service: ModelService, request: Request, parts: list[str]) -> AnyResponse:
    match parts:
        case ["models"]:
            _only(request, "GET")
            data = [_model(service, name) for name in service.names]
            return _json({"object": "list", "data": data, "models": list(service.names)})
        case ["models", *name]:
            _only(request, "GET")
            _check(service, "/".join(name))
            found = _json(_model(service, "/".join(name)))
            return found if service.is_ready else Response(503, found.body)
        case ["embeddings"]:
            if request.method != "POST" and embeddings.embedder(service.spec_of(service.names[0])) is None:
                raise RequestError(f"model '{service.names[0]}' makes no embeddings of texts", 404)
            _only(request, "POST")
            return await _embed(service, request)
        case ["chat", "completions"]:
            if request.method != "POST":
                chat.check_chats(service.names[0], service.spec_of(service.names[0]))
            _only(request, "POST")
            return await chat.complete(service, request)
    raise RequestError(f"there is no {request.path[:200]} here", 404)


async def _embed(service: ModelService, request: Request) -> Response:
    parsed = embeddings.parse(decompress(request.body, request.headers.get("content-encoding"), service.body_bytes))
    _check(service, parsed.model)
    spec = service.spec_of(parsed.model)
    embedder = embeddings.embedder(spec)
    if embedder is None:
        raise RequestError(f"model '{parsed.model}' makes no embeddings of texts", 404)

    async def work(infer: Infer) -> Response:
        # One after the other: other requests run in between, and the model needs memory for one at a time.
        found = []
        for part in embedder.parts(parsed, spec.max_rows):
            protocol.check_inputs(part, spec)
            found.append(await infer(part.inputs))
        return _json(embedder.answer(parsed, found))

    return await service.run(parsed.model, work)


def _check(service: ModelService, model: str) -> None:
    if model not in service.names:
        raise RequestError(f"the model '{model[:200]}' does not exist; this server has {', '.join(service.names)}", 404)


def _only(request: Request, method: str) -> None:
    if request.method != method and (request.method, method) != ("HEAD", "GET"):
        raise RequestError(f"{method} only", 405)


def _model(service: ModelService, name: str) -> dict[str, object]:
    """Returns a model's object, with OpenAI's keys and those of KServe's V1 (``name``, ``ready``)."""
    own = {"id": name, "object": "model", "created": 0, "owned_by": protocol.SERVER_NAME}
    return {**own, "name": name, "ready": service.is_ready}


def _json(document: object) -> Response:
    return Response(body=protocol.dump(document))


def _failure(status: int, message: str) -> Response:
    """Returns OpenAI's error object."""
    kind = "invalid_request_error" if status < 500 else "server_error"
    code = "model_not_found" if status == 404 and "does not exist" in message else None
    error = {"message": message, "type": kind, "param": None, "code": code}
    return Response(status, protocol.dump({"error": error}))
