"""How the simulator's functions are compiled, and where the machine code is kept between runs."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import numba
from numba import njit

from objectives.simulator.linking import PartCompiler, WholeCompiler

Function = TypeVar("Function", bound=Callable[..., object])

_OPTIONS: dict[str, Any] = {"nogil": True, "error_model": "numpy"}


def _cache_folder() -> Path:
    """A folder named after the sources, so that no change can meet stale machine code.

    Numba looks only at the file of the outermost function when it judges its cache, and the
    package folder may not be writable; both are settled by a folder of our own per source digest.
    """
    sources = sorted(Path(__file__).parent.glob("*.py"))
    digest = hashlib.sha256(b"".join(source.read_bytes() for source in sources)).hexdigest()[:16]
    home = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))
    folder = home / "servefront" / f"simulator-{digest}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        folder = Path(tempfile.gettempdir()) / f"servefront-{os.getuid()}-{digest}"
        folder.mkdir(parents=True, exist_ok=True)
    return folder


if not os.environ.get("NUMBA_CACHE_DIR"):
    numba.config.CACHE_DIR = str(_cache_folder())


def compiled(function: Function) -> Function:
    """`function` for compiled callers: compiled with them, and free of the interpreter lock.

    No fast-math: the compiled function gives the same bits as the interpreted one. Set
    NUMBA_DISABLE_JIT=1 to run the Python source itself.
    """
    machine: Function = njit(
        **_OPTIONS, pipeline_class=PartCompiler, no_cpython_wrapper=True, no_cfunc_wrapper=True
    )(function)
    return machine


def entry(function: Function) -> Function:
    """Like `compiled`, for the function that Python calls; with all it calls, it is kept on disk.

    Its arguments must be plain arrays and numbers: machine code that unpacks a named tuple holds
    an address of this process and cannot be kept.
    """
    machine: Function = njit(**_OPTIONS, pipeline_class=WholeCompiler, cache=True)(function)
    return machine
