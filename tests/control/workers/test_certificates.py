"""The front door's certificate before it is served, and what clients trust because of it."""

import ssl
from collections.abc import Callable
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)

from tests.support.live.certificates import RSA, contexts, make_certificate
from tidegate.control.workers.certificates import SOON_S, TrustError, check, client_context, oddities
from tidegate.errors import InvalidInputError
from tidegate.settings import GatewaySettings

DAY_S = 86_400.0
Pair = tuple[Path, Path]


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    """Valid for two days."""
    return make_certificate(tmp_path_factory.mktemp("pair"))


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return make_certificate(tmp_path_factory.mktemp("other"))


def settings(certificate: Path, key: Path) -> GatewaySettings:
    return GatewaySettings(tls_cert=str(certificate), tls_key=str(key))


def faults(certificate: Path, key: Path) -> list[tuple[str, str]]:
    with pytest.raises(InvalidInputError) as refused:
        check(settings(certificate, key), 0.0)
    return [(fault.where, fault.allowed) for fault in refused.value.faults]


def begin(pair: Pair) -> float:
    """When the certificate begins to be valid."""
    return x509.load_pem_x509_certificate(pair[0].read_bytes()).not_valid_before_utc.timestamp()


def test_plain_http_needs_no_files() -> None:
    assert check(GatewaySettings(), 0.0) == ()


@pytest.mark.parametrize(
    ("after_s", "message"),
    [(-1.0, "is not valid before"), (1.0, "expires on"), (3 * DAY_S, "expired on"), (2 * DAY_S + 1.0, "expired on")],
)
def test_its_time_is_reported_and_is_no_fault(pair: Pair, after_s: float, message: str) -> None:
    (word,) = check(settings(*pair), begin(pair) + after_s)
    assert message in word
    assert oddities(str(pair[0]), begin(pair) + after_s) == (word,)


def test_a_certificate_with_time_left_is_not_odd(tmp_path: Path) -> None:
    certificate, key = make_certificate(tmp_path, "long", key_type=RSA, days=20_000)
    at = begin((certificate, key))
    assert check(settings(certificate, key), at + 1.0) == ()
    assert check(settings(certificate, key), at + 20_000 * DAY_S - SOON_S - 1.0) == (), "the end is a GeneralizedTime"
    assert "expires" in check(settings(certificate, key), at + 20_000 * DAY_S - SOON_S + 1.0)[0]


def test_every_fault_at_once(pair: Pair, tmp_path: Path) -> None:
    absent = tmp_path / "absent"
    assert faults(absent, absent) == [
        ("gateway.tls-cert", "a file that can be read"),
        ("gateway.tls-key", "a file that can be read"),
    ]
    certificate, key = pair
    assert faults(key, certificate) == [
        ("gateway.tls-cert", "a certificate chain in PEM"),
        ("gateway.tls-key", "a private key in PEM"),
    ]


def test_a_key_of_another_certificate(pair: Pair, other: Pair) -> None:
    assert faults(pair[0], other[1]) == [("gateway.tls-key", "the key of the certificate")]


def test_a_key_with_a_password_is_refused_and_none_is_asked(pair: Pair, tmp_path: Path) -> None:
    locked = tmp_path / "locked.key"
    key = load_pem_private_key(pair[1].read_bytes(), None)
    locked.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"x")))
    assert faults(pair[0], locked) == [("gateway.tls-key", "a private key without a password")]


@pytest.mark.parametrize("cut", [lambda text: text[:200] + text[-60:], lambda text: text.replace("M", "A", 40)])
def test_a_damaged_certificate(pair: Pair, tmp_path: Path, cut: Callable[[str], str]) -> None:
    damaged = tmp_path / "damaged.crt"
    damaged.write_text(cut(pair[0].read_text()))
    (where, _), *_ = faults(damaged, pair[1])
    assert where in ("gateway.tls-cert", "gateway.tls-key")


def shake_hands(server: ssl.SSLContext, client: ssl.SSLContext, name: str) -> None:
    """A whole handshake in memory; raises ssl.SSLError where one side refuses."""
    up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = (client.wrap_bio(down, up, server_hostname=name), server.wrap_bio(up, down, server_side=True))
    done = [False, False]
    for _ in range(10):
        for index, end in enumerate(ends):
            if not done[index]:
                try:
                    end.do_handshake()
                    done[index] = True
                except ssl.SSLWantReadError:
                    continue
    assert all(done)


def test_exactly_the_front_doors_own_certificate_is_trusted_under_whatever_name(pair: Pair, other: Pair) -> None:
    ours, theirs = contexts(*pair)[0], contexts(*other)[0]
    shake_hands(ours, client_context(str(pair[0])), "any.name")
    with pytest.raises(ssl.SSLCertVerificationError):
        shake_hands(theirs, client_context(str(pair[0])), "localhost")


def test_given_authorities_are_asked_for_the_right_name(pair: Pair) -> None:
    ours = contexts(*pair)[0]
    shake_hands(ours, client_context(None, str(pair[0])), "localhost")
    with pytest.raises(ssl.SSLCertVerificationError):
        shake_hands(ours, client_context(str(pair[0]), str(pair[0])), "any.name")
    with pytest.raises(ssl.SSLCertVerificationError):
        shake_hands(ours, client_context(None), "localhost")


@pytest.mark.parametrize("is_authorities", [True, False])
def test_a_file_that_holds_no_certificate_cannot_be_trusted(pair: Pair, tmp_path: Path, is_authorities: bool) -> None:
    for file in (pair[1], tmp_path / "absent"):
        given = (None, str(file)) if is_authorities else (str(file), None)
        with pytest.raises(TrustError, match=file.name):
            client_context(*given)
