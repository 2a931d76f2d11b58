"""All compiled functions as one unit of machine code.

By default numba optimizes and emits every function together with all that it calls, and then again
within each function above it: time, memory and the file on disk grow with the depth of the calls.
Here a function that only compiled code calls is a *part*, which is typed and lowered and no more;
the function that Python calls is the *whole*, which is linked with all parts below it, optimized
and emitted, once.
"""

from __future__ import annotations

from typing import Any

from llvmlite.binding import Linkage
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import Compiler


class _Part(JITCodeLibrary):  # type: ignore[misc]
    """The code of one function, which waits for a whole."""

    def finalize(self) -> None:
        self._finalized = True

    def get_pointer_to_function(self, name: str) -> int:
        """None: numba asks for the function that Python would call."""
        return 0

    @property
    def codegen(self) -> _Part:
        """Itself, where numba would tell emitted code its environment (see `set_env`)."""
        return self

    def set_env(self, name: str, environment: Any) -> None:
        """Nothing: only code that handles Python objects looks into its environment."""


class _Whole(JITCodeLibrary):  # type: ignore[misc]
    """The code of a function that Python calls, and of all that it calls."""

    def finalize(self) -> None:
        # The linker takes what is called already: callers come first.
        self._linking_libraries = _callers_first(self)[1:]
        super().finalize()

    def _optimize_final_module(self) -> None:
        # Nobody else calls a part, so that what is inlined everywhere need not be emitted.
        for function in self._final_module.functions:
            if function.linkage == Linkage.linkonce_odr:
                function.linkage = Linkage.internal
        super()._optimize_final_module()


class PartCompiler(Compiler):  # type: ignore[misc]
    """Numba's compiler, for a function that only compiled code calls."""

    def __init__(self, typing: Any, target: Any, _library: None, *rest: Any) -> None:
        super().__init__(typing, target, _Part(target.codegen(), "simulator part"), *rest)


class WholeCompiler(Compiler):  # type: ignore[misc]
    """Numba's compiler, for a function that Python calls."""

    def __init__(self, typing: Any, target: Any, _library: None, *rest: Any) -> None:
        whole = _Whole(target.codegen(), "simulator")
        whole.enable_object_caching()  # for the cache on disk
        super().__init__(typing, target, whole, *rest)


def _callers_first(whole: _Whole) -> list[JITCodeLibrary]:
    """The whole and all code that it needs. What is no part has what it needs in itself."""
    found: dict[JITCodeLibrary, None] = {}

    def visit(library: JITCodeLibrary) -> None:
        if library in found:
            return
        if isinstance(library, _Part | _Whole):
            for needed in library._linking_libraries:
                visit(needed)
        found[library] = None

    visit(whole)
    return list(reversed(found))
