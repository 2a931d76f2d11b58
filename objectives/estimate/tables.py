"""Seconds of decoding and of prefill for every layout of a pool, tabled once from its `StepCosts`.

A layout's tables serve all its batches, replicas and loads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from objectives.cost import StepCosts, ping_pong_seconds
from objectives.estimate.demand import Demand
from spaces.plan import Pool

Values = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class PoolTables:
    """Tables of the layouts [l] of a pool, all of one engine, chip kind and precision.

    `decode_s` [l, m] are the seconds of an output token where `running` [m] requests decode on a
    replica. Of prompts, with at most `step_tokens` [b] new tokens in a step, without and with the
    cache full of what can be reused [w]: `prompt_s` [l, b, w, s] are the seconds of request `s` of
    the demand's sample alone on a replica; `packed_s` [l, b, w, s] what it takes of its rank's
    time where prompts fill every step; `chunks` [b, w, s] the steps it needs. `added_s`
    [l, b, w, m] is what a chunk of a prompt adds to the step of `running` decoding requests.
    """

    running: Values
    step_tokens: Ints
    decode_s: Values
    prompt_s: Values
    packed_s: Values
    chunks: Values
    added_s: Values


def pool_tables(
    layouts: Sequence[Pool],
    costs: Sequence[StepCosts],
    demand: Demand,
    step_tokens: Sequence[int],
    most_running: int,
    alternating: bool,
    tokens_per_step: float = 1.0,
) -> PoolTables:
    """The tables of `layouts`, whose `costs` reach up to the largest step.

    A decoding request gets `tokens_per_step` on average, more than one where drafts are accepted.
    """
    running = running_grid(most_running)
    steps = np.array(sorted(step_tokens))
    chunks = np.ceil(demand.new_tokens / steps[:, None, None])
    decode, prompt, packed, added = [], [], [], []
    for layout, cost in zip(layouts, costs, strict=True):
        reader = _Layout(layout, cost, demand)
        decode.append(reader.decode_s(running).sum(axis=0) / tokens_per_step)
        prompts = [reader.prompt_s(int(step)) for step in steps]
        prompt.append([alone for alone, _ in prompts])
        packed.append([filled for _, filled in prompts])
        added.append([reader.added_s(int(step), running, alternating) for step in steps])
    return PoolTables(
        running=running,
        step_tokens=steps,
        decode_s=np.array(decode),
        prompt_s=np.array(prompt),
        packed_s=np.array(packed),
        chunks=chunks,
        added_s=np.array(added),
    )


def running_grid(most: int) -> Values:
    """1, 2, 3, 4, 6, 8, 12, ... up to the first number that reaches `most`."""
    powers = 2 ** np.arange(max(2, int(np.ceil(np.log2(max(most, 2)))) + 1))
    both = np.unique(np.concatenate([powers, 3 * powers[1:] // 2]))
    return both[: int(np.searchsorted(both, most)) + 1].astype(np.float64)


@dataclass(frozen=True)
class _Layout:
    """Reads the step costs of one layout for many batches at once."""

    pool: Pool
    costs: StepCosts
    demand: Demand

    def decode_s(self, running: Values) -> Values:
        """Seconds of each stage [stage, m] of a step without prompts.

        With pipeline stages the requests go round in as many micro-batches, each as large as an
        even share.
        """
        costs = self.costs
        flights = np.minimum(running, self.pool.pp)
        total = running / flights
        busiest = np.ceil(total / self.pool.dp)
        if costs.split is not None:
            seconds = self._split_s(total, busiest)
        else:
            seconds = self._products_s(self._padded(busiest), costs.verified_tokens * total)
            seconds += costs.decode_base_s[:, None]
            seconds += busiest * self._context_s()[:, None]
        seconds[0] += costs.host_s + costs.request_s * total
        return seconds

    def _split_s(self, total: Values, busiest: Values) -> Values:
        """Seconds [1, m] of a step between attention and experts, by the law of `StepCosts`."""
        costs, split = self.costs, self.costs.split
        assert split is not None, "costs of a split decode"
        parts = np.minimum(float(split.micro_batches), busiest)
        of_part = np.ceil(costs.verified_tokens * total / parts)
        padded = self._padded(np.ceil(busiest / parts))
        own = np.interp(padded, costs.grid, costs.token_s[0]) + costs.decode_base_s[0]
        own += busiest / parts * self._context_s()[0]
        experts, line, exchange = (
            np.interp(of_part, costs.grid, table)
            for table in (costs.expert_s[0], split.line_s, split.exchange_s)
        )
        seconds: Values = ping_pong_seconds(own, experts, line, exchange, parts, split.layers)
        return seconds[None, :]

    def _context_s(self) -> Values:
        """What a decoding request of mean context adds to its rank's attention [stage]."""
        costs, context = self.costs, self.demand.context_tokens
        windowed = min(context, costs.window_tokens) * costs.decode_window_token_s
        found: Values = costs.decode_request_s + context * costs.decode_token_s + windowed
        return found

    def _padded(self, busiest: Values) -> Ints:
        """Tokens that a batch without prompts is padded to on the busiest rank."""
        sizes = self.costs.graph_tokens
        found: Ints = sizes[np.minimum(busiest, len(sizes) - 1).astype(int)]
        return found

    def prompt_s(self, step: int) -> tuple[Values, Values]:
        """Of each request of the sample [w, s]: seconds alone on a replica, and of a rank's time
        where prompts fill every step of all ranks.

        Alone, the chunks of a prompt follow one another through the pipeline stages; where steps
        are filled the slowest stage counts.
        """
        costs, new = self.costs, self.demand.new_tokens
        chunks = np.ceil(new / step)
        last = new - (chunks - 1) * step
        fixed = costs.eager_s + costs.prefill_base_s
        attention = self._attention_s()
        own = fixed[:, None, None] + attention / chunks
        launch = costs.launch_s[:, None, None]
        whole = self._products_s(np.array([step]), np.array([step]))[:, :, None]
        alone = (chunks - 1) * np.maximum(whole + own, launch)
        alone += np.maximum(self._products_s(last, last) + own, launch)
        alone[0] += chunks * (costs.host_s + costs.request_s)
        stages = costs.stages
        latency = alone.sum(axis=0) * (1 + (chunks - 1) / stages) / chunks
        every_rank = np.array([float(step * self.pool.dp)])
        full = self._products_s(np.array([step]), every_rank)[:, 0] + fixed
        filled = (new / step) * full[:, None, None] + attention
        filled = np.maximum(filled, (new / step) * costs.launch_s[:, None, None])
        filled[0] += (new / step) * (costs.host_s + costs.request_s)
        return latency, filled.max(axis=0)

    def added_s(self, step: int, running: Values, alternating: bool) -> Values:
        """What one chunk adds to a step of decoding requests [w, m], the mean of the sample.

        An alternating engine stops decoding for the chunk.
        """
        costs, new = self.costs, self.demand.new_tokens
        chunks = np.ceil(new / step)
        chunk = new.sum(axis=1) / chunks.sum(axis=1)
        attention = self._attention_s().sum(axis=2) / chunks.sum(axis=1)
        fixed = costs.eager_s + costs.prefill_base_s
        host = costs.request_s + (costs.host_s if alternating else 0.0)
        own = (fixed[:, None] + attention).sum(axis=0)
        flights = np.minimum(running, self.pool.pp)
        total = np.zeros_like(running) if alternating else running / flights
        busiest = np.ceil(total / self.pool.dp)
        each = costs.verified_tokens
        with_chunk = np.stack(
            [self._products_s(c + each * busiest, c + each * total).sum(axis=0) for c in chunk]
        )
        if alternating:
            stopped: Values = np.maximum(own[:, None] + with_chunk, costs.launch_s.sum()) + host
            return stopped
        without = self._products_s(self._padded(busiest), each * total).sum(axis=0)
        added: Values = own[:, None] + np.maximum(with_chunk - without, 0.0)
        least: Values = np.maximum(added, costs.launch_s.sum() - without)
        return least + host

    def _products_s(self, busiest: Values | Ints, total: Values | Ints) -> Values:
        """Layers [stage, ...] for the tokens of the busiest rank and of all ranks."""
        costs = self.costs
        return np.stack(
            [
                np.interp(busiest, costs.grid, costs.token_s[stage])
                + np.interp(total, costs.grid, costs.expert_s[stage])
                for stage in range(costs.stages)
            ]
        )

    def _attention_s(self) -> Values:
        """Attention of all chunks [stage, w, s] of each request of the sample."""
        costs, new, cached = self.costs, self.demand.new_tokens, self.demand.cached_tokens
        window = costs.window_tokens
        pairs = new * cached + new * (new + 1) / 2
        rising = np.minimum(np.maximum(window - cached, 0.0), new)
        windowed = rising * cached + rising * (rising + 1) / 2 + (new - rising) * window
        multiply = np.multiply.outer(costs.pair_s, pairs)
        multiply += np.multiply.outer(costs.window_pair_s, windowed)
        read = np.multiply.outer(costs.read_s, cached + new)
        own: Values = np.multiply.outer(costs.chunk_token_s, new)
        return own + np.maximum(multiply, read)
