"""The routes of the Open Inference Protocol V2, KServe's model list, Triton's metrics, and Tidegate's declaration.

Routes of further protocols are in ``rest/``; they and those of OpenAI's API (``openai.py``) are passed in.
"""

import contextlib
import json
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from enum import StrEnum
from functools import cache
from typing import Any, Protocol, TypeVar
from urllib.parse import unquote

from tidegate.aio.admin.endpoint import Request, Response, StreamResponse
from tidegate.aio.log_stream import say_error, say_request_failed
from tidegate.runtime.errors import ModelError, RequestError
from tidegate.runtime.execute.model import Inputs, Outputs
from tidegate.runtime.metrics import CONTENT_TYPE, FailureReason, RuntimeCounters
from tidegate.runtime.protocols import v2 as protocol
from tidegate.runtime.protocols.bodies import decompress
from tidegate.runtime.protocols.v2 import VERSION, InferRequest, ModelSpec

_MAX_MESSAGE_CHARS = 1000
"""Longest error message, in characters. A request's own words are repeated in it."""
ORDER = "tidegate-epoch"
"""Field of a request of the backend. Gateway and queue_proxy take it from what clients send."""
LONGEST_DELAY_S = 60.0
_PREDICT = ":predict"
"""The end of a path of V1's inference."""


class ServicePhase(StrEnum):
    LOADING = "loading"
    READY = "ready"
    STOPPING = "stopping"


Infer = Callable[[Inputs], Awaitable[Outputs]]
"""Runs one request. Raises RequestError, ModelError."""
OpenStream = Callable[[Inputs | Mapping[str, Any], Mapping[str, Any]], AsyncGenerator[Outputs, None]]
"""Runs one request, with its parameters, of a model that streams. Raises RequestError, ModelError."""
Answer = TypeVar("Answer")
AnyResponse = Response | StreamResponse
Routes = Callable[["ModelService", Request, list[str]], Awaitable[AnyResponse]]
"""Answers the paths below a prefix, given the parts after it. Raises nothing but cancellation."""


class Refusal(Exception):
    """An inference without a result: the reason, the HTTP status, and a message for the client."""

    def __init__(self, reason: FailureReason, status: int, message: str) -> None:
        super().__init__(message)
        self.reason = reason
        self.status = status
        self.message = message


class BatchControl(Protocol):
    """The part of a scheduler whose limits change while the model serves."""

    @property
    def batching(self) -> tuple[int, float]: ...

    def set_batching(self, max_batch: int, delay_s: float) -> None: ...


