"""Cost of looking into the bodies of OpenAI's calls.

Prints one JSON line: microseconds per request body (300 B, 4 KB, 100 KB of chat, compact and with spaces), at once, in
one piece and in pieces of 16 KB, with ``json.loads`` beside it; per event of a stream and per answer for usage, and
for tokens with their times; per upload for a form; per prompt for its script, for hashing and choosing by prefix.

    python -m benchmarks.micro.openai_bench
"""

import json
import platform
import random
from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter

from tidegate.activator.choice import place_of
from tidegate.activator.prefixes import PrefixIndex, block_hashes
from tidegate.gateway.counting.token_metrics import Operation, TokenCounters
from tidegate.gateway.counting.tokens import FunctionTokens, Prompt, Tokens
from tidegate.wire.bodies.multipart import FormScan
from tidegate.wire.bodies.openai import RequestReader, UsageFinder, read_request
from tidegate.wire.bodies.sse import EventStream
from tidegate.wire.bodies.tokens import script
from tidegate.wire.http1.client import H1Client
from tidegate.wire.http1.response_head import ResponseHead

ROUNDS = 7
ROUND_S = 0.03
PIECE = 16384


@dataclass(eq=False)
class Server:
    id: str
    free: int = 8
    in_flight: int = 0
    ready: bool = True

    def __post_init__(self) -> None:
        self.place = place_of(self.id)

    def fits(self, inferences: int) -> bool:
        return True


def best_us(run: Callable[[], object]) -> float:
    """Microseconds per call, the best of some rounds."""
    began = perf_counter()
    run()
    calls = max(1, int(ROUND_S / max(1e-7, perf_counter() - began)))
    best = float("inf")
    for _ in range(ROUNDS):
        began = perf_counter()
        for _ in range(calls):
            run()
        best = min(best, perf_counter() - began)
    return round(best / calls * 1e6, 2)


def chat(messages: int, words: int, separators: tuple[str, str]) -> bytes:
    """A chat whose turns have line breaks and quotes, with the members that clients send."""
    rng = random.Random(1)

    def text() -> str:
        return " ".join("".join(rng.choices("abcdefghij", k=rng.randrange(2, 8))) for _ in range(words)) + '\n"so"'

    body = {
        "messages": [{"role": "user", "content": text()} for _ in range(messages)],
        "model": "llama-3-8b",
        "stream": True,
        "stream_options": {"include_usage": True},
        "max_tokens": 256,
        "temperature": 0.7,
        "user": "u-1",
    }
    return json.dumps(body, separators=separators).encode()


def in_pieces(body: bytes, size: int) -> Callable[[], object]:
    pieces = [body[at : at + size] for at in range(0, len(body), size)]

    def run() -> object:
        reader = RequestReader()
        for piece in pieces:
            reader.feed(piece)
        return reader.end()

    return run


def bodies() -> dict[str, float]:
    """Requests."""
    found = {}
    for name, messages, words in (("300B", 1, 22), ("4KB", 5, 140), ("100KB", 100, 170), ("100KB_one", 1, 17_500)):
        body = chat(messages, words, (",", ":"))
        spaced = chat(messages, words, (", ", ": "))
        found[f"{name}_read"] = best_us(lambda body=body: read_request(body))  # type: ignore[misc]
        found[f"{name}_spaced_read"] = best_us(lambda body=spaced: read_request(body))  # type: ignore[misc]
        found[f"{name}_one_piece"] = best_us(in_pieces(body, len(body)))
        found[f"{name}_16KB_pieces"] = best_us(in_pieces(body, PIECE))
        found[f"{name}_json_loads"] = best_us(lambda body=body: json.loads(body))  # type: ignore[misc]
    return found


