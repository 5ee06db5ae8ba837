"""A real Kubernetes control plane for tests: etcd, kube-apiserver, kube-controller-manager and kube-scheduler.

Their binaries come from the folder in ``KUBEBUILDER_ASSETS`` (the convention of envtest), else from the places where
``setup-envtest`` and kubebuilder put them. With ``USE_EXISTING_CLUSTER=1`` it is the cluster of ``KUBECONFIG`` instead,
for the tests that need nothing but its API server. ``python -m tests.support.live.control_plane`` says whether all is
there, and what is left out: exit code 3 and one line if nothing can run.
"""

import json
import os
import signal
import ssl
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import httpx
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from tests.support.deadline import Patience
from tests.support.live.guard import guard_process
from tests.support.live.redis_server import _free_port as free_port

CANNOT: Final = 3
START_S: Final = 60.0
STOP_S: Final = 5.0
API_SERVER, ETCD = "kube-apiserver", "etcd"
CONTROLLERS: Final = ("kube-controller-manager", "kube-scheduler")
"""What envtest's folders do not have: tests of Deployments need it."""
EXISTING: Final = os.environ.get("USE_EXISTING_CLUSTER", "").lower() in ("1", "true")
LEFT_OUT: Final = (
    "EXISTING CLUSTER: left out are the tests with the marker needs(tool='cluster'), which need a fake node, the audit"
    " log or the end of an API server, so no Pod runs; the custom resources and policies are tested."
)
_USERS: Final = {
    "admin": ("admin", "system:masters"),
    "kube-controller-manager": ("system:kube-controller-manager", ""),
    "kube-scheduler": ("system:kube-scheduler", ""),
}


def folder() -> Path | None:
    """Returns the folder with the binaries; None if there is none."""
    stated = os.environ.get("KUBEBUILDER_ASSETS")
    data = Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share")
    fetched = sorted((data / "kubebuilder-envtest" / "k8s").glob("*"), reverse=True)
    places = [Path(stated)] if stated else [*fetched, Path("/usr/local/kubebuilder/bin")]
    return next((place for place in places if (place / API_SERVER).exists() and (place / ETCD).exists()), None)


def lacking(*more: str) -> str:
    """Names what is missing of etcd, kube-apiserver and ``more``, or of an existing cluster; empty if all is there."""
    if EXISTING and more:
        return "a control plane of the test's own (unset USE_EXISTING_CLUSTER)"
    if EXISTING:
        file = os.environ.get("KUBECONFIG", "")
        return "" if Path(file).is_file() else f"the file that KUBECONFIG names ({file or 'it is not set'})"
    found = folder()
    if found is None:
        return "etcd and kube-apiserver in KUBEBUILDER_ASSETS"
    return " ".join(name for name in more if not (found / name).exists())


@dataclass(frozen=True, slots=True)
class Call:
    """One call of the API server."""

    verb: str
    group: str
    resource: str
    """With its subresource: ``pods/resize``."""
    name: str
    code: int
    ended_at: float
    """Wall clock in seconds; of a watch, when it began."""

    @classmethod
    def of(cls, event: Mapping[str, Any]) -> "Call":
        """Reads an event of the audit log."""
        about = event.get("objectRef", {"resource": event["requestURI"]})
        part = f"/{about['subresource']}" if "subresource" in about else ""
        resource, code = f"{about['resource']}{part}", event["responseStatus"]["code"]
        ended_at = datetime.fromisoformat(event["stageTimestamp"]).timestamp()
        return cls(event["verb"], about.get("apiGroup", ""), resource, about.get("name", ""), code, ended_at)


_AUDIT: Final = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived"],
    "rules": [
        {"level": "None", "userGroups": ["system:serviceaccounts:kube-system"]},
        {
            "level": "Metadata",
            "userGroups": ["system:serviceaccounts"],
            "verbs": ["watch"],
            "omitStages": ["ResponseComplete"],
        },
        {"level": "Metadata", "userGroups": ["system:serviceaccounts"]},
    ],
}
"""What service accounts call: watches when they begin, everything else when it has ended."""


