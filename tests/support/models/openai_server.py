"""A scripted model server with OpenAI's and Anthropic's API: ``python openai_server.py PORT [LOAD_S]``.

A request's own members define its answer: ``max_tokens`` words (5 by default), ``gap_ms`` between two events of a
stream, ``wait_ms`` before its first byte, ``die_after`` a number of events, ``fail`` with this status, ``think`` a
number of words before. Usage counts words; ``usage: false`` leaves it out. It listens ``LOAD_S`` seconds after start.

Environment. Before it listens it also waits for a file ``LOAD_UNTIL``. ``JOURNAL`` is a file with a line ``begun PATH``
or ``ended PATH`` for each request. Chat calls cost ``US_PER_WORD`` for each word of the answer and for each word of the
prompt that is not cached. The cache keeps ``CACHE_BLOCKS`` blocks of 16 words, apart for each model; the least recently
used are dropped. With it, usage reports the cached words. A model that is not among the last ``ADAPTERS`` (8) models is
loaded, which is counted. The fields ``x-replica`` and ``x-loads`` of the answer are the process and the number of its
loads.

It uses aiohttp, unlike ``scripted_server.py``: documents, forms and WebSockets matter here, not speed or a fast start.
"""

import asyncio
import base64
import json
import os
import struct
import sys
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

from aiohttp import web

WORDS = 5
BLOCK_WORDS = 16
REPLICA = str(os.getpid())
Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]


def note(line: str) -> None:
    path = os.environ.get("JOURNAL")
    if path:
        with Path(path).open("a", encoding="utf-8") as lines:
            lines.write(line + "\n")


class Scripted(Exception):
    """The request wants to fail like this."""

    def __init__(self, status: int, document: dict[str, Any]) -> None:
        super().__init__(status)
        self.answer = web.json_response(document, status=status)


@web.middleware
async def journal(request: web.Request, handler: Answer) -> web.StreamResponse:
    note(f"begun {request.path}")
    try:
        return await handler(request)
    except Scripted as scripted:
        return scripted.answer
    finally:
        note(f"ended {request.path}")


def words_of(document: dict[str, Any]) -> list[str]:
    count = document.get("max_tokens") or document.get("max_completion_tokens") or WORDS
    return [f"w{number} " for number in range(count)]


def prompt_words(document: dict[str, Any]) -> int:
    text = json.dumps(document.get("messages") or document.get("prompt") or document.get("input") or "")
    return len(text.split())


def usage(document: dict[str, Any]) -> dict[str, int] | None:
    if document.get("usage") is False:
        return None
    prompt, completion = prompt_words(document), len(words_of(document))
    return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}


async def read(request: web.Request) -> dict[str, Any]:
    document: dict[str, Any] = await request.json()
    await asyncio.sleep(document.get("wait_ms", 0) / 1000)
    if document.get("fail"):
        error = {"message": "as the script says", "type": "invalid_request_error", "param": None, "code": "scripted"}
        raise Scripted(int(document["fail"]), {"error": error})
    return document


async def stream(request: web.Request, document: dict[str, Any], events: AsyncIterator[bytes]) -> web.StreamResponse:
    response = web.StreamResponse(headers={"content-type": "text/event-stream; charset=utf-8"})
    await response.prepare(request)
    sent = 0
    async for event in events:
        if document.get("die_after") == sent and request.transport is not None:
            request.transport.abort()
            return response
        await response.write(event)
        sent += 1
        await asyncio.sleep(document.get("gap_ms", 0) / 1000)
    return response


def data(document: Any) -> bytes:
    return b"data: " + json.dumps(document).encode() + b"\n\n"


def named(kind: str, **members: Any) -> bytes:
    return f"event: {kind}\n".encode() + data({"type": kind, **members})


# --- cost of a prompt ------------------------------------------------------------------------------------------------


