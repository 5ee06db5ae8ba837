"""The routes of the Open Inference Protocol V2, KServe's model list, Triton's metrics, and Tidegate's declaration.

The routes of OpenAI's API are in ``openai.py`` and are passed in.
"""

import time
import traceback
from collections.abc import Awaitable, Callable
from enum import StrEnum
from functools import cache
from typing import Any, TypeVar
from urllib.parse import unquote

from tidegate.aio.admin.endpoint import Request, Response
from tidegate.runtime.errors import ModelError, RequestError
from tidegate.runtime.execute.model import Inputs, Outputs
from tidegate.runtime.metrics import CONTENT_TYPE, FailureReason, RuntimeCounters
from tidegate.runtime.protocols import v2 as protocol
from tidegate.runtime.protocols.bodies import decompress
from tidegate.runtime.protocols.v2 import VERSION, InferRequest, ModelSpec

_MAX_MESSAGE_CHARS = 1000
"""Longest error message, in characters. A request's own words are repeated in it."""


class ServicePhase(StrEnum):
    LOADING = "loading"
    READY = "ready"
    STOPPING = "stopping"


Infer = Callable[[Inputs], Awaitable[Outputs]]
"""Runs one request. Raises RequestError, ModelError."""
Answer = TypeVar("Answer")
Routes = Callable[["ModelService", Request, list[str]], Awaitable[Response]]
"""Answers the paths below a prefix, given the parts after it. Raises nothing but cancellation."""


class Refusal(Exception):
    """An inference without a result: the reason, the HTTP status, and a message for the client."""

    def __init__(self, reason: FailureReason, status: int, message: str) -> None:
        super().__init__(message)
        self.reason = reason
        self.status = status
        self.message = message


