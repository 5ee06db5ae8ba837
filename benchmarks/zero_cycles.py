"""0 -> 1 -> 0 cycles under arrivals, some of them exactly while the last replica drains.

A function on a short window sleeps as soon as it may. A client sends a burst, is silent until the replica is gone, and
sends again; in every second cycle also at the very moment at which the replica drains. Every answer must be 200: no
request may be lost because the function was going to sleep.

    python -m benchmarks.zero_cycles [--cycles 10] [--workers 4]

Prints one JSON line: cycles, requests, statuses, requests sent into a drain; exit code 1 unless all are 200.
"""

import argparse
import http.client
import json
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from benchmarks.deployment import Deployment, running

MODEL = Path(__file__).resolve().parent.parent / "tests" / "support" / "models" / "scripted_server.py"
MANIFEST = """
apiVersion: tidegate.dev/v1alpha1
kind: Function
metadata:
  name: tide
  annotations:
    tidegate.dev/initial-scale: "0"
    tidegate.dev/max-scale: "1"
    tidegate.dev/scale-to-zero-after: 1s
    tidegate.dev/policy.window: 6s
spec:
  server: {{command: [{python}, {model}, --listen, "127.0.0.1:{{port}}"]}}
  concurrency: 2
"""
POLL_S = 0.002
BURST = 8


def ask(port: int) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        connection.request("POST", "/work", b"{}", {"Host": "tide.localhost", "x-work-ms": "5"})
        answer = connection.getresponse()
        answer.read()
        return answer.status
    except OSError:
        return 0
    finally:
        connection.close()


def states(deployment: Deployment) -> list[str]:
    view = deployment.client().function("tide")
    return [replica.state for revision in view.revisions for replica in revision.replicas]


def silence(deployment: Deployment, until_gone: bool) -> bool:
    """Waits until the replica drains (or, ``until_gone``, has gone); whether it was met draining."""
    limit = time.monotonic() + 60
    while time.monotonic() < limit:
        found = states(deployment)
        if not found:
            return False
        if not until_gone and any(state in ("draining", "drained") for state in found):
            return True
        time.sleep(POLL_S)
    raise RuntimeError(f"the function did not go to zero within a minute: {states(deployment)}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--cycles", type=int, default=10)
    parser.add_argument("--workers", type=int, default=4)
    arguments = parser.parse_args()
    accelerators = "accelerators: [{name: cpu, kind: cpu, cores: 1, count: 1, memory: 4Gi}]"
    answers: Counter[int] = Counter()
    into_drain = 0
    with running(workers=arguments.workers, accelerators=accelerators) as deployment, ThreadPoolExecutor(BURST) as pool:
        deployment.client().deploy(MANIFEST.format(python=sys.executable, model=MODEL), base="/")
        for cycle in range(arguments.cycles):
            answers.update(pool.map(ask, [deployment.front_port] * BURST))
            if cycle % 2:
                into_drain += silence(deployment, until_gone=False)
                answers.update(pool.map(ask, [deployment.front_port] * BURST))
            silence(deployment, until_gone=True)
        answers.update(pool.map(ask, [deployment.front_port] * BURST))
        starts = len(deployment.client().cold_starts("tide"))
    print(
        json.dumps(
            {
                "benchmark": "zero_cycles",
                "cycles": arguments.cycles,
                "workers": arguments.workers,
                "requests": answers.total(),
                "statuses": {str(status): count for status, count in sorted(answers.items())},
                "bursts_into_a_drain": into_drain,
                "starts": starts,
            }
        )
    )
    sys.exit(set(answers) != {200})


if __name__ == "__main__":
    main()
