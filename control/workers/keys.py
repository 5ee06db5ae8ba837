"""Issuers' public keys: read from files and URLs, checked, kept while they may be used, handed to workers.

A set is read again every ``REFRESH_S``, sooner if a token names a key that it does not have (a key was rolled over),
and a file when it changes. A set that can no longer be read is used for ``KEPT_S`` after it was last read; the store
keeps it over restarts. After that, the tokens of its issuer cannot be checked, and are answered 503.
"""

import asyncio
import hashlib
import json
from base64 import urlsafe_b64decode
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import httpx

from tidegate.clock import Clock
from tidegate.control.state.notices import Faults
from tidegate.control.state.registry import Registry
from tidegate.gateway.access.key_algorithms import algorithms_of
from tidegate.records.codec import CodecError, decode, encode
from tidegate.records.tenants import KeySet
from tidegate.schema.files import read_start
from tidegate.store.records import Store, StoreError

LOOK_S: Final = 1.0
REFRESH_S: Final = 300.0
RETRY_S: Final = 10.0
"""Time after a failure, and between two readings because of an unknown key."""
KEPT_S: Final = 86_400.0
"""Time for which a set that can no longer be read is used after its last reading. Our choice: an outage of a day locks
no client out."""
FETCH_S: Final = 5.0
MAX_BYTES: Final = 256 * 1024
MAX_KEYS: Final = 100
WORKERS: Final = 1024
"""Number of workers of which the counts are remembered; each hot restart brings new ones."""
MIN_RSA: Final = 2048
"""Smallest RSA key in bits (RFC 7518, section 3.3)."""

_PUBLIC: Final = frozenset({"kty", "kid", "use", "key_ops", "alg", "n", "e", "crv", "x", "y"})
"""Members of a key that are handed on. If an issuer publishes a private member, it is dropped here."""

_ASKED: Final = {"accept": "application/json", "accept-encoding": "identity"}
"""Not compressed: a few bytes cannot become many before they are counted."""

Fetch = Callable[[str], Awaitable[bytes]]
"""Returns the bytes at a path or URL. Raises UnreadableKeysError."""


class UnreadableKeysError(Exception):
    """No usable set of keys; the message says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kept:
    """A set as the store keeps it; ``at``: Unix seconds."""

    source: str
    keys: tuple[str, ...]
    at: float


class _Source:
    def __init__(self) -> None:
        self.keys: tuple[str, ...] = ()
        self.read_at = 0.0
        """Time at which ``keys`` were last read, Unix seconds."""
        self.due_at = 0.0
        """Time of the next reading, seconds of the clock."""
        self.tried_at = float("-inf")
        self.stamp: tuple[int, int] | None = None
        """Time and size of a file."""
        self.unknown: dict[str, int] = {}
        """By worker: the last reported number of tokens with a key that the set lacks."""


class KeySets:
    """The key sets that deployed functions name."""

    def __init__(
        self,
        *,
        wanted: Callable[[], Iterable[str]],
        changed: Callable[[tuple[KeySet, ...]], None],
        store: Store,
        faults: Faults,
        clock: Clock,
        wall: Callable[[], float],
        fetch: Fetch | None = None,
    ) -> None:
        """``wanted``: the sources; ``changed`` gets all sets when one has changed; ``wall``: Unix seconds."""
        self._wanted = wanted
        self._changed = changed
        self._store = store
        self._faults = faults
        self._clock = clock
        self._wall = wall
        self._fetch = fetch or read_source
        self._sources: dict[str, _Source] = {}
        self._published: tuple[KeySet, ...] = ()

    async def load(self) -> None:
        """Loads the sets that the store has kept."""
        with suppress(StoreError):
            for record in await self._store.list("keysets/"):
                with suppress(CodecError):
                    kept = decode(record.value, _Kept)
                    source = self._sources.setdefault(kept.source, _Source())
                    if self._wall() - kept.at <= KEPT_S:
                        source.keys, source.read_at = kept.keys, kept.at
        self._publish()

    async def run(self) -> None:
        """Reads the sets that are due, until cancelled."""
        while True:
            await self.read_due()
            await asyncio.sleep(LOOK_S)

    async def read_due(self) -> None:
        """Reads the sets that are due now."""
        now, wanted = self._clock.now(), set(self._wanted())
        for source in self._sources.keys() - wanted:
            await self._forget(source)
        due = []
        for source in wanted:
            state = self._sources.setdefault(source, _Source())
            if now >= state.due_at or await _has_changed(source, state.stamp):
                due.append(self._read(source, state, now))
        await asyncio.gather(*due)
        self._publish()

    def met_unknown(self, worker: str, counts: Mapping[str, int]) -> None:
        """Takes a worker's cumulative counts of tokens with a key that the set lacks, by source."""
        for source, count in counts.items():
            state = self._sources.get(source)
            if state is not None and count > state.unknown.get(worker, 0):
                state.unknown[worker] = count
                while len(state.unknown) > WORKERS:
                    del state.unknown[next(iter(state.unknown))]
                state.due_at = min(state.due_at, state.tried_at + RETRY_S)

    async def _read(self, source: str, state: _Source, now: float) -> None:
        state.tried_at = now
        state.stamp = await asyncio.to_thread(_stamp, source)
        subject = _subject(source)
        try:
            keys = read_keys(await self._fetch(source))
        except UnreadableKeysError as error:
            state.due_at = now + RETRY_S
            if state.keys and self._wall() - state.read_at > KEPT_S:
                state.keys = ()
            use = "the last ones are used" if state.keys else "its tokens cannot be checked"
            self._faults.set(subject, f"{error}; {use}")
            return
        self._faults.clear(subject)
        state.due_at, state.read_at = now + REFRESH_S, self._wall()
        state.keys = keys
        kept = _Kept(source=source, keys=keys, at=state.read_at)
        with suppress(StoreError):  # the store reports it, and the set is used all the same
            await self._store.put(_key(source), encode(kept))

    async def _forget(self, source: str) -> None:
        del self._sources[source]
        self._faults.clear(_subject(source))
        with suppress(StoreError):
            await self._store.delete(_key(source))

    def _publish(self) -> None:
        wanted = sorted(set(self._wanted()))
        found = tuple(
            KeySet(source=source, keys=state.keys)
            for source in wanted
            if (state := self._sources.get(source)) is not None
        )
        if found != self._published:
            self._published = found
            self._changed(found)

    def __repr__(self) -> str:
        return f"<KeySets {len(self._sources)}>"


