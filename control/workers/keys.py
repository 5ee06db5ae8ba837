"""Issuers' public keys: read from files and URLs, checked, kept for as long as they may be used, handed to workers.

A set is read again every ``REFRESH_S``, sooner when a token names a key that it does not have (a key was rolled over),
and a file when it changes. One that cannot be read any more is used on for ``KEPT_S`` after it was last read; the store
keeps it over restarts. Then the tokens of its issuer cannot be checked, and are answered 503.
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

from tidegate.clock import Clock
from tidegate.control.state.faults import Faults
from tidegate.control.state.registry import Registry
from tidegate.records.codec import CodecError, decode, encode
from tidegate.records.tenants import KeySet
from tidegate.schema.files import read_start
from tidegate.store.records import Store, StoreError

LOOK_S: Final = 1.0
REFRESH_S: Final = 300.0
RETRY_S: Final = 10.0
"""After a failure, and between two readings because of an unknown key."""
KEPT_S: Final = 86_400.0
"""Since it was last read, a set that cannot be read is used. Our choice: an outage of a day locks nobody out."""
FETCH_S: Final = 5.0
MOST_BYTES: Final = 256 * 1024
MOST_KEYS: Final = 100
WORKERS: Final = 1024
"""Whose counts are remembered; each hot restart brings new ones."""
SHORTEST_RSA: Final = 2048
"""Bits (RFC 7518, section 3.3)."""

_PUBLIC: Final = frozenset({"kty", "kid", "use", "key_ops", "alg", "n", "e", "crv", "x", "y"})
"""Members of a key that are handed on; should an issuer show a private part, it stays here."""

_ASKED: Final = {"accept": "application/json", "accept-encoding": "identity"}
"""Not compressed: a few bytes cannot become many before they are counted."""

Fetch = Callable[[str], Awaitable[bytes]]
"""The bytes at a path or URL. Raises UnreadableKeysError."""


class UnreadableKeysError(Exception):
    """No usable set of keys; the message says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kept:
    """As the store keeps it; ``at``: Unix seconds."""

    source: str
    keys: tuple[str, ...]
    at: float


class _Source:
    def __init__(self) -> None:
        self.keys: tuple[str, ...] = ()
        self.read_at = 0.0
        """Unix seconds; when ``keys`` were last read."""
        self.due_at = 0.0
        """Seconds of the clock."""
        self.tried_at = float("-inf")
        self.stamp: tuple[int, int] | None = None
        """Of a file."""
        self.unknown: dict[str, int] = {}
        """By worker: tokens with a key that is not there, as last told."""


class KeySets:
    """Those that deployed functions name."""

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
        """``wanted``: the sources; ``changed`` gets all sets when one is another; ``wall``: Unix seconds."""
        self._wanted = wanted
        self._changed = changed
        self._store = store
        self._faults = faults
        self._clock = clock
        self._wall = wall
        self._fetch = fetch or read_source
        self._sources: dict[str, _Source] = {}
        self._told: tuple[KeySet, ...] = ()

    async def load(self) -> None:
        """Takes up what the store has kept."""
        with suppress(StoreError):
            for record in await self._store.list("keysets/"):
                with suppress(CodecError):
                    kept = decode(record.value, _Kept)
                    source = self._sources.setdefault(kept.source, _Source())
                    if self._wall() - kept.at <= KEPT_S:
                        source.keys, source.read_at = kept.keys, kept.at
        self._tell()

    async def run(self) -> None:
        """Reads what is due, until cancelled."""
        while True:
            await self.turn()
            await asyncio.sleep(LOOK_S)

    async def turn(self) -> None:
        """Reads what is due now."""
        now, wanted = self._clock.now(), set(self._wanted())
        for source in self._sources.keys() - wanted:
            await self._forget(source)
        due = []
        for source in wanted:
            state = self._sources.setdefault(source, _Source())
            if now >= state.due_at or await _has_changed(source, state.stamp):
                due.append(self._read(source, state, now))
        await asyncio.gather(*due)
        self._tell()

    def met_unknown(self, worker: str, counts: Mapping[str, int]) -> None:
        """Tokens that a worker met whose key a set does not have, by source; cumulative."""
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
        with suppress(StoreError):  # it says so itself, and the set is used all the same
            await self._store.put(_key(source), encode(kept))

    async def _forget(self, source: str) -> None:
        del self._sources[source]
        self._faults.clear(_subject(source))
        with suppress(StoreError):
            await self._store.delete(_key(source))

    def _tell(self) -> None:
        wanted = sorted(set(self._wanted()))
        found = tuple(
            KeySet(source=source, keys=state.keys)
            for source in wanted
            if (state := self._sources.get(source)) is not None
        )
        if found != self._told:
            self._told = found
            self._changed(found)

    def __repr__(self) -> str:
        return f"<KeySets {len(self._sources)}>"


