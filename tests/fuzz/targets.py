"""The fuzz targets by name, and their initial inputs."""

from collections.abc import Callable
from pathlib import Path

from tests.fuzz.bodies import bodies, forms, streams
from tests.fuzz.driver import driver
from tests.fuzz.engines import answers, chunks, requests
from tests.fuzz.expositions import NEXT, expositions
from tests.fuzz.messages import calls, message_seeds, messages
from tests.support.http.hostile import ANSWERS, CORPUS, OWN, load, raw_bytes
from tidegate.runtime.metrics import RuntimeCounters

Target = Callable[[bytes], None]

TARGETS: dict[str, Target] = {
    "requests": requests,
    "answers": answers,
    "chunks": chunks,
    "driver": driver,
    "expositions": expositions,
    "bodies": bodies,
    "forms": forms,
    "streams": streams,
    "messages": messages,
    "calls": calls,
}
TEXTS = Path(__file__).resolve().parent.parent / "queue_proxy" / "expositions"
SEED_BYTES = 4000
BODIES = {
    "bodies": [
        b'{"model":"a","messages":[{"role":"user","content":"\\"model\\": [\\\\"}],"stream":true,"input":["a",[1]]}',
        b'{"mod\\u0065l" : "b" , "user" : 1.5e3 , "x" : {"model":"c"} , "model" : "d" }',
    ],
    "forms": [
        b'--b\r\nContent-Disposition: form-data; name="model"\r\n\r\nw\r\n'
        b'--b\r\nContent-Disposition: form-data; name="file"; filename="f"\r\nX: y\r\n\r\n\r\n--\r\n--b--\r\n'
    ],
    "streams": [b': hi\r\n\r\nevent: a\ndata: {"usage":{"prompt_tokens":3}}\n\ndata: x\rdata:y\r\rdata: [DONE]\n\n'],
}
"""Initial inputs of the targets in ``tests.fuzz.bodies``, behind four bytes that state the split."""


def seeds(name: str) -> list[bytes]:
    """Returns inputs from the golden vectors; the target reads its decisions from the front of each."""
    if name == "expositions":
        texts = [path.read_bytes() for path in sorted(TEXTS.iterdir())]
        return [*texts, RuntimeCounters(success=3, inferences=9, executions=2).render("m", 1, 8), NEXT.join(texts)]
    if name in ("messages", "calls"):
        return message_seeds(with_choice=name == "messages")
    if name in BODIES:
        return [b"\3\1\2\5" + text for text in BODIES[name]]
    sent = [raw for file in (CORPUS, OWN) for case in load(file) if len(raw := raw_bytes(case)) <= SEED_BYTES]
    if name == "requests":
        return [b"\0" + raw for raw in sent] + [b"\3\1\2\5" + raw for raw in sent]
    if name == "chunks":
        return [b"\0" + raw.partition(b"\r\n\r\n")[2] for raw in sent if b"chunked" in raw]
    if name == "answers":
        said = ["".join(step[0] for step in case["answer"]) for case in load(ANSWERS)]
        return [decisions + text.encode("latin-1") for text in said for decisions in (b"\0\0\0", b"\0\1\0", b"\1\0\0")]
    return [
        b"\0\0\1\1\0\0\1\13\1\1\6\0\0\1",  # a request, a connection, an answer
        b"\0\0\1\1\0\2\0\1\13\1\1\6\0\1\1\6\0\2\1\6\0\3\1",
        b"\0\0\1\1\0\4\0\1\13\1\1\1\0\5\1\1\0\6\1\6\0\0\1",
        b"\0\0\1\1\0\7\0\1\13\1\1\6\0\10\1\1\0\11\1\6\0\2\1",
        b"\0\0\1\1\0\0\0\1\13\1\1\5\0\0\1",
        b"\0\0\1\1\0\13\0\1\1\0\12\1\13\1\1\1\0\12\1\6\0\0\1",
        # An unasked answer takes a request off a connection before it was written there.
        b"\xb8\xc3\x8a\xe7s\xdd\xf4g\xe4M\xfaT\xe8",
    ]
