"""The tenants' file: all faults at once with their lines, and never a key in one."""

import math

import pytest

from tidegate.errors import InvalidInputError
from tidegate.records.tenants import QuotaLimit, Quotas, Tenant, digest
from tidegate.tenants_file import MAX_KEYS, MAX_TENANTS, parse

KEY = b"tg-a-key-of-a-tenant-0123456789"
FILES = {"/home/keys/acme": KEY + b"\n", "/home/short": b"abc", "/home/two": b"a" * 20 + b" " + b"b" * 20}


def read_key(path: str) -> bytes:
    if path not in FILES:
        raise FileNotFoundError(2, "No such file", path)
    return FILES[path]


def read(text: str) -> tuple[Tenant, ...]:
    return parse(text, source="tenants.yaml", base="/home", read_key=read_key)


def faults(text: str) -> list[str]:
    with pytest.raises(InvalidInputError) as raised:
        read(text)
    assert "SECRET" not in str(raised.value)
    return [str(fault) for fault in raised.value.faults]


def test_what_is_written_is_what_holds() -> None:
    (acme, plain) = read(
        f"""
        tenants:
          - name: acme
            keys: ["file:keys/acme", "sha256:{"AB" * 32}"]
            weight: 2.5
            priority: 3
            functions: [resnet, chat, resnet]
            quotas: {{requests-per-second: 50, tokens-per-minute: 100000, concurrency: 20}}
          - name: user@plain.example
        """
    )
    assert acme == Tenant(
        name="acme",
        keys=(digest(KEY), "ab" * 32),
        weight=2.5,
        priority=3,
        functions=("resnet", "chat"),
        quotas=Quotas(requests_per_second=50, tokens_per_minute=100000, concurrency=20),
    )
    assert plain == Tenant(name="user@plain.example")
    assert not plain.quotas and acme.quotas
    assert list(acme.quotas.limits()) == [
        QuotaLimit("requests", 1.0, 50),
        QuotaLimit("tokens", 60.0, 100000),
        QuotaLimit("concurrency", math.inf, 20),
    ]
    assert [limit.name for limit in acme.quotas.limits()] == ["requests-per-second", "tokens-per-minute", "concurrency"]


def test_every_fault_is_reported_and_no_key() -> None:
    found = faults(
        f"""tenants:
- name: acme
  keys: [SECRET-KEY-itself, "sha256:SECRET", file:missing, file:short, file:two, {{SECRET: 1}}, "file:"]
  weight: 0
  colour: red
- name: acme
  keys: ["file:keys/acme"]
- name: second
  keys: ["sha256:{digest(KEY)}"]
  functions: [Bad_Name]
  quotas: {{requests-per-hour: 1, tokens-per-minute: none}}
- {{weight: 2}}
- name
"""
    )
    words = "sha256:HEX or file:PATH (`tidegate tenant-key` makes a key and its SHA-256), not the key itself"
    one_key = "one key of 16 to 512 printable ASCII characters without blanks"
    amounts = ("inferences-per-minute", "inferences-per-second", "requests-per-minute", "requests-per-second")
    quotas = ", ".join(("concurrency", *amounts, "tokens-per-minute", "tokens-per-second"))
    known = "functions, keys, name, priority, quotas, weight"
    assert found == [
        f"line 3: tenants[0].keys[0]: got another value (not shown); allowed: {words}",
        f"line 3: tenants[0].keys[1]: got another value (not shown); allowed: {words}",
        "line 3: tenants[0].keys[2]: got '/home/missing' (No such file); allowed: a file with a key",
        f"line 3: tenants[0].keys[3]: got '/home/short' with other content (not shown); allowed: {one_key}",
        f"line 3: tenants[0].keys[4]: got '/home/two' with other content (not shown); allowed: {one_key}",
        f"line 3: tenants[0].keys[5]: got another value (not shown); allowed: {words}",
        f"line 3: tenants[0].keys[6]: got another value (not shown); allowed: {words}",
        "line 4: tenants[0].weight: got '0'; allowed: a number, 0.01 to 1000",
        f"line 5: tenants[0].colour: got the unknown key 'colour'; allowed: {known}",
        "line 6: tenants[1].name: got 'acme'; allowed: each name once",
        "line 9: tenants[2].keys[0]: got a key of 'acme'; allowed: each key once",
        "line 10: tenants[2].functions: got 'Bad_Name'; allowed: the name of a function",
        "line 11: tenants[2].quotas.tokens-per-minute: got 'none'; allowed: a whole number, 1 to 1099511627776",
        f"line 11: tenants[2].quotas.requests-per-hour: got the unknown key 'requests-per-hour'; did you mean"
        f" `requests-per-second`? allowed: {quotas}",
        "line 12: tenants[3].name: got nothing; allowed: a name of 1 to 128 letters, digits and . _ @ : | -,"
        " a letter or digit at both ends",
        "line 13: tenants[4]: got 'name'; allowed: a mapping of keys to values",
    ]


