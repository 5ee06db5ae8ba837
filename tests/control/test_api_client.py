"""Errors of a connection to a control API; its calls and streams are used by the live tests of the SDK."""

import httpx
import pytest

from tidegate.control.api_client import ApiClient, NotRunningError, detail_of, translated
from tidegate.control.views.errors import ErrorDetail, ErrorView
from tidegate.records.codec import encode


def test_a_failure_of_the_transport_names_the_address() -> None:
    with pytest.raises(NotRunningError, match=r"^http://h:1 does not answer: refused$"), translated("http://h:1"):
        raise httpx.ConnectError("refused")
    with pytest.raises(NotRunningError, match="does not answer: ReadTimeout"), translated("http://h:1"):
        raise httpx.ReadTimeout("")
    with pytest.raises(ValueError, match="other"), translated("http://h:1"):
        raise ValueError("other")


def test_an_answer_that_is_no_control_apis_is_quoted() -> None:
    detail = ErrorDetail(code="unknown", message="no function is called x")
    assert detail_of(httpx.Response(404, content=encode(ErrorView(error=detail)))) == detail
    assert detail_of(httpx.Response(502, text="<html>" + "x" * 600)) == ErrorDetail(
        code="unreadable", message="status 502: <html>" + "x" * 494
    )


def test_the_token_is_not_shown() -> None:
    client = ApiClient("http://127.0.0.1:9", "secret")
    assert repr(client) == "<ApiClient http://127.0.0.1:9>"
    client.close()
