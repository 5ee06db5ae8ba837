"""An unknown name is answered with names like it; functions with an access rule are never named."""

from dataclasses import replace

from tests.gateway.routing.test_match import route
from tidegate.gateway.routing.suggestions import COMPARED, SHOWN, Suggestions
from tidegate.records.tenants import AccessRule

SECRET = replace(route("secret-resnet"), access=AccessRule(api_keys=True))


def test_names_like_it_come_first() -> None:
    known = Suggestions((route("handler"), route("resnet", models=("resnet50",)), SECRET))
    assert known.words("handlr") == " (did you mean handler?)"
    assert known.words("resnet5") == " (did you mean resnet50 or resnet?)"
    assert known.words("bert") == " (deployed: handler, resnet, resnet50)"


def test_functions_with_an_access_rule_are_never_named() -> None:
    assert Suggestions((SECRET,)).words("secret-resne") == ""
    assert Suggestions((SECRET, route("echo"))).words("secret-resne") == " (deployed: echo)"


def test_many_names_are_cut_and_long_names_are_compared_in_part() -> None:
    many = Suggestions([route(f"f{number:03}") for number in range(200)])
    assert many.words("zzzzzzzzzz") == f" (deployed: f000, f001, f002, f003, f004 and {200 - SHOWN} more)"
    assert many.words("f" * 100_000).endswith(f"and {200 - SHOWN} more)")
    assert COMPARED < 200
