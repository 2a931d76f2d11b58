"""Executors by the names the command line gives them."""

from __future__ import annotations

from optimizer.execution.executor import Evaluate, Executor, LocalExecutor, available_cores
from optimizer.execution.ray_executor import OPTION, RayExecutor
from spaces.errors import InputError

LOCAL, RAY = "local", "ray"


def opened_executor(name: str, evaluate: Evaluate, workers: int | None) -> Executor:
    """The executor `local`, `ray` or `ray:ADDRESS`; None are all workers there are.

    Raises `InputError` for another name, or where Ray is not to be had.
    """
    kind, colon, address = name.partition(":")
    if kind == LOCAL and not colon:
        return LocalExecutor(evaluate, workers or available_cores())
    if kind == RAY and (address or not colon):
        return RayExecutor(evaluate, address or None, workers)
    raise InputError(
        "an executor is local, ray or ray:ADDRESS",
        key=OPTION,
        value=name,
        remedy="for example ray:10.0.0.5:6379",
    )
