"""The webhook's process: ``python -P -m tidegate.deploy.kubernetes.webhook.main``, as the chart starts it.

With ``--secret`` it makes and renews its certificates itself; with ``--certificate-folder`` it serves those that
cert-manager writes there, and needs no right in the cluster.
"""

import tidegate.aio.first_process  # noqa: F401

# isort: split
import argparse
import asyncio
import os
import random
import signal
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Final

from tidegate.aio import log_stream
from tidegate.clock import wall
from tidegate.deploy.devices.discovered import inventory_of_cluster
from tidegate.deploy.kubernetes.pods.template import PodSettings
from tidegate.deploy.kubernetes.process.api import ClusterError, KubernetesApi
from tidegate.deploy.kubernetes.webhook.pods import DELAY_S, WebhookSettings
from tidegate.deploy.kubernetes.webhook.process.rotation import Rotation
from tidegate.deploy.kubernetes.webhook.process.server import Effects, Look, WebhookServer
from tidegate.deploy.kubernetes.webhook.validity import Lifetimes, Material
from tidegate.deploy.placement.ledger import Accelerator
from tidegate.errors import InvalidInputError
from tidegate.schema.rows import Duration

EXIT_INVALID: Final = 2
_DURATION: Final = Duration(0.0, 20 * 365 * 86_400.0)


def main() -> int:
    """Runs the webhook to its end. Returns the exit code of the process."""
    log_stream.from_environment(os.environ)
    given = arguments(sys.argv[1:])
    try:
        asyncio.run(_run(given, _settings(given)))
    except (InvalidInputError, ClusterError, OSError) as error:
        log_stream.say(f"the webhook cannot start: {error}", level="error")
        return EXIT_INVALID
    return 0


async def _run(given: argparse.Namespace, settings: WebhookSettings) -> None:
    api = None
    if given.secret is not None:
        api = await KubernetesApi.connect(random.Random(), config=given.kubeconfig)
    try:
        look = partial(_files, Path(given.certificate_folder or ".")) if api is None else _rotation(api, given)
        effects = Effects(look=look, look_every_s=given.look_every, now=wall, note=log_stream.say)
        server = WebhookServer(settings, effects)
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, server.end)
        await server.serve(given.listen)
    finally:
        if api is not None:
            await api.close()


def _rotation(api: KubernetesApi, given: argparse.Namespace) -> Look:
    rotation = Rotation(
        api,
        namespace=given.namespace,
        secret=given.secret,
        configuration=given.configuration,
        names=tuple(given.dns_name),
        lives=Lifetimes(
            authority_s=given.authority_lifetime,
            certificate_s=given.certificate_lifetime,
            settle_s=given.settle,
        ),
        now=wall,
    )
    return partial(rotation.look, log_stream.say)


async def _files(folder: Path) -> Material:
    """Reads what cert-manager has written, which a kubelet exchanges as a whole."""
    certificate, key = ((folder / name).read_bytes() for name in ("tls.crt", "tls.key"))
    return Material(certificate=certificate, key=key)


def _settings(given: argparse.Namespace) -> WebhookSettings:
    """Raises InvalidInputError, and OSError if the accelerators cannot be read."""
    accelerators: tuple[Accelerator, ...] = ()
    if given.accelerators_file is not None:
        accelerators = inventory_of_cluster(Path(given.accelerators_file)).accelerators
    pods = PodSettings(image=given.image, python=given.python, json_logs=given.json_logs)
    return WebhookSettings(pods=pods, accelerators=accelerators, delay_s=given.drain_delay)


def arguments(words: Sequence[str]) -> argparse.Namespace:
    """Reads the command line. Exits with its faults."""
    lives = Lifetimes()
    parser = argparse.ArgumentParser(prog="webhook", description="Tidegate's mutating webhook")
    parser.add_argument("--listen", default="0.0.0.0:9443", help="address of the HTTPS server")
    parser.add_argument("--image", required=True, help="image of the queue_proxy")
    parser.add_argument("--python", default="python", help="interpreter in that image")
    parser.add_argument("--accelerators-file", help="the kinds that gpu-model may name (accelerators.yaml)")
    parser.add_argument("--json-logs", action="store_true", help="queue_proxies log JSON objects")
    parser.add_argument("--drain-delay", type=_duration, default=DELAY_S, help="time from a deletion to the drain")
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--secret", help="Secret of the certificates, which the webhook renews")
    where.add_argument("--certificate-folder", help="folder with tls.crt and tls.key, which others renew")
    parser.add_argument("--namespace", default="default", help="namespace of the Secret")
    parser.add_argument("--configuration", default="tidegate-webhook", help="MutatingWebhookConfiguration to keep")
    parser.add_argument("--dns-name", action="append", default=[], help="name of the certificate; again for more")
    parser.add_argument("--certificate-lifetime", type=_duration, default=lives.certificate_s)
    parser.add_argument("--authority-lifetime", type=_duration, default=lives.authority_s)
    parser.add_argument("--settle", type=_duration, default=lives.settle_s, help="time before a new authority signs")
    parser.add_argument("--look-every", type=_duration, default=30.0, help="interval of the looks for certificates")
    parser.add_argument("--kubeconfig", help="outside of the cluster")
    found = parser.parse_args(words)
    if found.secret is not None and not found.dns_name:
        parser.error("--dns-name is required with --secret")
    return found


def _duration(text: str) -> float:
    try:
        return _DURATION.read(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r}; allowed: {_DURATION.allowed}") from error


if __name__ == "__main__":
    sys.exit(main())
