"""The cost of an engine step, reduced to arrays that a compiled loop can index."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from objectives.cost.sources import OperatorSource

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


# Arrays of `StepCosts` with one number for each pipeline stage, in the order of the simulator.
COEFFICIENTS = (
    "eager_s",
    "launch_s",
    "decode_base_s",
    "decode_request_s",
    "decode_token_s",
    "decode_window_token_s",
    "prefill_base_s",
    "chunk_token_s",
    "pair_s",
    "window_pair_s",
    "read_s",
)


@dataclass(frozen=True, slots=True)
class AttentionTables:
    """Attention of a rank read from measured profiles, one table for decode and one for prefill.

    `decode_s[n, k]` are the seconds of a stage for `n` decoding requests whose mean context
    (rounded down) is `k` x `context_tokens` when rounded up. `prefill_s[p, c]` are those of
    chunks whose cached contexts, each rounded up, sum to `p` x `context_tokens`, and whose new
    tokens have `c` as the root of the sum of their squares (rounded). Beyond an end of a table
    its last entry counts. With several requests of a kind the entry is multiplied by the factor.
    In a step with chunks `mixed_decode_s`, where given, is read in place of `decode_s`.
    """

    context_tokens: int
    decode_s: Floats
    prefill_s: Floats
    several_decodes: float = 1.0
    several_chunks: float = 1.0
    mixed_decode_s: Floats | None = None

    def scaled(self, factor: float) -> AttentionTables:
        """The same with all seconds `factor` times as long."""
        mixed_s = None if self.mixed_decode_s is None else self.mixed_decode_s * factor
        return replace(
            self,
            decode_s=self.decode_s * factor,
            prefill_s=self.prefill_s * factor,
            mixed_decode_s=mixed_s,
        )


@dataclass(frozen=True, slots=True)
class SplitDecode:
    """Experts on chips of their own, asked for in every one of `layers` layers.

    A batch goes round in up to `micro_batches` parts of equal size. `line_s` and `exchange_s`,
    over the grid of their tokens on all ranks, are the seconds of all layers of one part: of the
    busier direction of the line between the pools, and of both ways with their latencies.
    """

    micro_batches: int
    layers: int
    line_s: Floats
    exchange_s: Floats

    def scaled(self, factor: float) -> SplitDecode:
        """The same with all seconds `factor` times as long."""
        return replace(self, line_s=self.line_s * factor, exchange_s=self.exchange_s * factor)


@dataclass(frozen=True, slots=True)
class StepCosts:
    """Seconds of one engine step of one replica; axis 0 of the arrays is the pipeline stage.

    A step holds, on each attention data-parallel rank, `n` decoding requests whose contexts sum to
    `S` tokens (`W` where each is cut at `window_tokens`: the sliding window, or the length of
    context that fills a sparse selection), and prefill chunks of `c` new tokens behind
    `p` cached ones. `tokens` = `v n` + sum of `c`, `v` being `verified_tokens`: the next token of
    a request and its drafts. Stage `s` then takes

        [first stage] host_s + request_s * requests of all ranks
        + token_s[s](tokens of the busiest rank) + expert_s[s](tokens of all ranks)
        + [any chunk in the step] eager_s[s]
        + the largest over ranks of
            [n > 0] decode_base_s[s] + n * decode_request_s[s]
            + S * decode_token_s[s] + W * decode_window_token_s[s]
            + for each chunk: prefill_base_s[s] + c * chunk_token_s[s]
                + max(pairs * pair_s[s] + windowed pairs * window_pair_s[s], (p + c) * read_s[s])

    where `pairs` = c p + c (c + 1) / 2 are the query-key pairs of a causal chunk, and windowed
    pairs count at most `window_tokens` keys for each query. Of a step with chunks a stage takes
    `launch_s[s]` at least, `host_s` and `request_s` apart: the host launches its kernels one by
    one, and the chip waits for it. Tables are read by linear
    interpolation over `grid`, and kept at its ends. In a step without chunks `token_s` is read at
    `graph_tokens[n]`, the next captured CUDA-graph size in tokens. Contexts may be fractions: a
    request that drafts is taken to come by its tokens evenly.

    With `split` decode the batch goes round in m parts, as many as there are micro-batches but no
    more than the busiest rank has decoding requests and tokens of chunks. Of one part (ranks'
    tokens divided by m and rounded up, their attention over the context divided by m), let a be
    what is said above without `expert_s`, e = `expert_s` of the experts' chips, x and c the line
    and the exchange. Attention, experts and the line each serve one part at a time, so a layer
    takes m times the slowest of them, or one part's way round where the parts are too few to hide
    it, and the last layer runs dry:

        ((layers - 1) max(m max(a, e, x), a + e + c) + a + e + c + (m - 1) max(a, e, x)) / layers

    `sources` tell of each operator whether its seconds were read from a measured table, where
    measured costs were asked for.
    """

    grid: Ints
    token_s: Floats
    expert_s: Floats
    graph_tokens: Ints
    eager_s: Floats
    launch_s: Floats
    decode_base_s: Floats
    decode_request_s: Floats
    decode_token_s: Floats
    decode_window_token_s: Floats
    prefill_base_s: Floats
    chunk_token_s: Floats
    pair_s: Floats
    window_pair_s: Floats
    read_s: Floats
    window_tokens: int
    host_s: float
    request_s: float
    tables: AttentionTables | None = None
    verified_tokens: int = 1
    split: SplitDecode | None = None
    sources: tuple[OperatorSource, ...] = ()

    @property
    def stages(self) -> int:
        """Pipeline stages."""
        return len(self.eager_s)

    def scaled(self, factor: float) -> StepCosts:
        """The same with all seconds `factor` times as long."""
        timed = ("token_s", "expert_s", *COEFFICIENTS, "host_s", "request_s")
        seconds = {name: getattr(self, name) * factor for name in timed}
        tables = None if self.tables is None else self.tables.scaled(factor)
        split = None if self.split is None else self.split.scaled(factor)
        return replace(self, **seconds, tables=tables, split=split)


@dataclass(frozen=True, slots=True)
class RankBatch:
    """What one attention data-parallel rank holds in a step.

    `decode_contexts` are the context lengths of the decoding requests, the token being processed
    included; `chunks` are the (new, cached) tokens of each prefill chunk.
    """

    decode_contexts: tuple[float, ...] = ()
    chunks: tuple[tuple[int, int], ...] = ()

    def tokens(self, verified: int = 1) -> int:
        """Tokens processed in the step, `verified` of each decoding request."""
        return verified * len(self.decode_contexts) + sum(new for new, _ in self.chunks)

    @property
    def requests(self) -> int:
        """Requests in the step."""
        return len(self.decode_contexts) + len(self.chunks)


def step_seconds(costs: StepCosts, ranks: Sequence[RankBatch]) -> list[float]:
    """Seconds each pipeline stage takes for a step with these batches, one per attention rank.

    The law of `StepCosts` in plain Python, for tests and as the reference for compiled readers.
    """
    return [_stage_seconds(costs, stage, ranks) for stage in range(costs.stages)]


def _stage_seconds(costs: StepCosts, stage: int, ranks: Sequence[RankBatch]) -> float:
    mixed = any(rank.chunks for rank in ranks)
    tokens = [rank.tokens(costs.verified_tokens) for rank in ranks]
    parts = min(costs.split.micro_batches, max(map(_divisible, ranks))) if costs.split else 1
    widest = max(len(rank.decode_contexts) for rank in ranks)
    linear_tokens = _share(max(tokens), parts)
    if not mixed:
        linear_tokens = int(costs.graph_tokens[_share(widest, parts)])
    of_part = _share(sum(tokens), parts)
    experts = _read(costs.grid, costs.expert_s[stage], of_part)
    own = _read(costs.grid, costs.token_s[stage], linear_tokens)
    own += max(_attention_seconds(costs, stage, rank, parts) for rank in ranks)
    if mixed:
        own += float(costs.eager_s[stage])
    if costs.split:
        line = _read(costs.grid, costs.split.line_s, of_part)
        exchange = _read(costs.grid, costs.split.exchange_s, of_part)
        seconds = ping_pong_seconds(own, experts, line, exchange, parts, costs.split.layers)
    else:
        seconds = own + experts
    if mixed:
        seconds = max(seconds, float(costs.launch_s[stage]))
    if stage == 0:
        seconds += costs.host_s + costs.request_s * sum(rank.requests for rank in ranks)
    return seconds


Number = TypeVar("Number", float, Floats)


def ping_pong_seconds(
    own: Number, experts: Number, line: Number, exchange: Number, parts: Number, layers: int
) -> Number:
    """Seconds of `parts` micro-batches going through all layers: the law of `StepCosts`.

    Of numbers, or of arrays of one shape.

    >>> float(ping_pong_seconds(6.0, 6.0, 0.0, 0.0, parts=2, layers=60))  # both sides always busy
    12.1
    >>> float(ping_pong_seconds(6.0, 6.0, 0.0, 0.0, parts=1, layers=60))  # one waits for the other
    12.0
    """
    slowest = np.maximum(np.maximum(own, experts), line)
    around = own + experts + exchange
    period = np.maximum(parts * slowest, around)
    seconds: Number = ((layers - 1) * period + around + (parts - 1) * slowest) / layers
    return seconds


def _divisible(rank: RankBatch) -> int:
    """What of a rank's batch can go round apart: a request with its drafts stays together."""
    return len(rank.decode_contexts) + sum(new for new, _ in rank.chunks)


