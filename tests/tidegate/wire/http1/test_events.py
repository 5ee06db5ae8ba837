"""The reason phrases of the statuses that Tidegate writes itself."""

from http import HTTPStatus

from tidegate import errors
from tidegate.wire.http1.events import REASONS

RENAMED = {413: b"Content Too Large", 414: b"URI Too Long", 422: b"Unprocessable Content"}
"""RFC 9110 has other phrases than the standard library of Python 3.11."""


def test_every_phrase_is_the_registered_one() -> None:
    assert {status: RENAMED.get(status, HTTPStatus(status).phrase.encode()) for status in REASONS} == REASONS


def test_every_failure_and_every_status_of_the_data_plane_has_a_phrase() -> None:
    kinds = [each for each in vars(errors).values() if isinstance(each, errors.ErrorKind)]
    assert kinds
    assert {kind.status for kind in kinds} <= REASONS.keys()
    assert {100, 101, 200, 201, 202, 204, 304, 405, 408, 411, 417, 426, 431, 501, 505} <= REASONS.keys()
