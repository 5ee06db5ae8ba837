"""The options that `tidegate deploy` and `tidegate dev` share."""

from pathlib import Path
from typing import Annotated, Final

import typer

_SERVER: Final = "Model server"

Name = Annotated[
    str | None, typer.Option("--name", help="Name of the function (for model files; default: the file's).")
]
PolicyParameter = Annotated[
    list[str] | None, typer.Option("--policy-parameter", metavar="KEY=VALUE", help="A parameter of the policy.")
]
Slo = Annotated[
    str | None,
    typer.Option(
        "--slo",
        "--sla",
        metavar="pN=LATENCY[,TIME/token]",
        help="Short for --percentile, --latency and --time-per-output-token: p99=200ms or 200ms@99, "
        "p99=500ms,50ms/token.",
    ),
]
Gpu = Annotated[str | None, typer.Option("--gpu", help="Short for --gpu-model; any: any accelerator that fits.")]
Python = Annotated[
    str | None,
    typer.Option("--python", metavar="PATH", help="Interpreter of a model file or class.", rich_help_panel=_SERVER),
]
Requirements = Annotated[
    Path | None,
    typer.Option(
        "--requirements",
        metavar="FILE",
        help="Install what FILE lists into an environment of its own first; the same FILE is installed once.",
        rich_help_panel=_SERVER,
    ),
]
Env = Annotated[
    list[str] | None,
    typer.Option("--env", metavar="NAME=VALUE", help="A variable of the model server.", rich_help_panel=_SERVER),
]
Arg = Annotated[
    list[str] | None,
    typer.Option(
        "--arg", metavar="NAME=VALUE", help="An argument of the class, JSON or text.", rich_help_panel=_SERVER
    ),
]
Accelerators = Annotated[
    str | None,
    typer.Option("--accelerators", metavar="NAME,...", help="Accelerators it may use.", rich_help_panel=_SERVER),
]
Replace = Annotated[
    bool, typer.Option("--replace", help="Replace a function of this name that came from another file.")
]
