"""How errors leave the program: one message on stderr and an exit code, no traceback."""

from __future__ import annotations

import errno
import functools
import traceback
from collections.abc import Callable
from typing import ParamSpec

import typer

INTERNAL_FAILURE, WRONG_INPUT, NOTHING_FEASIBLE, SOME_FAILED, INTERRUPTED = 1, 2, 3, 4, 130

Parameters = ParamSpec("Parameters")
_debug = {"wanted": False}


def show_tracebacks(wanted: bool) -> None:
    """Whether tracebacks are shown beside the messages, for the rest of the process."""
    _debug["wanted"] = wanted


def errors_told(command: Callable[Parameters, None]) -> Callable[Parameters, None]:
    """The command with its errors told on stderr and turned into exit codes."""

    @functools.wraps(command)
    def told(*args: Parameters.args, **options: Parameters.kwargs) -> None:
        try:
            command(*args, **options)
        except (typer.Exit, typer.Abort):
            raise
        except KeyboardInterrupt:
            typer.echo("interrupted", err=True)
            raise typer.Exit(INTERRUPTED) from None
        except Exception as error:
            if isinstance(error, OSError) and error.errno == errno.EPIPE:
                raise  # the reader of stdout has gone, which typer ends quietly
            raise typer.Exit(_tell(error)) from None

    return told


def _tell(error: Exception) -> int:
    """Say what went wrong; the exit code for it."""
    from spaces.errors import NothingFeasible, ServefrontError, StorageUnavailable

    if _debug["wanted"]:
        typer.echo("".join(traceback.format_exception(error)), err=True)
    if isinstance(error, ServefrontError):
        typer.echo(f"error: {error}", err=True)
        if isinstance(error, StorageUnavailable):
            return INTERNAL_FAILURE
        return NOTHING_FEASIBLE if isinstance(error, NothingFeasible) else WRONG_INPUT
    typer.echo(
        f"internal failure: {type(error).__name__}: {error}\n"
        "run `servefront --debug ...` (or set SERVEFRONT_DEBUG=1) for the traceback",
        err=True,
    )
    return INTERNAL_FAILURE
