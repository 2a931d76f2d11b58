"""Decode split over two pools: routed experts on one, attention and all else on the other."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from objectives.cost.build import step_costs
from objectives.cost.collectives import all_to_all_s
from objectives.cost.drafting import Drafting, drafting_of
from objectives.cost.kernel_work import ACTIVATION_BYTES
from objectives.cost.machine import SECONDS_PER_US, Machine, machine_of
from objectives.cost.operators import input_bytes, routed_experts_s
from objectives.cost.sources import OperatorSource
from objectives.cost.step_costs import Floats, SplitDecode, StepCosts
from spaces.calibration import Changes
from spaces.chip import ChipSpec
from spaces.model import ModelSpec, MoeFfn
from spaces.plan import EngineName, Pool, Precision
from spaces.precision import Dtype
from spaces.sharding import share_scaleup_domain
from spaces.site import OperatorCosts
from spaces.speculation import Speculation


@lru_cache(maxsize=4096)
def split_step_costs(
    model: ModelSpec,
    attention: tuple[Pool, ChipSpec],
    experts: tuple[Pool, ChipSpec],
    precision: Precision,
    engine: EngineName,
    micro_batches: int,
    speculation: Speculation | None = None,
    release: str = "",
    operator_costs: OperatorCosts = "fitted",
    changes: Changes = (),
    factor: float = 1.0,
    exchanges: bool = True,
) -> StepCosts:
    """Seconds of a decode step of one attention replica and the experts replica it works with.

    Everything but routed experts is the attention pool's; the router picks experts uniformly, one
    draw a layer for all their ranks, and the slowest rank sets the layer. Drafts are verified like
    any tokens, and each pass of a draft layer with experts is one more layer that goes to them.
    Formulas stand in docs/cost_model.md. The arrays are shared between equal calls: do not write
    to them. `operator_costs` and what follows are those of `step_costs`.
    """
    pool, chip = attention
    own = step_costs(
        model,
        chip,
        pool,
        precision,
        engine,
        speculation,
        release,
        operator_costs,
        changes,
        exchanges=exchanges,
    )
    exchange = _Exchange(
        model=model,
        senders=attention,
        receivers=experts,
        dtype=model.weights(precision.weights).routed_experts,
        machines=(
            machine_of(chip, engine, release, operator_costs, changes),
            machine_of(experts[1], engine, release, operator_costs, changes),
        ),
        drafting=drafting_of(model, pool, speculation),
    )
    tokens = np.maximum(own.grid.astype(np.float64), 1.0)
    line, both = exchange.seconds(tokens)
    if not exchanges:
        line, both = np.zeros_like(line), np.zeros_like(both)
    split = SplitDecode(
        micro_batches=micro_batches, layers=exchange.layers, line_s=line, exchange_s=both
    )
    expert_s = exchange.experts_s(tokens)[None, :]
    sources = (*own.sources, *exchange.sources())
    costs = replace(own, expert_s=expert_s, split=split, sources=sources)
    return costs if factor == 1.0 else costs.scaled(factor)


@dataclass(frozen=True, slots=True)
class _Exchange:
    """What goes between an attention replica (`senders`) and its experts (`receivers`)."""

    model: ModelSpec
    senders: tuple[Pool, ChipSpec]
    receivers: tuple[Pool, ChipSpec]
    dtype: Dtype
    machines: tuple[Machine, Machine]
    drafting: Drafting

    def sources(self) -> tuple[OperatorSource, ...]:
        """Where the seconds that were asked for so far are from."""
        return tuple(source for machine in self.machines for source in machine.log.told())

    @property
    def layers(self) -> int:
        """Layers of a step that go to the experts, each pass of a draft layer apart."""
        return sum(times for _, times, _ in self._visits(np.ones(1)))

    def _visits(self, tokens: Floats) -> Iterator[tuple[MoeFfn, int, Floats]]:
        """The layers that ask experts, how often, and the tokens of all ranks they bring."""
        for group in self.model.ffn:
            if isinstance(group, MoeFfn):
                yield group, group.layers, tokens
        _, draft = self.drafting.layer or (None, None)
        if isinstance(draft, MoeFfn):
            pool, _ = self.senders
            requests = self.drafting.requests(tokens, pool.dp * pool.max_num_seqs)
            yield draft, 1, tokens
            yield draft, self.drafting.further_passes, requests

    def experts_s(self, tokens: Floats) -> Floats:
        """Routed experts of all layers on their slowest chip, for `tokens` of all ranks."""
        machine, (pool, _) = self.machines[1], self.receivers
        hidden = self.model.hidden_size
        total = np.zeros_like(tokens)
        for group, times, asking in self._visits(tokens):
            total += times * routed_experts_s(machine, group, hidden, pool, self.dtype, asking)
        return np.ascontiguousarray(np.maximum.accumulate(total))

    def seconds(self, tokens: Floats) -> tuple[Floats, Floats]:
        """The busier direction of the line, and both ways with latencies, over all layers.

        Every chip of attention sends its share of the copies, every chip of experts receives as
        many as come to it; the slower end of the line counts.
        """
        line, both = np.zeros_like(tokens), np.zeros_like(tokens)
        for group, times, asking in self._visits(tokens):
            width = group.expert_width(self.model.hidden_size)
            copies = asking * self._copies(group) * width
            there = copies * input_bytes(self.machines[1], self.dtype) / self._bytes_per_s()
            back = copies * ACTIVATION_BYTES / self._bytes_per_s()
            line += times * np.maximum(there, back)
            both += times * (there + back + 2 * self._latency_s(group))
        return line, both

    def _copies(self, group: MoeFfn) -> float:
        """Chips of experts that a token goes to: each rank it picks, all slices of its experts."""
        pool = self.receivers[0]
        ranks = pool.ep * (1.0 - (1.0 - 1.0 / pool.ep) ** group.top_k)
        return ranks * pool.chips_per_replica / pool.ep

    def _bytes_per_s(self) -> float:
        """Of the ends of the line, all chips of a replica together, the slower one's."""
        fraction = self.machines[0].overheads.network.all_to_all_fraction
        ends = [
            pool.chips_per_replica
            * (chip.scaleup_bytes_per_s if self._together else chip.scaleout_bytes_per_s)
            for pool, chip in (self.senders, self.receivers)
        ]
        return min(ends) * fraction

    def _latency_s(self, group: MoeFfn) -> float:
        """One way: half of the smallest measured exchange inside a domain, else the network's."""
        if not self._together:
            return self.machines[0].overheads.network.forwarding_latency_us * SECONDS_PER_US
        machine, hidden = self.machines[0], self.model.hidden_size
        ranks = self.receivers[0].ep
        smallest = all_to_all_s(machine, group, hidden, self.dtype, np.ones(1), ranks)
        return float(smallest[0]) / 2

    @property
    def _together(self) -> bool:
        return share_scaleup_domain(*self.senders, *self.receivers)
