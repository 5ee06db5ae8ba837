"""OpenAI's ``/v1/embeddings`` for models that map texts to vectors. Pure.

A model qualifies if it takes a single tensor of texts (``BYTES``, one dimension) and returns ``FP32`` vectors, one per
text. A second output of whole numbers, ``tokens``, gives the tokens of each text: the answer's ``usage``.

Request: ``input`` (a text or a list of texts), ``model``, ``encoding_format`` (``float`` or ``base64``: little-endian
FP32), ``dimensions`` (only the model's own), ``user`` (ignored). Other members are ignored, as OpenAI's clients expect.
"""

import base64
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from tidegate.runtime.errors import RequestError
from tidegate.runtime.protocols import v2 as protocol
from tidegate.runtime.protocols.tensors import BYTES, Tensor
from tidegate.runtime.protocols.v2 import InferRequest, ModelSpec

MAX_TEXTS: Final = 2048
"""Most texts in one request, as in OpenAI's API."""
TOKENS: Final = "tokens"
_NUMBER_BYTES: Final = 4
_WHOLE: Final = frozenset({"INT32", "INT64", "UINT32", "UINT64"})
_FORMATS: Final = ("float", "base64")


@dataclass(frozen=True, slots=True)
class EmbeddingsRequest:
    """One valid request for embeddings."""

    model: str
    texts: list[bytes]
    as_base64: bool
    dimensions: int | None


@dataclass(frozen=True, slots=True)
class Embedder:
    """The tensors of a model that makes embeddings."""

    input: str
    output: str
    size: int
    """Numbers in a vector; -1 is any."""

    def parts(self, request: EmbeddingsRequest, max_texts: int | None) -> list[InferRequest]:
        """Splits a request into runs of at most ``max_texts`` texts (None is no bound). Raises RequestError for a
        vector size that the model does not make."""
        if request.dimensions is not None and request.dimensions != self.size:
            size = f"{self.size} numbers" if self.size > 0 else "a size of its own"
            raise RequestError(
                f"'dimensions' is {request.dimensions}; this model's vectors have {size}, which is fixed"
            )
        step = max_texts or len(request.texts)
        pieces = [request.texts[at : at + step] for at in range(0, len(request.texts), step)]
        return [InferRequest([Tensor(self.input, BYTES, (len(piece),), piece)]) for piece in pieces]

    def answer(self, request: EmbeddingsRequest, parts: Sequence[Mapping[str, Tensor]]) -> dict[str, Any]:
        """Returns the answer's document from the outputs of all parts. Raises RequestError if the model did not return
        a vector per text."""
        rows = [row for part in parts for row in _rows(part[self.output])]
        if len(rows) != len(request.texts):
            raise RequestError(f"the model made {len(rows)} vectors of {len(request.texts)} texts", 500)
        data = [
            {"object": "embedding", "index": at, "embedding": _base64(row) if request.as_base64 else _numbers(row)}
            for at, row in enumerate(rows)
        ]
        answer: dict[str, Any] = {"object": "list", "data": data, "model": request.model}
        counts = [count for part in parts if (count := _sum(part.get(TOKENS))) is not None]
        if len(counts) == len(parts):
            answer["usage"] = {"prompt_tokens": sum(counts), "total_tokens": sum(counts)}
        return answer


def embedder(spec: ModelSpec) -> Embedder | None:
    """Returns how a model makes embeddings. Returns None if it makes none."""
    inputs, outputs = spec.inputs or (), spec.outputs or ()
    vectors = [each for each in outputs if each.datatype == "FP32" and len(each.shape) == 2]
    if len(inputs) != 1 or inputs[0].datatype != BYTES or len(inputs[0].shape) != 1 or len(vectors) != 1:
        return None
    return Embedder(inputs[0].name, vectors[0].name, vectors[0].shape[1])


def parse(body: bytes) -> EmbeddingsRequest:
    """Returns the request in ``body``. Raises RequestError."""
    document = protocol.load_object(body)
    model = document.get("model")
    if not isinstance(model, str):
        raise RequestError("'model' must be a string")
    form = document.get("encoding_format") or "float"
    if form not in _FORMATS:
        raise RequestError(f"'encoding_format' must be one of {', '.join(_FORMATS)}")
    dimensions = document.get("dimensions")
    if dimensions is not None and (not isinstance(dimensions, int) or isinstance(dimensions, bool) or dimensions < 1):
        raise RequestError("'dimensions' must be a whole number, 1 or more")
    return EmbeddingsRequest(model, _texts(document.get("input")), form == "base64", dimensions)


def _texts(given: object) -> list[bytes]:
    texts = [given] if isinstance(given, str) else given
    if not isinstance(texts, list) or not texts:
        raise RequestError("'input' must be a text, or a list with at least one text")
    if len(texts) > MAX_TEXTS:
        raise RequestError(f"'input' has {len(texts)} texts; {MAX_TEXTS} at most")
    if not all(isinstance(text, str) for text in texts):
        raise RequestError("'input' must be texts: this model counts its tokens by its own words, not by numbers")
    if not all(texts):
        raise RequestError("'input' has an empty text")
    try:
        return [text.encode() for text in texts]
    except UnicodeEncodeError:
        raise RequestError("'input' has half a surrogate pair, which is no text") from None


def _rows(vectors: Tensor) -> list[bytes]:
    raw = vectors.data
    if vectors.datatype != "FP32" or len(vectors.shape) != 2 or isinstance(raw, list):
        raise RequestError(f"the model made {vectors!r}, not a vector of FP32 for each text", 500)
    width = vectors.shape[1] * _NUMBER_BYTES
    return [bytes(raw[at : at + width]) for at in range(0, vectors.shape[0] * width, max(1, width))]


def _numbers(row: bytes) -> list[float]:
    """Returns the numbers with nine digits, which distinguish every FP32."""
    return [float(f"{number:.9g}") for number in array("f", row)]


def _base64(row: bytes) -> str:
    return base64.b64encode(row).decode()


def _sum(tokens: Tensor | None) -> int | None:
    if tokens is None or tokens.datatype not in _WHOLE or isinstance(tokens.data, list):
        return None
    size = len(bytes(tokens.data)) // max(1, tokens.count)
    return sum(
        int.from_bytes(tokens.data[at : at + size], "little", signed=True) for at in range(0, tokens.count * size, size)
    )