class ModelService:
    """Answers HTTP requests for one model under its names. Belongs to one event loop."""

    def __init__(
        self,
        names: tuple[str, ...],
        counters: RuntimeCounters,
        *,
        body_bytes: int,
        openai: "Routes | None" = None,
        generate: "Routes | None" = None,
        predict: "Routes | None" = None,
        extensions: "Routes | None" = None,
        batch_delay_s: float = 0.0,
    ) -> None:
        """``openai`` answers the paths below ``/v1``, ``generate`` those of V2's generate extension, given the model's
        name and the method, ``predict`` V1's ``:predict``, given the name, ``extensions`` those of Triton's other
        extensions, given the parts after ``/v2``. Without them these paths do not exist. ``batch_delay_s``: seconds for
        which a free model waits for more requests."""
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
        self._batch_delay_s = batch_delay_s
        self._batching: BatchControl | None = None
        self.counters = counters
        self._openai = openai
        self._generate = generate
        self._extensions = extensions
        self._predict = predict
        self._spec: ModelSpec | None = None
        self._infer: Infer | None = None
        self._stream: OpenStream | None = None
        self._waiting: Callable[[], int] = lambda: 0
        self._abandoned: Callable[[], int] = lambda: 0

    def start(
        self,
        spec: ModelSpec,
        infer: Infer,
        waiting: Callable[[], int],
        stream: OpenStream | None = None,
        *,
        abandoned: Callable[[], int] = lambda: 0,
        batching: "BatchControl | None" = None,
    ) -> None:
        """Makes the model available for requests. ``stream`` is given for a model that streams. ``abandoned`` returns
        the requests without a client that the model goes on with. ``batching`` is None if it forms no batches."""
        self._batching = batching
        self._spec, self._infer, self._waiting, self._stream = spec, infer, waiting, stream
        self._abandoned = abandoned
        if self.phase is ServicePhase.LOADING:
            self.phase = ServicePhase.READY
            self.on_phase()

    @property
    def batch_delay_s(self) -> float:
        """Seconds for which a free model waits for more requests."""
        return self._batch_delay_s if self._batching is None else self._batching.batching[1]

    @property
    def is_ready(self) -> bool:
        """True while the model answers."""
        return self.phase is ServicePhase.READY

    @property
    def streams(self) -> bool:
        """True for a model that streams, once it is loaded."""
        return self._stream is not None

    def stop(self) -> None:
        """Accepts nothing new from now on."""
        self.phase = ServicePhase.STOPPING
        self.on_phase()

    async def handle(self, request: Request) -> AnyResponse:
        """Returns the answer to any request. Raises nothing but cancellation."""
        try:
            return await self._route(request)
        except RequestError as error:
            return _failure(status_of(error), error.message)

    async def _route(self, request: Request) -> AnyResponse:
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
            case ["v2", "models", "stats"] if self._extensions is not None and "stats" not in self.names:
                return await self._extensions(self, request, parts[1:])
            case ["v2", "repository", *_] if self._extensions is not None:
                return await self._extensions(self, request, parts[1:])
            case ["v2", "models", name, *rest]:
                return await self._model(request, name, rest)
            case ["v1", "models", *name] if self._predict is not None and name and name[-1].endswith(_PREDICT):
                named = "/".join(name).removesuffix(_PREDICT)
                return only(request, "POST") or await self._predict(self, request, [named])
            case ["v1", "models", _, *_] if self._predict is not None and request.method == "POST":
                raise RequestError(f"there is no {request.path[:200]} here; V1 offers /v1/models/NAME:predict", 404)
            case ["v1", *rest] if self._openai is not None:
                return await self._openai(self, request, rest)
            case ["health"]:
                return self._readiness(request, {})
            case ["metrics"]:
                max_batch = None if self._spec is None else self._spec.max_batch
                if self._batching is not None:
                    max_batch = self._batching.batching[0]
                text = self.counters.render(self.names[0], self._waiting(), max_batch)
                return only(request, "GET") or Response(body=text, content_type=CONTENT_TYPE)
            case ["tidegate", "declared"]:
                return _get(request, {"concurrency": self.spec_of(self.names[0]).concurrency})
            case ["tidegate", "batching"] if ORDER in request.headers:
                return only(request, "POST") or self._set_batching(request)
            case ["tidegate", "running"]:
                return _get(request, {"abandoned": self._abandoned()})
        raise RequestError(f"there is no {request.path[:200]} here", 404)

    def _set_batching(self, request: Request) -> Response:
        """Carries out an order of the backend. The model goes on meanwhile."""
        if self._batching is None:
            why = "is still loading" if self._spec is None else "answers by streams, and forms no batches"
            raise RequestError(f"the model {why}", 409)
        try:
            order = json.loads(request.body)
            max_batch, delay_s = order["max_batch"], float(order["delay_s"])
            if type(max_batch) is not int or not 0.0 <= delay_s <= LONGEST_DELAY_S:
                raise ValueError
        except (ValueError, TypeError, KeyError):
            raise RequestError(
                f'the order must be {{"max_batch": INTEGER, "delay_s": SECONDS, 0 to {LONGEST_DELAY_S:g}}}'
            ) from None
        self._batching.set_batching(max_batch, delay_s)
        now = self._batching.batching
        return Response(body=json.dumps({"max_batch": now[0], "delay_s": now[1]}).encode())

    async def _model(self, request: Request, name: str, rest: list[str]) -> AnyResponse:
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
                return only(request, "POST") or await self._answer(request, name)
            case ["generate" | "generate_stream" as method] if self._generate is not None:
                return only(request, "POST") or await self._generate(self, request, [name, method])
            case ["config" | "stats" as subject] if self._extensions is not None:
                return await self._extensions(self, request, ["models", name, subject])
        raise RequestError(f"there is no {request.path[:200]} here", 404)

    def _readiness(self, request: Request, fields: dict[str, object]) -> Response:
        ready = self.is_ready
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
            self._count(reason, started)

    async def _run(self, name: str, work: Callable[[Infer], Awaitable[Answer]]) -> Answer:
        if self.phase is not ServicePhase.READY or self._infer is None:
            raise self._not_ready(name)
        try:
            return await work(self._infer)
        except Exception as error:
            raise _refusal(error) from error

    async def stream(
        self, name: str, inputs: Inputs | Mapping[str, Any], parameters: Mapping[str, Any]
    ) -> AsyncGenerator[Outputs, None]:
        """Yields the answers to one request of a model that streams, and counts it. Raises as :meth:`infer`.

        Close it (``contextlib.aclosing``): that closes the model's generator.
        """
        started = time.monotonic()
        self.active += 1
        reason: FailureReason | None = FailureReason.CANCELED
        try:
            if self.phase is not ServicePhase.READY or self._stream is None:
                raise self._not_ready(name)
            async with contextlib.aclosing(self._stream(inputs, parameters)) as answers:
                async for outputs in answers:
                    yield outputs
            reason = None
        except Exception as error:
            refusal = error if isinstance(error, Refusal) else _refusal(error)
            reason = refusal.reason
            raise refusal from error
        finally:
            self._count(reason, started)

    def _not_ready(self, name: str) -> Refusal:
        state = "still loading" if self.phase is ServicePhase.LOADING else "stopping"
        return Refusal(FailureReason.REJECTED, 503, f"model '{name}' is {state}")

    def _count(self, reason: FailureReason | None, started: float) -> None:
        """Counts the end of a request; ``reason`` is None for one that was answered."""
        self.active -= 1
        now = time.monotonic()
        if reason is None:
            self.counters.success += 1
            self.counters.request_s += now - started
            self.counters.last_answer = now
        else:
            self.counters.fail(reason)
            self.counters.failed_s += now - started
        if self.active == 0:
            self.on_idle()

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
            if refusal.status >= 500:
                say_request_failed(refusal.message, request.headers.get("x-request-id"))
            return _failure(refusal.status, refusal.message)