class ModelService:
    """Answers HTTP requests for one model under its names. Belongs to one event loop."""

    def __init__(
        self, names: tuple[str, ...], counters: RuntimeCounters, *, body_bytes: int, openai: "Routes | None" = None
    ) -> None:
        """``openai`` answers the paths below ``/v1``; without it they do not exist."""
        self.phase = ServicePhase.LOADING
        self.active = 0
        """Inference requests that are not answered yet."""
        self.on_idle: Callable[[], None] = lambda: None
        """Called when ``active`` falls to zero."""
        self.on_phase: Callable[[], None] = lambda: None
        """Called when ``phase`` changes."""
        self.names = names
        """Names of the model."""
        self.body_bytes = body_bytes
        """Largest body of a request, decompressed."""
        self._counters = counters
        self._openai = openai
        self._spec: ModelSpec | None = None
        self._infer: Infer | None = None
        self._waiting: Callable[[], int] = lambda: 0

    def start(self, spec: ModelSpec, infer: Infer, waiting: Callable[[], int]) -> None:
        """Makes the model available for requests."""
        self._spec, self._infer, self._waiting = spec, infer, waiting
        if self.phase is ServicePhase.LOADING:
            self.phase = ServicePhase.READY
            self.on_phase()

    def stop(self) -> None:
        """Accepts nothing new from now on."""
        self.phase = ServicePhase.STOPPING
        self.on_phase()

    async def handle(self, request: Request) -> Response:
        """Returns the answer to any request. Raises nothing but cancellation."""
        try:
            return await self._route(request)
        except RequestError as error:
            return _failure(status_of(error), error.message)

    async def _route(self, request: Request) -> Response:
        parts = [unquote(part) for part in request.path.strip("/").split("/")]
        match parts:
            case ["v2"]:
                return _get(request, server_metadata())
            case ["v2", "health", "live"]:
                return _get(request, {"live": True})
            case ["v2", "health", "ready"]:
                return self._readiness(request, {})
            case ["v2", "models"]:
                return _get(request, {"models": list(self.names)})
            case ["v2", "models", name, *rest]:
                return await self._model(request, name, rest)
            case ["v1", *rest] if self._openai is not None:
                return await self._openai(self, request, rest)
            case ["health"]:
                return self._readiness(request, {})
            case ["metrics"]:
                max_batch = None if self._spec is None else self._spec.max_batch
                text = self._counters.render(self.names[0], self._waiting(), max_batch)
                return _only(request, "GET") or Response(body=text, content_type=CONTENT_TYPE)
            case ["tidegate", "declared"]:
                return _get(request, {"concurrency": self.spec_of(self.names[0]).concurrency})
        raise RequestError(f"there is no {request.path[:200]} here", 404)

    async def _model(self, request: Request, name: str, rest: list[str]) -> Response:
        version = ""
        if rest[:1] == ["versions"] and len(rest) > 1:
            version, rest = rest[1], rest[2:]
        self.check_name(name, version)
        match rest:
            case []:
                return _get(request, self.model_metadata(name))
            case ["ready"]:
                return self._readiness(request, {"name": name})
            case ["infer"]:
                return _only(request, "POST") or await self._answer(request, name)
        raise RequestError(f"there is no {request.path[:200]} here", 404)

    def _readiness(self, request: Request, fields: dict[str, object]) -> Response:
        ready = self.phase is ServicePhase.READY
        answer = _get(request, {**fields, "ready": ready})
        return answer if ready or answer.status != 200 else Response(503, answer.body)

    def check_name(self, name: str, version: str) -> None:
        """Raises RequestError for an unknown model or version. An empty version means the only one."""
        if name not in self.names:
            raise RequestError(f"unknown model '{name}'; this server has {', '.join(self.names)}", 404)
        if version not in ("", VERSION):
            raise RequestError(f"model '{name}' has no version '{version}', only '{VERSION}'", 404)

    def spec_of(self, name: str) -> ModelSpec:
        """Returns the specification of the model. Raises RequestError while it is loading."""
        if self._spec is None:
            raise RequestError(f"model '{name}' is still loading", 503)
        return self._spec

    def model_metadata(self, name: str) -> dict[str, Any]:
        """Returns V2's description of the model. Raises RequestError as :meth:`spec_of`."""
        return protocol.model_metadata(name, self.spec_of(name))

    async def infer(
        self, name: str, read: Callable[[], InferRequest], render: Callable[[InferRequest, Outputs], Answer]
    ) -> Answer:
        """Runs and counts one inference of any protocol: ``read`` returns the request, ``render`` makes the answer.

        Raises Refusal for everything but cancellation.
        """

        async def work(infer: Infer) -> Answer:
            request = read()
            protocol.check_inputs(request, self.spec_of(name))
            return render(request, await infer(request.inputs))

        return await self.run(name, work)

    async def run(self, name: str, work: Callable[[Infer], Awaitable[Answer]]) -> Answer:
        """Counts one request that runs the model as often as ``work`` needs. Raises as :meth:`infer`."""
        started = time.monotonic()
        self.active += 1
        reason: FailureReason | None = FailureReason.CANCELED
        try:
            answer = await self._run(name, work)
            reason = None
            return answer
        except Refusal as refusal:
            reason = refusal.reason
            raise
        finally:
            self.active -= 1
            if reason is None:
                self._counters.success += 1
                self._counters.request_s += time.monotonic() - started
            else:
                self._counters.fail(reason)
            if self.active == 0:
                self.on_idle()

    async def _run(self, name: str, work: Callable[[Infer], Awaitable[Answer]]) -> Answer:
        if self.phase is not ServicePhase.READY or self._infer is None:
            state = "still loading" if self.phase is ServicePhase.LOADING else "stopping"
            raise Refusal(FailureReason.REJECTED, 503, f"model '{name}' is {state}")
        try:
            return await work(self._infer)
        except RequestError as error:
            raise Refusal(FailureReason.OTHER, status_of(error), error.message) from error
        except ModelError as error:
            raise Refusal(FailureReason.BACKEND, 500, str(error)) from error
        except Exception as error:
            traceback.print_exception(error)
            raise Refusal(FailureReason.BACKEND, 500, "the model server failed; its log says why") from error

    async def _answer(self, request: Request, name: str) -> Response:
        def read() -> InferRequest:
            body = decompress(request.body, request.headers.get("content-encoding"), self.body_bytes)
            return protocol.parse_infer(body, request.headers.get(protocol.HEADER_LENGTH))

        def render(inference: InferRequest, outputs: Outputs) -> Response:
            text, length = protocol.render_infer(name, inference, outputs)
            if length is None:
                return Response(body=text)
            headers = (("Inference-Header-Content-Length", str(length)),)
            return Response(body=text, content_type="application/octet-stream", headers=headers)

        try:
            return await self.infer(name, read, render)
        except Refusal as refusal:
            return _failure(refusal.status, refusal.message)


def server_metadata() -> dict[str, Any]:
    """Returns V2's description of the server."""
    return protocol.server_metadata(_version())


def status_of(error: RequestError) -> int:
    """Returns the HTTP status of a refusal. A handler's status outside 400..599 becomes 400."""
    return error.status if 400 <= error.status <= 599 else 400


@cache
def _version() -> str:
    """Returns the package's version. Looked up at first use, since that costs 20 ms."""
    from importlib import metadata

    try:
        return metadata.version(protocol.SERVER_NAME)
    except metadata.PackageNotFoundError:  # A folder on PYTHONPATH of the user's interpreter.
        return "unknown"


def _only(request: Request, method: str) -> Response | None:
    """Returns None for the route's method (HEAD counts as GET), else the refusal."""
    if request.method == method or (request.method, method) == ("HEAD", "GET"):
        return None
    return Response(405, protocol.error_body(f"{method} only"), headers=(("Allow", method),))


def _get(request: Request, document: dict[str, object]) -> Response:
    return _only(request, "GET") or Response(body=protocol.dump(document))


def _failure(status: int, message: str) -> Response:
    return Response(status, protocol.error_body(shortened(message)))


def shortened(message: str) -> str:
    """Shortens an error's message and removes halves of surrogate pairs, which are not text: a file's name may have
    brought one into an exception."""
    message = message[: _MAX_MESSAGE_CHARS + 1].encode("utf-8", "replace").decode()
    return message if len(message) <= _MAX_MESSAGE_CHARS else message[: _MAX_MESSAGE_CHARS - 3] + "..."