class PrefixCache:
    """Beginnings of prompts by model, and the models that are loaded."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self.is_reported = "CACHE_BLOCKS" in environment
        self.loads = 0
        self._max_blocks = int(environment.get("CACHE_BLOCKS", "0"))
        self._s_per_word = float(environment.get("US_PER_WORD", "0")) / 1e6
        self._max_models = int(environment.get("ADAPTERS", "8"))
        self._blocks: OrderedDict[int, None] = OrderedDict()
        self._models: OrderedDict[str, None] = OrderedDict()

    async def pay(self, document: dict[str, Any]) -> int:
        """Takes the time of a chat call. Returns the words of its prompt that were cached."""
        if not (self._max_blocks or self._s_per_word):
            return 0
        self._load(document["model"])
        words = json.dumps(document["messages"]).split()
        cached = self._take(document["model"], words)
        seconds = self._s_per_word * (len(words) - cached + len(words_of(document)))
        if seconds:
            await asyncio.sleep(seconds)
        return cached

    def _load(self, model: str) -> None:
        if model not in self._models:
            self.loads += 1
        self._models[model] = None
        self._models.move_to_end(model)
        while len(self._models) > self._max_models:
            self._models.popitem(last=False)

    def _take(self, model: str, words: list[str]) -> int:
        """Returns the words of the prompt that are cached. All of it is, afterwards."""
        points, point = [], hash(model)
        for end in range(BLOCK_WORDS, len(words) + 1, BLOCK_WORDS):
            point = hash((point, *words[end - BLOCK_WORDS : end]))
            points.append(point)
        hits = 0
        while hits < len(points) and points[hits] in self._blocks:
            hits += 1
        for point in reversed(points):
            self._blocks[point] = None
            self._blocks.move_to_end(point)
        while len(self._blocks) > self._max_blocks:
            self._blocks.popitem(last=False)
        return hits * BLOCK_WORDS


CACHE = web.AppKey("CACHE", PrefixCache)


# --- OpenAI ----------------------------------------------------------------------------------------------------------


async def chat(request: web.Request) -> web.StreamResponse:
    document = await read(request)
    cache = request.app[CACHE]
    cached = await cache.pay(document)
    base = {"id": "chatcmpl-1", "created": int(time.time()), "model": document["model"]}
    if document.get("stream"):
        return await stream(request, document, chat_events(document, base | {"object": "chat.completion.chunk"}))
    message = {"role": "assistant", "content": "".join(words_of(document))}
    used: dict[str, Any] | None = usage(document)
    if used is not None and cache.is_reported:
        used["prompt_tokens_details"] = {"cached_tokens": cached}
    answer = base | {"object": "chat.completion", "usage": used}
    answer |= {"choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}
    return web.json_response(answer, headers={"x-replica": REPLICA, "x-loads": str(cache.loads)})


async def chat_events(document: dict[str, Any], base: dict[str, Any]) -> AsyncIterator[bytes]:
    yield data(base | {"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]})
    for _ in range(document.get("think", 0)):
        yield data(base | {"choices": [{"index": 0, "delta": {"reasoning": "hm "}, "finish_reason": None}]})
    for word in words_of(document):
        yield data(base | {"choices": [{"index": 0, "delta": {"content": word}, "finish_reason": None}]})
    yield data(base | {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
    if (document.get("stream_options") or {}).get("include_usage"):
        yield data(base | {"choices": [], "usage": usage(document)})
    yield b"data: [DONE]\n\n"


async def completions(request: web.Request) -> web.StreamResponse:
    document = await read(request)
    base = {"id": "cmpl-1", "object": "text_completion", "created": int(time.time()), "model": document["model"]}

    async def events() -> AsyncIterator[bytes]:
        for word in words_of(document):
            yield data(base | {"choices": [{"index": 0, "text": word, "finish_reason": None}]})
        yield b"data: [DONE]\n\n"

    if document.get("stream"):
        return await stream(request, document, events())
    choice = {"index": 0, "text": "".join(words_of(document)), "finish_reason": "stop", "logprobs": None}
    return web.json_response(base | {"choices": [choice], "usage": usage(document)})


async def responses(request: web.Request) -> web.StreamResponse:
    """Events of the Responses API; the tools that a caller names are repeated, with all that is in them."""
    document = await read(request)
    base = {"id": "resp_1", "object": "response", "created_at": 1, "model": document["model"], "output": []}
    base |= {"parallel_tool_calls": True, "tool_choice": "auto", "tools": document.get("tools", [])}
    words = ["w "] * (document.get("max_output_tokens") or WORDS)
    used = {"input_tokens": prompt_words(document), "output_tokens": len(words), "total_tokens": 0}

    async def events() -> AsyncIterator[bytes]:
        yield named("response.created", sequence_number=0, response=base | {"status": "in_progress"})
        place = {"item_id": "m", "output_index": 0, "content_index": 0, "logprobs": []}
        for at, word in enumerate(words, 1):
            yield named("response.output_text.delta", sequence_number=at, delta=word, **place)
        yield named("response.output_text.done", sequence_number=len(words) + 1, text="".join(words), **place)
        end = base | {"status": "completed", "usage": used}
        yield named("response.completed", sequence_number=len(words) + 2, response=end)

    return await stream(request, document, events())


async def embeddings(request: web.Request) -> web.StreamResponse:
    """Each text's length and number of words."""
    document = await read(request)
    texts = [document["input"]] if isinstance(document["input"], str) else document["input"]
    vectors = [[float(len(text)), float(len(str(text).split()))] for text in texts]
    if document.get("encoding_format") == "base64":
        written: list[Any] = [base64.b64encode(struct.pack("<2f", *vector)).decode() for vector in vectors]
    else:
        written = vectors
    found = [{"object": "embedding", "index": at, "embedding": each} for at, each in enumerate(written)]
    count = prompt_words(document)
    answer = {"object": "list", "model": document["model"], "data": found}
    return web.json_response(answer | {"usage": {"prompt_tokens": count, "total_tokens": count}})


