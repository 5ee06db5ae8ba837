"""Deployments on a Redis: their records, quotas that two of them share, and a Redis that is killed under load."""

import asyncio
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.support.deployment import Deployment, deployment
from tests.support.redis_server import RedisServer
from tests.support.tenants import ACME, closed_function, infer_load, saturated, tenants_file

pytestmark = [pytest.mark.live, pytest.mark.timeout(240)]

QUOTA = 40
RATE = 150.0
STEADY_S = 12.0


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[RedisServer]:
    folder = tmp_path / "redis"
    folder.mkdir()
    server = RedisServer(folder)
    yield server
    server.kill()


def url_of(place: Deployment) -> str:
    return f"{place.gateway}/v2/models/echo/infer"


def figures(by_second: dict[int, Counter[int]], seconds: list[int]) -> tuple[int, float]:
    """What was admitted in these whole seconds, and its error against the quota."""
    admitted = sum(by_second[second][200] for second in seconds)
    return admitted, admitted / (QUOTA * len(seconds)) - 1


def only_answers(by_second: dict[int, Counter[int]]) -> None:
    """Everything was admitted or told to come back: no other status, no failure."""
    codes = sum(by_second.values(), Counter[int]())
    assert codes.keys() <= {200, 429}, codes


def test_the_records_of_a_deployment_are_in_redis_under_its_name(tmp_path: Path, redis: RedisServer) -> None:
    with deployment(tmp_path, "--store-url", redis.url, "--store-name", "blue") as place:
        place.up()
        place.deploy(place.handler())
        assert place.infer().status_code == 200
        assert place.ask("status")["store"] == f"{redis.url}, as blue"
        second = Deployment(_folder(tmp_path, "second"), "--store-url", redis.url, "--store-name", "blue")
        done = subprocess.run(
            second.command("up", *second.flags), capture_output=True, text=True, timeout=30, check=False
        )
        assert done.returncode == 1
        assert "has this name, and lives" in done.stderr
        assert place.stop() == 0
    with deployment(_folder(tmp_path, "machine-2"), "--store-url", redis.url, "--store-name", "blue") as place:
        place.up()
        assert [each["name"] for each in place.ask("list")] == ["echo"], "another machine takes up what is deployed"
    with deployment(_folder(tmp_path, "other"), "--store-url", redis.url) as place:
        place.up()
        assert place.ask("list") == [], "what has another name is another deployment"


def _folder(parent: Path, name: str) -> Path:
    found = parent / name
    found.mkdir()
    return found


