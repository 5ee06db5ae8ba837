"""What commands with ``--context`` name in place of what they do not do. ``tests/live/test_kubernetes_commands.py`` has
the rest."""

import pytest

from tidegate.control.cli.cluster.commands import follow


@pytest.mark.parametrize(
    ("replica", "source", "wanted"),
    [
        (None, "server", "-l tidegate.dev/function=echo -c model-server --prefix"),
        (None, "all", "-l tidegate.dev/function=echo --all-containers --prefix"),
        ("echo-00001-aaaaa", "proxy", "echo-00001-aaaaa -c queue-proxy --prefix"),
    ],
)
def test_the_command_that_follows_has_the_replica_and_the_source(replica: str | None, source: str, wanted: str) -> None:
    said = str(follow("here", "models", "echo", replica=replica, source=source))
    assert said.endswith(f"kubectl --context here -n models logs -f {wanted}")
