"""The tenants in force and what they have used, over workers that come and go; the pool that workers report to."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest

from tidegate.aio.admin.client import fetch
from tidegate.clock import LiveClock, ManualClock
from tidegate.control.state.notices import Faults
from tidegate.control.workers.quotas import PartFile, QuotaPool, open_pool
from tidegate.control.workers.tenants import Tenancy, differences, reported_tenants, tenants_of
from tidegate.errors import InvalidInputError
from tidegate.flow.quota import Budget, QuotaAnswer, QuotaReport, QuotaTotal
from tidegate.gateway.access.quota_pool import SocketPool
from tidegate.records.gateway_sample import GatewaySample
from tidegate.records.tenants import Quotas, Tenant, TenantSeen, digest
from tidegate.settings import Settings, TenantSettings
from tidegate.store.counters import EmbeddedPool
from tidegate.store.fallback_counters import AGAIN_S, BACK, SETTLE_S, FallbackPool
from tidegate.store.parts import WHOLE
from tidegate.store.records import StoreFaultError

A, B = Tenant(name="a", quotas=Quotas(requests_per_minute=5)), Tenant(name="b", keys=("0" * 64,))


def sample(worker: str, incarnation: str, **requests: int) -> GatewaySample:
    seen = tuple(
        TenantSeen(tenant=name, requests=count, inferences=2 * count, tokens=10 * count, refused=1)
        for name, count in requests.items()
    )
    return GatewaySample(
        worker=worker,
        incarnation=incarnation,
        sequence=1,
        uptime_s=1.0,
        table_epoch=1,
        table_number=1,
        connections=0,
        tenants=seen,
    )


def test_counts_of_all_workers_and_of_their_earlier_lives_add_up() -> None:
    tenancy = Tenancy((A, B), lambda tenants: None)
    for each in (
        sample("g0", "x", a=3),
        sample("g0", "x", a=5, b=1),
        sample("g1", "y", a=2, stranger=7),
        sample("g0", "z", a=1),
        sample("g0", "z", a=1),
    ):
        tenancy.seen(each)
    tenancy.forget_worker("g1")
    tenancy.seen(sample("g1", "w", a=1))
    first, second = tenancy.views()
    assert (first.name, first.requests, first.inferences, first.tokens) == ("a", 5 + 2 + 1 + 1, 18, 90)
    assert first.quotas == {"requests-per-minute": 5}
    assert (second.name, second.requests, second.keys) == ("b", 1, 1)


def test_what_changes_is_reported_and_handed_on_and_nothing_else_is() -> None:
    put: list[tuple[Tenant, ...]] = []
    tenancy = Tenancy((A, B), put.append)
    assert tenancy.change((A, B)) == ()
    assert tenancy.change((Tenant(name="a", weight=2), Tenant(name="c"))) == (
        "tenant a: other weight, quotas",
        "tenant b: gone, its keys open nothing any more",
        "tenant c: new",
    )
    assert [len(each) for each in put] == [2, 2]
    assert differences((), ()) == ()


def test_the_file_of_the_settings_is_read_with_the_keys_beside_it(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("tg-0123456789abcdef\n")
    file = tmp_path / "tenants.yaml"
    file.write_text("tenants: [{name: acme, keys: ['file:key']}]")
    settings = Settings(tenants=TenantSettings(file=str(file)))
    assert tenants_of(settings) == (Tenant(name="acme", keys=(digest(b"tg-0123456789abcdef"),)),)
    assert tenants_of(Settings()) == ()
    file.write_bytes(b"\xff")
    with pytest.raises(InvalidInputError, match="no UTF-8"):
        tenants_of(settings)
    file.unlink()
    with pytest.raises(InvalidInputError, match="No such file"):
        tenants_of(settings)


class MovingPool(EmbeddedPool):
    """May be away."""

    is_away = is_unlisted = False

    async def totals(self, since: float) -> tuple[Sequence[QuotaTotal], None]:
        if self.is_unlisted:
            raise StoreFaultError("redis://example: NOPERM")
        return await super().totals(since)

    async def exchange(self, member: str, reports: Sequence[QuotaReport]) -> QuotaAnswer:
        if self.is_away:
            raise StoreFaultError("redis://example: gone")
        return await super().exchange(member, reports)


def test_workers_reach_the_pool_over_its_socket(tmp_path: Path) -> None:
    budget = Budget("a/requests", 100, 60.0)

    async def run() -> None:
        faults, clock = Faults(), ManualClock(LiveClock().now())
        common = MovingPool(clock)
        pool = FallbackPool(common, clock)
        path = tmp_path / "quotas.sock"
        path.write_text("left by one that was killed")
        served = QuotaPool(pool, path, faults)
        await served.open()
        one, two = SocketPool(served.address), SocketPool(served.address)
        window = int(clock.now() / 60.0)
        first = await one.exchange("g0", [QuotaReport(budget, window, 0, 70)])
        second = await two.exchange("g1", [QuotaReport(budget, window, 10, 70)])
        assert (first.grants[0].ceiling, second.grants[0].ceiling, second.members) == (70, 30, 2)
        common.is_away = True
        assert (await one.exchange("g0", [])).is_part
        left = "what they hold of them and a part of what was free"
        fault = f"quotas: the workers of this machine have {left}: redis://example: gone"
        assert faults.texts() == (fault,)
        common.is_away = False
        clock.advance(AGAIN_S)
        assert (await one.exchange("g0", [])).is_part
        (fault,) = faults.texts()
        assert fault.endswith(f"{left}: {BACK}")
        clock.advance(SETTLE_S)
        assert not (await one.exchange("g0", [])).is_part
        assert faults.texts() == ()
        common.is_unlisted = True
        clock.advance(SETTLE_S)
        assert not (await one.exchange("g0", [])).is_part
        (fault,) = faults.texts()
        assert fault.startswith("list of quotas: its grants count, and it does not list what gateways elsewhere have ")
        assert fault.endswith("redis://example: NOPERM")
        common.is_unlisted = False
        clock.advance(AGAIN_S)
        await one.exchange("g0", [])
        assert faults.texts() == ()
        assert (await fetch(served.address, "POST", "/exchange", b"{}")).status == 400
        assert (await fetch(served.address, "GET", "/exchange")).status == 404
        await served.close()
        with pytest.raises(StoreFaultError, match="no connection"):
            await one.exchange("g0", [])

    asyncio.run(run())


def test_the_pool_is_where_the_store_is() -> None:
    assert isinstance(open_pool("embedded", LiveClock()), EmbeddedPool)
    assert "127.0.0.1:1" in repr(open_pool("redis://:secret@127.0.0.1:1/0", LiveClock()))
    assert "secret" not in repr(open_pool("redis://:secret@127.0.0.1:1/0", LiveClock()))


def test_the_part_of_a_machine_is_kept_in_a_file(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = PartFile(tmp_path / "part", Faults())
    assert file.read() == 0
    assert file.write(WHOLE // 3)
    assert PartFile(tmp_path / "part", Faults()).read() == WHOLE // 3
    assert caplog.records == []
    for text in ("", "x", "-5"):
        (tmp_path / "part").write_text(text)
        assert file.read() == 0
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 2 and all(f"{tmp_path / 'part'} cannot be read: " in each for each in said)


def test_a_part_that_cannot_be_kept_is_said_once_and_that_it_is_mended_too(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    faults, folder = Faults(), tmp_path / "none"
    file = PartFile(folder / "rooms-part", faults)
    for _ in range(3):
        assert not file.write(1)
    (text,) = faults.texts()
    assert text.startswith(f"rooms-part: {folder / 'rooms-part'} cannot be written: No such file or directory; ")
    folder.mkdir()
    assert file.write(1)
    assert faults.texts() == ()
    said = [record.getMessage() for record in caplog.records]
    assert said == [text, "rooms-part: works again"]


def test_a_warning_of_the_file_is_in_the_status_until_it_is_gone(tmp_path: Path) -> None:
    file, faults = tmp_path / "tenants.yaml", Faults()
    settings = Settings(tenants=TenantSettings(file=str(file)))
    file.write_text("tenants: [{name: revoked, keys: []}]")
    assert reported_tenants(settings, faults) == (Tenant(name="revoked"),)
    (text,) = faults.texts()
    assert "tenants[0].keys: the list is empty" in text
    file.write_text("tenants: [{name: revoked}]")
    reported_tenants(settings, faults)
    assert faults.texts() == ()