def test_without_redis_nothing_starts_and_it_is_told_why(tmp_path: Path, redis: RedisServer) -> None:
    redis.kill()
    place = Deployment(tmp_path, "--store-url", redis.url.replace("redis://", "redis://:SECRET@"))
    begun = time.monotonic()
    done = subprocess.run(place.command("up", *place.flags), capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 1
    assert time.monotonic() - begun < 15
    assert f"redis://:***@127.0.0.1:{redis.port}/0" in done.stderr
    assert "SECRET" not in done.stderr and "Traceback" not in done.stderr
    assert not place.living()
    found = subprocess.run(
        (sys.executable, "-m", "control.cli", "doctor", "--state", str(place.state.root)),
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
        cwd=_with_settings(tmp_path, redis.url),
    )
    assert re.search(r"bad +store: redis://", found.stdout), found.stdout


def _with_settings(folder: Path, url: str) -> Path:
    (folder / "tidegate.toml").write_text(f'[store]\nurl = "{url}"\n')
    return folder


def test_two_deployments_share_a_quota(tmp_path: Path, redis: RedisServer) -> None:
    """Two control processes with two workers and a state directory each; one gets four times the other's load."""
    folders = [_folder(tmp_path, "one"), _folder(tmp_path, "two")]
    flags = ["--gateway-workers", "2", "--store-url", redis.url]
    files = [tenants_file(folder, f"{{requests-per-second: {QUOTA}}}") for folder in folders]
    with (
        deployment(folders[0], *flags, "--tenants-file", str(files[0])) as one,
        deployment(folders[1], *flags, "--tenants-file", str(files[1])) as two,
    ):
        for place in (one, two):
            place.up()
            closed_function(place, {"api-keys": True})

        async def run() -> list[dict[int, Counter[int]]]:
            loads = ((url_of(one), 0.8 * RATE), (url_of(two), 0.2 * RATE))
            return list(await asyncio.gather(*(infer_load(url, ACME, seconds=13.0, rate=rate) for url, rate in loads)))

        found = asyncio.run(run())
        for each in found:
            only_answers(each)
        both = {second: found[0][second] + found[1][second] for second in found[0].keys() & found[1].keys()}
        whole = saturated(both)[:10]
        admitted, error = figures(both, whole)
        parts = [sum(each[second][200] for second in whole) for each in found]
        sys.stdout.write(f"\nquota {QUOTA}/s over 2 deployments of 2 workers: {admitted} = {parts}, {error:+.2%}\n")
        assert len(whole) == 10
        assert abs(error) <= 0.02
        assert min(parts) > 0


@pytest.mark.parametrize("away_s", [10.0, pytest.param(30.0, marks=pytest.mark.deep)])
def test_a_redis_that_is_killed_under_load_changes_nothing_but_whose_share_is_whose(
    tmp_path: Path, redis: RedisServer, away_s: float
) -> None:
    file = tenants_file(tmp_path, f"{{requests-per-second: {QUOTA}}}")
    flags = ("--gateway-workers", "4", "--store-url", redis.url, "--tenants-file", str(file))
    with deployment(tmp_path, *flags) as place:
        place.up()
        closed_function(place, {"api-keys": True})

        async def run() -> tuple[dict[int, Counter[int]], float, float]:
            seconds = STEADY_S + away_s + 4.0 + STEADY_S
            async with asyncio.TaskGroup() as group:
                load = group.create_task(infer_load(url_of(place), ACME, seconds=seconds, rate=RATE))
                await asyncio.sleep(STEADY_S)
                redis.kill()
                killed = time.time()
                await asyncio.sleep(2.0)
                faults = str((await asyncio.to_thread(place.ask, "status"))["faults"])
                assert "quotas: the workers of this machine go by their part" in faults
                metrics = await asyncio.to_thread(_metrics, place)
                assert re.search(r'^tidegate_gateway_quotas_local\{worker="g\d"\} 1\.0$', metrics, re.MULTILINE)
                await asyncio.sleep(max(0.0, killed + away_s - time.time()))
                await asyncio.to_thread(redis.start)
                back = time.time()
            return load.result(), killed, back

        by_second, killed, back = asyncio.run(run())
        only_answers(by_second)
        before = saturated(by_second, killed - STEADY_S + 2, killed)
        away = saturated(by_second, killed + 1, back - 1)
        after = saturated(by_second, back + 3)
        told = []
        for name, seconds in (("shared", before), ("away", away), ("shared again", after)):
            admitted, error = figures(by_second, seconds)
            told.append(f"{name} {len(seconds)} s: {admitted} admitted, {error:+.2%}")
        sys.stdout.write(f"\nquota {QUOTA}/s over 4 workers, {'; '.join(told)}\n")
        assert min(len(before), len(away), len(after)) >= 4
        assert abs(figures(by_second, before)[1]) <= 0.02
        assert abs(figures(by_second, away)[1]) <= 0.02, "all gateway workers that there are share the whole among them"
        assert abs(figures(by_second, after)[1]) <= 0.02
        place.until(lambda: "quotas" not in str(place.ask("status")["faults"]), 10.0, "the fault to go")


def _metrics(place: Deployment) -> str:
    holder = place.state.holder()
    assert holder is not None and holder.api is not None
    token = {"authorization": f"Bearer {place.state.token}"}
    return httpx.get(f"{holder.api}/metrics", headers=token, trust_env=False, timeout=10.0).text
