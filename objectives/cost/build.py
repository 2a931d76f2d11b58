"""From a model on a chip in a layout to the arrays of `StepCosts`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal

import numpy as np

from objectives.cost.collectives import all_reduce_s, all_to_all_s, gather_scatter_s, send_s
from objectives.cost.context import ContextSeconds, context_seconds
from objectives.cost.drafting import Drafting, drafting_of
from objectives.cost.kernel_work import ACTIVATION_BYTES
from objectives.cost.launches import launch_s
from objectives.cost.layers import (
    HEADS_NORM_KERNELS,
    attention_layer_s,
    feed_forward_layer_s,
    is_normed_over_ranks,
    stream_mixer_s,
)
from objectives.cost.machine import SECONDS_PER_US, Machine, machine_of
from objectives.cost.operators import gemm_s, routed_experts_s
from objectives.cost.sources import SourceLog
from objectives.cost.step_costs import Floats, Ints, StepCosts
from spaces.calibration import Changes
from spaces.chip import ChipSpec
from spaces.model import AttentionGroup, DenseFfn, ModelSpec, MoeFfn
from spaces.plan import EngineName, Pool, Precision
from spaces.precision import Dtype
from spaces.sharding import stage_layers
from spaces.site import OperatorCosts
from spaces.speculation import Speculation

# Bytes of a sum in 32 bits.
_SUM_BYTES = 4.0
_DENSE_TOKENS = 64
_GEOMETRIC_COLUMNS = 64


@lru_cache(maxsize=4096)
def step_costs(
    model: ModelSpec,
    chip: ChipSpec,
    pool: Pool,
    precision: Precision,
    engine: EngineName,
    speculation: Speculation | None = None,
    release: str = "",
    operator_costs: OperatorCosts = "fitted",
    changes: Changes = (),
    factor: float = 1.0,
    exchanges: bool = True,
) -> StepCosts:
    """Seconds of a step of one replica of `pool`, as arrays over tokens and coefficients.

    `release` is the engine's, by default a current one. With `operator_costs` measured, operators
    are read from measured tables (`silicon`) as far as these go, which `sources` tell. A
    calibration gives `changes` of the cost model's constants, and a `factor` on all seconds.
    Without `exchanges` the chips reach one another in no time.

    The formulas and their sources stand in docs/cost_model.md. The arrays are shared between
    calls with equal arguments: read them, do not write to them. Raises `InputError` where the
    chip names an unknown efficiency table.
    """
    machine = machine_of(chip, engine, release, operator_costs, changes)
    costs = costs_on(machine, model, pool, precision, speculation, exchanges)
    return costs if factor == 1.0 else costs.scaled(factor)


def costs_on(
    machine: Machine,
    model: ModelSpec,
    pool: Pool,
    precision: Precision,
    speculation: Speculation | None = None,
    exchanges: bool = True,
) -> StepCosts:
    """The same on a given machine, built anew: for fits that vary its constants."""
    machine = replace(
        machine, log=SourceLog(), model=model.name, quantised_inputs=model.static_fp8
    )
    drafting = drafting_of(model, pool, speculation)
    grid = token_grid(pool, drafting.verified)
    tokens = grid.astype(np.float64)
    assembly = _Assembly(model, machine, pool, precision, tokens, drafting, exchanges)
    return assembly.costs(grid)


def token_grid(pool: Pool, verified: int = 1) -> Ints:
    """Token counts of the tables' columns: all up to 64, then geometric to what all ranks hold.

    A decoding request has `verified` tokens in a step.
    """
    top = pool.dp * max(pool.max_num_batched_tokens, verified * pool.max_num_seqs)
    dense = np.arange(min(_DENSE_TOKENS, top) + 1)
    if top <= _DENSE_TOKENS:
        return dense.astype(np.int64)
    wide = np.geomspace(_DENSE_TOKENS, top, _GEOMETRIC_COLUMNS + 1)
    return np.unique(np.concatenate([dense, np.rint(wide)]).astype(np.int64))


def graph_tokens(max_num_seqs: int, verified: int = 1) -> Ints:
    """The captured CUDA-graph size, in tokens, that each number of decoding requests is padded to.

    Sizes are 1, 2, 4, then every 8th to 256 and every 16th to 512 (vLLM 0.20's default list),
    rounded up to whole requests of `verified` tokens each; a larger batch runs unpadded.
    """
    captured = np.array([1, 2, 4, *range(8, 257, 8), *range(272, 513, 16)])
    captured = np.unique(-(-captured // verified) * verified)
    batches = verified * np.arange(max_num_seqs + 1)
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
    drafting: Drafting
    exchanges: bool

    def costs(self, grid: Ints) -> StepCosts:
        shares = np.array(stage_layers(self.model.layers, self.pool.pp)) / self.model.layers
        context = self._context()
        overhead = self.machine.engine_overhead
        drafts, experts = self.drafting.layer is not None, self._weights("routed_experts")
        launch = launch_s(self.machine, self.model, self.pool, experts, drafts)
        # A host that launches every kernel itself leaves no graph whose replay could be lost.
        eager = 0.0 if launch else self.model.parts / 2 * overhead.eager_layer_us * SECONDS_PER_US
        return StepCosts(
            grid=grid,
            token_s=self._token_table(shares),
            expert_s=self._table(np.outer(shares, self._experts_s())),
            graph_tokens=graph_tokens(self.pool.max_num_seqs, self.drafting.verified),
            eager_s=shares * eager,
            launch_s=shares * launch,
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
            verified_tokens=self.drafting.verified,
            sources=self.machine.log.told(),
        )

    def _token_table(self, shares: Floats) -> Floats:
        seconds = np.outer(shares, self._layers_s())
        asked = np.minimum(self.tokens, float(self.pool.max_num_seqs * self.drafting.verified))
        seconds[-1] += self._head_s(asked, self.model.vocab_size) + self._drafts_s()
        if self.pool.pp > 1 and self.exchanges:
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
        seconds = np.zeros_like(self.tokens)
        for attention in self.model.attention:
            seconds += attention.layers * self._attention_s(attention, self.tokens)
        for ffn in self.model.ffn:
            seconds += ffn.layers * self._feed_forward_s(ffn, self.tokens)
        hidden, streams = self.model.hidden_size, self.model.residual_streams
        return seconds + self.model.parts * stream_mixer_s(
            self.machine, hidden, streams, self.tokens
        )

    def _attention_s(self, group: AttentionGroup, tokens: Floats) -> Floats:
        """One attention layer and the sum that ends it, its look at the context left out."""
        hidden, tp = self.model.hidden_size, self.pool.tp
        linear = self._weights("linear")
        one = attention_layer_s(self.machine, group, hidden, tp, linear, tokens)
        return one + self._all_reduce_s(tokens) + self._heads_norm_s(group, tokens)

    def _heads_norm_s(self, group: AttentionGroup, tokens: Floats) -> Floats:
        """Normalising queries and keys over the heads of all ranks.

        Two sums of squares a token, in 32 bits, are exchanged between two small kernels.
        """
        if not is_normed_over_ranks(group, self.pool.tp):
            return np.zeros_like(tokens)
        seconds = np.full_like(tokens, HEADS_NORM_KERNELS * self.machine.small_kernel_s)
        if self.exchanges:
            seconds += all_reduce_s(self.machine, tokens * 2 * _SUM_BYTES, self.pool.tp)
        return seconds

    def _feed_forward_s(self, ffn: DenseFfn | MoeFfn, tokens: Floats) -> Floats:
        """One feed-forward layer and the exchange that ends it, routed experts left out."""
        hidden, tp = self.model.hidden_size, self.pool.tp
        linear = self._weights("linear")
        one = feed_forward_layer_s(self.machine, ffn, hidden, tp, linear, tokens)
        return one + self._exchange_s(ffn, tokens)

    def _drafts_s(self) -> Floats:
        """The draft layer's passes: one over all tokens of the step, the others over its requests.

        Each joins its inputs, goes through the layer and picks a word for every request.
        """
        drafting = self.drafting
        if drafting.layer is None:
            return np.zeros_like(self.tokens)
        attention, ffn = drafting.layer
        requests = drafting.requests(self.tokens, self.pool.max_num_seqs)
        hidden, linear = self.model.hidden_size, self._weights("linear")
        words = self._head_s(requests, drafting.vocab_size)
        seconds = np.zeros_like(self.tokens)
        for tokens, passes in ((self.tokens, 1), (requests, drafting.further_passes)):
            layer = self._attention_s(attention, tokens) + self._feed_forward_s(ffn, tokens)
            inputs = drafting.joined_inputs * hidden
            joined = gemm_s(self.machine, tokens, hidden, inputs, linear)
            seconds += passes * (joined + layer + words)
        return seconds

    def _all_reduce_s(self, tokens: Floats) -> Floats:
        if not self.exchanges:
            return np.zeros_like(tokens)
        return all_reduce_s(self.machine, self._hidden_bytes(tokens), self.pool.tp)

    def _exchange_s(self, ffn: DenseFfn | MoeFfn, tokens: Floats) -> Floats:
        """What ends a feed-forward layer: a sum over `tp`, or the way to experts on other ranks.

        With attention data parallelism each chip sends its share of its rank's tokens: to all
        chips (gather and scatter), or with expert parallelism to the experts alone. Where the
        engine does not choose by a rule of its own, whichever is faster.
        """
        apart = not self.pool.holds_experts  # the way to them is an exchange between the pools
        if isinstance(ffn, DenseFfn) or self.pool.dp == 1 or apart or not self.exchanges:
            return self._all_reduce_s(tokens)
        routed, rule = self._weights("routed_experts"), self.machine.exchange_rule
        everywhere = gather_scatter_s(
            self.machine,
            self._hidden_bytes(tokens * self.pool.dp),
            self.pool.tp * self.pool.dp,
            rule.gathered_share(routed) if rule else 1.0,
        )
        if self.pool.ep == 1:
            return everywhere
        own, ep = tokens / self.pool.tp, self.pool.ep
        directed = all_to_all_s(self.machine, ffn, self.model.hidden_size, routed, own, ep)
        if rule is None:
            return np.minimum(everywhere, directed)
        chosen = rule.directed(self.machine.chip, ep, ffn.top_k, self.machine.release)
        return directed if chosen else everywhere

    def _experts_s(self) -> Floats:
        asked = np.maximum(self.tokens, 1.0)
        seconds = np.zeros_like(self.tokens)
        if not self.pool.holds_experts:
            return seconds
        for ffn in self.model.ffn:
            if isinstance(ffn, MoeFfn):
                seconds += ffn.layers * self._routed_s(ffn, asked)
        layer = self.drafting.layer
        if layer is not None and isinstance(layer[1], MoeFfn):
            seats = self.pool.dp * self.pool.max_num_seqs
            requests = self.drafting.requests(asked, seats)
            seconds += self._routed_s(layer[1], asked)
            seconds += self.drafting.further_passes * self._routed_s(layer[1], requests)
        return seconds

    def _routed_s(self, ffn: MoeFfn, tokens: Floats) -> Floats:
        routed, hidden = self._weights("routed_experts"), self.model.hidden_size
        return routed_experts_s(self.machine, ffn, hidden, self.pool, routed, tokens)

    def _head_s(self, rows: Floats, vocab_size: int) -> Floats:
        """The LM head, with a row for each token that may be given out."""
        share = vocab_size / self.pool.tp
        return gemm_s(
            self.machine, rows, share, self.model.hidden_size, self._weights("embeddings")
        )

    def _context(self) -> ContextSeconds:
        """Coefficients summed over all layers, and over the passes of the draft layer."""
        drafting, total = self.drafting, ContextSeconds()
        for group in self.model.attention:
            total = total.plus(self._one_context(group, drafting.verified), group.layers)
        if drafting.layer is not None:
            attention, _ = drafting.layer
            total = total.plus(self._one_context(attention, drafting.verified), 1)
            further = self._one_context(attention, 1).in_decode()
            total = total.plus(further, drafting.further_passes)
        return total

    def _one_context(self, group: AttentionGroup, queries: int) -> ContextSeconds:
        return context_seconds(self.machine, group, self.pool.tp, self.precision.kv, queries)

    def _weights(self, part: Literal["linear", "routed_experts", "embeddings"]) -> Dtype:
        weights = self.model.weights(self.precision.weights)
        found: Dtype = getattr(weights, part)
        return found

    def _hidden_bytes(self, tokens: Floats) -> Floats:
        return tokens * self.model.hidden_size * ACTIVATION_BYTES