async def models(request: web.Request) -> web.Response:
    one = {"id": "scripted", "object": "model", "created": 1, "owned_by": "the script"}
    return web.json_response({"object": "list", "data": [one]})


async def transcriptions(request: web.Request) -> web.Response:
    form = await request.post()
    file = form["file"]
    assert isinstance(file, web.FileField)
    model = str(form["model"])
    return web.json_response({"text": f"{model} heard {len(file.file.read())} bytes of {file.filename}"})


# --- Anthropic -------------------------------------------------------------------------------------------------------


async def messages(request: web.Request) -> web.StreamResponse:
    document = await read(request)
    figures = usage(document) or {"prompt_tokens": 0, "completion_tokens": 0}
    used = {"input_tokens": figures["prompt_tokens"], "output_tokens": figures["completion_tokens"]}
    base = {"id": "msg_1", "type": "message", "role": "assistant", "model": document["model"]}
    if document.get("stream"):
        return await stream(request, document, message_events(document, base, used))
    content = [{"type": "text", "text": "".join(words_of(document))}]
    return web.json_response(base | {"content": content, "stop_reason": "end_turn", "usage": used})


async def message_events(document: dict[str, Any], base: dict[str, Any], used: dict[str, int]) -> AsyncIterator[bytes]:
    start = base | {"content": [], "usage": {"input_tokens": used["input_tokens"], "output_tokens": 1}}
    yield named("message_start", message=start)
    yield named("content_block_start", index=0, content_block={"type": "text", "text": ""})
    for word in words_of(document):
        yield named("content_block_delta", index=0, delta={"type": "text_delta", "text": word})
    yield named("content_block_stop", index=0)
    end = {"stop_reason": "end_turn", "stop_sequence": None}
    yield named("message_delta", delta=end, usage={"output_tokens": used["output_tokens"]})
    yield named("message_stop")


# --- whatever else ---------------------------------------------------------------------------------------------------


async def other(request: web.Request) -> web.Response:
    body = await request.read()
    return web.json_response({"method": request.method, "path": request.path, "size": len(body)})


async def realtime(request: web.Request) -> web.WebSocketResponse:
    socket = web.WebSocketResponse()
    await socket.prepare(request)
    async for message in socket:
        await socket.send_json({"model": request.query["model"], "heard": message.data})
    return socket


async def health(request: web.Request) -> web.Response:
    return web.Response()


def main() -> None:
    port, load_s = int(sys.argv[1]), float(sys.argv[2]) if len(sys.argv) > 2 else 0.0
    time.sleep(load_s)
    while (file := os.environ.get("LOAD_UNTIL")) and not Path(file).exists():
        time.sleep(0.01)
    app = web.Application(client_max_size=1 << 28, middlewares=[journal])
    app[CACHE] = PrefixCache(os.environ)
    app.router.add_get("/health", health)
    app.router.add_get("/v1/models", models)
    app.router.add_post("/v1/chat/completions", chat)
    app.router.add_post("/v1/completions", completions)
    app.router.add_post("/v1/responses", responses)
    app.router.add_post("/v1/embeddings", embeddings)
    app.router.add_post("/v1/audio/transcriptions", transcriptions)
    app.router.add_post("/v1/messages", messages)
    app.router.add_get("/v1/realtime", realtime)
    app.router.add_route("*", "/{path:.*}", other)
    web.run_app(app, host="127.0.0.1", port=port, print=lambda *_: None, handler_cancellation=True)


if __name__ == "__main__":
    main()
