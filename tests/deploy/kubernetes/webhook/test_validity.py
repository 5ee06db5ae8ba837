"""When certificates are made, trusted, exchanged and forgotten: a life of the webhook in virtual time."""

from dataclasses import replace

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from tidegate.deploy.kubernetes.webhook.process.authority import carried_out
from tidegate.deploy.kubernetes.webhook.validity import (
    Health,
    Lifetimes,
    Material,
    Renewal,
    end_of,
    health,
    is_signed_by,
    moment,
    names_of,
    next_step,
    read,
    read_all,
)

DAY = 86_400.0
NAMES = ("tidegate-webhook.models.svc", "127.0.0.1")
LIVES = Lifetimes(authority_s=365 * DAY, certificate_s=90 * DAY, settle_s=300.0)
NOW = 1_800_000_000.0


def at(now: float, has: Material, *, is_trusted: bool = True) -> tuple[Material, list[Renewal]]:
    """What becomes of the Secret at one moment, with the steps. API servers trust the bundle of before alone."""
    steps: list[Renewal] = []
    before = has.bundle
    while (
        step := next_step(has, NAMES, now, LIVES, is_trusted=is_trusted and has.bundle == before)
    ) is not Renewal.NONE:
        steps.append(step)
        has = carried_out(step, has, NAMES, now, LIVES)
        assert len(steps) < 5, steps
    return has, steps


def test_at_first_an_authority_and_a_certificate_are_made() -> None:
    has, steps = at(NOW, Material(), is_trusted=False)
    assert steps == [Renewal.AUTHORITY, Renewal.CERTIFICATE]
    leaf = read(has.certificate)
    assert leaf is not None and names_of(leaf) == set(NAMES)
    assert health(has.certificate, has.bundle, NOW) == (Health.GOOD, 90 * DAY)
    assert at(NOW + 59 * DAY, has) == (has, [])


def test_a_certificate_is_renewed_after_two_thirds_of_its_life_by_the_same_authority() -> None:
    has, _ = at(NOW, Material())
    later, steps = at(NOW + 60 * DAY, has)
    assert steps == [Renewal.CERTIFICATE]
    assert later.authority == has.authority
    assert end_of(later.certificate) == NOW + 150 * DAY


def test_a_new_authority_signs_once_it_is_trusted_everywhere_and_the_one_before_it_is_forgotten_later() -> None:
    has, _ = at(NOW, Material())
    renewed = NOW + 365 * DAY * 2 / 3
    has = replace(carried_out(Renewal.CERTIFICATE, has, NAMES, renewed - 30 * DAY, LIVES))
    leaf = has.certificate
    has, steps = at(renewed, has)
    assert (steps, has.certificate) == ([Renewal.AUTHORITY], leaf)
    assert len(read_all(has.bundle)) == 2
    assert health(leaf, has.bundle, renewed)[0] is Health.GOOD
    assert at(renewed + 299, has) == (has, []), "API servers may not know it yet"
    assert at(renewed + 301, has, is_trusted=False) == (has, []), "they cannot know it"
    has, steps = at(renewed + 301, has)
    assert steps == [Renewal.CERTIFICATE]
    assert at(renewed + 500, has) == (has, []), "another replica may serve the old one"
    has, steps = at(renewed + 602, has)
    assert (steps, len(read_all(has.bundle))) == ([Renewal.FORGET], 1)
    assert health(has.certificate, has.bundle, renewed + 602)[0] is Health.GOOD


def test_at_every_moment_of_three_years_the_served_certificate_is_trusted() -> None:
    """The webhook looks once a day."""
    has, _ = at(NOW, Material())
    seen, now = set(), NOW
    while now < NOW + 3 * 365 * DAY:
        before = has
        has, _ = at(now, has)
        for certificate in (before.certificate, has.certificate):
            for bundle in (before.bundle, has.bundle):  # An API server that is late, a replica that is late.
                assert health(certificate, bundle, now)[0] is Health.GOOD
        seen.add(has.authority)
        now += DAY
    assert len(seen) == 5


