"""Answers that the front door gives by itself, and the copies of metadata it keeps."""

import json

from tidegate.gateway.answers.health import COPY_BYTES, KEPT_COPIES, Copies, model_answer, server_answer
from tidegate.gateway.routing.match import Call


def test_a_copy_is_asked_for_once_and_kept_until_its_revision_is_gone() -> None:
    copies = Copies()
    assert copies.wants("f-1", "/v2/models/m")
    assert not copies.wants("f-1", "/v2/models/m"), "asked already"
    copies.keep("f-1", "/v2/models/m", b"{}")
    assert not copies.wants("f-1", "/v2/models/m")
    assert copies.get("f-1", "/v2/models/m") == b"{}"
    copies.forget_except(frozenset())
    assert copies.get("f-1", "/v2/models/m") is None


def test_a_copy_that_could_not_be_made_is_asked_for_again_and_large_ones_are_not_kept() -> None:
    copies = Copies()
    copies.wants("f-1", "/a")
    copies.keep("f-1", "/a", None)
    assert copies.wants("f-1", "/a")
    copies.keep("f-1", "/a", b"x" * (COPY_BYTES + 1))
    assert copies.get("f-1", "/a") is None


def test_copies_are_bounded() -> None:
    copies = Copies()
    asked = [copies.wants("f-1", f"/{number}") for number in range(KEPT_COPIES + 5)]
    assert asked.count(True) == KEPT_COPIES


def test_server_calls() -> None:
    assert server_answer(Call.SERVER_LIVE, True) == (200, b'{"live":true}')
    assert server_answer(Call.SERVER_READY, True) == (503, b'{"ready":false}')
    status, body = server_answer(Call.SERVER_METADATA, False)
    assert (status, json.loads(body)["name"]) == (200, "tidegate")
    assert model_answer(Call.MODEL_READY, "m", "broken")[0] == 503
