"""How compiled functions hand the state to one another: as one pointer.

A named tuple of thirty arrays would be copied, some two hundred words of it, at every call; that
took most of the simulator's time and made its compilation twice as long.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numba
import numba.core.types
from numba.experimental import structref

from objectives.simulator.state import State

_types: Any = numba.core.types


@structref.register
class _StateType(_types.StructRef):  # type: ignore[misc]
    def preprocess_fields(self, fields: Sequence[tuple[str, Any]]) -> tuple[tuple[str, Any], ...]:
        return tuple((name, _types.unliteral(field)) for name, field in fields)


class _CompiledState(structref.StructRefProxy):  # type: ignore[misc]
    pass


structref.define_proxy(_CompiledState, _StateType, list(State._fields))

# Interpreted, the named tuple itself will do.
state_of: Callable[..., State] = State if numba.config.DISABLE_JIT else _CompiledState
