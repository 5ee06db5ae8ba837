"""Five minutes of hot restarts under load, with a stream and a tunnel that outlive sixty workers."""

import threading
import time
from pathlib import Path

import pytest

from tests.live.test_hot_restart import BODY, INFER, Aside, deploy_streams, events, talk, workers
from tests.support.live.deployment import deployment
from tests.support.live.strict_clients import Hammer

pytestmark = [pytest.mark.deep, pytest.mark.timeout(600)]


def test_five_minutes_of_restarts(tmp_path: Path) -> None:
    with deployment(tmp_path, "--gateway-workers", "2") as world:
        world.up()
        world.deploy(world.handler(), "--min-scale", "1", "--concurrency", "4", "--wait")
        deploy_streams(world)
        stream = Aside(lambda: events(world.gateway, 600, 0.5))
        hang_up = threading.Event()
        tunnel = Aside(lambda: talk(world.gateway, hang_up))
        end = time.monotonic() + 300.0
        with Hammer(world.gateway, BODY, path=INFER) as hammer:
            while time.monotonic() < end:
                world.ask("restart")
                time.sleep(5.0)
        assert not hammer.failures
        assert len(stream.end(120.0)) == 600
        hang_up.set()
        assert tunnel.end(10.0) > 1000
        world.until(lambda: len(workers(world)) == 2, 30.0, "all old ones to be gone")
