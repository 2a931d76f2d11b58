"""From a model on a chip in a layout to the arrays of `StepCosts`."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np

from objectives.cost.collectives import all_reduce_s, all_to_all_s, gather_scatter_s, send_s
from objectives.cost.context import ContextSeconds, context_seconds
from objectives.cost.kernel_work import ACTIVATION_BYTES
from objectives.cost.layers import attention_layer_s, feed_forward_layer_s, stream_mixer_s
from objectives.cost.machine import SECONDS_PER_US, Machine, machine_of
from objectives.cost.operators import gemm_s, routed_experts_s
from objectives.cost.step_costs import Floats, Ints, StepCosts
from spaces.chip import ChipSpec
from spaces.model import DenseFfn, ModelSpec, MoeFfn
from spaces.plan import EngineName, Pool, Precision
from spaces.precision import Dtype
from spaces.sharding import stage_layers

_DENSE_TOKENS = 64
_GEOMETRIC_COLUMNS = 64


@lru_cache(maxsize=4096)
def step_costs(
    model: ModelSpec, chip: ChipSpec, pool: Pool, precision: Precision, engine: EngineName
) -> StepCosts:
    """Seconds of a step of one replica of `pool`, as arrays over tokens and coefficients.

    The formulas and their sources stand in docs/cost_model.md. The arrays are shared between
    calls with equal arguments: read them, do not write to them. Raises `InputError` where the
    chip names an unknown efficiency table.
    """
    return costs_on(machine_of(chip, engine), model, pool, precision)


def costs_on(machine: Machine, model: ModelSpec, pool: Pool, precision: Precision) -> StepCosts:
    """The same on a given machine, built anew: for fits that vary its constants."""
    grid = token_grid(pool)
    return _Assembly(model, machine, pool, precision, grid.astype(np.float64)).costs(grid)


def token_grid(pool: Pool) -> Ints:
    """Token counts of the tables' columns: all up to 64, then geometric to what all ranks hold."""
    top = pool.dp * max(pool.max_num_batched_tokens, pool.max_num_seqs)
    dense = np.arange(min(_DENSE_TOKENS, top) + 1)
    if top <= _DENSE_TOKENS:
        return dense.astype(np.int64)
    wide = np.geomspace(_DENSE_TOKENS, top, _GEOMETRIC_COLUMNS + 1)
    return np.unique(np.concatenate([dense, np.rint(wide)]).astype(np.int64))


def graph_tokens(max_num_seqs: int) -> Ints:
    """The captured CUDA-graph size that a decode batch of each size from 0 on is padded to.

    Sizes are 1, 2, 4, then every 8th to 256 and every 16th to 512 (vLLM 0.20's default list);
    a larger batch runs unpadded.
    """
    captured = np.array([1, 2, 4, *range(8, 257, 8), *range(272, 513, 16)])
    batches = np.arange(max_num_seqs + 1)
    found = np.searchsorted(captured, batches)
    padded = captured[np.minimum(found, len(captured) - 1)]
    return np.where(batches > captured[-1], batches, padded).astype(np.int64)


