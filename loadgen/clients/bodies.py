"""Request bodies of load clients: built once per size and reused."""

import json
import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from tidegate.wire.grpc.messages import MODEL_INFER_REQUEST

MAX_KEPT: Final = 64
"""Sizes whose body is cached."""
_FORMATS: Final = {
    "BOOL": "?",
    "INT8": "b",
    "INT16": "h",
    "INT32": "i",
    "INT64": "q",
    "UINT8": "B",
    "UINT16": "H",
    "UINT32": "I",
    "UINT64": "Q",
    "FP16": "e",
    "FP32": "f",
    "FP64": "d",
}
"""V2 datatypes with their format in :mod:`struct`; ``BYTES`` is handled separately."""
_WORD: Final = "load"


def v2_body(inferences: int) -> bytes:
    """Returns a V2 inference request whose first dimension is the number of inferences."""
    data = ",".join(["0.5"] * inferences)
    return f'{{"inputs":[{{"name":"x","shape":[{inferences},1],"datatype":"FP32","data":[{data}]}}]}}'.encode()


class Input(NamedTuple):
    """An input tensor as a model's metadata declares it; a size of -1 may be any."""

    name: str
    datatype: str
    shape: tuple[int, ...]

    def for_batch(self, batch: int) -> list[int]:
        """Returns the shape for a batch; sizes that may be any are 1. Raises ValueError if the first dimension is fixed
        to another number."""
        first, rest = (self.shape[0], self.shape[1:]) if self.shape else (1, ())
        if first not in (-1, batch):
            raise ValueError(f"the input {self.name} has the shape {list(self.shape)}: no batch of {batch}")
        return [batch if self.shape else 1, *(1 if size < 0 else size for size in rest)]


def inputs_of(metadata: Mapping[str, Any]) -> tuple[Input, ...]:
    """Returns the inputs in a V2 model's metadata. Raises ValueError if there are none that can be filled in."""
    found = []
    declared = metadata.get("inputs")
    for entry in declared if isinstance(declared, list) else ():
        shape = tuple(int(size) for size in entry.get("shape", ()))
        given = Input(str(entry.get("name", "")), str(entry.get("datatype", "")), shape)
        if given.datatype not in _FORMATS and given.datatype != "BYTES":
            raise ValueError(f"the input {given.name} has the unknown datatype {given.datatype!r}")
        found.append(given)
    if not found:
        raise ValueError("the model declares no inputs: give the body of a request with --body FILE")
    return tuple(found)


def v2_json(inputs: Sequence[Input], batch: int) -> bytes:
    """Returns a V2 REST request with ``batch`` inferences."""
    entries = []
    for each in inputs:
        shape = each.for_batch(batch)
        entries.append(
            {"name": each.name, "shape": shape, "datatype": each.datatype, "data": [_value(each)] * _size(shape)}
        )
    return json.dumps({"inputs": entries}, separators=(",", ":")).encode()


def v2_message(model: str, inputs: Sequence[Input], batch: int) -> bytes:
    """Returns a ModelInferRequest with ``batch`` inferences, its tensors as raw contents."""
    entries, raw = [], []
    for each in inputs:
        shape = each.for_batch(batch)
        entries.append({"name": each.name, "datatype": each.datatype, "shape": shape})
        raw.append(_packed(each) * _size(shape))
    return MODEL_INFER_REQUEST.encode({"model_name": model, "inputs": entries, "raw_input_contents": raw})


def embeddings(model: str, words: int) -> bytes:
    """Returns an OpenAI embeddings request with a text of ``words`` words."""
    return json.dumps({"model": model, "input": " ".join([_WORD] * words)}).encode()


def chat(model: str, prompt_words: int, most_tokens: int) -> bytes:
    """Returns a streaming request of OpenAI's chat API with ``prompt_words`` words and at most ``most_tokens`` tokens
    of answer."""
    return json.dumps(
        {
            "model": model,
            "messages": [{"role": "user", "content": " ".join([_WORD] * prompt_words)}],
            "max_tokens": most_tokens,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
    ).encode()


class Kept:
    """A cache of the first ``MAX_KEPT`` bodies, built by ``make``."""

    def __init__(self, make: Callable[..., bytes]) -> None:
        self._make = make
        self._bodies: dict[tuple[int, ...], bytes] = {}

    def __call__(self, *sizes: int) -> bytes:
        body = self._bodies.get(sizes)
        if body is None:
            body = self._make(*sizes)
            if len(self._bodies) < MAX_KEPT:
                self._bodies[sizes] = body
        return body


def _value(given: Input) -> float | int | bool | str:
    if given.datatype == "BYTES":
        return _WORD
    if given.datatype == "BOOL":
        return True
    return 0.5 if given.datatype.startswith("FP") else 1


def _packed(given: Input) -> bytes:
    if given.datatype == "BYTES":
        return struct.pack("<I", len(_WORD)) + _WORD.encode()
    return struct.pack("<" + _FORMATS[given.datatype], _value(given))


def _size(shape: Sequence[int]) -> int:
    size = 1
    for each in shape:
        size *= each
    return size
