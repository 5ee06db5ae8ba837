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

from tests.support.deadline import Patience
from tests.support.live.deployment import Deployment, deployment
from tests.support.live.redis_server import RedisServer
from tests.support.live.tenants import ACME, SECOND, closed_function, in_one_minute, tenants_file

pytestmark = [pytest.mark.live, pytest.mark.timeout(240), pytest.mark.needs(tool="redis")]

QUOTA = 200
AWAY_S = 32.0
"""So long a Redis is away at least."""


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[RedisServer]:
    folder = tmp_path / "redis"
    folder.mkdir()
    server = RedisServer(folder)
    yield server
    server.kill()


def url_of(place: Deployment) -> str:
    return f"{place.gateway}/v2/models/echo/infer"


def test_the_records_of_a_deployment_are_in_redis_under_its_name(tmp_path: Path, redis: RedisServer) -> None:
    with deployment(tmp_path, "--store-url", redis.url, "--store-name", "blue") as place:
        place.up()
        place.deploy(place.handler())
        assert place.infer().status_code == 200
        assert place.status()["store"] == f"{redis.url}, as blue"
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


def test_without_redis_nothing_starts_and_it_is_reported_why(tmp_path: Path, redis: RedisServer) -> None:
    redis.kill()
    place = Deployment(tmp_path, "--store-url", redis.url.replace("redis://", "redis://:SECRET@"))
    patience = Patience(15.0)
    done = subprocess.run(place.command("up", *place.flags), capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 1
    assert not patience.is_over
    assert f"redis://:***@127.0.0.1:{redis.port}/0" in done.stderr
    assert "SECRET" not in done.stderr and "Traceback" not in done.stderr
    assert not place.living()
    found = subprocess.run(
        (sys.executable, "-m", "tidegate.control.cli", "doctor", "--state", str(place.state.root)),
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
    files = [tenants_file(folder, f"{{requests-per-minute: {QUOTA}}}") for folder in folders]
    with (
        deployment(folders[0], *flags, "--tenants-file", str(files[0])) as one,
        deployment(folders[1], *flags, "--tenants-file", str(files[1])) as two,
    ):
        for place in (one, two):
            place.up()
            closed_function(place, {"api-keys": True})

        async def run() -> list[Counter[int]]:
            return await in_one_minute([(url_of(one), 32.0), (url_of(two), 8.0)], 15.0)

        found = asyncio.run(run())
        parts = [each[200] for each in found]
        error = sum(parts) / QUOTA - 1
        sys.stdout.write(f"\nquota {QUOTA}/min over 2 deployments of 2 workers: {parts}, {error:+.2%}\n")
        assert all(each.keys() == {200, 429} for each in found), found
        assert -0.02 <= error <= 0
        assert min(parts) > 0


def test_a_redis_that_is_killed_changes_nothing_but_whose_share_is_whose(tmp_path: Path, redis: RedisServer) -> None:
    """Two tenants use up their quotas with Redis, one of them without it in the next minute, the other with it again:
    each window of each has its quota, and no client sees more of it than 200 and 429."""
    file = tenants_file(tmp_path, f"{{requests-per-minute: {QUOTA}}}")
    flags = ("--gateway-workers", "4", "--store-url", redis.url, "--tenants-file", str(file))
    with deployment(tmp_path, *flags) as place:
        place.up()
        closed_function(place, {"api-keys": True})

        async def window(key: str) -> Counter[int]:
            (codes,) = await in_one_minute([(url_of(place), 40.0)], 12.0, key)
            return codes

        async def run() -> dict[str, Counter[int]]:
            async with asyncio.TaskGroup() as group:
                before = [group.create_task(window(key)) for key in (ACME, SECOND)]
            redis.kill()
            killed = time.monotonic()
            async with asyncio.TaskGroup() as group:
                await _end_of_the_minute()
                away = group.create_task(window(ACME))
                await asyncio.to_thread(_until_reported, place)
            await asyncio.sleep(killed + AWAY_S - time.monotonic())
            await asyncio.to_thread(redis.start)
            await asyncio.to_thread(_is_over, place)
            again = await window(SECOND)
            with_it, with_it_too = (task.result() for task in before)
            return {"with": with_it, "with, too": with_it_too, "without": away.result(), "with it again": again}

        found = asyncio.run(run())
        printed = [f"{when} {each[200]} ({each[200] / QUOTA - 1:+.2%})" for when, each in found.items()]
        sys.stdout.write(f"\nquota {QUOTA}/min over 4 workers, Redis: {', '.join(printed)}\n")
        assert all(each.keys() == {200, 429} for each in found.values()), found
        assert all(-0.02 <= each[200] / QUOTA - 1 <= 0 for each in found.values())


async def _end_of_the_minute() -> None:
    await asyncio.sleep(60.0 - time.time() % 60.0 + 0.5)


def _until_reported(place: Deployment) -> None:
    """What the workers have without Redis is a fault of the status and a metric."""
    fault = "quotas: the workers of this machine have what they hold of them and a part of what was free"
    place.until(lambda: fault in str(place.status()["faults"]), 10.0, "the fault")
    assert re.search(r'^tidegate_gateway_quotas_local\{worker="g\d"\} 1$', _metrics(place), re.MULTILINE)


def _is_over(place: Deployment) -> None:
    place.until(lambda: "quotas" not in str(place.status()["faults"]), 20.0, "the fault to go")


def _metrics(place: Deployment) -> str:
    holder = place.state.holder()
    assert holder is not None and holder.api is not None
    token = {"authorization": f"Bearer {place.state.token}"}
    return httpx.get(f"{holder.api}/metrics", headers=token, trust_env=False, verify=False, timeout=10.0).text