def read_keys(data: bytes) -> tuple[str, ...]:
    """Returns the usable keys of a JSON Web Key Set (RFC 7517), only their public members. Raises
    UnreadableKeysError."""
    try:
        found = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise UnreadableKeysError("it is no JSON") from error
    keys = found.get("keys") if isinstance(found, dict) else None
    if not isinstance(keys, list) or len(keys) > MAX_KEYS:
        raise UnreadableKeysError(f"it is no object with a list `keys` of at most {MAX_KEYS}")
    usable = [key for key in keys if isinstance(key, dict) and algorithms_of(key) and _is_sound(key)]
    if not usable:
        raise UnreadableKeysError(
            f"none of its {len(keys)} keys can check a signature (RSA from {MIN_RSA} bits, EC P-256, P-384, P-521,"
            " Ed25519, Ed448)"
        )
    return tuple(json.dumps({name: key[name] for name in sorted(_PUBLIC & key.keys())}) for key in usable)


def _is_sound(key: Mapping[str, Any]) -> bool:
    """Returns whether the library accepts the key and it is long enough. Its id, if it has one, must be a string (RFC
    7517, section 4.5)."""
    import jwt

    if not isinstance(key.get("kid", ""), str):
        return False
    try:
        jwt.PyJWK({name: key[name] for name in _PUBLIC & key.keys()}, algorithms_of(key)[0])
        return key.get("kty") != "RSA" or _bits(str(key["n"])) >= MIN_RSA
    except (jwt.PyJWTError, ValueError, TypeError):
        return False


def _bits(number: str) -> int:
    """Returns the length of an unsigned integer in base64url (RFC 7518, section 2)."""
    return int.from_bytes(urlsafe_b64decode(number + "=" * (-len(number) % 4))).bit_length()


async def read_source(source: str) -> bytes:
    """Returns the bytes at the path or URL. Raises UnreadableKeysError."""
    if "://" not in source:
        return await asyncio.to_thread(_read_file, source)
    try:
        async with (
            asyncio.timeout(FETCH_S),
            httpx.AsyncClient(follow_redirects=False, timeout=FETCH_S) as client,
            client.stream("GET", source, headers=_ASKED) as response,
        ):
            if response.status_code != httpx.codes.OK:
                raise UnreadableKeysError(f"it answered {response.status_code}")
            if response.headers.get("content-encoding", "identity") != "identity":
                raise UnreadableKeysError("it is compressed, which was not requested")
            found = b""
            async for piece in response.aiter_raw():
                found += piece
                if len(found) > MAX_BYTES:
                    raise UnreadableKeysError(f"it is larger than {MAX_BYTES} bytes")
            return found
    except TimeoutError as error:
        raise UnreadableKeysError(f"no answer within {FETCH_S:g} s") from error
    except (httpx.HTTPError, httpx.InvalidURL, OSError) as error:
        raise UnreadableKeysError(f"it cannot be fetched: {str(error) or type(error).__name__}") from error


def _read_file(path: str) -> bytes:
    try:
        found = read_start(path, MAX_BYTES + 1)
    except OSError as error:
        raise UnreadableKeysError(f"it cannot be read: {error.strerror or error}") from error
    if len(found) > MAX_BYTES:
        raise UnreadableKeysError(f"it is larger than {MAX_BYTES} bytes")
    return found


async def _has_changed(source: str, before: tuple[int, int] | None) -> bool:
    return "://" not in source and await asyncio.to_thread(_stamp, source) != before


def _stamp(source: str) -> tuple[int, int] | None:
    """Returns a value that changes whenever a file does; None for a URL or a file that does not exist."""
    if "://" in source:
        return None
    try:
        found = Path(source).stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size


def _subject(source: str) -> str:
    """Returns the subject of its faults, without the query: that may hold a secret."""
    return f"keys of {source.partition('?')[0]}"


def _key(source: str) -> str:
    return f"keysets/{hashlib.sha256(source.encode()).hexdigest()[:32]}"


def sources(registry: Registry) -> Iterator[str]:
    """Yields the sources that the rules of deployed functions name."""
    for deployed in registry.all():
        for record in (deployed.current, deployed.candidate, *deployed.others):
            access = None if record is None else record.function.access
            if access is not None and access.jwt is not None:
                yield access.jwt.jwks
