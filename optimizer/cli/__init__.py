"""The command `servefront`: results go to stdout, talk to stderr, and exit codes mean something.

0 done, 1 internal failure, 2 the input is wrong, 3 nothing is feasible, 4 some evaluations
failed, 130 interrupted with the state saved.

Modules of this package import what their commands need within them, so that `--help` is quick.
"""

from __future__ import annotations

from importlib.metadata import version
from typing import Annotated

import typer

from optimizer.cli.calibrate import calibrate
from optimizer.cli.catalog import catalog
from optimizer.cli.choose import choose
from optimizer.cli.errors import errors_told, show_tracebacks
from optimizer.cli.export import export
from optimizer.cli.front import front
from optimizer.cli.init import init
from optimizer.cli.optimize import optimize
from optimizer.cli.report import report
from optimizer.cli.simulate import simulate
from optimizer.cli.trace import trace
from optimizer.cli.validate import validate

__all__ = ["app", "main"]

app = typer.Typer(
    name="servefront",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Find the Pareto front of latency against throughput per chip for serving an LLM, and "
    "deploy the point you choose.",
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"servefront {version('servefront')}")
        raise typer.Exit


@app.callback()
def _everywhere(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_version, is_eager=True, help="Show the version."),
    ] = False,
    debug: Annotated[
        bool,
        typer.Option("--debug", envvar="SERVEFRONT_DEBUG", help="Show tracebacks of failures."),
    ] = False,
) -> None:
    """Options that stand before any command."""
    show_tracebacks(debug)


for command in (
    init,
    optimize,
    simulate,
    front,
    report,
    choose,
    export,
    catalog,
    trace,
    validate,
    calibrate,
):
    app.command()(errors_told(command))


def main() -> None:
    """Run the command line of this process."""
    app()
