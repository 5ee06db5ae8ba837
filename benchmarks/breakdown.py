"""What a client of a pipeline waits beyond the breakdown that its answers state in ``Server-Timing``.

Three stages in the shipped runtime, one client with one connection and one request at a time. It measures each request
from its first byte sent to the last byte of the answer, by a clock of its own. The sum is that of the answer's
``entry``, of its stages and of ``answer``.

    python -m benchmarks.breakdown [--requests 200] [--rate 20] [--values 2]

Prints one JSON line: median and 95th percentile of what the client saw, of the sum, and of the difference in
milliseconds; and for how many the difference is at most 2 ms. Exit code 1 if the median is not.
"""

import argparse
import json
import os
import socket
import sys
import time

from benchmarks.deployment import Deployment, running

STAGES = ("one", "two", "three")
LIMIT_MS = 2.0
"""Most that may lie between what a client sees and the sum of the breakdown."""
WARM_UP = 20
CODE = """\
import time

class Stage:
    arrays = "plain"
    inputs = {"x": ("FP32", [-1, -1])}
    outputs = {"x": ("FP32", [-1, -1])}

    def predict(self, inputs):
        time.sleep(0.005)
        return {"x": inputs["x"]}
"""
FUNCTION = """\
apiVersion: tidegate.dev/v1alpha1
kind: Function
metadata: {{name: {name}, annotations: {{tidegate.dev/min-scale: "1"}}}}
spec: {{server: {{handler: "stage.py:Stage"}}}}
---
"""
PIPELINE = """\
apiVersion: tidegate.dev/v1alpha1
kind: Pipeline
metadata: {name: whole}
spec: {stages: [{function: one}, {function: two}, {function: three}]}
"""


class Client:
    """One connection that is kept, by blocking calls."""

    def __init__(self, port: int, values: int) -> None:
        given = {"name": "x", "datatype": "FP32", "shape": [1, values], "data": [1.5] * values}
        body = json.dumps({"inputs": [given]}).encode()
        head = f"POST /v2/models/whole/infer HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n"
        self._request = head.encode() + body
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=60.0)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def ask(self) -> tuple[float, float]:
        """Returns what one request took and the sum of its breakdown, in milliseconds."""
        began = time.perf_counter()
        self._socket.sendall(self._request)
        answer = b""
        while b"\r\n\r\n" not in answer:
            answer += self._received()
        head, _, body = answer.partition(b"\r\n\r\n")
        status, *lines = head.decode().split("\r\n")
        fields = dict(line.lower().split(": ", 1) for line in lines)
        missing = int(fields["content-length"]) - len(body)
        while missing:
            missing -= len(self._received())
        took_ms = 1e3 * (time.perf_counter() - began)
        if " 200 " not in status:
            raise RuntimeError(f"the pipeline answered {status}: {body[:200]!r}")
        entries = (entry.strip().partition(";dur=") for entry in fields["server-timing"].split(","))
        parts = {name: float(value) for name, _, value in entries}
        return took_ms, sum(parts[name] for name in ("entry", *STAGES, "answer"))

    def _received(self) -> bytes:
        data = self._socket.recv(1 << 20)
        if not data:
            raise RuntimeError("the gateway closed the connection amid an answer")
        return data

    def close(self) -> None:
        self._socket.close()


def deploy(deployment: Deployment) -> None:
    (deployment.root / "stage.py").write_text(CODE)
    manifest = "".join(FUNCTION.format(name=name) for name in STAGES) + PIPELINE
    deployment.client().deploy(manifest, base=str(deployment.root))
    limit = time.monotonic() + 60.0
    while deployment.client().function("whole").state != "ready":
        if time.monotonic() > limit:
            raise RuntimeError("the stages were not ready within a minute")
        time.sleep(0.05)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--requests", type=int, default=200)
    parser.add_argument("--rate", type=float, default=20.0, help="requests a second, while each is answered in time")
    parser.add_argument(
        "--values", type=int, default=2, help="numbers in the tensor of a request, each 4 bytes of JSON"
    )
    arguments = parser.parse_args()
    accelerators = "accelerators: [{name: cpu, kind: cpu, cores: 1, count: 3, memory: 4Gi}]"
    found: list[tuple[float, float]] = []
    with running(accelerators=accelerators) as deployment:
        deploy(deployment)
        client = Client(deployment.front_port, arguments.values)
        try:
            for _ in range(WARM_UP):
                client.ask()
            due = time.monotonic()
            for _ in range(arguments.requests):
                time.sleep(max(0.0, due - time.monotonic()))
                found.append(client.ask())
                due = max(time.monotonic(), due + 1.0 / arguments.rate)
        finally:
            client.close()
    beyond = sorted(took - total for took, total in found)

    def figures(values: list[float]) -> dict[str, float]:
        last = len(values) - 1
        return {f"p{at}": round(sorted(values)[round(last * at / 100)], 3) for at in (50, 95)}

    row = {
        "benchmark": "breakdown",
        "requests": len(found),
        "values": arguments.values,
        "client_ms": figures([took for took, _ in found]),
        "sum_ms": figures([total for _, total in found]),
        "beyond_ms": figures(beyond),
        "within_2_ms": sum(each <= LIMIT_MS for each in beyond),
        "load_average": round(os.getloadavg()[0], 1),
    }
    print(json.dumps(row))
    sys.exit(beyond[len(beyond) // 2] > LIMIT_MS)


if __name__ == "__main__":
    main()
