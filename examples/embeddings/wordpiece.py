"""How BERT models read text: lower case without accents, words and marks apart, words in pieces of a vocabulary.

Written from the description in Devlin et al., "BERT" (2019), section 3, and its published vocabulary: a word is cut
into the longest pieces that the vocabulary has, from the left; all but the first are written ``##piece``.
"""

import unicodedata
from collections.abc import Iterable, Iterator
from pathlib import Path

MOST_LETTERS = 100
"""A longer word is unknown as a whole."""
_IDEOGRAPHS = (
    (0x4E00, 0x9FFF), (0x3400, 0x4DBF), (0x20000, 0x2A6DF), (0x2A700, 0x2B73F), (0x2B740, 0x2B81F), (0x2B820, 0x2CEAF),
    (0xF900, 0xFAFF), (0x2F800, 0x2FA1F),
)  # fmt: skip
"""Blocks of Chinese characters, each of which is a word of its own."""
_CONTROLS = frozenset({"Cc", "Cf", "Co", "Cs"})
_ASCII_MARKS = frozenset("!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~")


class WordPiece:
    """A vocabulary, and texts as numbers in it."""

    def __init__(self, words: Iterable[str]) -> None:
        self._numbers = {word: number for number, word in enumerate(words)}
        self._unknown = self._numbers["[UNK]"]
        self._begin, self._end = self._numbers["[CLS]"], self._numbers["[SEP]"]

    @classmethod
    def read(cls, file: Path) -> "WordPiece":
        """A vocabulary with one word a line."""
        return cls(file.read_text(encoding="utf-8").splitlines())

    def encode(self, text: str, most: int) -> list[int]:
        """The numbers of a text with its first and last mark, at most ``most`` together; the rest is cut off."""
        read = text[: most * MOST_LETTERS]  # the rest of a book costs nothing
        pieces = [piece for word in words(read) for piece in self._pieces(word)]
        return [self._begin, *pieces[: most - 2], self._end]

    def _pieces(self, word: str) -> list[int]:
        if len(word) > MOST_LETTERS:
            return [self._unknown]
        found, start = [], 0
        while start < len(word):
            for end in range(len(word), start, -1):
                number = self._numbers.get(("##" if start else "") + word[start:end])
                if number is not None:
                    break
            else:
                return [self._unknown]
            found.append(number)
            start = end
        return found


def words(text: str) -> Iterator[str]:
    """Words and marks, in lower case and without accents."""
    plain = "".join(_spaced(letter) for letter in text)
    stripped = (
        letter for letter in unicodedata.normalize("NFD", plain.lower()) if unicodedata.category(letter) != "Mn"
    )
    apart = "".join(f" {letter} " if _is_mark(letter) else letter for letter in stripped)
    yield from apart.split()


def _spaced(letter: str) -> str:
    """A letter as it is read: controls are nothing, white space is a blank, ideographs stand alone."""
    code = ord(letter)
    if letter in "\t\n\r":
        return " "
    if code in (0, 0xFFFD) or unicodedata.category(letter) in _CONTROLS:
        return ""
    if unicodedata.category(letter) == "Zs":
        return " "
    return f" {letter} " if any(low <= code <= high for low, high in _IDEOGRAPHS) else letter


def _is_mark(letter: str) -> bool:
    return letter in _ASCII_MARKS or unicodedata.category(letter).startswith("P")
