"""A scripted model server with a prefix cache: ``python prefix_server.py PORT``.

Chat calls cost time for each word of the prompt that its cache does not have and for each of the answer
(``US_PER_WORD``). The cache keeps ``CACHE_BLOCKS`` blocks of 16 words, those of each model apart; the least recently
used go first. A model that is not among the last ``ADAPTERS`` that it has served is loaded, which is counted. Usage
says what was cached; the fields ``x-replica`` and ``x-loads`` say who answered and how many models it has loaded.
"""

import asyncio
import json
import os
import sys
from collections import OrderedDict

from aiohttp import web

BLOCK_WORDS = 16
REPLICA = str(os.getpid())


class Cache:
    """Beginnings of prompts, by model."""

    def __init__(self, blocks: int) -> None:
        self._most = blocks
        self._blocks: OrderedDict[int, None] = OrderedDict()

    def take(self, model: str, words: list[str]) -> int:
        """Words of the prompt that are there; all of it is, afterwards."""
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
        while len(self._blocks) > self._most:
            self._blocks.popitem(last=False)
        return hits * BLOCK_WORDS


class Server:
    def __init__(self) -> None:
        self._cache = Cache(int(os.environ.get("CACHE_BLOCKS", "0")))
        self._s_per_word = float(os.environ.get("US_PER_WORD", "0")) / 1e6
        self._adapters: OrderedDict[str, None] = OrderedDict()
        self._most_adapters = int(os.environ.get("ADAPTERS", "8"))
        self._loads = 0

    def _load(self, model: str) -> None:
        if model not in self._adapters:
            self._loads += 1
        self._adapters[model] = None
        self._adapters.move_to_end(model)
        while len(self._adapters) > self._most_adapters:
            self._adapters.popitem(last=False)

    async def chat(self, request: web.Request) -> web.Response:
        document = await request.json()
        model = document["model"]
        self._load(model)
        words = json.dumps(document["messages"]).split()
        cached = self._cache.take(model, words)
        answer = [f"w{number}" for number in range(document.get("max_tokens", 5))]
        await asyncio.sleep(self._s_per_word * (len(words) - cached + len(answer)))
        usage = {
            "prompt_tokens": len(words),
            "completion_tokens": len(answer),
            "total_tokens": len(words) + len(answer),
            "prompt_tokens_details": {"cached_tokens": cached},
        }
        message = {"role": "assistant", "content": " ".join(answer)}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        return web.json_response(
            {"id": "chatcmpl-1", "object": "chat.completion", "model": model, "choices": [choice], "usage": usage},
            headers={"x-replica": REPLICA, "x-loads": str(self._loads)},
        )


async def ok(request: web.Request) -> web.Response:
    return web.Response()


def main() -> None:
    app = web.Application(client_max_size=1 << 26)
    app.router.add_post("/v1/chat/completions", Server().chat)
    app.router.add_get("/{path:.*}", ok)
    web.run_app(app, host="127.0.0.1", port=int(sys.argv[1]), print=lambda *_: None, handler_cancellation=True)


if __name__ == "__main__":
    main()
