"""The connection of a client to a control API: its calls, its streams, and their errors."""

import ssl
from collections.abc import Generator, Iterator, Mapping
from contextlib import closing, contextmanager
from typing import TypeVar

import httpx

from tidegate.control.views.errors import ErrorDetail, ErrorView
from tidegate.errors import TidegateError
from tidegate.records.codec import CodecError, Lines, decode

T = TypeVar("T")

CALL_S = 30.0


class ApiError(TidegateError):
    """The control process refused the request; ``detail`` holds its code and, for a manifest, every fault."""

    def __init__(self, status: int, detail: ErrorDetail) -> None:
        self.status = status
        self.detail = detail
        super().__init__(detail.message)


class NotRunningError(TidegateError):
    """No control process answers; the message says which directory was searched."""


class ApiClient:
    """The control API at one address. Its methods may be called by several threads."""

    def __init__(self, url: str, token: str) -> None:
        """Raises TidegateError for a URL or a token that can be none."""
        self.url = url
        if not token.isascii():
            raise TidegateError("the token of the control API has characters that are not ASCII")
        self._headers = {"authorization": f"Bearer {token}"}
        try:
            self._client = httpx.Client(
                base_url=url, headers=self._headers, timeout=CALL_S, trust_env=False, verify=_trust_of(url)
            )
        except httpx.InvalidURL as error:
            raise TidegateError(f"{url} is no URL of a control API: {error}") from error

    def call(self, method: str, path: str, body: bytes | None = None, timeout_s: float = CALL_S) -> bytes:
        """Returns the body of an answer. Raises ApiError or NotRunningError."""
        headers = {"content-type": "application/json"} if body is not None else {}
        with translated(self.url):
            response = self._client.request(method, path, content=body, headers=headers, timeout=timeout_s)
        if not response.is_success:
            raise ApiError(response.status_code, detail_of(response))
        return response.content

    def read(self, method: str, path: str, kind: type[T], body: bytes | None = None) -> T:
        """Returns the answer as a record of this kind. Raises as :meth:`call`, and ApiError if it is none."""
        answer = self.call(method, path, body)
        try:
            return decode(answer, kind)
        except CodecError as error:
            message = f"{self.url} answers {path} with what no control API does: {error}"
            raise ApiError(200, ErrorDetail(code="unreadable", message=message)) from error

    def pieces(
        self, path: str, query: Mapping[str, str], *, silence_s: float | None = CALL_S
    ) -> Generator[bytes, None, None]:
        """Yields an answer as it arrives; ``silence_s`` is the longest time between two pieces, None without limit."""
        limit = httpx.Timeout(CALL_S, read=silence_s)
        with (
            translated(self.url),
            self._client.stream("GET", path, params=dict(query), timeout=limit) as response,
        ):
            if not response.is_success:
                response.read()
                raise ApiError(response.status_code, detail_of(response))
            yield from response.iter_bytes()

    def lines(self, path: str, query: Mapping[str, str], kind: type[T]) -> Iterator[T]:
        """Yields the records of a stream, one per line."""
        lines = Lines()
        with closing(self.pieces(path, query, silence_s=None)) as pieces:
            for piece in pieces:
                for line in lines.push(piece):
                    yield decode(line, kind)

    def for_asyncio(self) -> httpx.AsyncClient:
        """Returns an asynchronous client of the same API."""
        return httpx.AsyncClient(base_url=self.url, headers=self._headers, trust_env=False, verify=_trust_of(self.url))

    def close(self) -> None:
        """Closes the connections."""
        self._client.close()

    def __repr__(self) -> str:
        return f"<ApiClient {self.url}>"


def _trust_of(url: str) -> ssl.SSLContext | bool:
    """Returns the machine's certificates for HTTPS alone: reading them takes 25 ms, and the control API has no TLS."""
    return url.startswith("https:") or ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


@contextmanager
def translated(url: str) -> Iterator[None]:
    """Raises NotRunningError for a failure of the transport to ``url``."""
    try:
        yield
    except httpx.HTTPError as error:
        raise NotRunningError(f"{url} does not answer: {str(error) or type(error).__name__}") from error


def detail_of(response: httpx.Response) -> ErrorDetail:
    """Returns the error of an answer, also of one that is no control API's."""
    try:
        return decode(response.content, ErrorView).error
    except CodecError:
        return ErrorDetail(code="unreadable", message=f"status {response.status_code}: {response.text[:500]}")
