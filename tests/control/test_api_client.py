"""Errors of a connection to a control API; its calls and streams are used by the live tests of the SDK."""

import httpx
import pytest

from tidegate.control.api_client import ApiClient, ApiError, NotRunningError, detail_of, translated
from tidegate.control.views.errors import ErrorDetail, ErrorView
from tidegate.errors import TidegateError
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


def test_a_url_or_a_token_that_can_be_none_is_said() -> None:
    with pytest.raises(TidegateError, match=r"http://\[::1 is no URL of a control API"):
        ApiClient("http://[::1", "secret")
    with pytest.raises(TidegateError, match="characters that are not ASCII"):
        ApiClient("http://127.0.0.1:9", "gehe\u00efm")


def test_another_servers_page_is_an_error_of_the_api(monkeypatch: pytest.MonkeyPatch) -> None:
    client = ApiClient("http://127.0.0.1:9", "secret")
    monkeypatch.setattr(client, "call", lambda *given: b"<html>")
    with pytest.raises(ApiError, match=r"http://127\.0\.0\.1:9 answers /x with what no control API does"):
        client.read("GET", "/x", ErrorView)
    client.close()


def test_the_token_is_not_shown() -> None:
    client = ApiClient("http://127.0.0.1:9", "secret")
    assert repr(client) == "<ApiClient http://127.0.0.1:9>"
    client.close()
