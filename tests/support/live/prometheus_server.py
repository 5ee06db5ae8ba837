"""A real Prometheus that scrapes a deployment, with our rules and alerts; their windows are as short as tests need."""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import httpx
import yaml

from tidegate.control.cli.demo.boards import running

SHIPPED: Final = Path(__file__).parents[3] / "deploy" / "prometheus"
SCRAPE_S: Final = 1


def shortened(text: str) -> str:
    """Returns rules with windows of seconds: what takes minutes to fire fires at once, and clears soon."""
    text = re.sub(r"(\[|offset )(?:\d+[mh])(\])?", lambda found: f"{found[1]}8s{found[2] or ''}", text)
    text = re.sub(r"for: \d+[smh]", "for: 1s", text)
    text = text.replace("oldest_waiting_seconds) > 30", "oldest_waiting_seconds) > 1")
    return re.sub(r"(failures_total\)\)) > 2", r"\1 > 0", text)


class Prometheus:
    """One server and its API."""

    def __init__(self, url: str) -> None:
        self._url = url

    def query(self, expression: str) -> list[Any]:
        """Returns the samples of an instant query: labels under ``metric``, time and value under ``value``."""
        answer = httpx.get(f"{self._url}/api/v1/query", params={"query": expression}, trust_env=False).json()
        assert answer["status"] == "success", answer
        return list(answer["data"]["result"])

    def value(self, expression: str) -> float | None:
        """Returns the only sample of a query; None if there is none."""
        found = self.query(expression)
        assert len(found) <= 1, found
        return float(found[0]["value"][1]) if found else None

    def firing(self) -> Mapping[str, Mapping[str, str]]:
        """Returns the labels of the alerts that fire now, by name."""
        answer = httpx.get(f"{self._url}/api/v1/alerts", trust_env=False).json()
        return {
            each["labels"]["alertname"]: each["labels"]
            for each in answer["data"]["alerts"]
            if each["state"] == "firing"
        }

    def recorded(self) -> dict[str, bool]:
        """Returns by recording rule whether it has data."""
        names = {rule["record"] for group in _groups("rules.yml") for rule in group["rules"]}
        return {name: bool(self.query(name)) for name in names}


def alerts() -> dict[str, Any]:
    """Returns the alerts that we ship by name."""
    return {rule["alert"]: rule for group in _groups("alerts.yml") for rule in group["rules"]}


def _groups(name: str) -> list[Any]:
    return list(yaml.safe_load((SHIPPED / name).read_text())["groups"])


@contextmanager
def prometheus(
    folder: Path, state: Path, scrape_s: int = SCRAPE_S, scrape: Mapping[str, Any] | None = None
) -> Iterator[Prometheus]:
    """Runs Prometheus over the deployment in ``state``, with the configuration that we ship. ``scrape_s``: between two
    scrapes, and how long one may take. ``scrape`` takes the place of the shipped scrape."""
    folder.mkdir()
    config = (SHIPPED / "prometheus.yml").read_text().replace("STATE", str(state))
    config = re.sub(r"(scrape|evaluation)_interval: \d+s", rf"\1_interval: {scrape_s}s", config)
    if scrape is not None:
        config = yaml.safe_dump(yaml.safe_load(config) | {"scrape_configs": [dict(scrape)]})
    (folder / "prometheus.yml").write_text(config)
    for name in ("rules.yml", "alerts.yml"):
        (folder / name).write_text(shortened((SHIPPED / name).read_text()))
    with running(folder) as url:
        yield Prometheus(url)
