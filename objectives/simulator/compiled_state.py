"""How compiled functions hand the state to one another: as one pointer.

A named tuple of fifty arrays would be copied, some three hundred words of it, at every call; that
took most of the simulator's time and made its compilation twice as long.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import llvmlite.ir
import numba
import numba.core.types
from numba.core import cgutils
from numba.core.datamodel import models
from numba.core.typing.templates import AttributeTemplate
from numba.extending import infer_getattr, intrinsic, lower_getattr_generic, register_model

from objectives.simulator.state import State

_types: Any = numba.core.types


class _StateType(_types.Type):  # type: ignore[misc]
    """A pointer to the arrays of a `State`, of the given numba types.

    The name is short because it becomes part of the name of every function that takes a state.
    """

    def __init__(self, arrays: tuple[Any, ...]) -> None:
        self.arrays = _types.Tuple(arrays)
        super().__init__(f"State{hashlib.sha256(str(arrays).encode()).hexdigest()[:8]}")


register_model(_StateType)(models.OpaqueModel)


@infer_getattr
class _StateAttributes(AttributeTemplate):  # type: ignore[misc]
    key = _StateType

    def generic_resolve(self, kind: _StateType, name: str) -> Any:
        return kind.arrays[State._fields.index(name)]


@lower_getattr_generic(_StateType)  # type: ignore[untyped-decorator]
def _array_of(context: Any, builder: Any, kind: _StateType, state: Any, name: str) -> Any:
    """An array of the state, without its owner, whose references are then not counted.

    Counting is atomic and would happen at every look into the state: it took more time than the
    work on a cached block. The caller of the compiled code keeps the arrays alive.
    """
    arrays = builder.bitcast(state, context.get_value_type(kind.arrays).as_pointer())
    place = State._fields.index(name)
    array = builder.load(cgutils.gep_inbounds(builder, arrays, 0, place))
    owner, owner_place = array.type.elements[0], 0
    return builder.insert_value(array, llvmlite.ir.Constant(owner, None), owner_place)


@intrinsic  # type: ignore[untyped-decorator]
def _compiled_state_of(typing_context: Any, arrays: Any) -> Any:
    """A pointer into the frame of the caller, which must outlive its use."""

    def built(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        place = cgutils.alloca_once_value(builder, arguments[0])
        return builder.bitcast(place, context.get_value_type(signature.return_type))

    return _StateType(tuple(arrays))(arrays), built


# Interpreted, the named tuple itself will do.
state_of: Callable[[tuple[Any, ...]], State] = (
    State._make if numba.config.DISABLE_JIT else _compiled_state_of
)
