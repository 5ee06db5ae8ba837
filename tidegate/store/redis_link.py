"""One Redis as the stores use it: by URL, every call bounded in time, failures in our words.

After a failure Redis is not called for a back-off that doubles up to ``REST_MAX_S``. Until it is over every call fails
at once; then one call at a time tries whether Redis is back. Nothing is sent twice, because a lost answer leaves open
whether the work was done.
"""

import asyncio
import hashlib
import ssl
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, TypeVar
from urllib.parse import parse_qsl, unquote, urlsplit

from redis import exceptions
from redis.asyncio import BlockingConnectionPool, Connection, Redis, SSLConnection
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from tidegate.errors import Fault, InvalidInputError
from tidegate.store.records import StoreFaultError

T = TypeVar("T")

CALL_S: Final = 2.0
"""A call without an answer after this time has failed."""
REST_S: Final = 0.05
REST_MAX_S: Final = 1.0
CONNECTIONS: Final = 64
"""More calls than this at once wait for one another, within their time."""
_HIDDEN: Final = "something else (not shown)"


class Script:
    """A Lua script: atomic, because Redis runs one at a time."""

    __slots__ = ("sha", "text")

    def __init__(self, text: str) -> None:
        self.text = text
        self.sha = hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()


@dataclass(frozen=True, slots=True)
class RedisAddress:
    """Host, database and credentials of a Redis."""

    host: str
    port: int
    database: int
    user: str | None
    password: str | None
    tls: bool
    authorities: str | None
    """File (PEM) of the trusted certificate authorities; None for the system's."""

    def __str__(self) -> str:
        """Returns the address without the password, as messages show it."""
        user = f"{self.user or ''}:***@" if self.password else ""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'rediss' if self.tls else 'redis'}://{user}{host}:{self.port}/{self.database}"


def read_url(url: str) -> RedisAddress:
    """Returns the address in a ``redis://`` or ``rediss://`` URL. Raises InvalidInputError with every fault; a value
    that may be part of a password is not shown."""
    faults: list[Fault] = []
    try:
        parts = urlsplit(url)
    except ValueError as error:
        fault = Fault("host", "an address in brackets that is not closed or none", "a name or address")
        raise InvalidInputError("the URL of the store", [fault]) from error
    if "@" in parts.path + parts.query + parts.fragment:
        fault = Fault("password", "one with / ? or # (not shown)", "such characters as %2F, %3F, %23")
        raise InvalidInputError("the URL of the store", [fault])
    if parts.scheme not in ("redis", "rediss"):
        faults.append(Fault("scheme", parts.scheme or "none", "redis, or rediss for TLS"))
    port: int | None = None
    try:
        port = parts.port
    except ValueError:
        faults.append(Fault("port", _HIDDEN, "a number, 1 to 65535"))
    if port == 0:
        faults.append(Fault("port", "0", "a number, 1 to 65535"))
    if not parts.hostname:
        faults.append(Fault("host", "none", "a name or address"))
    database = parts.path.strip("/")
    if not (database.isascii() and database.isdigit()) and database:
        faults.append(Fault("database", _HIDDEN, "a number, or nothing for 0"))
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    authorities = options.pop("ssl_ca_certs", None)
    faults += [Fault(name, _HIDDEN, "no option but ssl_ca_certs=FILE") for name in options]
    if parts.fragment:
        faults.append(Fault("fragment", _HIDDEN, "nothing after #"))
    if authorities is not None and parts.scheme == "redis":
        faults.append(Fault("ssl_ca_certs", authorities, "only with rediss"))
    if faults:
        raise InvalidInputError("the URL of the store", faults)
    return RedisAddress(
        host=parts.hostname or "",
        port=port or 6379,
        database=int(database or "0"),
        user=unquote(parts.username) if parts.username else None,
        password=unquote(parts.password) if parts.password else None,
        tls=parts.scheme == "rediss",
        authorities=authorities,
    )