@pytest.mark.parametrize(
    ("text", "reported"),
    [
        ("", "0 documents"),
        ("tenants: []\n---\ntenants: []", "2 documents"),
        ("- name: x", "a list"),
        ("tenants: x", "got 'x'; allowed: a list"),
        ("users: []", "tenants: got nothing"),
        (f"tenants: [{', '.join('{}' for _ in range(MAX_TENANTS + 1))}]", f"at most {MAX_TENANTS}"),
        (f"tenants: [{{name: a, keys: [{', '.join(['x'] * (MAX_KEYS + 1))}]}}]", f"at most {MAX_KEYS}"),
        ("tenants: [{name: a, functions: []}]", "1 to 1000 names"),
        ("tenants: [", "YAML"),
    ],
)
def test_what_is_no_file_of_tenants(text: str, reported: str) -> None:
    assert any(reported in fault for fault in faults(text))


def test_no_tenants_are_fine() -> None:
    assert read("tenants: []") == ()


@pytest.mark.parametrize("keys", ["tg-SECRET-in-a-wrong-place", "{sha256: tg-SECRET-in-a-wrong-place}"])
def test_keys_that_are_no_list_are_not_shown(keys: str) -> None:
    (fault,) = faults(f"tenants: [{{name: a, keys: {keys}}}]")
    assert fault.startswith("line 1: tenants[0].keys: got not a list (not shown); allowed: a list, each sha256:HEX or")
    assert read("tenants: [{name: a, keys: }]") == (Tenant(name="a"),)


def test_functions_without_a_value_are_not_every_function() -> None:
    (fault,) = faults("tenants: [{name: a, functions: }]")
    assert (
        fault
        == "line 1: tenants[0].functions: got nothing; allowed: 1 to 1000 names, or no such key for every function"
    )


def test_a_quota_without_a_value_is_not_no_limit() -> None:
    """The value may have been lost, for example in a template without input."""
    amount = "a whole number, 1 to 1099511627776, or no such key"
    lost = "{name: b, weight: , quotas: {concurrency: , tokens-per-minute: ~}}"
    assert faults(f"tenants: [{{name: a, quotas: }}, {lost}]") == [
        "line 1: tenants[0].quotas: got nothing; allowed: quotas, or no such key for no limit",
        "line 1: tenants[1].weight: got nothing; allowed: a number, 0.01 to 1000, or no such key",
        f"line 1: tenants[1].quotas.tokens-per-minute: got nothing; allowed: {amount}",
        f"line 1: tenants[1].quotas.concurrency: got nothing; allowed: {amount}",
    ]
    assert read("tenants: [{name: a, quotas: {}}]") == (Tenant(name="a"),)


def test_an_empty_list_of_keys_is_warned_about_and_no_list_is_not() -> None:
    warnings: list[str] = []
    text = "tenants: [{name: revoked, keys: []}, {name: of-tokens}]"
    found = parse(text, source="tenants.yaml", base="/home", read_key=read_key, warn=warnings.append)
    assert found == (Tenant(name="revoked"), Tenant(name="of-tokens"))
    assert warnings == [
        "tenants.yaml: tenants[0].keys: the list is empty, no key opens anything for tenant 'revoked'; "
        f"allowed: 1 to {MAX_KEYS} keys, or no such key for a tenant of tokens"
    ]
