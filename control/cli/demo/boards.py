"""A Prometheus beside a demo, and what the queries of Grafana's boards give in it.

It runs with the configuration that ``deploy/prometheus`` ships, but scrapes each second. The queries are read from the
boards that ``deploy/grafana`` ships.
"""

import contextlib
import json
import re
import shutil
import socket
import subprocess
import time
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import httpx

from tidegate.control.cli.common import say
from tidegate.control.cli.demo.shown import BoardFigures, Curve
from tidegate.errors import TidegateError

START_S: Final = 30.0
STEP_S: Final = 0.5
PROMETHEUS: Final = "deploy/prometheus"
GRAFANA: Final = "deploy/grafana"


class PrometheusError(TidegateError):
    """Prometheus does not start, does not answer, or refuses a query."""


class Watcher:
    """A running Prometheus and the boards' queries about ``function``."""

    def __init__(self, url: str, boards: Path, function: str) -> None:
        self._url = url
        self._function = function
        self._counted = f'tidegate_gateway_requests_total{{function="{function}"}}'
        self._shown = f'tidegate_latency_quantile_seconds{{function="{function}"}}'
        self._queries = {**_queries(boards / "tidegate-fleet.json"), **_queries(boards / "tidegate-function.json")}

    def sees_function(self) -> bool:
        """Returns whether the function has been scraped: only then its first requests count."""
        with contextlib.suppress(PrometheusError):
            return bool(self._ask("query", query=self._counted))
        return False

    def figures(self, since_unix: float, until_unix: float, percentile: float, began_unix: float) -> BoardFigures:
        """Returns what the boards showed between two Unix times; the load began at ``began_unix``."""
        span = since_unix, until_unix
        rate, attained, latency = (
            self._queries[title] for title in ("Requests", "Attainment", "Latency and its target")
        )
        tail = f"{percentile / 100.0:g}"
        scrapes = sorted({at for _, at in self._curve(f"timestamp({self._counted})", span, function=self._function)})

        def curve(expression: str, at: str, **labels: str) -> Curve:
            """Returns the curve of a panel by the time of the scrape behind each of its values."""
            times = dict(self._curve(f"max(timestamp({at}))", span))
            found = [(times[unix], value) for unix, value in self._curve(expression, span, **labels) if unix in times]
            scraped = [(scrapes[bisect_right(scrapes, at) - 1], value) for at, value in found if at >= scrapes[0]]
            return tuple((at - began_unix, value) for at, value in scraped)

        return BoardFigures(
            requests_per_s=curve(rate, rate, function=self._function),
            p50_s=curve(latency, self._shown, quantile="0.5"),
            tail_s=curve(latency, self._shown, quantile=tail),
            within_sla=curve(attained, attained, function=self._function),
        )

    def _curve(self, expression: str, span: tuple[float, float], **labels: str) -> list[tuple[float, float]]:
        """Returns (Unix time, value) of the first series with these labels, each half second."""
        found = self._ask("query_range", query=expression, start=span[0], end=span[1], step=STEP_S)
        values: list[Any] = next((each["values"] for each in found if labels.items() <= each["metric"].items()), [])
        return [(float(at), float(value)) for at, value in values]

    def _ask(self, kind: str, **parameters: str | float) -> list[Any]:
        """Returns the series of a query. Raises PrometheusError without an answer."""
        try:
            answer = httpx.get(f"{self._url}/api/v1/{kind}", params=parameters, trust_env=False).json()
        except (httpx.HTTPError, ValueError) as error:
            raise PrometheusError(f"Prometheus does not answer: {error}") from error
        if answer["status"] != "success":
            raise PrometheusError(f"Prometheus refuses {parameters['query']}: {answer.get('error')}")
        return list(answer["data"]["result"])


@contextlib.contextmanager
def watching(tree: Path, folder: Path, state: Path, function: str) -> Iterator[Watcher | None]:
    """Runs Prometheus over the deployment in ``state``, with what ``tree`` ships; yields None where there is none on
    the search path, or it does not start."""
    if shutil.which("prometheus") is None:
        yield None
        return
    shutil.copytree(tree / PROMETHEUS, folder)
    config = folder / "prometheus.yml"
    text = config.read_text(encoding="utf-8").replace("STATE", str(state))
    config.write_text(re.sub(r"_interval: \d+s", "_interval: 1s", text), encoding="utf-8")
    with contextlib.ExitStack() as stack:
        try:
            url = stack.enter_context(running(folder))
        except PrometheusError as error:
            say(f"without Grafana's boards: {error}")
            yield None
            return
        yield Watcher(url, tree / GRAFANA, function)


@contextlib.contextmanager
def running(folder: Path) -> Iterator[str]:
    """Runs Prometheus with ``folder``'s configuration; yields its URL when it answers. Raises PrometheusError
    with its log if it does not."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    log = folder / "log"
    command = ("prometheus", f"--config.file={folder / 'prometheus.yml'}", f"--storage.tsdb.path={folder / 'data'}")
    with log.open("wb") as output:
        process = subprocess.Popen((*command, f"--web.listen-address={address}"), stdout=output, stderr=output)
    try:
        end = time.monotonic() + START_S
        while not _is_ready(address):
            if process.poll() is not None or time.monotonic() > end:
                raise PrometheusError(f"Prometheus does not start: {log.read_text(errors='replace')[-2000:]}")
            time.sleep(0.1)
        yield f"http://{address}"
    finally:
        process.kill()
        process.wait()


def _is_ready(address: str) -> bool:
    try:
        return httpx.get(f"http://{address}/-/ready", trust_env=False).is_success
    except httpx.HTTPError:
        return False


def _queries(board: Path) -> Mapping[str, str]:
    """Returns the first query of each panel by the panel's title, with all deployments and functions chosen."""
    panels = json.loads(board.read_text(encoding="utf-8"))["panels"]
    return {
        each["title"]: re.sub(r"\$(deployment|function)", ".*", each["targets"][0]["expr"])
        for each in panels
        if each.get("targets")
    }
