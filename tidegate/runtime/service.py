"""The routes of the Open Inference Protocol V2, KServe's model list, Triton's metrics, and what Tidegate asks for."""

import time
import traceback
from collections.abc import Awaitable, Callable
from enum import StrEnum
from functools import cache
from urllib.parse import unquote

from tidegate.aio.endpoint import Request, Response
from tidegate.runtime import protocol
from tidegate.runtime.bodies import decompress
from tidegate.runtime.errors import ModelError, RequestError
from tidegate.runtime.metrics import CONTENT_TYPE, Counters, Reason
from tidegate.runtime.model import Inputs, Outputs
from tidegate.runtime.protocol import VERSION, ModelSpec

_MOST_TEXT = 1000
"""Longest error message, in characters: a request's own words are repeated in it."""


class Phase(StrEnum):
    LOADING = "loading"
    READY = "ready"
    STOPPING = "stopping"


Infer = Callable[[Inputs], Awaitable[Outputs]]
"""Runs one request. Raises RequestError, ModelError."""


class Service:
    """Answers HTTP requests for one model under its names. Lives on one event loop."""

    def __init__(self, names: tuple[str, ...], counters: Counters, *, body_bytes: int) -> None:
        self.phase = Phase.LOADING
        self.active = 0
        """Inference requests that have not been answered."""
        self.on_idle: Callable[[], None] = lambda: None
        """Called when ``active`` falls to zero."""
        self._names = names
        self._counters = counters
        self._body_bytes = body_bytes
        self._spec: ModelSpec | None = None
        self._infer: Infer | None = None
        self._waiting: Callable[[], int] = lambda: 0

    def start(self, spec: ModelSpec, infer: Infer, waiting: Callable[[], int]) -> None:
        """The model answers from now on."""
        self._spec, self._infer, self._waiting = spec, infer, waiting
        if self.phase is Phase.LOADING:
            self.phase = Phase.READY

    async def handle(self, request: Request) -> Response:
        """The answer to any request. Raises nothing but cancellation."""
        try:
            return await self._route(request)
        except RequestError as error:
            return _failure(error.status if 400 <= error.status <= 599 else 400, error.message)

    async def _route(self, request: Request) -> Response:
        parts = [unquote(part) for part in request.path.strip("/").split("/")]
        match parts:
            case ["v2"]:
                return _get(request, protocol.server_metadata(_version()))
            case ["v2", "health", "live"]:
                return _get(request, {"live": True})
            case ["v2", "health", "ready"]:
                return self._readiness(request, {})
            case ["v2", "models"]:
                return _get(request, {"models": list(self._names)})
            case ["v2", "models", name, *rest]:
                return await self._model(request, name, rest)
            case ["metrics"]:
                max_batch = None if self._spec is None else self._spec.max_batch
                text = self._counters.render(self._names[0], self._waiting(), max_batch)
                return _only(request, "GET") or Response(body=text, content_type=CONTENT_TYPE)
            case ["tidegate", "declared"]:
                return _get(request, {"concurrency": self._loaded(self._names[0]).concurrency})
        raise RequestError(f"there is no {request.path[:200]} here", 404)

    async def _model(self, request: Request, name: str, rest: list[str]) -> Response:
        if name not in self._names:
            raise RequestError(f"unknown model '{name}'; this server has {', '.join(self._names)}", 404)
        if rest[:1] == ["versions"] and len(rest) > 1:
            if rest[1] != VERSION:
                raise RequestError(f"model '{name}' has no version '{rest[1]}', only '{VERSION}'", 404)
            rest = rest[2:]
        match rest:
            case []:
                return _get(request, protocol.model_metadata(name, self._loaded(name)))
            case ["ready"]:
                return self._readiness(request, {"name": name})
            case ["infer"]:
                return _only(request, "POST") or await self._answer(request, name)
        raise RequestError(f"there is no {request.path[:200]} here", 404)

    def _readiness(self, request: Request, fields: dict[str, object]) -> Response:
        ready = self.phase is Phase.READY
        answer = _get(request, {**fields, "ready": ready})
        return answer if ready or answer.status != 200 else Response(503, answer.body)

    def _loaded(self, name: str) -> ModelSpec:
        if self._spec is None:
            raise RequestError(f"model '{name}' is still loading", 503)
        return self._spec

    async def _answer(self, request: Request, name: str) -> Response:
        started = time.monotonic()
        self.active += 1
        reason: Reason | None = Reason.CANCELED
        try:
            reason, answer = await self._run(request, name)
            return answer
        finally:
            self.active -= 1
            if reason is None:
                self._counters.success += 1
                self._counters.request_s += time.monotonic() - started
            else:
                self._counters.fail(reason)
            if self.active == 0:
                self.on_idle()

    async def _run(self, request: Request, name: str) -> tuple[Reason | None, Response]:
        if self.phase is not Phase.READY or self._infer is None:
            state = "still loading" if self.phase is Phase.LOADING else "stopping"
            return Reason.REJECTED, _failure(503, f"model '{name}' is {state}")
        try:
            body = decompress(request.body, request.headers.get("content-encoding"), self._body_bytes)
            inference = protocol.parse_infer(body, request.headers.get(protocol.HEADER_LENGTH))
            protocol.check_inputs(inference, self._loaded(name))
            outputs = await self._infer(inference.inputs)
            text, length = protocol.render_infer(name, inference, outputs)
        except RequestError as error:
            return Reason.OTHER, _failure(error.status if 400 <= error.status <= 599 else 400, error.message)
        except ModelError as error:
            return Reason.BACKEND, _failure(500, str(error))
        except Exception as error:
            traceback.print_exception(error)
            return Reason.BACKEND, _failure(500, "the model server failed; its log says why")
        if length is None:
            return None, Response(body=text)
        headers = (("Inference-Header-Content-Length", str(length)),)
        return None, Response(body=text, content_type="application/octet-stream", headers=headers)


@cache
def _version() -> str:
    """Of the package; looked up when first asked for, since that costs 20 ms."""
    from importlib import metadata

    try:
        return metadata.version(protocol.SERVER_NAME)
    except metadata.PackageNotFoundError:  # a folder on PYTHONPATH under an interpreter of the user's
        return "unknown"


def _only(request: Request, method: str) -> Response | None:
    """None for the method that the route has (HEAD counts as GET), otherwise the refusal."""
    if request.method == method or (request.method, method) == ("HEAD", "GET"):
        return None
    return Response(405, protocol.error_body(f"{method} only"), headers=(("Allow", method),))


def _get(request: Request, document: dict[str, object]) -> Response:
    return _only(request, "GET") or Response(body=protocol.dump(document))


def _failure(status: int, message: str) -> Response:
    text = message if len(message) <= _MOST_TEXT else message[: _MOST_TEXT - 3] + "..."
    return Response(status, protocol.error_body(text))
