"""Issuers' keys: read, checked, kept while they cannot be read, for a bounded time; never a private part."""

import asyncio
import gzip
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from jwt.algorithms import RSAAlgorithm

from tests.support.live.tokens import Issuer
from tidegate.clock import ManualClock
from tidegate.control.state.notices import Faults
from tidegate.control.workers.keys import (
    KEPT_S,
    MAX_BYTES,
    REFRESH_S,
    RETRY_S,
    KeySets,
    UnreadableKeysError,
    read_keys,
    read_source,
)
from tidegate.gateway.access.jwt import Verifier
from tidegate.records.tenants import JwtRule, KeySet
from tidegate.store.embedded import EmbeddedStore

URL = "https://id.example/keys?policy=QUERY"
SHOWN = "https://id.example/keys"


class World:
    """An issuer's endpoint, a store, a clock."""

    def __init__(self, store: EmbeddedStore, *sources: str) -> None:
        self.clock = ManualClock(1000.0)
        self.faults = Faults()
        self.answers: bytes | None = json.dumps(Issuer().ec("one").jwks()).encode()
        self.asked = 0
        self.changes: list[tuple[KeySet, ...]] = []
        self.sources = list(sources) or [URL]
        self.store = store
        self.sets = self.fresh()

    def fresh(self) -> KeySets:
        return KeySets(
            wanted=lambda: self.sources,
            changed=self.changes.append,
            store=self.store,
            faults=self.faults,
            clock=self.clock,
            wall=self.clock.now,
            fetch=self.fetch,
        )

    async def fetch(self, source: str) -> bytes:
        self.asked += 1
        if self.answers is None:
            raise UnreadableKeysError("it is away")
        return self.answers

    async def turn(self, later_s: float = 0.0) -> None:
        self.clock.advance(later_s)
        await self.sets.read_due()

    @property
    def ids(self) -> list[str]:
        return [json.loads(key)["kid"] for each in self.changes[-1] for key in each.keys]


def with_store(path: Path, run: Callable[[EmbeddedStore], Any]) -> None:
    async def opened() -> None:
        store = await EmbeddedStore.open(path / "store.db")
        try:
            await run(store)
        finally:
            await store.close()

    asyncio.run(opened())


def test_a_set_is_read_when_it_is_wanted_and_again_from_time_to_time(tmp_path: Path) -> None:
    async def run(store: EmbeddedStore) -> None:
        world = World(store)
        await world.turn()
        assert (world.asked, world.ids) == (1, ["one"])
        await world.turn(REFRESH_S - 1)
        assert world.asked == 1
        world.answers = json.dumps(Issuer().ec("two").jwks()).encode()
        await world.turn(1)
        assert (world.asked, world.ids) == (2, ["two"])
        world.sources.clear()
        await world.turn()
        assert world.changes[-1] == ()
        assert not await store.list("keysets/")

    with_store(tmp_path, run)


def test_an_unknown_key_has_the_set_read_soon_but_not_at_every_request(tmp_path: Path) -> None:
    async def run(store: EmbeddedStore) -> None:
        world = World(store)
        await world.turn()
        for second in range(1, 31):
            world.sets.met_unknown("g0", {URL: second, "https://unknown.example": 5})
            await world.turn(1)
        assert world.asked == 1 + 30 // RETRY_S
        for _ in range(30):
            world.sets.met_unknown("g0", {URL: 30})
            await world.turn(1)
        assert world.asked == 1 + 30 // RETRY_S, "the count has not risen"

    with_store(tmp_path, run)


def test_an_endpoint_that_is_away_is_reported_and_its_last_keys_are_used_for_a_day(tmp_path: Path) -> None:
    async def run(store: EmbeddedStore) -> None:
        world = World(store)
        await world.turn()
        world.answers = None
        await world.turn(REFRESH_S)
        assert world.ids == ["one"]
        assert world.faults.texts() == (f"keys of {SHOWN}: it is away; the last ones are used",)
        world.sets = world.fresh()  # the control process starts again
        await world.sets.load()
        assert world.ids == ["one"]
        await world.turn(KEPT_S)
        assert world.ids == []
        assert "cannot be checked" in world.faults.texts()[0]
        world.answers = json.dumps(Issuer().ec("new").jwks()).encode()
        await world.turn(RETRY_S)
        assert (world.ids, world.faults.texts()) == (["new"], ())

    with_store(tmp_path, run)


def test_keys_that_are_older_than_that_are_not_taken_up_at_a_start(tmp_path: Path) -> None:
    """It is not known yet whether the issuer can be asked: meanwhile they open nothing."""

    async def run(store: EmbeddedStore) -> None:
        world = World(store)
        await world.turn()
        world.sets = world.fresh()
        world.clock.advance(KEPT_S + 1.0)
        await world.sets.load()
        assert world.ids == []
        await world.turn()
        assert world.ids == ["one"]

    with_store(tmp_path, run)


