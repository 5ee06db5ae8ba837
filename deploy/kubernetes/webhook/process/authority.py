"""Keys and certificates of the webhook: ECDSA over P-256, as every API server verifies."""

from collections.abc import Collection
from dataclasses import replace
from datetime import timedelta
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, load_pem_private_key
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from tidegate.deploy.kubernetes.webhook.validity import (
    BACKDATED_S,
    Lifetimes,
    Material,
    Renewal,
    general_name,
    kept_authority,
    moment,
)

_AUTHORITY: Final = "tidegate-webhook-ca"
MAX_COMMON_NAME: Final = 64
"""Characters (RFC 5280, ub-common-name)."""


def carried_out(step: Renewal, has: Material, names: Collection[str], now: float, lives: Lifetimes) -> Material:
    """Returns the Secret's contents after a step."""
    match step:
        case Renewal.AUTHORITY:
            key = ec.generate_private_key(ec.SECP256R1())
            certificate = _signed(None, key, f"{_AUTHORITY}-{int(now)}", (), now, lives.authority_s, key)
            return replace(has, authority=certificate, authority_key=_pem(key), previous=kept_authority(has, now))
        case Renewal.CERTIFICATE:
            key, name = ec.generate_private_key(ec.SECP256R1()), next(iter(names))
            issuer = x509.load_pem_x509_certificate(has.authority)
            signing = load_pem_private_key(has.authority_key, password=None)
            assert isinstance(signing, ec.EllipticCurvePrivateKey)
            common = name if len(name) <= MAX_COMMON_NAME else "tidegate-webhook"
            made = _signed(issuer, key, common, names, now, lives.certificate_s, signing)
            return replace(has, certificate=made, key=_pem(key))
        case Renewal.FORGET:
            return replace(has, previous=b"")
    return has


def _signed(
    issuer: x509.Certificate | None,
    key: ec.EllipticCurvePrivateKey,
    name: str,
    names: Collection[str],
    now: float,
    life_s: float,
    signing: ec.EllipticCurvePrivateKey,
) -> bytes:
    """Returns a certificate for ``key``; an authority's own if there is no ``issuer``."""
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    public, is_authority = key.public_key(), issuer is None
    built = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject if issuer is None else issuer.subject)
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(moment(now) - timedelta(seconds=BACKDATED_S))
        .not_valid_after(moment(now) + timedelta(seconds=life_s))
        .add_extension(x509.BasicConstraints(ca=is_authority, path_length=0 if is_authority else None), critical=True)
        .add_extension(_usage(is_authority), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signing.public_key()), critical=False)
    )
    if not is_authority:
        alternatives = x509.SubjectAlternativeName([general_name(each) for each in names])
        built = built.add_extension(alternatives, critical=False)
        built = built.add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
    return built.sign(signing, hashes.SHA256()).public_bytes(Encoding.PEM)


def _usage(is_authority: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not is_authority,
        key_cert_sign=is_authority,
        crl_sign=is_authority,
        key_encipherment=False,
        content_commitment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
