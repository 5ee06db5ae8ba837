"""The embeddings example: texts as BERT reads them; the model itself where its package is installed."""

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

EXAMPLE = Path(__file__).resolve().parents[3] / "examples" / "embeddings"
VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "low", "##er", "tide", "the", ",", "cafe", "水", "1", "##2"]


@pytest.fixture
def example() -> Iterator[Any]:
    """Imports a file of the example."""
    before = set(sys.modules)
    sys.path.insert(0, str(EXAMPLE))
    yield importlib.import_module
    sys.path.remove(str(EXAMPLE))
    for name in set(sys.modules) & {"wordpiece", "minilm", "handler"} - before:
        del sys.modules[name]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("The  TIDE,\tlower\n", ["the", "tide", ",", "lower"]),
        ("Café\u0301 \u200bx\u00a0y", ["cafe", "x", "y"]),
        ("水の1", ["水", "の1"]),
        ("“low”—tide", ["“", "low", "”", "—", "tide"]),
        ("\x00\ufffd", []),
    ],
)
def test_words_and_marks_apart(example: Any, text: str, words: list[str]) -> None:
    assert list(example("wordpiece").words(text)) == words


def test_words_in_pieces(example: Any) -> None:
    reader = example("wordpiece").WordPiece(VOCABULARY)

    def read(text: str, most: int = 16) -> list[str]:
        return [VOCABULARY[number] for number in reader.encode(text, most)]

    assert read("lower tide") == ["[CLS]", "low", "##er", "tide", "[SEP]"]
    assert read("lows 12") == ["[CLS]", "[UNK]", "1", "##2", "[SEP]"]
    assert read("") == ["[CLS]", "[SEP]"]
    assert read("the " * 50, 4) == ["[CLS]", "the", "the", "[SEP]"]
    assert read("t" * 101) == ["[CLS]", "[UNK]", "[SEP]"]


def test_of_a_long_text_only_its_beginning_is_read(example: Any) -> None:
    module = example("wordpiece")

    class Text(str):
        """Tells of which parts it was asked for."""

        __slots__ = ()

        def __iter__(self) -> Iterator[str]:
            raise AssertionError("all of it is read")

    reader = module.WordPiece(VOCABULARY)
    assert reader.encode(Text("the " * 10_000), 4) == reader.encode("the the", 4)


@pytest.mark.needs(tool="embeddings")
def test_the_vectors_are_the_published_ones(example: Any) -> None:
    """Similarities of three sentences, from the model's documentation (sbert.net, quickstart)."""
    embedder = example("handler").Embedder()
    embedder.load()
    texts = ["The weather is lovely today.", "It's so sunny outside!", "He drove to the stadium."]
    answer = embedder.predict({"text": [text.encode() for text in texts]})
    vectors = answer["embedding"]
    similar = (vectors @ vectors.T).round(4).tolist()
    assert similar[0] == pytest.approx([1.0, 0.666, 0.1046], abs=2e-4)
    assert similar[1] == pytest.approx([0.666, 1.0, 0.1411], abs=2e-4)
    assert list(answer["tokens"]) == [8, 9, 8]