def read_keys(data: bytes) -> tuple[str, ...]:
    """The usable keys of a JSON Web Key Set (RFC 7517), their public parts alone. Raises UnreadableKeysError."""
    from tidegate.gateway.access.jwt import algorithms_of

    try:
        found = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise UnreadableKeysError("it is no JSON") from error
    keys = found.get("keys") if isinstance(found, dict) else None
    if not isinstance(keys, list) or len(keys) > MOST_KEYS:
        raise UnreadableKeysError(f"it is no object with a list `keys` of at most {MOST_KEYS}")
    usable = [key for key in keys if isinstance(key, dict) and algorithms_of(key) and _is_sound(key)]
    if not usable:
        raise UnreadableKeysError(
            f"none of its {len(keys)} keys can check a signature (RSA from {SHORTEST_RSA} bits, EC P-256, P-384, P-521,"
            " Ed25519, Ed448)"
        )
    return tuple(json.dumps({name: key[name] for name in sorted(_PUBLIC & key.keys())}) for key in usable)


def _is_sound(key: Mapping[str, Any]) -> bool:
    """Whether the library makes a key of it, long enough; its id, if it has one, is a text (RFC 7517, section 4.5)."""
    import jwt

    from tidegate.gateway.access.jwt import algorithms_of

    if not isinstance(key.get("kid", ""), str):
        return False
    try:
        jwt.PyJWK({name: key[name] for name in _PUBLIC & key.keys()}, algorithms_of(key)[0])
        return key.get("kty") != "RSA" or _bits(str(key["n"])) >= SHORTEST_RSA
    except (jwt.PyJWTError, ValueError, TypeError):
        return False


def _bits(number: str) -> int:
    """Of an unsigned integer in base64url (RFC 7518, section 2)."""
    return int.from_bytes(urlsafe_b64decode(number + "=" * (-len(number) % 4))).bit_length()


async def read_source(source: str) -> bytes:
    """What is at the path or URL. Raises UnreadableKeysError."""
    if "://" not in source:
        return await asyncio.to_thread(_read_file, source)
    import httpx

    try:
        async with (
            asyncio.timeout(FETCH_S),
            httpx.AsyncClient(follow_redirects=False, timeout=FETCH_S) as client,
            client.stream("GET", source, headers=_ASKED) as response,
        ):
            if response.status_code != httpx.codes.OK:
                raise UnreadableKeysError(f"it answered {response.status_code}")
            if response.headers.get("content-encoding", "identity") != "identity":
                raise UnreadableKeysError("it is compressed, which was not asked for")
            found = b""
            async for piece in response.aiter_raw():
                found += piece
                if len(found) > MOST_BYTES:
                    raise UnreadableKeysError(f"it is larger than {MOST_BYTES} bytes")
            return found
    except TimeoutError as error:
        raise UnreadableKeysError(f"no answer within {FETCH_S:g} s") from error
    except (httpx.HTTPError, httpx.InvalidURL, OSError) as error:
        raise UnreadableKeysError(f"it cannot be fetched: {str(error) or type(error).__name__}") from error


def _read_file(path: str) -> bytes:
    try:
        found = read_start(path, MOST_BYTES + 1)
    except OSError as error:
        raise UnreadableKeysError(f"it cannot be read: {error.strerror or error}") from error
    if len(found) > MOST_BYTES:
        raise UnreadableKeysError(f"it is larger than {MOST_BYTES} bytes")
    return found


async def _has_changed(source: str, before: tuple[int, int] | None) -> bool:
    return "://" not in source and await asyncio.to_thread(_stamp, source) != before


def _stamp(source: str) -> tuple[int, int] | None:
    """Changes whenever a file does; None for what is none."""
    if "://" in source:
        return None
    try:
        found = Path(source).stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size


def _subject(source: str) -> str:
    """Of its faults; without a query, in which there may be something that is nobody's business."""
    return f"keys of {source.partition('?')[0]}"


def _key(source: str) -> str:
    return f"keysets/{hashlib.sha256(source.encode()).hexdigest()[:32]}"


def sources(registry: Registry) -> Iterator[str]:
    """Those that the rules of deployed functions name."""
    for deployed in registry.all():
        for record in (deployed.current, deployed.candidate, *deployed.others):
            access = None if record is None else record.function.access
            if access is not None and access.jwt is not None:
                yield access.jwt.jwks
