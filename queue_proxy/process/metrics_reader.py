"""MetricsReader: reads the metrics of a model server. It is imported for a replica that declares some."""

import asyncio
import json
from collections.abc import Callable
from time import monotonic

from tidegate.aio.admin.client import FetchError, fetch
from tidegate.aio.log_stream import say
from tidegate.queue_proxy.known_metrics import WANTED
from tidegate.queue_proxy.model_server_metrics import ModelServerMetrics
from tidegate.queue_proxy.prometheus_text import MAX_BYTES, ExpositionError, scan
from tidegate.queue_proxy.settings import ProxySettings

SCRAPE_EVERY_S, SCRAPE_TIMEOUT_S = 1.0, 0.8
"""Interval at which the model server's own metrics are read, and the time limit of one scrape."""


class MetricsReader:
    """Scrapes one model server."""

    __slots__ = ("_address", "_may_be_paused", "_upstream", "metrics")

    def __init__(self, settings: ProxySettings, may_be_paused: Callable[[], bool]) -> None:
        """``may_be_paused``: whether the model server may be paused now."""
        self._may_be_paused = may_be_paused
        self._address = settings.metrics_address
        self._upstream = settings.upstream
        self.metrics = ModelServerMetrics(settings.models)

    async def follow(self, path: str) -> None:
        """Reads the model server's metrics every second. No fault in them affects the traffic."""
        app = self.metrics
        due = monotonic()
        while True:
            try:
                if not self._may_be_paused():
                    await self._scrape(app, path)
            except FetchError as error:
                if not self._may_be_paused():
                    app.failed(str(error))
            except Exception as error:  # An internal fault here must not end the replica.
                app.failed(f"internal fault: {error!r}")
            if (news := app.news()) is not None:
                say(news)
            due = max(due + SCRAPE_EVERY_S, monotonic())
            await asyncio.sleep(due - monotonic())

    async def _scrape(self, app: ModelServerMetrics, path: str) -> None:
        fields = [("accept", "text/plain;version=0.0.4")]
        reply = await fetch(
            self._address,
            "GET",
            path,
            headers=fields,
            timeout_s=SCRAPE_TIMEOUT_S,
            body_bytes=MAX_BYTES,
        )
        if reply.status != 200:
            app.failed(f"{self._address}{path} answered {reply.status}")
            return
        reading = scan(reply.body, WANTED)
        try:
            while True:
                next(reading)
                await asyncio.sleep(0)
        except StopIteration as done:
            app.take(done.value, monotonic())
        except ExpositionError as error:
            app.failed(str(error))
        if app.needs_config:
            app.max_batch = await self._max_batch(app.model)

    async def _max_batch(self, model: str | None) -> int | None:
        """Returns the largest batch in Triton's model configuration. Returns None if it is missing or the model does
        not batch."""
        try:
            reply = await fetch(
                self._upstream,
                "GET",
                f"/v2/models/{model}/config",
                timeout_s=SCRAPE_TIMEOUT_S,
                body_bytes=1 << 20,
            )
            largest = json.loads(reply.body)["max_batch_size"] if reply.status == 200 else 0
        except (FetchError, ValueError, KeyError, TypeError):
            largest = 0
        return largest if type(largest) is int and largest > 0 else None

    def __repr__(self) -> str:
        return f"<MetricsReader {self._address}>"
