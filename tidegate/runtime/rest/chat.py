"""OpenAI's ``POST /v1/chat/completions`` for models that stream, as events or as one answer.

The model gets the messages as its input ``messages``, a list of the request's own objects, and the request's other
fields as parameters. Each answer has one text: the next piece of the completion. The model alone knows what its tokens
are, so no usage is reported.
"""

import contextlib
import secrets
from typing import Any, Final

from tidegate import clock
from tidegate.aio.admin.endpoint import Request, Response
from tidegate.runtime.errors import RequestError
from tidegate.runtime.execute.model import Outputs
from tidegate.runtime.protocols import v2 as protocol
from tidegate.runtime.protocols.bodies import decompress
from tidegate.runtime.protocols.tensors import BYTES
from tidegate.runtime.protocols.v2 import ModelSpec
from tidegate.runtime.rest.events import events
from tidegate.runtime.service import AnyResponse, ModelService

MESSAGES: Final = "messages"
_DONE: Final = b"data: [DONE]\n\n"


async def complete(service: ModelService, request: Request) -> AnyResponse:
    """Answers a call. Raises RequestError, Refusal."""
    body = decompress(request.body, request.headers.get("content-encoding"), service.body_bytes)
    asked = protocol.load_object(body)
    model = asked.pop("model", None)
    if not isinstance(model, str):
        raise RequestError("'model' must be a string")
    if model not in service.names:
        raise RequestError(f"the model '{model[:200]}' does not exist; this server has {', '.join(service.names)}", 404)
    check_chats(model, service.spec_of(model))
    messages = asked.pop(MESSAGES, None)
    if not isinstance(messages, list) or not messages or not all(isinstance(each, dict) for each in messages):
        raise RequestError("'messages' must be a list of at least one object with role and content")
    is_stream = asked.pop("stream", None)
    if is_stream not in (None, True, False):
        raise RequestError("'stream' must be true or false")
    if asked.get("n") not in (None, 1):
        raise RequestError("'n' must be 1")
    completion = _Completion(model, is_stream is True)
    answers = service.stream(model, {MESSAGES: messages}, asked)
    if is_stream:
        last = b"data: " + completion.end() + b"\n\n" + _DONE
        return await events(answers, completion.piece, failure, last)
    async with contextlib.aclosing(answers):
        text = "".join([text_of(outputs) async for outputs in answers])
    return Response(body=completion.whole(text))


def check_chats(model: str, spec: ModelSpec) -> None:
    """Raises RequestError, 404, for a model that answers no chats. Also for GET, which clients use to find a route."""
    if not spec.streams:
        raise RequestError(f"model '{model}' answers no chat completions: its predict does not yield", 404)
    if spec.inputs is not None and [wanted.name for wanted in spec.inputs] != [MESSAGES]:
        names = ", ".join(wanted.name for wanted in spec.inputs)
        raise RequestError(
            f"model '{model}' answers no chat completions: it declares the inputs {names}, and not 'messages' alone",
            404,
        )


def text_of(outputs: Outputs) -> str:
    """Returns the text of one answer. Raises RequestError with status 500 if it is not one text."""
    tensors = list(outputs.values())
    if len(tensors) != 1 or tensors[0].datatype != BYTES or not isinstance(tensors[0].data, list):
        names = ", ".join(f"{name} ({tensor.datatype})" for name, tensor in outputs.items()) or "nothing"
        raise RequestError(f"predict yielded {names}; a chat completion needs one text in each answer", 500)
    try:
        return b"".join(tensors[0].data).decode()
    except UnicodeDecodeError:
        raise RequestError("predict yielded bytes that are not UTF-8", 500) from None


class _Completion:
    """The objects of one answer."""

    def __init__(self, model: str, is_stream: bool) -> None:
        kind = "chat.completion.chunk" if is_stream else "chat.completion"
        self._head = {
            "id": f"chatcmpl-{secrets.token_hex(12)}",
            "object": kind,
            "created": int(clock.wall()),
            "model": model,
        }
        self._is_first = True

    def piece(self, outputs: Outputs) -> bytes:
        """Returns the chunk of one answer."""
        delta = {"content": text_of(outputs)}
        if self._is_first:
            self._is_first = False
            delta = {"role": "assistant", **delta}
        return self._object("delta", delta, None)

    def end(self) -> bytes:
        """Returns the last chunk."""
        return self._object("delta", {}, "stop")

    def whole(self, text: str) -> bytes:
        """Returns the answer that is no stream."""
        return self._object("message", {"role": "assistant", "content": text}, "stop")

    def _object(self, key: str, value: dict[str, str], reason: str | None) -> bytes:
        choice: dict[str, Any] = {"index": 0, key: value, "finish_reason": reason}
        return protocol.dump({**self._head, "choices": [choice]})


def failure(status: int, message: str) -> bytes:
    """Returns OpenAI's error object."""
    kind = "invalid_request_error" if status < 500 else "server_error"
    code = "model_not_found" if status == 404 and "does not exist" in message else None
    return protocol.dump({"error": {"message": message, "type": kind, "param": None, "code": code}})