def _refusal(error: Exception) -> Refusal:
    """Returns the refusal that a client gets for an error of the model or of this server, which is logged."""
    if isinstance(error, RequestError):
        return Refusal(FailureReason.OTHER, status_of(error), error.message)
    if isinstance(error, ModelError):
        return Refusal(FailureReason.BACKEND, 500, str(error))
    say_error(error)
    return Refusal(FailureReason.BACKEND, 500, "the model server failed; its log says why")


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


def only(request: Request, method: str) -> Response | None:
    """Returns None for the route's method (HEAD counts as GET), else the refusal with status 405."""
    if request.method == method or (request.method, method) == ("HEAD", "GET"):
        return None
    return Response(405, protocol.error_body(f"{method} only"), headers=(("Allow", method),))


def _get(request: Request, document: dict[str, object]) -> Response:
    return only(request, "GET") or Response(body=protocol.dump(document))


def _failure(status: int, message: str) -> Response:
    return Response(status, protocol.error_body(shortened(message)))


def shortened(message: str) -> str:
    """Shortens an error's message and removes halves of surrogate pairs, which are not text: a file's name may have
    brought one into an exception."""
    message = message[: _MAX_MESSAGE_CHARS + 1].encode("utf-8", "replace").decode()
    return message if len(message) <= _MAX_MESSAGE_CHARS else message[: _MAX_MESSAGE_CHARS - 3] + "..."