def _share(tokens: int, parts: int) -> int:
    return -(-tokens // parts)


def _attention_seconds(costs: StepCosts, stage: int, rank: RankBatch, parts: int) -> float:
    base, seconds = 0.0, 0.0
    if rank.decode_contexts:
        windowed = sum(min(context, costs.window_tokens) for context in rank.decode_contexts)
        base = float(costs.decode_base_s[stage])
        seconds += len(rank.decode_contexts) * float(costs.decode_request_s[stage])
        seconds += sum(rank.decode_contexts) * float(costs.decode_token_s[stage])
        seconds += windowed * float(costs.decode_window_token_s[stage])
    for new, cached in rank.chunks:
        seconds += _chunk_seconds(costs, stage, new, cached)
    return base + seconds / parts


def _chunk_seconds(costs: StepCosts, stage: int, new: int, cached: int) -> float:
    pairs = new * cached + new * (new + 1) / 2
    multiply = pairs * float(costs.pair_s[stage])
    multiply += windowed_pairs(new, cached, costs.window_tokens) * float(
        costs.window_pair_s[stage]
    )
    read = (cached + new) * float(costs.read_s[stage])
    own = float(costs.prefill_base_s[stage]) + new * float(costs.chunk_token_s[stage])
    return own + max(multiply, read)


def windowed_pairs(new: int, cached: int, window: int) -> float:
    """Query-key pairs of a causal chunk where each query sees at most `window` keys.

    >>> windowed_pairs(3, 0, 2)  # 1 + 2 + 2
    5.0
    """
    growing = min(max(window - cached, 0), new)  # queries that still see all before them
    return growing * cached + growing * (growing + 1) / 2 + (new - growing) * float(window)


def _read(grid: Ints, table: Floats, tokens: int) -> float:
    return float(np.interp(tokens, grid, table))