def test_what_is_broken_in_the_secret_is_made_again() -> None:
    has, _ = at(NOW, Material())
    for broken, wanted in (
        (replace(has, key=b"x"), [Renewal.CERTIFICATE]),
        (replace(has, certificate=has.authority), [Renewal.CERTIFICATE]),
        (replace(has, certificate=b""), [Renewal.CERTIFICATE]),
        (replace(has, authority=b"x"), [Renewal.AUTHORITY, Renewal.CERTIFICATE]),
        (replace(has, authority_key=b""), [Renewal.AUTHORITY]),
    ):
        made, steps = at(NOW, broken)
        assert steps == wanted
        assert health(made.certificate, made.bundle, NOW)[0] is Health.GOOD
    _, steps = at(NOW + 400 * DAY, has)
    assert steps == [Renewal.AUTHORITY, Renewal.CERTIFICATE], "both have ended"


def test_what_is_put_there_by_hand_is_replaced_where_it_cannot_sign() -> None:
    """An authority with a key of RSA, and a certificate that is no authority."""
    has, _ = at(NOW, Material())
    for authority, key in (foreign_authority(), (has.certificate, has.key)):
        made, steps = at(NOW, replace(has, authority=authority, authority_key=key))
        assert steps[0] is Renewal.AUTHORITY
        assert health(made.certificate, made.bundle, NOW)[0] is Health.GOOD or Renewal.CERTIFICATE not in steps


def foreign_authority() -> tuple[bytes, bytes]:
    """An authority of RSA, as a user may have one."""
    key = rsa.generate_private_key(65537, 2048)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "ours")])
    built = x509.CertificateBuilder(name, name, key.public_key(), 1, moment(NOW - DAY), moment(NOW + 900 * DAY))
    signed = built.add_extension(x509.BasicConstraints(True, None), critical=True).sign(key, hashes.SHA256())
    private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return signed.public_bytes(Encoding.PEM), private


def test_what_a_replica_with_a_clock_ahead_makes_is_made_again_by_another_one() -> None:
    """The first one is content with that."""
    for ahead in (3600.0, 50 * DAY):
        early, _ = at(NOW + ahead, Material())
        has, steps = at(NOW, early)
        assert steps == [Renewal.AUTHORITY, Renewal.CERTIFICATE]
        leaf = read(has.certificate)
        assert leaf is not None and leaf.not_valid_before_utc <= moment(NOW)
        assert at(NOW + ahead, has)[0].certificate == has.certificate


def test_other_names_need_another_certificate() -> None:
    has, _ = at(NOW, Material())
    assert next_step(has, ("webhook.other.svc",), NOW, LIVES, is_trusted=True) is Renewal.CERTIFICATE


def test_an_authority_signs_no_other_authority() -> None:
    has, _ = at(NOW, Material())
    other, _ = at(NOW, Material())
    leaf, authority, stranger = read(has.certificate), read(has.authority), read(other.authority)
    assert leaf is not None and authority is not None and stranger is not None
    assert is_signed_by(leaf, authority)
    assert not is_signed_by(leaf, stranger)


def test_the_state_of_a_certificate_is_named() -> None:
    has, _ = at(NOW, Material())
    other, _ = at(NOW, Material())
    assert health(has.certificate, has.bundle, NOW + 76 * DAY)[0] is Health.NEAR_END
    assert health(has.certificate, has.bundle, NOW + 90 * DAY)[0] is Health.EXPIRED
    assert health(has.certificate, other.bundle, NOW)[0] is Health.UNTRUSTED
    assert health(has.certificate, b"", NOW)[0] is Health.UNTRUSTED
    assert health(has.certificate, b"junk", NOW)[0] is Health.UNTRUSTED
    assert health(b"", has.bundle, NOW)[0] is Health.MISSING
