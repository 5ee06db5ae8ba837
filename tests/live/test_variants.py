"""Two variants of a model, with real processes: the busy or sleeping one's requests are served by the other one."""

import threading
from pathlib import Path

import httpx
import pytest

from tests.support.live.deployment import REQUEST, Deployment, deployment

pytestmark = [pytest.mark.live, pytest.mark.timeout(120)]

FAMILY = ("--variant-of", "resnet")


def test_a_busy_or_sleeping_variant_lends_its_requests_to_one_within_its_loss(tmp_path: Path) -> None:
    gate = tmp_path / "work"
    with deployment(tmp_path) as world, httpx.Client(timeout=60.0, trust_env=False, verify=False) as http:
        world.up("--gateway-workers", "1")
        handler = world.handler(work_until=gate)
        gate.touch()
        world.cli("deploy", handler, "--name", "small", *FAMILY, "--accuracy", "76.1", "--min-scale", "1")
        large = ("--accuracy", "78.3", "--accuracy-loss", "4", "--max-scale", "1", "--scale-to-zero-after", "1s")
        world.cli("deploy", handler, "--name", "large", *FAMILY, *large)

        def ask(name: str) -> httpx.Response:
            return http.post(f"{world.gateway}/v2/models/{name}/infer", json=REQUEST)

        def ready() -> bool:
            return bool(world.status("large")["ready"])

        assert ask("small").status_code == 200
        world.until(lambda: not ready(), 30.0, "the large one to sleep")
        lent = ask("large")
        assert (lent.status_code, lent.headers["tidegate-variant"]) == (200, "small"), "without a cold start"
        assert lent.json()["model_name"] == "small"
        others = [lent]

        def woken() -> bool:
            """Asks again, as clients do: an order that meets the end of the last replica is not kept."""
            if not ready():
                others.append(ask("large"))
            return ready()

        world.until(woken, 30.0, "the large one to have woken")
        gate.unlink()
        answers: list[httpx.Response] = []
        clients = [threading.Thread(target=lambda: answers.append(ask("large"))) for _ in range(2)]
        try:
            for client in clients:
                client.start()
            world.until(lambda: len(both(world)) == 2, 30.0, "both variants to run")
        finally:
            gate.touch()
            for client in clients:
                client.join()
        assert sorted(each.headers.get("tidegate-variant", "") for each in answers) == ["", "small"]
        shown = world.cli("status", "large").stdout
        count = 1 + sum("tidegate-variant" in each.headers for each in others)
        lent_text = f"a loss of 4 points allowed; {count} requests served by other"
        assert f"variant of resnet, 78.3% accurate; {lent_text}" in shown
        assert "went to another variant of the model" in world.cli("explain", "large").stdout


def both(world: Deployment) -> set[str]:
    """The functions of which a request runs."""
    found = [(name, world.status(name)) for name in ("small", "large")]
    replicas = [(name, each) for name, view in found for one in view["revisions"] for each in one["replicas"]]
    return {name for name, each in replicas if each["in_flight"]}