def test_a_file_is_read_again_when_it_changes(tmp_path: Path) -> None:
    async def run(store: EmbeddedStore) -> None:
        path = tmp_path / "keys.json"
        world = World(store, str(path))
        world.sets = KeySets(
            wanted=lambda: [str(path)],
            changed=world.changes.append,
            store=store,
            faults=world.faults,
            clock=world.clock,
            wall=world.clock.now,
        )
        await world.turn()
        assert "No such file" in world.faults.texts()[0]
        path.write_text(json.dumps(Issuer().rsa("a").jwks()))
        await world.turn()
        assert world.ids == ["a"]
        path.write_text(json.dumps(Issuer().rsa("a").ec("b").jwks()))
        await world.turn()
        assert world.ids == ["a", "b"]
        path.write_text("{")
        await world.turn()
        assert world.ids == ["a", "b"]
        assert world.faults.texts() == (f"keys of {path}: it is no JSON; the last ones are used",)
        path.write_bytes(b" " * (MAX_BYTES + 1))
        with pytest.raises(UnreadableKeysError, match="larger than"):
            await read_source(str(path))

    with_store(tmp_path, run)


def test_only_the_public_parts_of_keys_that_sign_are_handed_on() -> None:
    private = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    shown = {**json.loads(RSAAlgorithm.to_jwk(private)), "kid": "own", "x5c": ["..."], "key_ops": ["verify"]}
    weak = Issuer().rsa("weak", bits=1024).public("weak")
    good = Issuer().ed25519("good").public("good")
    broken = {"kty": "EC", "crv": "P-256", "x": "AA", "y": "AA", "kid": "broken"}
    secret = {"kty": "oct", "k": "c2VjcmV0", "kid": "secret"}
    text = json.dumps({"keys": [shown, weak, good, broken, secret, {**good, "use": "enc"}, "x", {}]})
    found = [json.loads(key) for key in read_keys(text.encode())]
    assert [key["kid"] for key in found] == ["own", "good"]
    assert found[0].keys() <= {"kty", "kid", "use", "key_ops", "alg", "n", "e"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no JSON"),
        ("[" * 100_000, "no JSON"),
        ("[]", "no object"),
        ('{"keys": {}}', "no object"),
        (json.dumps({"keys": [{}] * 101}), "at most 100"),
        ('{"keys": []}', "none of its 0 keys"),
        ('{"keys": [{"kty": "oct", "k": "AA"}]}', "none of its 1 keys"),
    ],
)
def test_what_is_no_set_of_keys(text: str, message: str) -> None:
    with pytest.raises(UnreadableKeysError, match=message):
        read_keys(text.encode())


ODD: tuple[Any, ...] = (None, 5, 1.5, True, "", "AA", "\ud800", [], ["verify", {}], {}, {"a": 1}, "x" * 10_000)


@pytest.mark.parametrize("kind", ["rsa", "ec", "ed25519"])
def test_a_member_of_any_shape_leaves_the_other_keys_usable(kind: str) -> None:
    """Whatever an issuer shows, reading ends with keys that a gateway worker can hold."""
    odd, good = getattr(Issuer(), kind)("odd").public("odd"), Issuer().ec("good").public("good")
    rule = JwtRule(jwks=URL, issuer="i", audience=("a",))
    for member in {*odd, "alg", "key_ops"}:
        for value in ODD:
            found = read_keys(json.dumps({"keys": [{**odd, member: value}, good]}).encode())
            assert "good" in {json.loads(key)["kid"] for key in found if "kid" in json.loads(key)}
            Verifier(rule, KeySet(source=URL, keys=found))


def test_what_is_no_plain_file_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "keys")
    for path, message in (("keys", "no plain file"), (".", "irectory"), ("none", "No such file")):
        with pytest.raises(UnreadableKeysError, match=message):
            asyncio.run(read_source(str(tmp_path / path)))


def test_an_endpoint_that_sends_compressed_bytes_is_not_unpacked() -> None:
    packed = gzip.compress(b" " * (50 * MAX_BYTES))

    async def run() -> None:
        asked = []

        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            asked.append(await reader.readuntil(b"\r\n\r\n"))
            head = b"HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\ncontent-length: %d\r\n\r\n"
            writer.write(head % len(packed) + packed)
            await writer.drain()
            writer.close()

        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        async with server:
            port = server.sockets[0].getsockname()[1]
            with pytest.raises(UnreadableKeysError, match="compressed"):
                await read_source(f"http://127.0.0.1:{port}/keys")
        assert b"accept-encoding: identity" in asked[0].lower()

    asyncio.run(run())
