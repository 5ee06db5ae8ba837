"""A certificate for ``localhost`` and contexts for both ends, made with the ``openssl`` command."""

import ssl
import subprocess
from pathlib import Path


def make_certificate(
    folder: Path, name: str = "localhost", *, key_type: str = "ec -pkeyopt ec_paramgen_curve:P-256"
) -> tuple[Path, Path]:
    """A self-signed certificate for ``name`` and 127.0.0.1 and its key (``key_type``: or ``rsa:2048``), as PEM files in
    ``folder``."""
    certificate, key = folder / f"{name}.crt", folder / f"{name}.key"
    names = f"subjectAltName=DNS:{name},IP:127.0.0.1"
    command = f"openssl req -x509 -newkey {key_type} -nodes -days 2 -subj /CN={name}"
    subprocess.run(
        [*command.split(), "-addext", names, "-keyout", str(key), "-out", str(certificate)],
        check=True,
        capture_output=True,
    )
    return certificate, key


def contexts(certificate: Path, key: Path) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """The server's context, and one of clients that trust it."""
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(certificate, key)
    return server, ssl.create_default_context(cafile=str(certificate))