class ControlPlane:
    """The processes over one folder. The API server keeps its port over restarts."""

    def __init__(self, binaries: Path, home: Path) -> None:
        self._binaries = binaries
        self.home = home
        self.port, self._etcd_port = free_port(), free_port()
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self.kubeconfig = home / "admin.kubeconfig"

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self.port}"

    @property
    def audit(self) -> Path:
        """Log of the calls of service accounts: one JSON object a line."""
        return self.home / "audit.log"

    def calls(self, account: str) -> list["Call"]:
        """Returns the calls so far of an account, ``NAMESPACE:NAME``, that have ended or are watches."""
        user = f"system:serviceaccount:{account}"
        lines = self.audit.read_text().splitlines() if self.audit.exists() else []
        return [Call.of(each) for each in map(json.loads, lines) if each["user"]["username"] == user]

    @property
    def authority(self) -> Path:
        """The certificate of the API server, which signed it itself."""
        return self.home / "apiserver.crt"

    def start(self) -> None:
        self._write_keys()
        self.start_etcd()
        self.start_api_server()
        for name in _USERS:
            self._write_kubeconfig(name)
        for name in CONTROLLERS:
            if (self._binaries / name).exists():
                self._start_controller(name)

    def start_etcd(self) -> None:
        client = f"http://127.0.0.1:{self._etcd_port}"
        peer = f"http://127.0.0.1:{free_port()}"
        urls = ["--listen-client-urls", client, "--advertise-client-urls", client, "--listen-peer-urls", peer]
        peers = ["--initial-advertise-peer-urls", peer, "--initial-cluster", f"default={peer}"]
        self._spawn(ETCD, ["--data-dir", str(self.home / "etcd"), "--unsafe-no-fsync", *urls, *peers])

    def start_api_server(self) -> None:
        key = str(self.home / "accounts.key")
        self._spawn(
            API_SERVER,
            [
                f"--etcd-servers=http://127.0.0.1:{self._etcd_port}",
                "--bind-address=127.0.0.1",
                f"--secure-port={self.port}",
                "--advertise-address=127.0.0.1",
                "--endpoint-reconciler-type=none",
                f"--cert-dir={self.home}",
                f"--token-auth-file={self.home / 'tokens.csv'}",
                "--service-account-issuer=https://kubernetes.default.svc",
                f"--service-account-key-file={key}",
                f"--service-account-signing-key-file={key}",
                "--service-cluster-ip-range=10.96.0.0/16",
                "--authorization-mode=Node,RBAC",
                "--allow-privileged=true",
                "--profiling=false",
                f"--audit-policy-file={self.home / 'audit.yaml'}",
                f"--audit-log-path={self.audit}",
            ],
        )
        self._await_ready()

    def _start_controller(self, name: str) -> None:
        config = str(self.home / f"{name}.kubeconfig")
        words = [
            f"--{each}={config}" for each in ("kubeconfig", "authentication-kubeconfig", "authorization-kubeconfig")
        ]
        words += ["--leader-elect=false", "--bind-address=127.0.0.1", f"--secure-port={free_port()}"]
        if name == "kube-controller-manager":
            words += [
                f"--service-account-private-key-file={self.home / 'accounts.key'}",
                f"--root-ca-file={self.authority}",
                "--use-service-account-credentials",
                "--kube-api-qps=200",
                "--kube-api-burst=400",
            ]
        self._spawn(name, words)

    def _await_ready(self) -> None:
        patience = Patience(START_S)
        while True:
            with suppress(httpx.HTTPError, OSError), self.client() as client:
                if client.get("/readyz").status_code == 200:
                    return
            self.check_alive()
            assert not patience.is_over, f"the API server is not ready after {patience}: {self.log(API_SERVER)}"
            time.sleep(0.1)

    @contextmanager
    def client(self, token: str = "admin") -> Iterator[httpx.Client]:
        """A client of the API server, by default as its administrator."""
        context = ssl.create_default_context(cafile=str(self.authority))
        headers = {"authorization": f"Bearer {token}"}
        with httpx.Client(base_url=self.url, verify=context, trust_env=False, timeout=30.0, headers=headers) as client:
            yield client

    def kill(self, name: str) -> None:
        """As with ``kill -9``; waits for the end."""
        process = self._processes.pop(name)
        process.kill()
        process.wait(STOP_S)

    def stop(self) -> None:
        """Ends all processes: etcd last, so that none waits for it."""
        for name in reversed(tuple(self._processes)):
            process = self._processes.pop(name)
            process.send_signal(signal.SIGTERM)
            with suppress(subprocess.TimeoutExpired):
                process.wait(STOP_S if name == ETCD else 1.0)
            process.kill()
            process.wait(STOP_S)

    def log(self, name: str) -> str:
        return (self.home / f"{name}.log").read_text(errors="replace")[-2000:]

    def check_alive(self) -> None:
        """Fails with the log of a process that has ended by itself."""
        for name, process in self._processes.items():
            assert process.poll() is None, f"{name} exited with status {process.returncode}: {self.log(name)}"

    def _spawn(self, name: str, words: Sequence[str]) -> None:
        with (self.home / f"{name}.log").open("ab") as log:
            self._processes[name] = subprocess.Popen(
                [str(self._binaries / name), *words], stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=self.home
            )
        guard_process(self._processes[name].pid)

    def _write_keys(self) -> None:
        key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        form = serialization.PrivateFormat.TraditionalOpenSSL
        text = key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())
        (self.home / "accounts.key").write_bytes(text)
        lines = [f"{name},{user},{user}{f',{groups}' if groups else ''}" for name, (user, groups) in _USERS.items()]
        (self.home / "audit.yaml").write_text(json.dumps(_AUDIT))
        (self.home / "tokens.csv").write_text("\n".join(lines) + "\n")

    def _write_kubeconfig(self, name: str) -> None:
        write_kubeconfig(self.home / f"{name}.kubeconfig", self.url, self.authority, token=name)


