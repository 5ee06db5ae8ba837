"""Cold starts, end to end: request at zero -> process spawned, model ready -> first byte sent to it.

Every start is a function of its own at zero replicas, so that nothing of the one before is warm. The model server is a
probe: a shell writes the time at which it was executed (starting `date` included), then a small server loads for
``--load`` seconds and notes when it could first answer and when the held request reached it, all on one clock.

    python -m benchmarks.cold_start [--starts 100]

Prints one JSON line: p50 and p99 in milliseconds of both times, and of the model's own load for comparison.
"""

import argparse
import http.client
import json
import sys
import time
from pathlib import Path

from benchmarks.deployment import Deployment, running

# Written next to the manifest; runs as the model server.
SERVER = """
import os, socket, sys, time

notes, load, port = sys.argv[1], float(sys.argv[2]), int(sys.argv[3])


def note(word):
    with open(notes, "a") as file:
        file.write(f"{word} {time.monotonic()}\\n")


note("python")
listener = socket.create_server(("127.0.0.1", port), backlog=64)
listener.settimeout(0.001)
begun, ready = time.monotonic(), False
import selectors

selector = selectors.DefaultSelector()
listener.setblocking(False)
selector.register(listener, selectors.EVENT_READ)
while True:
    for key, _ in selector.select(0.001):
        if key.fileobj is listener:
            connection, _ = listener.accept()
            selector.register(connection, selectors.EVENT_READ)
            continue
        data = key.fileobj.recv(65536)
        if not data:
            selector.unregister(key.fileobj)
            key.fileobj.close()
            continue
        probe = data.startswith(b"GET /ready")
        if not probe:
            note("request")
        ok = ready or not probe
        status = b"200 OK" if ok else b"503 Service Unavailable"
        key.fileobj.sendall(b"HTTP/1.1 " + status + b"\\r\\ncontent-length: 2\\r\\n\\r\\nok")
    if not ready and time.monotonic() - begun >= load:
        ready = True
        note("ready")
"""

MANIFEST = """
apiVersion: tidegate.dev/v1alpha1
kind: Function
metadata:
  name: {name}
  annotations: {{tidegate.dev/initial-scale: "0"}}
spec:
  server:
    command: [sh, -c, 'echo spawned $(date +%s.%N) > {notes}; exec {python} -S {server} {notes} {load} {{port}}']
  protocol: http
  readiness: {{path: /ready, start-timeout: 30s}}
"""


def percentile(values: list[float], q: float) -> float:
    ranked = sorted(values)
    return ranked[min(len(ranked) - 1, round(q * (len(ranked) - 1)))]


def one_start(deployment: Deployment, folder: Path, name: str, load: float) -> tuple[float, float, float]:
    """(request -> spawned, ready -> request at the model, spawned -> ready), in seconds."""
    notes = folder / f"{name}.notes"
    text = MANIFEST.format(name=name, notes=notes, load=load, python=sys.executable, server=folder / "probe_server.py")
    client = deployment.client()
    client.deploy(text, base=folder)
    connection = http.client.HTTPConnection("127.0.0.1", deployment.front_port, timeout=30)
    connection.connect()
    time.sleep(0.15)  # the deploy's own round is over, the function is at rest at zero
    asked_wall, asked = time.time(), time.monotonic()
    connection.request("GET", "/work", headers={"Host": f"{name}.localhost"})
    answer = connection.getresponse()
    body = answer.read()
    connection.close()
    if answer.status != 200:
        raise RuntimeError(f"{name}: {answer.status} {body.decode(errors='replace')}")
    seen = dict(line.split() for line in notes.read_text().splitlines())
    client.delete(name)
    spawned = float(seen["spawned"]) - asked_wall
    ready = float(seen["ready"])
    return spawned, float(seen["request"]) - ready, ready - asked - spawned


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--starts", type=int, default=100)
    parser.add_argument("--load", type=float, default=0.3, help="seconds that the model takes to load")
    arguments = parser.parse_args()
    # A declared accelerator with many units: the starts must not wait for one another's places.
    accelerators = "accelerators: [{name: cpu, kind: cpu, cores: 1, count: 2, memory: 4Gi}]"
    with running(accelerators=accelerators) as deployment:
        folder = deployment.root
        (folder / "probe_server.py").write_text(SERVER)
        figures = [
            one_start(deployment, folder, f"cold-{number:03d}", arguments.load) for number in range(arguments.starts)
        ]
    spawn, first, load = (sorted(column) for column in zip(*figures, strict=True))
    print(
        json.dumps(
            {
                "benchmark": "cold_start",
                "starts": len(figures),
                "request_to_spawn_p50_ms": round(percentile(spawn, 0.5) * 1e3, 2),
                "request_to_spawn_p99_ms": round(percentile(spawn, 0.99) * 1e3, 2),
                "ready_to_first_byte_p50_ms": round(percentile(first, 0.5) * 1e3, 2),
                "ready_to_first_byte_p99_ms": round(percentile(first, 0.99) * 1e3, 2),
                "model_load_p50_ms": round(percentile(load, 0.5) * 1e3, 2),
            }
        )
    )


if __name__ == "__main__":
    main()