def answers() -> dict[str, float]:
    """Streams and answers."""
    event = b'data: {"id":"c","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,"delta":'
    event += b'{"content":" word"},"logprobs":null,"finish_reason":null}]}\n\n'
    stream, finder = EventStream(), UsageFinder()
    answer = json.dumps({"choices": [{"message": {"content": "word " * 400}}], "usage": {"prompt_tokens": 9}}).encode()

    def whole() -> object:
        usage = UsageFinder()
        usage.feed(answer)
        return usage.usage()

    return {
        "event": best_us(lambda: stream.feed(event)),
        "event_usage": best_us(lambda: finder.feed(event)),
        "answer_2KB_usage": best_us(whole),
    }


def tokens() -> dict[str, float]:
    """Cost of the gateway's token counter per event: alone in its piece, with a usage that is null, one of sixteen; and
    of one with a name, as Anthropic's have."""
    front = b'data: {"id":"c","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,"delta":'
    event = front + b'{"content":" word"},"logprobs":null,"finish_reason":null}]}\n\n'
    null = event[:-3] + b',"usage":null}\n\n'
    many = event * 16
    named = b'event: content_block_delta\ndata: {"type":"content_block_delta","index":0,"delta":{"type":"text_delta",'
    named += b'"text":" word"}}\n\n'
    many_named = named * 16
    engine = H1Client()
    engine.request(b"POST")
    head = engine.receive(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
    assert isinstance(head, ResponseHead)
    ear = Tokens(Operation.CHAT, "m", Prompt(400), FunctionTokens(), TokenCounters(), perf_counter).answering(head)
    assert ear is not None
    english, chinese = b"the quick brown fox " * 205, "\u654f\u6377\u7684\u68d5".encode() * 342
    return {
        "event_tokens": best_us(lambda: ear(event)),
        "event_tokens_null_usage": best_us(lambda: ear(null)),
        "event_tokens_of_16": round(best_us(lambda: ear(many)) / 16, 2),
        "event_tokens_named": best_us(lambda: ear(named)),
        "event_tokens_named_of_16": round(best_us(lambda: ear(many_named)) / 16, 2),
        "script_plain": best_us(lambda: script(english)),
        "script_wide": best_us(lambda: script(chinese)),
    }


def form() -> float:
    """A sound of 1 MB in pieces of 64 KB."""
    disposition = b'--b\r\nContent-Disposition: form-data; name="%b"%b\r\n\r\n%b\r\n'
    sound = random.Random(1).randbytes(1 << 20)
    body = (
        disposition % (b"file", b'; filename="a.wav"', sound) + disposition % (b"model", b"", b"whisper") + b"--b--\r\n"
    )
    pieces = [body[at : at + 65536] for at in range(0, len(body), 65536)]

    def run() -> object:
        scan = FormScan(b"b", ("model",))
        for piece in pieces:
            scan.feed(piece)
        return scan.end()

    return best_us(run)


def prefixes() -> dict[str, float]:
    """Hashing and choosing among eight replicas, for 1 KB and 16 KB of prompt that one of them knows."""
    found = {}
    group = [Server(f"r{number}") for number in range(8)]
    for name, size in (("1KB", 1024), ("16KB", 16384)):
        index: PrefixIndex[Server] = PrefixIndex()
        text = random.Random(1).randbytes(size)
        hashes = block_hashes(text)
        index.record(group[3], hashes)
        found[f"prefix_hash_{name}"] = best_us(lambda text=text: block_hashes(text))  # type: ignore[misc]
        found[f"prefix_choose_{name}"] = best_us(lambda index=index, hashes=hashes: index.choose(group, hashes, 1))  # type: ignore[misc]
        found[f"prefix_record_{name}"] = best_us(lambda index=index, hashes=hashes: index.record(group[3], hashes))  # type: ignore[misc]
    return found


def main() -> None:
    figures = bodies() | answers() | tokens() | {"form_1MB": form()} | prefixes()
    print(json.dumps({"benchmark": "openai", "python": platform.python_version(), "us": figures}))


if __name__ == "__main__":
    main()
