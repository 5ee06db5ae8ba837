"""What gateway workers are started with, from the settings of a deployment."""

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import tidegate
from tidegate.control.workers.launching import GatewaySettings
from tidegate.deploy.environment import inherited
from tidegate.settings import JobSettings, Settings


def gateway_settings(settings: Settings, workers: int) -> GatewaySettings:
    """Returns the settings of so many workers."""
    limits = limits_of(settings)
    limits["trusted_proxies"] = list(settings.gateway.trusted_proxies)
    return GatewaySettings(
        listen=str(settings.gateway.listen),
        listen_origin=settings.origin("gateway.listen"),
        workers=workers,
        domain=settings.gateway.domain,
        limits=limits,
        tls_cert=settings.gateway.tls_cert,
        tls_key=settings.gateway.tls_key,
        log_format=settings.log.format.value,
        access_sampling=settings.log.access_sampling,
        http_server_metrics=settings.metrics.http_server,
        tracing_endpoint=settings.tracing.endpoint,
        tracing_ratio=settings.tracing.sample_ratio,
        cors=asdict(settings.cors) if settings.cors.origins else None,
        jobs=_jobs(settings.jobs) if settings.jobs.limit else None,
        among_machines=settings.store.url != "embedded",
    )


def limits_of(settings: Settings) -> dict[str, Any]:
    """Returns the limits that are set to a value, by their names in ``tidegate.aio.proxy.limits``."""
    return {name: value for name, value in asdict(settings.limits).items() if value is not None}


def _jobs(settings: JobSettings) -> dict[str, Any]:
    """Returns the bounds of jobs, as the gateway's ``JobBounds`` names them."""
    return {
        "jobs": settings.limit,
        "total_bytes": settings.bytes,
        "body_bytes": settings.body_bytes,
        "keep_s": settings.keep_s,
    }


def worker_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Returns the environment of a worker, from that of its control process."""
    root = source_root()
    own = {"PYTHONUNBUFFERED": "1"}
    return inherited(environ) | own | ({} if root is None else {"PYTHONPATH": root})


def source_root() -> str | None:
    """Returns the folder of a checkout; None if Tidegate is installed into site-packages."""
    root = Path(tidegate.__file__).resolve().parent.parent
    return None if root.name in ("site-packages", "dist-packages") else str(root)
