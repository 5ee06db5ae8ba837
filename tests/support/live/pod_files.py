"""What a kubelet gives the containers of a Pod: its volumes as folders of this machine, its environment, its command,
and the way to the API server for the account of a control process."""

import asyncio
import base64
import contextlib
import os
import re
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from tests.support.live.control_plane import write_kubeconfig
from tidegate.deploy.kubernetes.process.api import KubernetesApi, Object

SERVICE: Final = "10.96.0.1"
"""Address of the API server in its cluster: the first one of Services, which its certificate has."""
ASK_S: Final = 0.1


async def fill_volumes(cluster: KubernetesApi, pod: Object, home: Path) -> None:
    """Makes the Pod's volumes in its folder. A key that a volume names is waited for; a Secret of which it names none
    gives what it has by then."""
    core = f"/api/v1/namespaces/{pod['metadata']['namespace']}"
    for volume in pod["spec"].get("volumes", []):
        folder = home / "volumes" / volume["name"]
        if "persistentVolumeClaim" in volume:
            claim = await cluster.get(f"{core}/persistentvolumeclaims/{volume['persistentVolumeClaim']['claimName']}")
            found = await cluster.get(f"/api/v1/persistentvolumes/{claim['spec']['volumeName']}")
            folder.parent.mkdir(parents=True, exist_ok=True)
            folder.symlink_to(found["spec"]["hostPath"]["path"])
            continue
        folder.mkdir(parents=True)
        if "secret" in volume:
            keys = {each["key"]: each["path"] for each in volume["secret"].get("items", [])}
            data = await _secret(cluster, f"{core}/secrets/{volume['secret']['secretName']}", *keys)
            for key, value in data.items():
                if not keys or key in keys:
                    (folder / keys.get(key, key)).write_bytes(value)
        elif "configMap" in volume:
            for key, text in (await cluster.get(f"{core}/configmaps/{volume['configMap']['name']}"))["data"].items():
                (folder / key).write_text(text)


async def _secret(cluster: KubernetesApi, path: str, *keys: str) -> dict[str, bytes]:
    """Returns the data of a Secret as soon as it has these keys."""
    while not set(keys) <= (data := (await cluster.get(path)).get("data") or {}).keys():  # noqa: ASYNC110 - it is asked
        await asyncio.sleep(ASK_S)
    return {key: base64.b64decode(value) for key, value in data.items()}


async def environment(
    cluster: KubernetesApi, pod: Object, container: Object, home: Path, address: str
) -> dict[str, str]:
    """Returns the container's environment, in which paths of its volumes are those of this machine."""
    env = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "HOME": "/root"}
    fields = {"metadata.name": pod["metadata"]["name"], "status.podIP": address}
    for each in container.get("env", []):
        source = each.get("valueFrom", {})
        if "fieldRef" in source:
            value = fields[source["fieldRef"]["fieldPath"]]
        elif "secretKeyRef" in source:
            found = source["secretKeyRef"]
            core = f"/api/v1/namespaces/{pod['metadata']['namespace']}"
            key = found["key"]
            value = (await _secret(cluster, f"{core}/secrets/{found['name']}", key))[key].decode()
        else:
            value = each.get("value", "").replace("$$", "$")
        env[each["name"]] = here(value, container, home)
    return env


def here(text: str, container: Object, home: Path) -> str:
    """Returns a text of the container with the paths of its volumes as they are on this machine."""
    mounts = {
        each["mountPath"]: str((home / "volumes" / each["name"]).resolve())
        for each in container.get("volumeMounts", [])
    }
    longest_first = sorted(mounts, key=len, reverse=True)
    if not longest_first:
        return text
    paths = "|".join(map(re.escape, longest_first))
    return re.sub(rf"(?<![\w./-])(?:{paths})(?![\w.-])", lambda found: mounts[found[0]], text)


def command(container: Object, env: dict[str, str], home: Path) -> list[str]:
    """Returns the container's command line: ``$(NAME)`` is of its environment, ``$$`` is a dollar."""
    words = [*container.get("command", []), *container.get("args", [])]
    expanded = (re.sub(r"\$\$|\$\((\w+)\)", lambda found: env.get(found[1] or "", "$"), word) for word in words)
    return [here(word, container, home) for word in expanded]


@asynccontextmanager
async def way_to_the_api_server(cluster: KubernetesApi) -> AsyncGenerator[int, None]:
    """Passes connections from Pods on to the API server, which listens on loopback alone; yields the port of
    :data:`SERVICE`, an address that this machine has to have."""
    host, _, port = cluster.host.rpartition("//")[2].rpartition(":")

    passing: set[asyncio.Task[None] | None] = set()

    async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while piece := await reader.read(65_536):
                writer.write(piece)
                await writer.drain()
            writer.write_eof()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        passing.add(asyncio.current_task())
        ends = [writer]
        try:
            with contextlib.suppress(OSError):
                there, back = await asyncio.open_connection(host, int(port))
                ends.append(back)
                await asyncio.gather(copy(reader, back), copy(there, writer))
        except asyncio.CancelledError:
            pass  # By the end below.
        finally:
            passing.discard(asyncio.current_task())
            for each in ends:
                each.close()

    server = await asyncio.start_server(serve, SERVICE, 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        ending = [each for each in passing if each is not None]
        for each in ending:
            each.cancel()
        await asyncio.gather(*ending)
        await asyncio.sleep(0)  # What was closed is let go in the next turn of the loop.


async def write_account(cluster: KubernetesApi, pod: Object, file: Path, port: int) -> None:
    """Writes the kubeconfig of the Pod's account."""
    space, name = pod["metadata"]["namespace"], pod["spec"]["serviceAccountName"]
    wanted = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
    made = await cluster.create(f"/api/v1/namespaces/{space}/serviceaccounts/{name}/token", wanted)
    authority = Path(cluster._client.configuration.ssl_ca_cert)
    write_kubeconfig(file, f"https://{SERVICE}:{port}", authority, token=str(made["status"]["token"]))
