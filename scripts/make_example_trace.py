"""Write examples/agent_trace.jsonl: made-up traffic of coding agents, in Mooncake's trace format.

Nothing in it is recorded from users. Each figure is drawn from a stated distribution:

    sessions          start as a Poisson process, one in 13 s on average, for 600 s
    first input       4,096 tokens of tools and system prompt, the same in all sessions, and a
                      task of lognormal length (median 2,000 tokens, sigma 0.9)
    next turn         input = the whole context so far (input and output of the turn before) and
                      new tokens of lognormal length (median 500, sigma 1.1)
    output            lognormal length (median 200 tokens, sigma 0.8)
    pause             from one turn's request to the next: 1 s, 25 ms for each output token, and
                      an exponential tool pause (mean 12 s)
    end of a session  after each turn with probability 1/14, or when the next input would be
                      longer than 60,000 tokens; the trace ends at 900 s and later turns are left
                      out

Lengths are rounded down to whole tokens and are at least 1. A hash id stands for 512 tokens of
context and all before them. Whole blocks keep their id from turn to turn; the partial block at the
end of an input gets a new one each time, since other tokens fill it up later.

One generator of random numbers serves all draws through their inverse distribution functions, so
that the same seed gives the same bytes on every machine. The seed was picked among a hundred for
about 600 requests with inputs up to nearly 60,000 tokens.
"""

from __future__ import annotations

import argparse
import json
import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from statistics import NormalDist
from typing import Any

SEED = 73
BLOCK_TOKENS = 512
SYSTEM_TOKENS = 8 * BLOCK_TOKENS
START_GAP_S, LAST_START_S, END_S = 13.0, 600.0, 900.0
TASK_TOKENS, NEW_TOKENS, OUTPUT_TOKENS = (2000, 0.9), (500, 1.1), (200, 0.8)
OVERHEAD_S, SECONDS_PER_OUTPUT_TOKEN, TOOL_S = 1.0, 0.025, 12.0
END_PROBABILITY, LONGEST_INPUT = 1 / 14, 60_000

EXAMPLE = Path(__file__).parent.parent / "examples" / "agent_trace.jsonl"


def main(arguments: Sequence[str] | None = None) -> None:
    """Write the trace to the path of `--out`, by default into the examples folder."""
    parser = argparse.ArgumentParser(description="Write an example trace of coding agents.")
    parser.add_argument("--out", type=Path, default=EXAMPLE)
    out: Path = parser.parse_args(arguments).out
    out.write_text("".join(json.dumps(row) + "\n" for row in trace(SEED)), newline="\n")


def trace(seed: int) -> list[dict[str, Any]]:
    """The rows of the trace in order of time."""
    draw, ids = random.Random(seed), count(SYSTEM_TOKENS // BLOCK_TOKENS)
    turns = [
        turn
        for start_s in _session_starts(draw)
        for turn in _session(draw, start_s)
        if turn.start_s < END_S
    ]
    return [_row(turn, ids) for turn in sorted(turns, key=lambda turn: turn.start_s)]


@dataclass(frozen=True, slots=True)
class _Turn:
    """One request; `whole_blocks` are the hash ids its session has so far, shared by its turns."""

    start_s: float
    input_tokens: int
    output_tokens: int
    whole_blocks: list[int]


def _session_starts(draw: random.Random) -> Iterator[float]:
    start_s = _exponential(draw, START_GAP_S)
    while start_s < LAST_START_S:
        yield start_s
        start_s += _exponential(draw, START_GAP_S)


def _session(draw: random.Random, start_s: float) -> Iterator[_Turn]:
    whole_blocks = list(range(SYSTEM_TOKENS // BLOCK_TOKENS))
    input_tokens = SYSTEM_TOKENS + _lognormal(draw, *TASK_TOKENS)
    while input_tokens <= LONGEST_INPUT:
        output_tokens = _lognormal(draw, *OUTPUT_TOKENS)
        yield _Turn(start_s, input_tokens, output_tokens, whole_blocks)
        if draw.random() < END_PROBABILITY:
            return
        start_s += OVERHEAD_S + SECONDS_PER_OUTPUT_TOKEN * output_tokens
        start_s += _exponential(draw, TOOL_S)
        input_tokens += output_tokens + _lognormal(draw, *NEW_TOKENS)


def _row(turn: _Turn, ids: Iterator[int]) -> dict[str, Any]:
    """One line of the trace; new ids are given in order of time."""
    whole, partial = divmod(turn.input_tokens, BLOCK_TOKENS)
    known = turn.whole_blocks
    known.extend(next(ids) for _ in range(whole - len(known)))
    return {
        "timestamp": int(turn.start_s * 1000),
        "input_length": turn.input_tokens,
        "output_length": turn.output_tokens,
        "hash_ids": known + ([next(ids)] if partial else []),
    }


def _exponential(draw: random.Random, mean: float) -> float:
    return -mean * math.log(1 - draw.random())


def _lognormal(draw: random.Random, median: float, sigma: float) -> int:
    # The inverse distribution function has no value at 0, which random() may return.
    z = NormalDist().inv_cdf(max(draw.random(), 2**-53))
    return max(1, int(median * math.exp(sigma * z)))


if __name__ == "__main__":
    main()
