"""Tokens that decode steps of published drafting runs gave out, by the number of drafts.

Usage: python -m scripts.accepted_drafts [DATA]    (DATA: default $SERVEFRONT_DATA)

TensorRT-LLM sends a chunk of the stream every `stream_interval` steps, so that the time between
two chunks over the time of a token is the tokens of so many steps. Runs without drafts show
intervals of 10, 20 and 100; a drafting run has the one that leaves between 1 and 1 + drafts tokens
a step, and is passed over where two would. Nothing here is predicted. Writes nothing.
"""

from __future__ import annotations

import argparse
import os
from collections import defaultdict
from pathlib import Path

import numpy as np

from objectives.validation.columns import Row, Unreadable, positive, read_rows
from objectives.validation.deployment import deployed
from objectives.validation.points import setup_of
from spaces.errors import InputError

INTERVALS = (10, 20, 100)
LONGEST_TOKENS = 20000


def main() -> None:
    """Run as a command."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", maxsplit=1)[0])
    data = Path(os.environ.get("SERVEFRONT_DATA", Path(__file__).parent.parent.parent / "shared"))
    parser.add_argument("data", type=Path, nargs="?", default=data)
    rows, _ = read_rows(parser.parse_args().data / "measured" / "serving_points.csv")
    found: defaultdict[int, list[float]] = defaultdict(list)
    for row in rows:
        scored = row["engine"] == "trtllm" and row.get("quality") == "A"
        if scored and (told := tokens_of_a_step(row)):
            found[told[0]].append(told[1])
    for drafts, tokens in sorted(found.items()):
        low, middle, high = np.quantile(tokens, (0.1, 0.5, 0.9))
        print(
            f"{drafts} drafts: {middle:.2f} tokens a step (80 % of {len(tokens)} rows within "
            f"{low:.2f} and {high:.2f})"
        )


def tokens_of_a_step(row: Row) -> tuple[int, float] | None:
    """Drafts of a step and the tokens it gave out, or None where the row does not tell."""
    try:
        chunk_ms, token_ms = positive(row, "itl_ms_median"), positive(row, "tpot_ms_median")
        plan, _ = deployed(setup_of(row), LONGEST_TOKENS)
    except (Unreadable, InputError):
        return None
    if chunk_ms is None or token_ms is None or plan.speculation is None:
        return None
    drafts = plan.speculation.depth
    fitting = [t for i in INTERVALS if 1 <= (t := chunk_ms / token_ms / i) <= 1 + drafts]
    return (drafts, fitting[0]) if len(fitting) == 1 else None


if __name__ == "__main__":
    main()
