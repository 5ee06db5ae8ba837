"""Checks of the gateway's certificate before it is served, and the TLS context of clients on this machine.

No private key is kept: it is read once to check that it belongs to the certificate.
"""

import re
import ssl
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from tidegate.aio.loop.certificate import read_pair
from tidegate.errors import Fault, InvalidInputError, TidegateError
from tidegate.settings import GatewaySettings

SOON_S: Final = 14 * 86_400.0
"""Remaining validity below which a certificate is reported. Our choice."""

_CERTIFICATE: Final = re.compile(r"-----BEGIN CERTIFICATE-----.*?-----END CERTIFICATE-----", re.DOTALL)
_KEY: Final = re.compile(r"-----BEGIN ((?:[A-Z0-9]+ )*)PRIVATE KEY-----(.*?)-----END ", re.DOTALL)
_UTC_TIME, _VERSION = 0x17, 0xA0
"""DER tags."""


class TrustError(TidegateError):
    """A file of certificates to trust cannot be used."""


def check(settings: GatewaySettings, now: float) -> tuple[str, ...]:
    """Checks the files that the settings name, if any. Returns oddities that are no faults, for display.

    Raises InvalidInputError with every fault. ``now``: Unix seconds.
    """
    if settings.tls_cert is None or settings.tls_key is None:
        return ()
    faults: list[Fault] = []
    chain = _read(settings.tls_cert, "gateway.tls-cert", faults)
    key = _read(settings.tls_key, "gateway.tls-key", faults)
    validity = None if chain is None else _validity(chain)
    if chain is not None and validity is None:
        faults.append(Fault("gateway.tls-cert", settings.tls_cert, "a certificate chain in PEM"))
    if key is not None and (wrong := _wrong_with_key(key)) is not None:
        faults.append(Fault("gateway.tls-key", settings.tls_key, wrong))
    if not faults:
        try:
            read_pair(settings.tls_cert, settings.tls_key)
        except OSError as error:
            reason = error.reason if isinstance(error, ssl.SSLError) else error.strerror
            allowed = "the key of the certificate" if reason == "KEY_VALUES_MISMATCH" else f"usable with it ({reason})"
            faults.append(Fault("gateway.tls-key", settings.tls_key, allowed))
    if faults:
        raise InvalidInputError("settings", faults)
    assert validity is not None
    return _oddities(settings.tls_cert, *validity, now)


def oddities(certificate: str, now: float) -> tuple[str, ...]:
    """Returns what is odd about the certificate in this file, for display. ``now``: Unix seconds."""
    try:
        validity = _validity(Path(certificate).read_text(encoding="utf-8", errors="replace"))
    except OSError as error:
        return (f"{certificate}: {error.strerror}",)
    return (f"{certificate} holds no certificate",) if validity is None else _oddities(certificate, *validity, now)


def client_context(
    certificate: str | None, authorities: str | None = None, make: Callable[[int], ssl.SSLContext] = ssl.SSLContext
) -> ssl.SSLContext:
    """Returns the TLS context of a client of the gateway on this machine.

    ``authorities``: a PEM file; each certificate that they sign is trusted, under the right name. Without it, exactly
    the ``certificate`` in the gateway's own file (the first there) is trusted, under any name: the address comes from
    the private state directory. Without either, the system's authorities are trusted. ``make`` creates the context
    (gevent has a class of its own).

    Raises TrustError.
    """
    context = make(ssl.PROTOCOL_TLS_CLIENT)
    source = authorities or certificate
    try:
        if authorities is not None:
            context.load_verify_locations(cafile=authorities)
        elif certificate is not None:
            own = _CERTIFICATE.search(Path(certificate).read_text(encoding="utf-8", errors="replace"))
            context.check_hostname = False
            context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
            context.load_verify_locations(cadata=own[0] if own is not None else "")
        else:
            context.load_default_certs()
    except (OSError, ValueError) as error:
        raise TrustError(f"{source} holds no certificate that can be read: {error}") from error
    return context


def _read(path: str, key: str, faults: list[Fault]) -> str | None:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        faults.append(Fault(key, f"{path} ({error.strerror})", "a file that can be read"))
        return None


def _wrong_with_key(text: str) -> str | None:
    found = _KEY.search(text)
    if found is None:
        return "a private key in PEM"
    is_encrypted = "ENCRYPTED" in found[1] or "Proc-Type: 4,ENCRYPTED" in found[2]
    return "a private key without a password" if is_encrypted else None


def _oddities(path: str, begins: float, ends: float, now: float) -> tuple[str, ...]:
    day = datetime.fromtimestamp(ends, UTC).date()
    if now > ends:
        return (f"the certificate in {path} expired on {day}: clients will refuse it",)
    if now < begins:
        return (f"the certificate in {path} is not valid before {datetime.fromtimestamp(begins, UTC).date()}",)
    return (f"the certificate in {path} expires on {day}",) if now > ends - SOON_S else ()


def _validity(chain: str) -> tuple[float, float] | None:
    """Returns the Unix seconds between which the first certificate is valid; None if the text holds none that can be
    read.

    RFC 5280 section 4.1: ``Certificate ::= SEQUENCE { tbs SEQUENCE { [0] version OPTIONAL, serial, signature, issuer,
    validity, ... } ... }``.
    """
    found = _CERTIFICATE.search(chain)
    if found is None:
        return None
    try:
        ((_, certificate), *_) = _elements(ssl.PEM_cert_to_DER_cert(found[0]))
        ((_, body), *_) = _elements(certificate)
        parts = [content for tag, content in _elements(body) if tag != _VERSION]
        (begins, ends) = (_seconds(*each) for each in _elements(parts[3]))
    except (ValueError, IndexError):
        return None
    return begins, ends


def _elements(der: bytes) -> Iterator[tuple[int, bytes]]:
    """Yields tag and content of each element in a row. Raises ValueError or IndexError for bytes that are not DER."""
    at = 0
    while at < len(der):
        tag, length, at = der[at], der[at + 1], at + 2
        if length & 0x80:
            size = length & 0x7F
            length, at = int.from_bytes(der[at : at + size], "big"), at + size
        if at + length > len(der):
            raise ValueError("an element is longer than what holds it")
        yield tag, der[at : at + length]
        at += length


def _seconds(tag: int, text: bytes) -> float:
    """Returns the Unix seconds of a UTCTime (two digits of the year; 50 and above are of the last century) or a
    GeneralizedTime."""
    digits = text.decode("ascii")
    if tag == _UTC_TIME:
        digits = ("19" if digits[:2] >= "50" else "20") + digits
    return datetime.strptime(digits.replace("Z", "+0000"), "%Y%m%d%H%M%S%z").timestamp()