@dataclass(frozen=True, slots=True)
class _Assembly:
    """One model on one machine in one layout, and the token counts its tables are filled for."""

    model: ModelSpec
    machine: Machine
    pool: Pool
    precision: Precision
    tokens: Floats

    def costs(self, grid: Ints) -> StepCosts:
        shares = np.array(stage_layers(self.model.layers, self.pool.pp)) / self.model.layers
        context = self._context()
        overhead = self.machine.engine_overhead
        eager = self.model.parts / 2 * overhead.eager_layer_us * SECONDS_PER_US
        return StepCosts(
            grid=grid,
            token_s=self._token_table(shares),
            expert_s=self._table(np.outer(shares, self._experts_s())),
            graph_tokens=graph_tokens(self.pool.max_num_seqs),
            eager_s=shares * eager,
            decode_base_s=shares * context.decode_base,
            decode_request_s=shares * context.decode_request,
            decode_token_s=shares * context.decode_token,
            decode_window_token_s=shares * context.decode_window_token,
            prefill_base_s=shares * context.prefill_base,
            chunk_token_s=shares * context.chunk_token,
            pair_s=shares * context.pair,
            window_pair_s=shares * context.window_pair,
            read_s=shares * context.read,
            window_tokens=self.model.read_limit_tokens,
            host_s=overhead.step_us * SECONDS_PER_US,
            request_s=overhead.request_us * SECONDS_PER_US / self.pool.dp,
        )

    def _token_table(self, shares: Floats) -> Floats:
        seconds = np.outer(shares, self._layers_s())
        seconds[-1] += self._head_s()
        if self.pool.pp > 1:
            sent = self._hidden_bytes(self.tokens) * self.model.residual_streams
            seconds[:-1] += send_s(self.machine, sent, self.pool.chips_per_replica)
        return self._table(seconds)

    def _table(self, seconds: Floats) -> Floats:
        """Never falling with tokens, C-contiguous; a step launches its kernels at any size."""
        if seconds.shape[1] > 1:
            seconds[:, 0] = seconds[:, 1]
        return np.ascontiguousarray(np.maximum.accumulate(seconds, axis=1))

    def _layers_s(self) -> Floats:
        """All layers' work that grows with the tokens of a rank: products, norms, exchanges."""
        linear = self._weights("linear")
        hidden, tp = self.model.hidden_size, self.pool.tp
        seconds = np.zeros_like(self.tokens)
        for attention in self.model.attention:
            one = attention_layer_s(self.machine, attention, hidden, tp, linear, self.tokens)
            seconds += attention.layers * (one + self._all_reduce_s())
        for ffn in self.model.ffn:
            one = feed_forward_layer_s(self.machine, ffn, hidden, tp, linear, self.tokens)
            seconds += ffn.layers * (one + self._exchange_s(ffn))
        streams = self.model.residual_streams
        return seconds + self.model.parts * stream_mixer_s(
            self.machine, hidden, streams, self.tokens
        )

    def _all_reduce_s(self) -> Floats:
        return all_reduce_s(self.machine, self._hidden_bytes(self.tokens), self.pool.tp)

    def _exchange_s(self, ffn: DenseFfn | MoeFfn) -> Floats:
        """What ends a feed-forward layer: a sum over `tp`, or the way to experts on other ranks.

        With attention data parallelism each chip sends its share of its rank's tokens: to all
        chips (gather and scatter), or with expert parallelism to the experts alone, whichever is
        faster.
        """
        if isinstance(ffn, DenseFfn) or self.pool.dp == 1:
            return self._all_reduce_s()
        chips = self.pool.tp * self.pool.dp
        gathered = self._hidden_bytes(self.tokens * self.pool.dp)
        everywhere = gather_scatter_s(self.machine, gathered, chips)
        if self.pool.ep == 1:
            return everywhere
        routed, own = self._weights("routed_experts"), self.tokens / self.pool.tp
        directed = all_to_all_s(
            self.machine, ffn, self.model.hidden_size, routed, own, self.pool.ep
        )
        return np.minimum(everywhere, directed)

    def _experts_s(self) -> Floats:
        routed, hidden = self._weights("routed_experts"), self.model.hidden_size
        seconds = np.zeros_like(self.tokens)
        asked = np.maximum(self.tokens, 1.0)
        for ffn in self.model.ffn:
            if isinstance(ffn, MoeFfn):
                one = routed_experts_s(self.machine, ffn, hidden, self.pool, routed, asked)
                seconds += ffn.layers * one
        return seconds

    def _head_s(self) -> Floats:
        """The LM head: one row a request, so at most `max_num_seqs` however many tokens."""
        rows = np.minimum(self.tokens, float(self.pool.max_num_seqs))
        share = self.model.vocab_size / self.pool.tp
        return gemm_s(
            self.machine, rows, share, self.model.hidden_size, self._weights("embeddings")
        )

    def _context(self) -> ContextSeconds:
        """Coefficients summed over all layers."""
        total = ContextSeconds()
        for group in self.model.attention:
            one = context_seconds(self.machine, group, self.pool.tp, self.precision.kv)
            total = total.plus(one, group.layers)
        return total

    def _weights(self, part: Literal["linear", "routed_experts", "embeddings"]) -> Dtype:
        weights = self.model.weights(self.precision.weights)
        found: Dtype = getattr(weights, part)
        return found

    def _hidden_bytes(self, tokens: Floats) -> Floats:
        return tokens * self.model.hidden_size * ACTIVATION_BYTES
