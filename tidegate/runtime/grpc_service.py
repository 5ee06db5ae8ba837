"""The methods of the model server over gRPC: Open Inference Protocol V2 with Triton's extensions, health, reflection.

A method calls the same service as REST (``service.py``): the same scheduler, counters, phases and messages. A stream of
inferences is answered message by message in order. Each is a run of its own that batches with those of other clients. A
failed one is reported in its answer's ``error_message``, and the stream goes on. A model that streams gives any number
of answers to each message, as Triton's decoupled models do.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any, Final, Protocol

from tidegate.runtime.errors import RequestError
from tidegate.runtime.execute.model import Outputs
from tidegate.runtime.protocols import grpc_messages
from tidegate.runtime.protocols.v2 import VERSION, InferRequest, check_inputs
from tidegate.runtime.service import ModelService, Refusal, ServicePhase, server_metadata, shortened, status_of
from tidegate.wire.grpc import messages
from tidegate.wire.grpc.protobuf import Message, ProtobufError
from tidegate.wire.grpc.reflection import Reflection
from tidegate.wire.http2.grpc_fields import (
    ABORTED,
    DEADLINE_EXCEEDED,
    FAILED_PRECONDITION,
    INTERNAL,
    INVALID_ARGUMENT,
    NOT_FOUND,
    PERMISSION_DENIED,
    RESOURCE_EXHAUSTED,
    UNAUTHENTICATED,
    UNAVAILABLE,
    UNIMPLEMENTED,
)

STATUS_OF_HTTP: Final = {
    401: UNAUTHENTICATED,
    403: PERMISSION_DENIED,
    404: NOT_FOUND,
    409: ABORTED,
    412: FAILED_PRECONDITION,
    413: RESOURCE_EXHAUSTED,
    415: UNIMPLEMENTED,
    429: RESOURCE_EXHAUSTED,
    501: UNIMPLEMENTED,
    503: UNAVAILABLE,
    504: DEADLINE_EXCEEDED,
}
"""gRPC statuses of HTTP statuses. Others are INVALID_ARGUMENT below 500, else INTERNAL."""
_FINAL: Final = {"triton_final_response": {"bool_param": True}}
"""Parameter that Triton's clients look for: no further answer to the request follows."""
_NOT_FINAL: Final = {"triton_final_response": {"bool_param": False}}
_WANTS_EMPTY: Final = "triton_enable_empty_final_response"
"""Parameter of a request whose client waits for an empty last answer: it cannot know how many there are."""

_EXTENSIONS: Final = (
    "ModelConfig",
    "ModelStatistics",
    "RepositoryIndex",
    "RepositoryModelLoad",
    "RepositoryModelUnload",
)
"""Methods of Triton's extensions."""


class CallError(Exception):
    """The end of a call: a gRPC status and a message for the client."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message


class CallStream(Protocol):
    """One call, as its method sees it."""

    async def receive(self) -> bytes | None:
        """Returns the client's next message. Returns None after the last. Raises CallError."""
        ...

    async def send(self, message: bytes) -> None:
        """Sends one message to the client. Returns when there is room for another."""
        ...

    def reply(self, message: bytes) -> None:
        """Queues the last message to the client, which is sent with the status."""
        ...


Handler = Callable[[CallStream], Awaitable[None]]
"""Answers one call. Raises CallError."""


