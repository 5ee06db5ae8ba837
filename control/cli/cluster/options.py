"""Options of the commands that reach a cluster, and what is refused beside them."""

from typing import Annotated

import typer

from tidegate.errors import Fault, InvalidInputError

ContextOption = Annotated[
    str | None,
    typer.Option("--context", metavar="NAME", help="A context of kubeconfig: the custom resources of that cluster."),
]
NamedContextOption = Annotated[
    str | None,
    typer.Option(
        "--context", metavar="NAME", help="A context of kubeconfig: prints the kubectl command that does it there."
    ),
]
NamespaceOption = Annotated[
    str | None, typer.Option("--namespace", metavar="NAME", help="Namespace there (default: the context's).")
]


def check(context: str | None, namespace: str | None, **not_there: object) -> str | None:
    """Returns the context. Raises InvalidInputError for a namespace without one, and with one for each option of
    ``not_there`` that is given."""
    if context is None:
        if namespace is not None:
            raise InvalidInputError("command line", [Fault("--namespace", namespace, "only with --context")])
        return None
    given = {f"--{name.replace('_', '-')}": value for name, value in not_there.items() if value not in (None, False)}
    if given:
        faults = [
            Fault(flag, "the flag" if value is True else str(value), "no such option with --context")
            for flag, value in given.items()
        ]
        raise InvalidInputError("command line", faults)
    return context
