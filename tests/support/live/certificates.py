"""A certificate for ``localhost`` and contexts for both ends."""

import ssl
import time
from datetime import UTC, datetime, timedelta
from ipaddress import IPv4Address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

RSA = "rsa:2048"


def make_certificate(
    folder: Path, name: str = "localhost", *, key_type: str = "P-256", days: int = 2
) -> tuple[Path, Path]:
    """Writes a self-signed certificate for ``name`` and 127.0.0.1 and its key (P-256 or RSA), as PEM files in
    ``folder``; it is valid from now on."""
    certificate, key = folder / f"{name}.crt", folder / f"{name}.key"
    private = rsa.generate_private_key(65537, 2048) if key_type == RSA else ec.generate_private_key(ec.SECP256R1())
    public = private.public_key()
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    begin = datetime.fromtimestamp(int(time.time()), UTC)
    identifier = x509.SubjectKeyIdentifier.from_public_key(public)
    names = x509.SubjectAlternativeName([x509.DNSName(name), x509.IPAddress(IPv4Address("127.0.0.1"))])
    built = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(begin)
        .not_valid_after(begin + timedelta(days=days))
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .add_extension(_USAGE, critical=True)
        .add_extension(identifier, critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(identifier), critical=False)
        .add_extension(names, critical=False)
        .sign(private, hashes.SHA256())
    )
    key.write_bytes(private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    key.chmod(0o600)
    certificate.write_bytes(built.public_bytes(Encoding.PEM))
    return certificate, key


_USAGE = x509.KeyUsage(
    digital_signature=True,
    key_encipherment=True,
    key_cert_sign=True,
    crl_sign=False,
    content_commitment=False,
    data_encipherment=False,
    key_agreement=False,
    encipher_only=False,
    decipher_only=False,
)


def contexts(certificate: Path, key: Path) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """The server's context, and one of clients that trust it."""
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(certificate, key)
    return server, ssl.create_default_context(cafile=str(certificate))
