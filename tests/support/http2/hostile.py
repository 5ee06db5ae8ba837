"""Runs one case of the hostile HTTP/2 corpus against the engines, without sockets and on time of its own.

Client bytes -> ``H2Server`` -> the tests' driver -> ``H2Client`` -> :class:`tests.support.http2.echo.Echo`.
"""

from typing import Any

from tests.support.http2.echo import Echo, Record
from tests.support.http2.proxy import Proxy
from tests.support.http2.view import CORPUS, OWN, WAIT_S, Case, View, load, step_bytes

__all__ = ["CORPUS", "OWN", "Case", "Run", "load", "run"]

STEP_S = 0.01


class Run:
    """One case: a fresh connection and all that is behind it."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.now = 1000.0
        self.proxy = Proxy()
        self.record = Record()
        self.backend = Echo(lambda: self.record)
        self.view = View(case, self.send)
        self._to_backend(self.proxy.client.take())
        self.view.received(self.proxy.server.take())

    def send(self, data: bytes) -> None:
        """From the client; dropped when its connection is closed."""
        if not self.view.closed:
            to_client, to_backend = self.proxy.from_client(data, self.now)
            self._to_backend(to_backend)
            self.view.received(to_client)
            if self.proxy.failed is not None:
                self.view.closed = True

    def _to_backend(self, data: bytes) -> None:
        while True:
            if data:
                self.backend.receive(data, self.now)
            back = self.backend.take()
            if not back:
                return
            to_client, data = self.proxy.from_upstream(back, self.now)
            self.view.received(to_client)

    # --- steps ------------------------------------------------------------------------------------------------------

    def wait(self, seconds: float) -> None:
        until = self.now + seconds
        while self.now < until:
            self.now += STEP_S
            self.backend.tick(self.now)
            self._to_backend(b"")

    def steps(self) -> None:
        for step in self.case["steps"]:
            if not self.view.closed:
                self._step(step)
        self.view.ended_at = self.now

    def _step(self, step: dict[str, Any]) -> None:
        if "send" in step or "send_z" in step:
            for data in step_bytes(step):
                for at in range(0, len(data), step.get("every", len(data))):
                    self.send(data[at : at + step.get("every", len(data))])
                    if "every" in step:
                        self.wait(step.get("pause", 0.002))
        elif "sleep" in step:
            self.wait(step["sleep"])
        elif "await" in step:
            until = self.now + step.get("limit", 2.0)
            while self.now < until and not self.view.reached(step["await"], self.record):
                self.wait(STEP_S)
        elif "ack" in step:
            self.view.acknowledge()
        elif "half_close" in step or "reset" in step:
            self.view.closed = True
            self._to_backend(self.proxy.client_gone())
        elif "alive" not in step:
            raise ValueError(f"step {step} needs sockets")

    # --- verdict ----------------------------------------------------------------------------------------------------

    def verdict(self) -> list[str]:
        """What is wrong, after the steps."""
        expect = self.case["expect"]
        until = self.now + self.case.get("wait", WAIT_S)
        winner = None
        while winner is None and self.now <= until:
            winner = next((one for one in expect["any"] if self.view.holds(one, self.now)), None)
            self.wait(STEP_S)
        self.wait(0.05)
        self.wait(max(0.0, self.view.ended_at + expect.get("cancel", 0.0) - self.now))
        faults = self.view.judge(self.record, winner)
        if self.view.inserted and not expect.get("no_dynamic_table"):
            faults.append("the proxy uses a dynamic table")
        return faults


def run(case: Case) -> list[str]:
    """What is wrong about the case; empty: nothing."""
    one = Run(case)
    one.steps()
    return one.verdict()
