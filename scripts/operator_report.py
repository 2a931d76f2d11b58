"""Scores of fitted kernels, and the text of `docs/accuracy_operators.md`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pandas as pd

from scripts.operator_rows import CHIPS, Group, Source

Floats = npt.NDArray[np.float64]

# Tables of experts and attention, which no step uses: they back the operators' score.
UNSHIPPED = Path(__file__).parent / "kernels"

SAMPLED = {
    "gemm": "gemm",
    "experts": "moe",
    "decode_attention": "generation_attention",
    "prefill_attention": "context_attention",
    "latent_decode": "generation_mla",
    "latent_prefill": "context_mla",
}
RENAMED = {
    "num_tokens": "num_tokens",
    "hidden_size": "hidden",
    "inter_size": "inter",
    "moe_tp_size": "moe_tp",
    "moe_ep_size": "moe_ep",
    "batch_size": "batch",
    "step": "past_kv",
    "isl": "q_len",
    "num_key_value_heads": "num_kv_heads",
}


@dataclass(frozen=True, slots=True)
class Score:
    """Errors of one kernel on rows whose shape its fit had not seen."""

    op: str
    chip: str
    engine: str
    kernel: str
    dtype: str
    kv: str
    errors: Floats

    @classmethod
    def of(cls, group: Group, errors: Floats) -> Score:
        """The errors of a group's rows."""
        return cls(group.op, group.chip, group.engine, group.kernel, group.dtype, group.kv, errors)

    @property
    def median(self) -> float:
        """Median relative error."""
        return float(np.median(self.errors))

    def line(self) -> str:
        """One line of progress."""
        name = " ".join((self.op, self.chip, self.engine, self.kernel[:40], self.dtype, self.kv))
        return f"{name}: {len(self.errors)} rows, median error {self.median:.1%}"


def sample_errors(
    samples: pd.DataFrame, source: Source, group: Group, predicted_us: Floats
) -> pd.DataFrame:
    """Sampled measured rows of this kernel, with the error of a fit without their shape.

    A sample is a row of this kernel where coordinates agree and the time does within 1 %.
    """
    system = next(key for key, name in CHIPS.items() if name == group.chip)
    mine = sound(samples)
    mine = mine[
        (mine["system"] == system)
        & (mine["backend"] == group.engine)
        & (mine["op"] == SAMPLED[group.op])
        & (mine["dtype"] == group.dtype)
    ]
    if group.kv:
        mine = mine[mine["kv_dtype"] == group.kv]
    frame = group.frame.assign(predicted_us=predicted_us).rename(columns=RENAMED)
    if "window_size" in frame:
        frame = frame[frame["window_size"] == 0]
    keys = [RENAMED.get(name, name) for name in (*source.shape, *source.point)]
    keys = [key for key in keys if key != "window_size"]
    found = mine.reset_index(names="sample").merge(frame, on=keys)
    found = found[np.abs(found["us"] / found["latency_us"] - 1) < 0.01]
    return pd.DataFrame(
        {
            "sample": found["sample"],
            "op": group.op,
            "dtype": group.dtype,
            "error": np.abs(found["predicted_us"] / found["latency_us"] - 1),
        }
    )


def sound(samples: pd.DataFrame) -> pd.DataFrame:
    """Measured rows nobody doubts."""
    measured = samples["provenance"].isin(["measured_table", "engine_exact"])
    return samples[measured & samples["suspect"].isna()]


