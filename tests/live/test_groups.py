"""One function on several accelerator kinds at once: emulated ones, and what changes under them while they serve."""

import re
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.live.deployment import REQUEST, Deployment, deployment

pytestmark = [pytest.mark.live, pytest.mark.timeout(120)]

T4 = "{name: t4, kind: emulated, count: 3, memory: 16Gi, price-per-hour: 0.5, profile: {base: 40ms}}"
V100 = "{name: v100, kind: emulated, count: 3, memory: 16Gi, price-per-hour: 3, profile: {base: 20ms}}"


def declare(folder: Path, *kinds: str) -> Path:
    file = folder / "accelerators.yaml"
    file.write_text("accelerators: [" + ", ".join(kinds) + "]\n")
    return file


MANIFEST = """
apiVersion: tidegate.dev/v1alpha1
kind: Function
metadata:
  name: echo
  annotations:
    tidegate.dev/target-ips: "60"
    tidegate.dev/min-scale: "4"
    tidegate.dev/policy: kpa
spec:
  server: {handler: "echo.py:Echo"}
  concurrency: 1
"""


class Load:
    """Closed loops of requests, until it is left."""

    def __init__(self, live: Deployment, callers: int) -> None:
        self.codes: Counter[int] = Counter()
        self._url = f"{live.gateway}/v2/models/echo/infer"
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._call) for _ in range(callers)]

    def _call(self) -> None:
        with httpx.Client(trust_env=False, verify=False, timeout=20.0) as client:
            while not self._stop.is_set():
                self.codes[client.post(self._url, json=REQUEST).status_code] += 1

    def __enter__(self) -> "Load":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()


def groups(live: Deployment) -> dict[str, dict[str, Any]]:
    """The groups of the newest revision, by accelerator."""
    return {each["accelerator"]: each for each in live.status("echo")["revisions"][0]["groups"]}


def learnt(live: Deployment, names: set[str]) -> dict[str, dict[str, Any]] | None:
    """The groups once the rates of those in ``names`` are known."""
    found = groups(live)
    return found if {name for name in found if found[name]["mu_source"] == "learnt"} >= names else None


def is_carried_out(groups: dict[str, dict[str, Any]]) -> bool:
    """Whether each group has as many replicas, ready or starting, as were decided."""
    return all(each["wanted"] == each["ready"] + each["starting"] for each in groups.values())


@pytest.mark.early
def test_two_emulated_kinds_serve_one_function_and_change_under_it(tmp_path: Path) -> None:
    file = declare(tmp_path, T4, V100)
    with deployment(tmp_path, "--accelerators-file", str(file)) as live:
        live.up()
        live.handler()
        (tmp_path / "echo.yaml").write_text(MANIFEST)
        refused = live.cli("deploy", "echo.yaml", "--latency", "15ms", code=2)
        assert "at least 20 ms" in refused.stderr
        answer = live.ask("deploy", "echo.yaml", "--latency", "30ms")
        (deployed,) = answer["functions"]
        assert deployed["capacity"]["provided"] == {"v100": 2}
        assert deployed["capacity"]["price_per_hour"] == 6
        assert any("t4 40 ms (profile)" in warning for warning in deployed["warnings"])
        live.until(lambda: sum(each["ready"] for each in groups(live).values()) == 4, 20.0, "four replicas")

        with Load(live, callers=8) as load:
            seen = live.until(lambda: learnt(live, {"t4", "v100"}), 40.0, "two learnt rates")
            assert all(each["emulated"] and each["limit"] >= 1 for each in seen.values())
            live.until(lambda: is_carried_out(groups(live)), 20.0, "what was decided to be what there is")
            assert seen["v100"]["mu_ips"] > 1.2 * seen["t4"]["mu_ips"], "twice as fast, on a machine that may be busy"
            assert all(each["weight"] > 0.1 for each in seen.values())
            labels(live)

            declare(tmp_path, V100)
            live.until(lambda: groups(live).get("t4", {"ready": 0})["ready"] == 0, 20.0, "t4 to be left")
            live.until(lambda: groups(live)["v100"]["ready"] == 3, 20.0, "v100 to be full")
        assert set(load.codes) == {200}, "no request noticed"

        before = groups(live)["v100"]["mu_ips"]
        live.stop()
        live.up()
        again = live.until(lambda: learnt(live, {"v100"}), 20.0, "what was learnt before")
        assert again["v100"]["mu_ips"] == pytest.approx(before, rel=0.3)

        file.write_text("accelerators: [{name: t4, kind: abacus, count: 0}]\n")
        wrong = live.cli("reload", code=2)
        assert "kind" in wrong.stderr
        assert "count" in wrong.stderr


def labels(live: Deployment) -> None:
    """Emulation is named wherever it shows."""
    assert re.search(r"\(\d emulated\)", live.cli("list").stdout)
    assert "t4 (emulated)" in live.cli("status", "echo").stdout
    assert "emulated" in live.cli("explain", "echo", "-v").stdout
    metadata = httpx.get(f"{live.gateway}/v2/models/echo", trust_env=False, verify=False, timeout=10.0).json()
    assert (metadata["platform"], metadata["emulated"]) == ("tidegate_emulated", True)
    holder = live.state.holder()
    assert holder is not None
    token = live.state.read_token()
    text = httpx.get(
        f"{holder.api}/metrics",
        headers={"authorization": f"Bearer {token}"},
        trust_env=False,
        verify=False,
        timeout=10.0,
    ).text
    assert re.search(r'tidegate_group_emulated\{function="echo",revision="echo-00001",group="t4"\} 1\n', text)
    assert re.search(r'tidegate_group_service_rate\{function="echo",revision="echo-00001",group="v100"\} \d', text)
