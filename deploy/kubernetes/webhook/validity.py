"""What is to be done about the webhook's certificates, as a function of what is there and the time.

A certificate authority of the webhook's own signs its serving certificate. Both are renewed after two thirds of their
life. A new authority is trusted beside the one before it for ``settle_s`` before it signs, so that no API server meets
a certificate that it does not know; the one before it is trusted until the certificate has been the new one's for as
long. So replicas that read at different times, and API servers that learn of it late, agree at every moment.
"""

import ipaddress
from collections.abc import Collection
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Final

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
from cryptography.hazmat.primitives.serialization import load_pem_private_key

BACKDATED_S: Final = 300.0
"""Time before its issue from which a certificate is valid, for clocks that are behind."""
RENEWED_AT: Final = 2 / 3
NEAR_END: Final = 5 / 6
"""Part of its life after which a certificate that is not renewed is a fault: its renewal fails."""


class Renewal(StrEnum):
    """The next change of the Secret."""

    NONE = "none"
    AUTHORITY = "authority"
    """Make an authority, and keep the one before it as trusted."""
    CERTIFICATE = "certificate"
    """Sign a serving certificate with the authority."""
    FORGET = "forget"
    """Trust the authority before it no longer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lifetimes:
    """Times in seconds."""

    authority_s: float = 3650 * 86_400.0
    certificate_s: float = 90 * 86_400.0
    settle_s: float = 300.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Material:
    """The Secret's contents, PEM each; empty where there is nothing."""

    authority: bytes = b""
    authority_key: bytes = b""
    previous: bytes = b""
    """Certificate of the authority before it."""
    certificate: bytes = b""
    key: bytes = b""

    @property
    def bundle(self) -> bytes:
        """The authorities that API servers are to trust."""
        return self.previous + self.authority


def next_step(has: Material, names: Collection[str], now: float, lives: Lifetimes, *, is_trusted: bool) -> Renewal:
    """Returns the next change.

    ``names``: DNS names and addresses that the certificate must have. ``is_trusted``: whether the API server's
    configuration has this bundle."""
    authority = _pair(has.authority, has.authority_key)
    if authority is None or not _is_authority(authority) or _is_early(authority, now):
        return Renewal.AUTHORITY
    if _share(authority, now) >= RENEWED_AT:
        return Renewal.AUTHORITY
    leaf = _pair(has.certificate, has.key)
    if leaf is None or _is_early(leaf, now) or now >= _end(leaf) or not names_of(leaf) >= frozenset(names):
        return Renewal.CERTIFICATE
    is_settled = is_trusted and _age(authority, now) >= lives.settle_s
    is_current = is_signed_by(leaf, authority)
    if _share(leaf, now) >= RENEWED_AT and is_current:
        return Renewal.CERTIFICATE
    if not is_current and (is_settled or not has.previous):
        return Renewal.CERTIFICATE
    if has.previous and is_current and _age(leaf, now) >= lives.settle_s:
        return Renewal.FORGET
    return Renewal.NONE


def kept_authority(has: Material, now: float) -> bytes:
    """Returns the authority that stays trusted when a new one is made: the present one, unless it cannot be read or has
    ended."""
    found = read(has.authority)
    return has.authority if found is not None and now < _end(found) else has.previous


class Health(StrEnum):
    """What a serving certificate is worth to an API server."""

    GOOD = "good"
    NEAR_END = "near its end"
    EXPIRED = "expired"
    UNTRUSTED = "untrusted"
    """No authority of the bundle has signed it."""
    MISSING = "missing"


def health(certificate: bytes, bundle: bytes, now: float) -> tuple[Health, float]:
    """Returns the state of a serving certificate under a bundle of authorities (PEM), and the seconds to its end."""
    leaf = read(certificate)
    if leaf is None:
        return Health.MISSING, 0.0
    left_s = _end(leaf) - now
    if left_s <= 0.0:
        return Health.EXPIRED, left_s
    if not any(is_signed_by(leaf, each) and now < _end(each) for each in read_all(bundle)):
        return Health.UNTRUSTED, left_s
    return (Health.NEAR_END if _share(leaf, now) >= NEAR_END else Health.GOOD), left_s


def end_of(certificate: bytes) -> float:
    """Returns the Unix seconds at which a certificate ends; 0 if there is none."""
    found = read(certificate)
    return 0.0 if found is None else _end(found)


def read(pem: bytes) -> x509.Certificate | None:
    """Returns the first certificate of a text; None if there is none."""
    return next(iter(read_all(pem)), None)


def read_all(pem: bytes) -> list[x509.Certificate]:
    """Returns the certificates of a text; none if one of them cannot be read."""
    try:
        return x509.load_pem_x509_certificates(pem) if pem.strip() else []
    except ValueError:
        return []


def names_of(certificate: x509.Certificate) -> frozenset[str]:
    """Returns the DNS names and addresses of a certificate."""
    try:
        found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return frozenset()
    addresses = map(str, found.get_values_for_type(x509.IPAddress))
    return frozenset((*found.get_values_for_type(x509.DNSName), *addresses))


def general_name(text: str) -> x509.GeneralName:
    """Returns an address or a DNS name as a certificate states it."""
    try:
        return x509.IPAddress(ipaddress.ip_address(text))
    except ValueError:
        return x509.DNSName(text)


def moment(seconds: float) -> datetime:
    """Returns Unix seconds as a certificate states them: whole ones."""
    return datetime.fromtimestamp(int(seconds), UTC)


def is_signed_by(certificate: x509.Certificate, authority: x509.Certificate) -> bool:
    """Returns whether the authority has signed the certificate."""
    try:
        certificate.verify_directly_issued_by(authority)
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True


def _pair(certificate: bytes, key: bytes) -> x509.Certificate | None:
    """Returns a certificate if the key is its own, and one that we sign with."""
    found = read(certificate)
    try:
        private = load_pem_private_key(key, password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        return None
    is_ours = isinstance(private, EllipticCurvePrivateKey)
    return found if found is not None and is_ours and found.public_key() == private.public_key() else None


def _is_authority(certificate: x509.Certificate) -> bool:
    try:
        return certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    except x509.ExtensionNotFound:
        return False


def _is_early(certificate: x509.Certificate, now: float) -> bool:
    """Returns whether a certificate is not valid yet: a replica whose clock is ahead has made it."""
    return now < certificate.not_valid_before_utc.timestamp()


def _begin(certificate: x509.Certificate) -> float:
    return certificate.not_valid_before_utc.timestamp() + BACKDATED_S


def _end(certificate: x509.Certificate) -> float:
    return certificate.not_valid_after_utc.timestamp()


def _age(certificate: x509.Certificate, now: float) -> float:
    return now - _begin(certificate)


def _share(certificate: x509.Certificate, now: float) -> float:
    """Returns the part of a certificate's life that is over; that of others, who do not backdate, is a little less."""
    return _age(certificate, now) / max(1.0, _end(certificate) - _begin(certificate))
