"""How compiled functions hand the state to one another: as one pointer.

A named tuple of thirty arrays would be copied, some two hundred words of it, at every call; that
took most of the simulator's time and made its compilation twice as long.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numba
import numba.core.types
from numba.core import cgutils
from numba.experimental import structref
from numba.extending import intrinsic

from objectives.simulator.jit import compiled
from objectives.simulator.state import State

_types: Any = numba.core.types


@structref.register
class _StateType(_types.StructRef):  # type: ignore[misc]
    def preprocess_fields(self, fields: Sequence[tuple[str, Any]]) -> tuple[tuple[str, Any], ...]:
        return tuple((name, _types.unliteral(field)) for name, field in fields)


class _CompiledState(structref.StructRefProxy):  # type: ignore[misc]
    pass


structref.define_proxy(_CompiledState, _StateType, list(State._fields))


@intrinsic  # type: ignore[untyped-decorator]
def _borrowed(typing_context: Any, arrays: Any) -> Any:
    """The same arrays without their owners, whose references are then not counted.

    Counting is atomic and happens at every look into the state: it took more time than the work
    on a cached block. The caller of the compiled code keeps the arrays alive.
    """

    def built(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kinds = signature.return_type
        members = []
        for place, kind in enumerate(kinds):
            array = context.make_array(kind)(
                context, builder, builder.extract_value(arguments[0], place)
            )
            array.meminfo = cgutils.get_null_value(array.meminfo.type)
            members.append(array._getvalue())
        return context.make_tuple(builder, kinds, members)

    return arrays(arrays), built


@compiled
def _compiled_state_of(arrays: Any) -> Any:
    return _CompiledState(*_borrowed(arrays))


# Interpreted, the named tuple itself will do.
state_of: Callable[[tuple[Any, ...]], State] = (
    State._make if numba.config.DISABLE_JIT else _compiled_state_of
)