class GrpcService:
    """The methods by path."""

    def __init__(self, service: ModelService) -> None:
        self._service = service
        service.on_phase = self._phase_changed
        self._watchers: set[asyncio.Event] = set()
        self._reflection = Reflection()
        inference, health = messages.INFERENCE.name, messages.HEALTH.name
        unary: dict[str, Callable[[bytes], Awaitable[bytes]]] = {
            f"/{inference}/ServerLive": self._server_live,
            f"/{inference}/ServerReady": self._server_ready,
            f"/{inference}/ModelReady": self._model_ready,
            f"/{inference}/ServerMetadata": self._server_metadata,
            f"/{inference}/ModelMetadata": self._model_metadata,
            f"/{inference}/ModelInfer": self._model_infer,
            f"/{health}/Check": self._check,
            f"/{health}/List": self._list,
        }
        unary |= {f"/{inference}/{method}": self._extension(method) for method in _EXTENSIONS}
        self.methods: dict[bytes, Handler] = {path.encode(): _unary(answer) for path, answer in unary.items()}
        self.methods[f"/{inference}/ModelStreamInfer".encode()] = self._model_stream_infer
        self.methods[f"/{health}/Watch".encode()] = self._watch
        for file in messages.REFLECTION_FILES:
            name = file.services[0].name
            self.methods[f"/{name}/ServerReflectionInfo".encode()] = self._reflects(name)

    # --- inference ----------------------------------------------------------------------------------------------------

    async def _server_live(self, message: bytes) -> bytes:
        return messages.SERVER_LIVE_RESPONSE.encode({"live": True})

    async def _server_ready(self, message: bytes) -> bytes:
        return messages.SERVER_READY_RESPONSE.encode({"ready": self._is_ready})

    async def _model_ready(self, message: bytes) -> bytes:
        self._named(messages.MODEL_READY_REQUEST, message)
        return messages.MODEL_READY_RESPONSE.encode({"ready": self._is_ready})

    async def _server_metadata(self, message: bytes) -> bytes:
        return messages.SERVER_METADATA_RESPONSE.encode(server_metadata())

    async def _model_metadata(self, message: bytes) -> bytes:
        name = self._named(messages.MODEL_METADATA_REQUEST, message)
        try:
            found = self._service.model_metadata(name)
        except RequestError as error:
            raise _call_error(status_of(error), error.message) from error
        known = messages.MODEL_METADATA_RESPONSE.names
        return messages.MODEL_METADATA_RESPONSE.encode({key: value for key, value in found.items() if key in known})

    def _extension(self, method: str) -> Callable[[bytes], Awaitable[bytes]]:
        async def answer(message: bytes) -> bytes:
            from tidegate.runtime import extensions  # Its tables are not needed by most servers.

            try:
                return extensions.call(self._service, method, message)
            except RequestError as error:
                raise _call_error(status_of(error), error.message) from error

        return answer

    async def _model_infer(self, message: bytes) -> bytes:
        try:
            return messages.MODEL_INFER_RESPONSE.encode(await self._infer(grpc_messages.fields_of(message)))
        except RequestError as error:
            raise _call_error(status_of(error), error.message) from error
        except Refusal as refusal:
            raise _call_error(refusal.status, refusal.message) from refusal

    async def _model_stream_infer(self, stream: CallStream) -> None:
        while (message := await stream.receive()) is not None:
            fields: dict[str, Any] = {}
            answer: dict[str, Any] = {}
            try:
                fields = grpc_messages.fields_of(message)
                if self._service.streams:
                    await self._stream_one(stream, fields)
                    continue
                answer["infer_response"] = await self._infer(fields, _FINAL)
            except (RequestError, Refusal) as error:
                answer["error_message"] = shortened(error.message)
                answer["infer_response"] = {"model_name": fields.get("model_name"), "id": fields.get("id")}
            await stream.send(messages.MODEL_STREAM_INFER_RESPONSE.encode(answer))

    async def _stream_one(self, stream: CallStream, fields: dict[str, Any]) -> None:
        """Sends all answers to one message. Raises RequestError, Refusal."""
        name = fields.get("model_name", "")
        self._service.check_name(name, fields.get("model_version", ""))
        request = grpc_messages.read_infer(fields)
        check_inputs(request, self._service.spec_of(name))
        parameters = {key: value for key, value in request.parameters.items() if key != _WANTS_EMPTY}
        async with contextlib.aclosing(self._service.stream(name, request.inputs, parameters)) as answers:
            async for outputs in answers:
                answer = grpc_messages.answer_infer(name, request, outputs, _NOT_FINAL)
                await stream.send(messages.MODEL_STREAM_INFER_RESPONSE.encode({"infer_response": answer}))
        if request.parameters.get(_WANTS_EMPTY) is True:
            answer = {"model_name": name, "model_version": VERSION, "id": request.id, "parameters": _FINAL}
            await stream.send(messages.MODEL_STREAM_INFER_RESPONSE.encode({"infer_response": answer}))

    async def _infer(self, fields: dict[str, Any], parameters: dict[str, Any] | None = None) -> dict[str, Any]:
        """Returns the fields of the answer. Raises RequestError, Refusal."""
        name = fields.get("model_name", "")
        self._service.check_name(name, fields.get("model_version", ""))

        def read() -> InferRequest:
            return grpc_messages.read_infer(fields)

        def render(request: InferRequest, outputs: Outputs) -> dict[str, Any]:
            return grpc_messages.answer_infer(name, request, outputs, parameters)

        return await self._service.infer(name, read, render)

    def _named(self, kind: Message, message: bytes) -> str:
        """Returns the model that a request names. Raises CallError if it is not served."""
        fields = _decoded(kind, message)
        name: str = fields.get("name", "")
        try:
            self._service.check_name(name, fields.get("version", ""))
        except RequestError as error:
            raise _call_error(error.status, error.message) from error
        return name

    @property
    def _is_ready(self) -> bool:
        return self._service.phase is ServicePhase.READY

    # --- health -------------------------------------------------------------------------------------------------------

    async def _check(self, message: bytes) -> bytes:
        name = _decoded(messages.HEALTH_REQUEST, message).get("service", "")
        status = self._health(name)
        if status == messages.SERVICE_UNKNOWN:
            raise CallError(NOT_FOUND, f"unknown service '{name[:200]}'; this server has {', '.join(self._services())}")
        return messages.HEALTH_RESPONSE.encode({"status": status})

    async def _list(self, message: bytes) -> bytes:
        statuses = {name: {"status": self._health(name)} for name in ("", *self._services())}
        return messages.HEALTH_LIST_RESPONSE.encode({"statuses": statuses})

    async def _watch(self, stream: CallStream) -> None:
        name = _decoded(messages.HEALTH_REQUEST, await stream.receive() or b"").get("service", "")
        changed = asyncio.Event()
        self._watchers.add(changed)
        sent: int | None = None
        try:
            while True:
                changed.clear()
                status = self._health(name)
                if status != sent:
                    sent = status
                    await stream.send(messages.HEALTH_RESPONSE.encode({"status": status}))
                await changed.wait()
        finally:
            self._watchers.discard(changed)

    def _health(self, name: str) -> int:
        if name and name not in self._services():
            return messages.SERVICE_UNKNOWN
        return messages.SERVING if self._is_ready else messages.NOT_SERVING

    def _services(self) -> tuple[str, ...]:
        return (messages.INFERENCE.name, *self._service.names)

    def _phase_changed(self) -> None:
        for watcher in self._watchers:
            watcher.set()

    # --- reflection ---------------------------------------------------------------------------------------------------

    def _reflects(self, service: str) -> Handler:
        async def answer(stream: CallStream) -> None:
            while (message := await stream.receive()) is not None:
                try:
                    found = self._reflection.answer(service, message)
                except ProtobufError as error:
                    raise CallError(INVALID_ARGUMENT, str(error)) from error
                await stream.send(found)

        return answer

    def __repr__(self) -> str:
        return f"<GrpcService {len(self.methods)} methods, {len(self._watchers)} watch>"


def _unary(answer: Callable[[bytes], Awaitable[bytes]]) -> Handler:
    """Returns a handler with one message in and one out."""

    async def handle(stream: CallStream) -> None:
        message = await stream.receive()
        if message is None or await stream.receive() is not None:
            raise CallError(INTERNAL, "this method takes one message")
        stream.reply(await answer(message))

    return handle


def _decoded(kind: Message, message: bytes) -> dict[str, Any]:
    try:
        return kind.decode(message)
    except ProtobufError as error:
        raise CallError(INVALID_ARGUMENT, str(error)) from error


def _call_error(http: int, message: str) -> CallError:
    status = STATUS_OF_HTTP.get(http, INVALID_ARGUMENT if http < 500 else INTERNAL)
    return CallError(status, shortened(message))
