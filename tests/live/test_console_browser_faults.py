"""The console shows what goes wrong while it is open: a missed SLA, a dead replica, a control process that is gone.
It stays quick with two hundred functions."""

import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.live.browser import Browser, browser
from tests.support.live.console import enter, free_address, go, is_live, without_faults
from tests.support.live.deployment import deployment, places
from tests.support.live.load import load

pytestmark = [pytest.mark.live, pytest.mark.needs(tool="browser"), pytest.mark.timeout(180)]

MANY = 200
MANIFEST = """
apiVersion: tidegate.dev/v1alpha1
kind: Function
metadata: {{name: f{index:03}}}
spec: {{server: {{command: ["true", "{{port}}"]}}}}
"""


@pytest.fixture(scope="module")
def web(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with browser(tmp_path_factory.mktemp("browser")) as found:
        found.size(1280, 900)
        yield found


def test_a_missed_sla_a_killed_replica_and_a_control_process_gone_and_back_are_shown(
    tmp_path: Path, web: Browser
) -> None:
    with deployment(tmp_path, *places(tmp_path, 1), "--control-listen", free_address()) as world:
        world.up()
        one = ("--min-scale", "1", "--max-scale", "1", "--latency", "10ms")
        world.deploy(world.handler(work_s=0.1), *one, "--wait")
        web.faults()
        enter(web, world)
        with load(world):
            web.shows("echo misses its SLA", "#faults")
            web.shows("missed 0.0 %", "main table")
        go(web, world, "/console/functions/echo")
        web.shows("echo misses its SLA", "#faults")
        web.shows("missed", "h1")
        without_faults(web.faults())

        killed = next(name for name in world.living() if name.endswith(".server"))
        os.kill(world.living()[killed], signal.SIGKILL)
        web.shows("in the last hour", "#faults")
        web.shows(killed.removesuffix(".server"), "#faults")
        web.until(lambda: web.facts()["Ready / wanted"].startswith("1 / 1"), "another replica")
        without_faults(web.faults())

        world.kill()
        web.until(lambda: web.text("#connection") == "not connected", "the page to say that nothing answers")
        web.shows("connection to the control process lost", "#faults")
        world.up()
        is_live(web)
        web.until(lambda: "lost" not in web.text("#faults"), "the fault to go")
        web.faults()
        is_live(web)
        without_faults(web.faults())


def test_a_replica_that_sleeps_is_shown_with_its_wake_and_what_it_holds(tmp_path: Path, web: Browser) -> None:
    def idle() -> dict[str, str]:
        return next(iter(web.table("Idle replicas")), {})

    def sleeps() -> bool:
        return idle().get("Now") == "1 asleep"

    flags = ("--servers-sleep", "true", "--control-listen", free_address())
    with deployment(tmp_path, *places(tmp_path, 1), *flags) as world:
        world.up()
        world.deploy(world.handler(load_s=1.5), "--latency", "500ms", "--scale-to-zero-after", "1s", "--wait")
        assert world.infer().is_success
        web.faults()
        enter(web, world)
        go(web, world, "/console/functions/echo")
        web.until(sleeps, "the replica to sleep")
        assert world.infer().is_success
        web.until(lambda: sleeps() and "(a wake takes " in idle()["Measured"], "the wake to be measured")
        shown = idle()["Measured"]
        assert "% of a place" in shown
        assert f"replicas on cpu: {shown}" in world.ask("explain", "echo")["text"]
        without_faults(web.faults())


def test_two_hundred_functions_are_listed_and_follow_a_change(tmp_path: Path, web: Browser) -> None:
    with deployment(tmp_path) as world:
        world.up()
        with world.sdk() as tidegate:
            tidegate.deploy("---".join(MANIFEST.format(index=index) for index in range(MANY)), base=tmp_path)
            web.open("about:blank")
            web.faults()
            begun = time.monotonic()
            enter(web, world)
            web.until(lambda: len(web.table("Functions")) == MANY, f"{MANY} functions")
            listed_s = time.monotonic() - begun
            tidegate.delete("f000")
            begun = time.monotonic()
            web.until(lambda: len(web.table("Functions")) == MANY - 1, "one less")
            changed_s = time.monotonic() - begun
        web.driver.find_element("id", "filter").send_keys("f19")
        web.until(lambda: len(web.table("Functions")) == 10, "those that the filter leaves")
        without_faults(web.faults())
        sys.stdout.write(f"{MANY} functions: listed in {listed_s:.2f} s, a change shown in {changed_s:.2f} s\n")
