"""Reasons that are worded when they are read."""

from dataclasses import replace

import pytest

from tidegate.records.codec import decode, encode
from tidegate.records.decision import Reason


def test_a_detail_is_worded_when_it_is_first_read_and_never_again() -> None:
    read: list[str] = []

    def word() -> str:
        read.append("read")
        return "3 slots"

    found = Reason.worded("level", word)
    assert (found.code, read) == ("level", []), "a code says nothing of the detail"
    assert (found.detail, found.detail, read) == ("3 slots", "3 slots", ["read"])


def test_a_worded_reason_is_like_any_other() -> None:
    written = Reason(code="level", detail="3 slots")
    assert Reason.worded("level", lambda: "3 slots") == written
    assert written == Reason.worded("level", lambda: "3 slots")
    assert hash(Reason.worded("level", lambda: "3 slots")) == hash(written)
    assert repr(Reason.worded("level", lambda: "3 slots")) == repr(written)
    assert replace(Reason.worded("level", lambda: "3 slots"), code="cover") == replace(written, code="cover")
    assert decode(encode(Reason.worded("level", lambda: "3 slots")), Reason) == written


def test_it_has_no_other_attributes() -> None:
    with pytest.raises(AttributeError, match="details"):
        _ = Reason.worded("level", lambda: "3 slots").details
