"""Scores the law of routed experts on benchmarked kernels, over layouts of four models.

Usage: python -m scripts.score_experts

The law prices steps (`routed_experts_s`); the kernels are those fitted to measured tables
(`scripts/kernels/`), at the median of their engines, routing balanced. For token counts of a step
it prints the median of |ln(predicted / kernel)| and of its sign. Writes nothing.
"""

from __future__ import annotations

from itertools import product

import numpy as np

from objectives.cost.benchmark_work import experts_work
from objectives.cost.kernel_tables import load_kernels
from objectives.cost.machine import machine_of
from objectives.cost.operators import routed_experts_s
from objectives.cost.silicon import FORMATS
from objectives.cost.step_costs import Floats
from scripts.operator_report import UNSHIPPED
from spaces.catalog import chip, model
from spaces.model import MoeFfn
from spaces.plan import Pool

TOKENS = np.array([8.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0, 4096.0, 8192.0])
MODELS = ("deepseek-r1", "minimax-m2.5", "qwen3-235b-a22b", "kimi-k2.5")
LAYOUTS = ((8, 1, 1), (4, 1, 1), (1, 8, 8), (1, 4, 4))
CHIPS = {
    "b200": ("fp8_block", "nvfp4", "bfloat16"),
    "h200": ("fp8_block", "bfloat16"),
    "h100": ("fp8_block",),
}


def main() -> None:
    """Run as a command."""
    logs = np.array(
        [
            log_ratio(name, dtype, model_name, layout)
            for name, dtypes in CHIPS.items()
            for dtype, model_name, layout in product(dtypes, MODELS, LAYOUTS)
        ]
    )
    print("| tokens | median |ln error| | median ln error |\n| --- | --- | --- |")
    for tokens, column in zip(TOKENS, logs.T, strict=True):
        print(f"| {tokens:.0f} | {np.median(np.abs(column)):.2f} | {np.median(column):+.2f} |")
    print(f"| all | {np.median(np.abs(logs)):.2f} | {np.median(logs):+.2f} |")


def log_ratio(name: str, dtype: str, model_name: str, layout: tuple[int, int, int]) -> Floats:
    """Logarithm of predicted over benchmarked seconds of one layer, by tokens."""
    spec, found = chip(name), model(model_name)
    tp, dp, ep = layout
    moe = next(ffn for ffn in found.ffn if isinstance(ffn, MoeFfn))
    work = experts_work(
        *(spec, FORMATS[dtype], TOKENS),
        experts=float(moe.routed_experts),
        top_k=float(moe.top_k),
        ep=float(ep),
        width=float(found.hidden_size),
        inner=moe.expert_intermediate_size * ep / (tp * dp),
        skew=0.0,
    )
    kernels = load_kernels(name, UNSHIPPED).find("experts", dtype)
    benchmarked = [k.seconds(work) for k in kernels if "nongated" not in k.kernel]
    pool = Pool(role="aggregated", chip=name, tp=tp, dp=dp, ep=ep)
    machine = machine_of(spec, "sglang")
    law = routed_experts_s(machine, moe, found.hidden_size, pool, FORMATS[dtype], TOKENS)
    return np.asarray(np.log(law / np.median(benchmarked, axis=0)))


if __name__ == "__main__":
    main()