class ExistingCluster:
    """The cluster of ``KUBECONFIG``, by its current context."""

    @contextmanager
    def client(self) -> Iterator[httpx.Client]:
        """A client of its API server, with the credentials of the context."""
        from kubernetes import config
        from kubernetes.client import Configuration

        found = Configuration()
        config.load_kube_config(client_configuration=found)
        context = ssl.create_default_context(cafile=found.ssl_ca_cert)
        if found.cert_file:
            context.load_cert_chain(found.cert_file, found.key_file)
        headers = {each["key"]: each["value"] for each in found.auth_settings().values() if each["value"]}
        with httpx.Client(
            base_url=found.host, verify=context, trust_env=False, timeout=30.0, headers=headers
        ) as client:
            yield client


@contextmanager
def api_server() -> Iterator[ControlPlane | ExistingCluster]:
    """The existing cluster if there is to be one, else a control plane of its own."""
    if EXISTING:
        yield ExistingCluster()
        return
    with control_plane() as plane:
        yield plane


def write_kubeconfig(path: Path, url: str, authority: Path, *, token: str) -> None:
    """Writes the configuration of a client that has a token."""
    found: Mapping[str, object] = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "tests", "cluster": {"server": url, "certificate-authority": str(authority)}}],
        "users": [{"name": "tests", "user": {"token": token}}],
        "contexts": [{"name": "tests", "context": {"cluster": "tests", "user": "tests"}}],
        "current-context": "tests",
    }
    path.write_text(json.dumps(found))


@contextmanager
def control_plane() -> Iterator[ControlPlane]:
    """A control plane in a folder of its own."""
    binaries = folder()
    assert binaries is not None, lacking()
    with tempfile.TemporaryDirectory(prefix="tgk") as home:
        plane = ControlPlane(binaries, Path(home))
        try:
            plane.start()
            yield plane
            plane.check_alive()  # Tests that waited for what a dead controller does have failed for it.
        finally:
            plane.stop()


def main() -> int:
    """Says what is missing, if anything is."""
    missing = lacking()
    if not missing:
        sys.stdout.write(f"{LEFT_OUT}\n" if EXISTING else "")
        return 0
    sys.stdout.write(
        f"NO KUBERNETES CONTROL PLANE: {missing} is missing, so nothing ran on a real API server."
        " Set KUBEBUILDER_ASSETS to a folder with etcd, kube-apiserver, kube-controller-manager and kube-scheduler.\n"
    )
    return CANNOT


if __name__ == "__main__":
    sys.exit(main())
