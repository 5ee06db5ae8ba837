"""Failures of a model server. A handler may raise :class:`RequestError` itself to blame the caller."""


class RequestError(Exception):
    """The request is invalid or cannot be served now. ``status`` is the HTTP status, the message is for the client."""

    def __init__(self, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.message = message
        self.status = status


class ModelError(Exception):
    """The model failed on a valid request: HTTP 500. The message is for the client and contains no stack trace."""


class LoadError(Exception):
    """The model cannot be served at all. The message is the last line on stderr before exit code 3."""
