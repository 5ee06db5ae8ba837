"""Writes the resources into the chart, and what the chart installs as plain YAML; ``make docs`` does it.

``python -m tidegate.deploy.kubernetes.resources.main FOLDER``: that of the chart.
"""

import sys
from pathlib import Path
from typing import Final

import yaml

from tidegate.deploy.kubernetes.resources.admission import epoch_policy, injected_policy, replica_policy
from tidegate.deploy.kubernetes.resources.chart import render
from tidegate.deploy.kubernetes.resources.definitions import definitions, policies
from tidegate.schema.yaml_nodes import dump

_HEAD: Final = "# Made by `make docs` from the tables of tidegate/manifest. Change those, not this file.\n"
NAMESPACE: Final = "models"
"""Namespace of the plain YAML: a RoleBinding must name it."""
_PLAIN_HEAD: Final = f"""\
# What the chart installs in the namespace `{NAMESPACE}`. Made by `make docs` from deploy/kubernetes/chart: change that.
#   kubectl create namespace {NAMESPACE}
#   kubectl apply --server-side -f deploy/kubernetes/chart/resources -f deploy/kubernetes/tidegate.yaml
"""
PARTS: Final = ("account.yaml", "control.yaml", "network.yaml")
"""Templates of the plain YAML."""
WEBHOOK: Final = "webhook.yaml"
_WEBHOOK_HEAD: Final = f"""\
# The webhook that the chart installs in the namespace `{NAMESPACE}` with webhook.enabled, beside tidegate.yaml. Made by
# `make docs` from deploy/kubernetes/chart: change that.
#   kubectl apply --server-side -f deploy/kubernetes/webhook.yaml
"""


def files() -> dict[str, str]:
    """Returns the text of each resource's file by its name."""
    found = {f"{each['spec']['names']['plural']}.yaml": dump(each) for each in definitions()}
    found["annotations.yaml"] = "---\n".join(dump(each) for each in policies())
    found["replicas.yaml"] = "---\n".join(
        dump(each) for each in (*replica_policy(), *epoch_policy(), *injected_policy())
    )
    return {name: _HEAD + text for name, text in found.items()}


def defaults(chart: Path) -> str:
    """Returns the values of the chart for its templates, which cannot read ``values.yaml`` itself."""
    head = "# Made by `make docs` from values.yaml: change that. Templates take from here what the values lack.\n"
    return head + dump(yaml.safe_load((chart / "values.yaml").read_text(encoding="utf-8")))


def plain(chart: Path) -> str:
    """Returns what the chart installs in one namespace with its own values."""
    rendered = render(chart, NAMESPACE)
    return _PLAIN_HEAD + "---\n".join(rendered[name].lstrip("\n") for name in PARTS)


def plain_webhook(chart: Path) -> str:
    """Returns what the chart installs of the webhook, whose certificates are its own."""
    rendered = render(chart, NAMESPACE, {"webhook": {"enabled": True}})
    return _WEBHOOK_HEAD + rendered[WEBHOOK].lstrip("\n")


def main() -> None:
    """Writes every file."""
    chart = Path(sys.argv[1])
    folder = chart / "resources"
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files().items():
        (folder / name).write_text(text, encoding="utf-8")
    (chart / "defaults.yaml").write_text(defaults(chart), encoding="utf-8")
    (chart.parent / "tidegate.yaml").write_text(plain(chart), encoding="utf-8")
    (chart.parent / WEBHOOK).write_text(plain_webhook(chart), encoding="utf-8")


if __name__ == "__main__":
    main()