class RedisLink:
    """Connections to one Redis, opened when they are needed."""

    def __init__(self, url: str, *, call_s: float = CALL_S, start_s: float = 0.0) -> None:
        """``start_s``: calls in this time from the first one on may take the rest of it, because a process that starts
        is slow. Raises InvalidInputError for an invalid URL; does no IO except reading the file of authorities."""
        self.address = read_url(url)
        self._call_s = call_s
        self._start_s = start_s
        self._patient_until: float | None = None
        self._rest_s = 0.0
        self._again_at = 0.0
        self._failure = ""
        self._has_answered = False
        self._closed = False
        self._client = Redis(connection_pool=_pool(self.address, max(call_s, start_s)))

    async def check(self) -> None:
        """Raises StoreFaultError unless Redis answers and accepts the credentials."""
        await self._run(lambda: self._command("PING"), self._call_s)

    async def script(self, script: Script, keys: Sequence[str], arguments: Sequence[str | bytes | int]) -> Any:
        """Returns the result of ``script``. Raises StoreFaultError: then it is unknown whether the script has run."""
        return await self._run(lambda: self._evaluate(script, keys, arguments), self._call_s)

    async def wait_for(self, stream: str, after: str, wait_s: float) -> None:
        """Returns when ``stream`` has an entry younger than ``after``, or after ``wait_s``."""
        block = max(1, int(wait_s * 1000))
        read = ("XREAD", "COUNT", 1, "BLOCK", block, "STREAMS", stream, after)
        await self._run(lambda: self._command(*read), wait_s + self._call_s)

    async def add(self, stream: str, length: int, value: bytes) -> None:
        """Adds an entry with a value to ``stream``, which keeps about so many."""
        words = ("XADD", stream, "MAXLEN", "~", length, "*", "value", value)
        await self._run(lambda: self._command(*words), self._call_s)

    async def entries(self, stream: str, after: str, wait_s: float) -> list[tuple[str, dict[bytes, bytes]]]:
        """Returns at most 1,000 entries of ``stream`` that are younger than ``after`` (``$``: than now), with their
        fields; waits at most ``wait_s`` for the first."""
        block = max(1, int(wait_s * 1000))
        read = ("XREAD", "COUNT", 1000, "BLOCK", block, "STREAMS", stream, after)
        found = await self._run(lambda: self._command(*read), wait_s + self._call_s)
        return [(identity.decode(), fields) for _, entries in found or () for identity, fields in entries]

    async def close(self) -> None:
        """Closes the connections. What a Redis that hangs has not taken in within the time of a call is given up."""
        self._closed = True
        for closing in (self._client.aclose(), self._client.connection_pool.disconnect(inuse_connections=True)):
            with suppress(exceptions.RedisError, OSError):
                await closing

    @property
    def rest_s(self) -> float:
        """Remaining back-off."""
        return max(0.0, self._again_at - asyncio.get_running_loop().time())

    async def _evaluate(self, script: Script, keys: Sequence[str], arguments: Sequence[str | bytes | int]) -> Any:
        try:
            return await self._command("EVALSHA", script.sha, len(keys), *keys, *arguments)
        except exceptions.NoScriptError:
            return await self._command("EVAL", script.text, len(keys), *keys, *arguments)

    async def _command(self, *words: str | bytes | int) -> Any:
        return await self._client.execute_command(*words)  # type: ignore[no-untyped-call]  # the library's own gap

    async def _run(self, work: Callable[[], Awaitable[T]], limit_s: float) -> T:
        now = asyncio.get_running_loop().time
        if self._closed or now() < self._again_at:
            raise StoreFaultError(f"{self.address}: {'the store is closed' if self._closed else self._failure}")
        if self._patient_until is None:
            self._patient_until = now() + self._start_s
        limit_s = max(limit_s, self._patient_until - now())
        if self._rest_s:  # one call tries; the others go on failing at once until it knows
            self._again_at = now() + limit_s
        try:
            async with asyncio.timeout(limit_s):
                answer = await work()
        except exceptions.ResponseError as error:
            self._rest_s = self._again_at = 0.0
            raise StoreFaultError(f"{self.address}: {error}") from error
        except (exceptions.RedisError, OSError, EOFError, TimeoutError) as error:
            if self._closed:
                raise StoreFaultError(f"{self.address}: the store is closed") from error
            self._failure = _words(error, limit_s, self._hint)
            self._rest_s = min(max(REST_S, 2 * self._rest_s), REST_MAX_S)
            self._again_at = now() + self._rest_s
            raise StoreFaultError(f"{self.address}: {self._failure}") from error
        self._rest_s = self._again_at = 0.0
        self._has_answered = True
        return answer

    @property
    def _hint(self) -> str:
        """A hint for a peer that never answered as it should."""
        if self._has_answered:
            return ""
        return f" (a Redis with{'out' if self.address.tls else ''} TLS has redis{'' if self.address.tls else 's'}://)"

    def __repr__(self) -> str:
        return f"<RedisLink {self.address}, {self._failure if self._rest_s else 'well'}>"


def _pool(address: RedisAddress, call_s: float) -> BlockingConnectionPool:
    options: dict[str, Any] = {
        "host": address.host,
        "port": address.port,
        "db": address.database,
        "username": address.user,
        "password": address.password,
        "socket_connect_timeout": call_s,
        # Each call has its own limit; with one here too the library writes in a wait_for, which on Python 3.11 may
        # swallow a cancellation.
        "socket_timeout": None,
        "retry": Retry(NoBackoff(), 0),
        "protocol": 2,
    }
    if not address.tls:
        return BlockingConnectionPool(CONNECTIONS, timeout=call_s, connection_class=Connection, **options)
    try:
        ssl.create_default_context(cafile=address.authorities)
    except (OSError, ssl.SSLError) as error:
        fault = Fault("ssl_ca_certs", f"{address.authorities} ({error})", "a readable file of certificates (PEM)")
        raise InvalidInputError("the URL of the store", [fault]) from error
    options["ssl_ca_certs"] = address.authorities
    return BlockingConnectionPool(CONNECTIONS, timeout=call_s, connection_class=SSLConnection, **options)


def _words(error: BaseException, limit_s: float, hint: str) -> str:
    """Returns the failure in words that an operator can act on; ``hint``: used if nothing more is known."""
    chain: list[BaseException] = [error]
    while (below := chain[-1].__cause__ or chain[-1].__context__) is not None and len(chain) < 8:
        chain.append(below)
    if any(isinstance(link, ssl.SSLCertVerificationError) for link in chain):
        return f"its certificate is not trusted: {error}; allowed: one of an authority in ssl_ca_certs, or the system's"
    if any(isinstance(link, ssl.SSLError) for link in chain):
        return f"TLS fails: {error}; a Redis without TLS has redis:// for rediss://"
    if isinstance(error, exceptions.AuthenticationError | exceptions.AuthorizationError):
        return f"user and password are refused: {error}"
    if isinstance(error, TimeoutError | exceptions.TimeoutError):
        return f"no answer within {limit_s:.3g} s{hint}"
    if isinstance(error, exceptions.InvalidResponse):
        return f"does not speak as Redis does: {error}"
    text = str(error) or type(error).__name__
    return text if "connecting to" in text else text + hint
