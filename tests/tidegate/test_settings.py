"""Settings: one table for the file and the flags."""

import pytest

from tidegate.errors import Fault, InvalidInputError
from tidegate.manifest.reference import SETTINGS_EXAMPLE
from tidegate.schema.rows import Address, Row, reach
from tidegate.settings import SETTINGS, LogFormat, LogLevel, Settings, read


def faults(text: str, **flags: str) -> list[str]:
    with pytest.raises(InvalidInputError) as raised:
        read(text, source="tidegate.toml", base="/srv", flags={key.replace("_", "-"): flags[key] for key in flags})
    return [str(fault) for fault in raised.value.faults]


def test_without_a_file_the_defaults_hold() -> None:
    assert read("", source="defaults", base="/srv") == Settings()


@pytest.mark.parametrize("row", SETTINGS, ids=lambda row: row.key)
def test_a_default_in_the_table_is_the_default_of_the_record(row: Row) -> None:
    assert row.default is not None
    assert row.kind.read(row.default) == reach(Settings(), row.field)
    section, _, key = row.key.partition(".")
    assert read(f'[{section}]\n{key} = "{row.default}"\n', source="s", base="/srv") == Settings()
    assert read("", source="s", base="/srv", flags={row.flag[2:]: row.default}) == Settings()


def test_every_field_of_the_record_has_a_row() -> None:
    sections = [name for name in Settings.__slots__ if name not in ("origins", "overridden")]
    fields = {f"{section}.{key}" for section in sections for key in reach(Settings(), section).__slots__}
    assert {row.field for row in SETTINGS} == fields


def test_the_example_of_the_reference_page_is_read() -> None:
    found = read(SETTINGS_EXAMPLE, source="example", base="/srv")
    assert (found.gateway.workers, found.limits.body_bytes, found.limits.idle_timeout_s) == (2, 64 * 2**20, 75.0)
    assert (found.log.level, found.log.format) == (LogLevel.DEBUG, LogFormat.JSON)


def test_toml_values_have_their_own_types() -> None:
    found = read(
        '[gateway]\nworkers = 3\ntrusted-proxies = ["10.0.0.0/8", "::1"]\nlisten = "[::1]:80"\n'
        '[limits]\nbody-bytes = 1_000_000\n[log]\nformat = "json"\naccess-sampling = 0.25\n',
        source="s",
        base="/srv",
    )
    assert found.gateway.listen == Address("::1", 80)
    assert found.gateway.trusted_proxies == ("10.0.0.0/8", "::1")
    assert (found.gateway.workers, found.limits.body_bytes) == (3, 1_000_000)
    assert (found.log.format, found.log.access_sampling) == (LogFormat.JSON, 0.25)


def test_paths_start_from_the_file_and_those_of_flags_from_where_one_stands() -> None:
    text = '[accelerators]\nfile = "gpus.yaml"\n'
    assert read(text, source="s", base="/srv").accelerators.file == "/srv/gpus.yaml"
    flags = {"accelerators-file": "mine.yaml", "state-directory": "/var/lib/tidegate"}
    found = read(text, source="s", base="/srv", cwd="/home", flags=flags)
    assert (found.accelerators.file, found.state.directory) == ("/home/mine.yaml", "/var/lib/tidegate")


def test_every_fault_is_reported_at_once_with_its_line() -> None:
    text = (
        '[gatway]\nlisten = "x"\n[gateway]\nlisten = "localhost"\nworkers = 257\ndomian = "a"\ntls-cert = "a.pem"\n'
        "[limits]\nhead-timeout = 10\nheaders = 1979-05-27\n[log]\nlevel = 3\n"
    )
    assert faults(text, log_levle="info", log_format="xml") == [
        "--log-levle: got an unknown flag; did you mean `log-level`? allowed: "
        + ", ".join(row.flag[2:] for row in SETTINGS),
        "--log-format: got 'xml'; allowed: text, json",
        "gateway.tls-cert, gateway.tls-key: got tls-cert alone (from tidegate.toml, line 7); allowed: both or none",
        "line 1: [gatway]: got an unknown section; did you mean `gateway`? allowed: gateway, cors, control, state,"
        " accelerators, servers, kubernetes, limits, jobs, scaling, store, tenants, log, metrics, tracing",
        "line 4: gateway.listen: got 'localhost'; allowed: HOST:PORT (127.0.0.1:8080, [::1]:8080), port 0 for any"
        " free one",
        "line 5: gateway.workers: got '257'; allowed: auto, or a whole number, 0 to 256",
        "line 6: gateway.domian: got an unknown key; did you mean `domain`? allowed: listen, workers, domain,"
        " tls-cert, tls-key, trusted-proxies",
        "line 9: limits.head-timeout: got '10'; did you mean `10s`? allowed: a duration, 100ms to 24h"
        " (units us, ms, s, m, h)",
        "line 10: limits.headers: got a date; allowed: a whole number, 8 to 10000",
        "line 12: log.level: got '3'; allowed: debug, info, warning, error",
    ]