def document(
    scores: list[Score],
    matched: pd.DataFrame,
    left_out: dict[str, int],
    layouts: str,
    exchanges: str,
) -> str:
    """The text of `docs/accuracy_operators.md`."""
    once = matched.drop_duplicates("sample")
    taken = sum(len(score.errors) for score in scores)
    reasons = "\n".join(f"- {n:,}: {reason}" for reason, n in sorted(left_out.items()))
    return f"""# Accuracy of operators and exchanges

Written by `python -m scripts.fit_operators WHEEL`; do not edit. How the fits work stands in
[cost_model.md](cost_model.md).

## Kernels

{len(scores)} kernels (chip x engine x operator x format x library kernel), {taken:,} measured rows
of aiconfigurator-core 0.12.0. Whole shapes were left out (a matrix n x k with all its token
counts; heads, head size and window of attention with all its batches and lengths; an expert layout
with all its token counts; heads and length of latent attention), five folds of them; every error
below is of a fit that had not seen the row's shape. An error is |predicted / measured - 1|.

{_by_operator(scores)}

By weight format (attention: of the computation) and chip, median error % over rows:

{_by_format(scores)}

By engine, median error % over rows:

{_by_engine(scores)}

Of the 7,315 unsuspected sampled rows of all chips and operators, {len(once):,} are rows of these
kernels (the others: collectives, whole layers, older versions, kernels with few rows):

{_of_samples(once)}

Rows not fitted:

{reasons}

## Experts between measured layouts

What `operator_costs: measured` does for a layout that was not measured (`pip install
'servefront[silicon]'`): kriging between those that were. A layout was left out with all its token
counts and routings, five folds; length and noise of the kriging were chosen on one fold of B200,
which is not scored. The processes do not ship: steps are priced with fractions, which serve them
better than fitted experts do, and where measured costs are asked for the rows are at hand.

{layouts}

{exchanges}"""


def _by_operator(scores: list[Score]) -> str:
    lines = ["| operator | kernels | rows | median error % | mean % | 90 % of rows within % |"]
    lines.append("| --- | --- | --- | --- | --- | --- |")
    for op in SAMPLED:
        mine = [score for score in scores if score.op == op]
        lines.append(f"| {op} | {len(mine)} | {_line(np.concatenate([s.errors for s in mine]))} |")
    everything = np.concatenate([score.errors for score in scores])
    lines.append(f"| all | {len(scores)} | {_line(everything)} |")
    return "\n".join(lines)


def _line(errors: Floats) -> str:
    error = errors * 100
    return (
        f"{len(error):,} | {np.median(error):.1f} | {error.mean():.1f} "
        f"| {np.quantile(error, 0.9):.0f}"
    )


def _by_format(scores: list[Score]) -> str:
    chips = sorted({score.chip for score in scores})
    lines = ["| operator | format | " + " | ".join(chips) + " |"]
    lines.append("| --- | --- |" + " --- |" * len(chips))
    for op in SAMPLED:
        for dtype in sorted({score.dtype for score in scores if score.op == op}):
            mine = [s for s in scores if (s.op, s.dtype) == (op, dtype)]
            cells = [_median(s for s in mine if s.chip == chip) for chip in chips]
            lines.append(f"| {op} | {dtype} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _by_engine(scores: list[Score]) -> str:
    engines = sorted({score.engine for score in scores})
    lines = ["| operator | " + " | ".join(engines) + " |", "| --- |" + " --- |" * len(engines)]
    for op in SAMPLED:
        mine = [score for score in scores if score.op == op]
        cells = [_median(s for s in mine if s.engine == engine) for engine in engines]
        lines.append(f"| {op} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _median(scores: Iterable[Score]) -> str:
    errors = [score.errors for score in scores]
    return f"{100 * np.median(np.concatenate(errors)):.1f}" if errors else "-"


def _of_samples(once: pd.DataFrame) -> str:
    lines = ["| operator | format | rows | median error % | mean % | 90 % of rows within % |"]
    lines.append("| --- | --- | --- | --- | --- | --- |")
    for (op, dtype), rows in once.groupby(["op", "dtype"]):
        lines.append(f"| {op} | {dtype} | {_line(rows['error'].to_numpy())} |")
    lines.append(f"| all | | {_line(once['error'].to_numpy())} |")
    return "\n".join(lines)
