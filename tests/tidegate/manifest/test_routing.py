"""Values of ``hash-on``, each of which the gateway reads."""

import pytest

from tidegate.gateway.routing.affinity import FROM_BODY, hash_key
from tidegate.manifest.routing import HashOn
from tidegate.schema.units import UnreadableError

WORDS = ("client", "session", "prompt", "prefix", "model")


@pytest.mark.parametrize("text", [*WORDS, "header:X-User", "cookie:Sid"])
def test_what_may_be_written_is_read(text: str) -> None:
    read = HashOn().read(text)
    assert read == (text.lower() if text.startswith("header:") else text)
    assert callable(hash_key(read)) and callable(hash_key(read, models=2))


@pytest.mark.parametrize("text", ["", "Prefix", "prompt:64", "header:", "header:a b", "cookie:", "body:user"])
def test_what_means_nothing_is_refused(text: str) -> None:
    with pytest.raises(UnreadableError):
        HashOn().read(text)


def test_all_words_are_reported() -> None:
    assert all(word in HashOn().allowed for word in WORDS)
    assert set(WORDS) > FROM_BODY
