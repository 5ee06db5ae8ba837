"""A listener's certificate: read, read again, and what a handshake gets meanwhile."""

import ssl
from pathlib import Path

import pytest

from tests.support.live.certificates import make_certificate
from tidegate.aio.loop.certificate import Certificate, read_pair

RSA = "rsa:2048"


def served(context: ssl.SSLContext, *, server_name: str | None = None, protocols: list[str] | None = None) -> bytes:
    """The certificate that a handshake in memory shows, as DER."""
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname = False
    client.verify_mode = ssl.CERT_NONE
    if protocols:
        client.set_alpn_protocols(protocols)
    up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
    ours = client.wrap_bio(down, up, server_hostname=server_name)
    theirs = context.wrap_bio(up, down, server_side=True)
    for end in (ours, theirs, ours, theirs):
        try:
            end.do_handshake()
        except ssl.SSLWantReadError:
            continue
    found = ours.getpeercert(binary_form=True)
    assert found is not None
    if protocols:
        assert ours.selected_alpn_protocol() == protocols[0], "the listener's first choice is HTTP/2, ours too"
    assert ours.version() in ("TLSv1.2", "TLSv1.3")
    return found


def der(file: Path) -> bytes:
    return ssl.PEM_cert_to_DER_cert(file.read_text())


def replace(folder: Path, pair: tuple[Path, Path], key_type: str) -> None:
    folder.mkdir()
    for fresh, old in zip(make_certificate(folder, key_type=key_type), pair, strict=True):
        fresh.replace(old)


def test_a_new_pair_is_served_from_the_next_look_on_whatever_its_type(tmp_path: Path) -> None:
    pair = make_certificate(tmp_path, key_type=RSA)
    certificate = Certificate(str(pair[0]), str(pair[1]))
    context = certificate.context
    first = der(pair[0])
    assert served(context) == served(context, server_name="localhost", protocols=["h2", "http/1.1"]) == first
    assert not certificate.look()
    replace(tmp_path / "new", pair, "ec -pkeyopt ec_paramgen_curve:P-256")
    assert served(context) == first, "not before it was looked at"
    assert certificate.look()
    assert served(context) == der(pair[0]) != first
    assert served(context, server_name="localhost", protocols=["http/1.1"]) == der(pair[0])


def test_a_pair_that_cannot_be_used_changes_nothing_until_it_can(tmp_path: Path) -> None:
    pair = make_certificate(tmp_path)
    certificate = Certificate(str(pair[0]), str(pair[1]))
    first = der(pair[0])
    (tmp_path / "new").mkdir()
    fresh = make_certificate(tmp_path / "new")
    fresh[0].replace(pair[0])  # its key has not come yet
    assert not certificate.look()
    assert "KEY_VALUES_MISMATCH" in str(certificate.fault)
    assert served(certificate.context) == first
    fresh[1].replace(pair[1])
    assert certificate.look()
    assert certificate.fault is None
    assert served(certificate.context) == der(pair[0])
    pair[1].unlink()
    assert not certificate.look()
    assert "No such file" in str(certificate.fault)
    assert not certificate.look(), "nothing new to look at"
    assert served(certificate.context) == der(pair[0])


def test_a_pair_that_was_never_good_is_an_error(tmp_path: Path) -> None:
    certificate, key = make_certificate(tmp_path)
    other, _ = make_certificate(tmp_path, "other")
    for first, second in ((other, key), (key, certificate), (tmp_path / "absent", key)):
        with pytest.raises(OSError, match=r"."):
            read_pair(str(first), str(second))
