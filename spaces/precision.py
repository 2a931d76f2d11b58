"""Number formats of weights and KV, and what an element of each costs in memory.

Block formats carry their scales: bytes per weight are the element plus its share of the scale.
Sources: OCP Microscaling v1.0 (mxfp4: 4 bits, 8-bit scale per 32); NVFP4 (4 bits, 8-bit scale per
16); DeepSeek-V3 report section 3.3 (fp8, 32-bit scale per 128x128 block); int4 with a 16-bit scale
per group of 32 (compressed-tensors).
"""

from __future__ import annotations

from typing import Literal

Dtype = Literal["bf16", "fp8", "mxfp4", "nvfp4", "int4"]
ComputeDtype = Literal["bf16", "fp8", "fp4"]
WeightsName = Literal["native", "bf16", "fp8", "mxfp4", "nvfp4", "int4"]
KvDtype = Literal["bf16", "fp8"]

BYTES_PER_WEIGHT: dict[Dtype, float] = {
    "bf16": 2.0,
    "fp8": 1.0 + 4.0 / (128 * 128),
    "mxfp4": 0.5 + 1.0 / 32,
    "nvfp4": 0.5 + 1.0 / 16,
    "int4": 0.5 + 2.0 / 32,
}

BYTES_PER_KV_ELEMENT: dict[KvDtype, float] = {"bf16": 2.0, "fp8": 1.0}