@pytest.mark.parametrize(
    ("text", "reported"),
    [
        ("[gateway\n", "line 1: document: got Expected ']' at the end of a table declaration; allowed: TOML"),
        ('a = "x', "allowed: TOML"),
        ("a = 1\na = 2\n", "line 2: document: got Cannot overwrite a value; allowed: TOML"),
        ("gateway = 3\n", "line 1: gateway: got a value; allowed: a section [gateway]"),
        ("a = " + "9" * 5000, "allowed: TOML of ordinary numbers and depth"),
        ("a = " + "[" * 100_000, "allowed: TOML of ordinary numbers and depth"),
        ("a = 1\n" * 100_000, "at most 262144"),
        ("[log]\naccess-sampling = nan\n", "line 2: log.access-sampling"),
        ("[log]\naccess-sampling = 1e300\n", "line 2: log.access-sampling: got a float"),
        ("[log]\nlevel = true\n", "got 'true'"),
        ("[log]\nlevel = [[1]]\n", "got a list"),
    ],
)
def test_what_is_no_settings_file(text: str, reported: str) -> None:
    assert reported in faults(text)[0]


def test_a_url_in_which_a_password_may_be_is_not_shown() -> None:
    url = "postgres://:SECRET@cache/0"
    for reported in (faults(f'[store]\nurl = "{url}"'), faults("", store_url=url)):
        assert "another value (not shown); allowed: embedded, redis://" in reported[0]
        assert "SECRET" not in reported[0]


def test_each_value_knows_whether_a_flag_a_line_of_the_file_or_the_default_gave_it() -> None:
    text = '[log]\nlevel = "debug"\n[gateway]\nlisten = "127.0.0.1:9000"\nworkers = 2\n'
    flags = {"log-level": "info", "gateway-workers": "2", "limits-headers": "50"}
    found = read(text, source="tidegate.toml", base="/etc", flags=flags)
    assert found.origin("log.level") == "--log-level"
    assert found.origin("gateway.listen") == "tidegate.toml, line 4"
    assert found.origin("control.listen") == "the default"
    assert found.overridden == ("log.level: --log-level info overrides tidegate.toml, line 2",)
    faults = [Fault("gateway.listen", "127.0.0.1:9000", "a free address"), Fault("spec.port", "x", "a port")]
    assert [each.value for each in found.sourced(faults)] == ["127.0.0.1:9000, from tidegate.toml, line 4", "x"]
    assert found == read("", source="", base="/etc", flags=flags | {"gateway-listen": "127.0.0.1:9000"})


def test_an_overridden_value_that_may_hold_a_password_is_not_shown() -> None:
    text = '[store]\nurl = "redis://:old@a/0"\n'
    found = read(text, source="t.toml", base="/", flags={"store-url": "redis://:secret@b/0"})
    assert found.overridden == ("store.url: --store-url overrides t.toml, line 2",)


def test_a_cluster_needs_a_file_of_accelerators() -> None:
    """Those of the machine on which the control process runs are others."""
    with pytest.raises(InvalidInputError, match="the accelerators of a cluster are declared"):
        read('[kubernetes]\nimage = "tidegate:1"\n', source="s", base="/srv")
    text = '[kubernetes]\nimage = "tidegate:1"\n[accelerators]\nfile = "a.yaml"\n'
    assert read(text, source="s", base="/srv").kubernetes.image == "tidegate:1"


def test_least_interference_is_refused_where_no_replicas_share_a_device() -> None:
    shared = '[accelerators]\nfile = "a.yaml"\nplacement = "least-interference"\n'
    assert read(shared, source="s", base="/srv").accelerators.placement == "least-interference"
    with pytest.raises(InvalidInputError, match=r"least-interference, with kubernetes.image .*Pods share no device"):
        read(f'{shared}[kubernetes]\nimage = "tidegate:1"\n', source="s", base="/srv")


def test_no_workers_here_need_a_store_that_remote_gateways_reach() -> None:
    assert faults("", gateway_workers="0") == [
        "gateway.workers: got 0 (from --gateway-workers) with the embedded store; allowed: at least 1: remote gateways"
        " need a store in Redis"
    ]
    found = read(
        "", source="flags", base="/srv", flags={"gateway-workers": "0", "store-url": "redis://127.0.0.1:6379/0"}
    )
    assert found.gateway.workers == 0


def test_a_token_of_scrapes_needs_the_listener_that_asks_for_it() -> None:
    assert faults('[metrics]\ntoken-file = "scrape"\n') == [
        "metrics.token-file: got a file (from tidegate.toml, line 2) without metrics.listen; "
        "allowed: none: the API has the deployment's token"
    ]
    found = read('[metrics]\nlisten = "[::]:8083"\ntoken-file = "scrape"\n', source="s", base="/srv").metrics
    assert (found.listen, found.token_file) == (Address("::", 8083), "/srv/scrape")
