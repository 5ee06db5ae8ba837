"""What a hot restart takes over of changed settings."""

from tidegate.control.workers.renewal import renewed
from tidegate.settings import Settings, read


def settings(text: str) -> Settings:
    return read(text, source="tidegate.toml", base="/srv")


TLS = '[gateway]\ntls-cert = "a.crt"\ntls-key = "a.key"\n'


def test_what_only_workers_act_on_is_taken_over() -> None:
    running = settings('[gateway]\nworkers = 2\n[log]\nlevel = "info"\n')
    now = settings(
        '[gateway]\nworkers = 3\ntrusted-proxies = "10.0.0.0/8"\n[limits]\nbody-bytes = 2048\n'
        '[log]\nlevel = "debug"\naccess-sampling = 0.5\n'
    )
    found, needs_up = renewed(running, now)
    assert needs_up == ("gateway.workers", "log.level")
    assert (found.gateway.workers, found.gateway.trusted_proxies) == (2, ("10.0.0.0/8",))
    assert (found.limits.body_bytes, found.log.level, found.log.access_sampling) == (2048, "info", 0.5)


def test_another_certificate_is_but_no_switch_between_plain_and_tls() -> None:
    other = settings(TLS.replace("a.", "b."))
    found, needs_up = renewed(settings(TLS), other)
    assert (found.gateway.tls_cert, found.gateway.tls_key, needs_up) == ("/srv/b.crt", "/srv/b.key", ())
    for before, after in ((TLS, ""), ("", TLS)):
        found, needs_up = renewed(settings(before), settings(after))
        assert found == settings(before)
        assert needs_up == ("gateway.tls-cert", "gateway.tls-key")


def test_equal_settings_change_nothing() -> None:
    assert renewed(settings(TLS), settings(TLS)) == (settings(TLS), ())
