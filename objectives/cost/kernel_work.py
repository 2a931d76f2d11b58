"""What a kernel has to do: its two bounds on a chip, and the shape its efficiency depends on.

The same function describes the benchmark rows that `scripts/fit_operators.py` fits and the
products of a step, so a fitted table cannot be asked in other terms than it was fitted in.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from objectives.cost.step_costs import Floats
from spaces.chip import ChipSpec
from spaces.precision import BYTES_PER_WEIGHT, ComputeDtype, Dtype

Number = float | Floats

ACTIVATION_BYTES = 2.0
INPUT_BYTES: dict[ComputeDtype, float] = {"bf16": 2.0, "fp8": 1.0, "fp4": 0.5}
_SHARPNESS = 4.0


@dataclass(frozen=True, slots=True)
class Work:
    """Seconds at the chip's peaks, multiplying and moving, and log2 of what shapes efficiency."""

    multiply_s: Number
    move_s: Number
    shape: Mapping[str, Number]

    def tuned(self, multiply: float, move: float) -> Work:
        """The same with its bounds so many times as long."""
        return Work(self.multiply_s * multiply, self.move_s * move, self.shape)

    def roofline_s(self) -> Number:
        """The larger bound, rounded where both are near: (a^4 + b^4)^(1/4).

        A smooth maximum as in the Roofline model's measured knees (Williams et al., CACM 2009);
        between 1 and 1.19 times the larger bound.
        """
        power = _SHARPNESS
        return (np.asarray(self.multiply_s) ** power + np.asarray(self.move_s) ** power) ** (
            1 / power
        )

    def multiply_share(self) -> Number:
        """How far multiplication is the bound: 1 where it alone is, 0 where moving is."""
        multiply = np.asarray(self.multiply_s) ** _SHARPNESS
        return multiply / (multiply + np.asarray(self.move_s) ** _SHARPNESS)


def gemm_work(chip: ChipSpec, tokens: Number, rows: Number, columns: Number, dtype: Dtype) -> Work:
    """Multiplying `tokens` vectors by `rows` x `columns` weights.

    2 t n k FLOPs; bytes are the weights in their stored format with its scales, the inputs in the
    format they are multiplied in, and bf16 outputs (Williams et al., CACM 2009).
    """
    compute = chip.compute_dtype(dtype)
    moved = rows * columns * BYTES_PER_WEIGHT[dtype] + tokens * (
        columns * INPUT_BYTES[compute] + rows * ACTIVATION_BYTES
    )
    return Work(
        2.0 * tokens * rows * columns / chip.peak_flops(compute),
        moved / chip.hbm_bytes_per_s,
        {"m": np.log2(tokens), "n": np.log2(rows), "k": np.log2(columns)},
    )
