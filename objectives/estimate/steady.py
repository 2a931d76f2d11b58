"""The steady state of deployments, many at a time: each array has one number for each plan [n].

Little's law closes the loop: requests in the system = requests per second x seconds in it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from objectives.estimate.demand import Demand
from objectives.estimate.tables import PoolTables
from objectives.metrics import STATISTICS

Values = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

# The law is a fixed point of a smooth map; halved steps were within 1 % of it after so many.
ITERATIONS = 12
# Highest share of its time a prefill rank can work for prompts that come by chance.
BUSIEST = 0.97


@dataclass(frozen=True)
class PromptTables:
    """Prefill of a part of the requests: means and percentiles over the sample.

    `prompt_s` [l, b, w, 5] has the statistics of `objectives.metrics` in order; `packed_s`
    [l, b, w] and `chunks` [b, w] are means; `share` is the part of all requests.
    """

    prompt_s: Values
    packed_s: Values
    chunks: Values
    share: float

    @classmethod
    def of(cls, tables: PoolTables, part: npt.NDArray[np.bool_]) -> PromptTables:
        """Those of the requests of the sample that are in `part` [s]; at least one must be."""
        alone = tables.prompt_s[..., part]
        ranks = [float(name[1:]) for name in STATISTICS[1:]]
        percentiles = np.moveaxis(np.percentile(alone, ranks, axis=-1), 0, -1)
        return cls(
            prompt_s=np.concatenate([alone.mean(axis=-1)[..., None], percentiles], axis=-1),
            packed_s=tables.packed_s[..., part].mean(axis=-1),
            chunks=tables.chunks[..., part].mean(axis=-1),
            share=float(part.mean()),
        )


@dataclass(frozen=True)
class Pools:
    """The same pool of many plans: which layout and step budget of the tables, and how many.

    `ranks` are attention ranks of a replica, `stages` those of its pipeline, `most_running` the
    requests it can hold, `cached` the share of the possible prefix hits it gets.
    """

    tables: PoolTables
    layout: Ints
    step: Ints
    replicas: Values
    ranks: Values
    stages: Values
    most_running: Values
    cached: Values


@dataclass(frozen=True)
class Loads:
    """A closed loop of `users` (nan in an open one) or an open one of `rate` requests/s.

    The tools between turns let no more than `most` requests/s come.
    """

    users: Values
    rate: Values
    most: Values

    def requests_per_s(self, seconds: Values) -> Values:
        """Requests per second where each spends so many in the system and its pause."""
        found: Values = np.where(np.isnan(self.users), self.rate, self.users / seconds)
        return np.minimum(found, self.most)

    def waiting_s(self, requests_per_s: Values, seconds: Values) -> Values:
        """What users spend beside these seconds, where it is not spent waiting for tools."""
        found = self.users / requests_per_s - seconds
        return np.where(requests_per_s < 0.999 * self.most, found, 0.0)


@dataclass(frozen=True)
class Steady:
    """Per plan: requests/s, seconds per output token, prefill [n, 5] and waiting before it.

    `utilization` [n, pools] is the share of time in which a replica of each pool runs a step,
    `batch` the requests of such a step of the pool that decodes;
    `burst_s` is how long the prompts that all users send at once, when a closed loop begins,
    take to be worked off.
    """

    requests_per_s: Values
    tpot_s: Values
    prompt_s: Values
    queue_s: Values
    burst_s: Values
    utilization: Values
    batch: Values


def one_pool(
    pools: Pools, prompts: PromptTables, loads: Loads, demand: Demand, outside_s: Values
) -> Steady:
    """Pools that prefill and decode; `outside_s` is what a request spends outside the engine.

    A step takes `decode_s` and, where a chunk is in it, `added_s` more. A request needs its chunks
    and its output tokens in steps; the chunks of the others fall into its steps by chance
    (Poisson), or come together where the requests began together: then the ranks, in lock step,
    compute theirs in the same steps. Requests beyond the seats and the KV memory wait.
    """
    together = share_together(loads, demand)
    chunks = _of_step(prompts.chunks, pools)
    packed_s = _of_layout(prompts.packed_s, pools)
    running = np.minimum(_spread(loads.users, loads.rate, pools), pools.most_running)
    joint_share = running / (demand.output_tokens + chunks)
    mixed_share = 1.0 - np.exp(-joint_share * chunks)
    for _ in range(ITERATIONS):
        decode_s, added_s = _decode_s(pools, running), _added_s(pools, running)
        apart_s = mixed_share * added_s
        joint_s = np.minimum(apart_s, joint_share * packed_s / pools.ranks)
        step_s = decode_s + (1.0 - together) * apart_s + together * joint_s
        inside_s = chunks * (decode_s + added_s) + demand.output_tokens * step_s
        per_replica = running / inside_s
        # All of a rank's steps are full of prompts: what comes beyond waits.
        per_replica = np.minimum(per_replica, BUSIEST * pools.ranks / packed_s)
        offered = loads.requests_per_s(inside_s + outside_s + demand.gap_s) / pools.replicas
        wanted = np.minimum(offered * inside_s, pools.most_running)
        running = 0.5 * (running + np.maximum(wanted, 1e-6))
        joint_share = 0.5 * (joint_share + per_replica * step_s)
        mixed_share = 0.5 * (mixed_share + 1.0 - np.exp(-per_replica * chunks * step_s))
    requests_per_s = pools.replicas * per_replica
    requests_per_s = np.minimum(requests_per_s, offered * pools.replicas)
    stretch = chunks * (decode_s + added_s) / np.maximum(_mean_prompt_s(prompts, pools), 1e-12)
    waiting_s = loads.waiting_s(requests_per_s, inside_s + outside_s + demand.gap_s)
    own_s = np.minimum(requests_per_s / pools.replicas * packed_s / pools.ranks, 0.9)
    chance_s = own_s / (1 - own_s) / 2 * packed_s
    occupied = _occupied(loads, pools, per_replica * inside_s)
    return Steady(
        requests_per_s=requests_per_s,
        tpot_s=step_s,
        prompt_s=_statistics(prompts, pools) * np.maximum(stretch, 1.0)[:, None],
        queue_s=np.fmax(waiting_s, 0.0) + chance_s,
        burst_s=_burst_s(loads, pools, packed_s),
        utilization=occupied[:, None],
        batch=_batch(pools, per_replica * inside_s, occupied),
    )


def share_together(loads: Loads, demand: Demand) -> Values:
    """The share of requests that begin together with those of all other users.

    The users of a closed loop begin together, and so do all their rounds where answers are alike.
    """
    if demand.alike:
        return np.where(np.isnan(loads.users), 0.0, 1.0)
    first: Values = np.minimum(np.nan_to_num(loads.users) / demand.requests, 1.0)
    return first


def split_pools(
    prefills: list[tuple[Pools, PromptTables]],
    decode: Pools,
    loads: Loads,
    demand: Demand,
    outside_s: Values,
) -> Steady:
    """A decode pool behind one or two pools that share the prompts.

    A prefill rank is a server of rate 1 / `packed_s` with the queue of M/D/1; the slowest pool
    bounds the rate of all.
    """
    decoded = max(demand.output_tokens - 1.0, 1e-6)
    bound = np.full(len(decode.layout), np.inf)
    for pools, prompts in prefills:
        rate = BUSIEST * pools.replicas * pools.ranks / _of_layout(prompts.packed_s, pools)
        bound = np.minimum(bound, rate / prompts.share)
    running = np.minimum(_spread(loads.users, loads.rate, decode), decode.most_running)
    for _ in range(ITERATIONS):
        tpot_s = _decode_s(decode, running)
        full = decode.replicas * decode.most_running / (decoded * tpot_s)
        most = np.minimum(bound, np.where(running >= decode.most_running * 0.999, full, np.inf))
        rough = np.minimum(decode.replicas * running / (decoded * tpot_s), most)
        prefill_s = _prefill_s(prefills, rough)
        offered = loads.requests_per_s(prefill_s + decoded * tpot_s + outside_s + demand.gap_s)
        requests_per_s = np.minimum(offered, most)
        wanted = np.minimum(
            requests_per_s * decoded * tpot_s / decode.replicas, decode.most_running
        )
        running = 0.5 * (running + np.maximum(wanted, 1e-6))
    inside_s = prefill_s + decoded * tpot_s + outside_s + demand.gap_s
    waiting_s = loads.waiting_s(requests_per_s, inside_s)
    alone_s = sum(p.share * _mean_prompt_s(p, pools) for pools, p in prefills)
    statistics = _joined(prefills)
    burst_s = np.max(
        [p.share * _burst_s(loads, pools, _of_layout(p.packed_s, pools)) for pools, p in prefills],
        axis=0,
    )
    decoding = requests_per_s * decoded * tpot_s / decode.replicas
    occupied = _occupied(loads, decode, decoding)
    return Steady(
        requests_per_s=requests_per_s,
        tpot_s=tpot_s,
        prompt_s=statistics,
        queue_s=np.fmax(waiting_s, 0.0) + np.maximum(prefill_s - alone_s, 0.0),
        burst_s=burst_s,
        utilization=np.column_stack(
            [
                *(_prefilling(pools, prompts, requests_per_s) for pools, prompts in prefills),
                occupied,
            ]
        ),
        batch=_batch(decode, decoding, occupied),
    )


def _occupied(loads: Loads, pools: Pools, running: Values) -> Values:
    """The share of time in which a replica has a request, of `running` on average.

    Each of its users, spread evenly over the replicas, is in the engine or not, independently of
    the others; in an open loop their number is Poisson's.
    """
    users = np.maximum(loads.users / pools.replicas, 1.0)  # fewer are never on one together
    closed = 1.0 - (1.0 - np.minimum(running / users, 1.0)) ** users
    found: Values = np.where(np.isnan(users), -np.expm1(-running), closed)
    return found


def _batch(pools: Pools, running: Values, occupied: Values) -> Values:
    """Requests of a step: those there while any is, shared among the stages of the pipeline."""
    found: Values = np.maximum(running / np.maximum(occupied, 1e-12) / pools.stages, 1.0)
    return found


def _prefilling(pools: Pools, prompts: PromptTables, requests_per_s: Values) -> Values:
    """The share of time in which a replica has a prompt on any of its ranks."""
    servers = pools.replicas * pools.ranks
    of_rank = requests_per_s * prompts.share * _of_layout(prompts.packed_s, pools) / servers
    found: Values = 1.0 - (1.0 - np.minimum(of_rank, 1.0)) ** pools.ranks
    return found


def _prefill_s(prefills: list[tuple[Pools, PromptTables]], requests_per_s: Values) -> Values:
    """Mean seconds of prefill and the wait for it, at so many requests/s."""
    total = np.zeros_like(requests_per_s)
    for pools, prompts in prefills:
        packed_s = _of_layout(prompts.packed_s, pools)
        servers = pools.replicas * pools.ranks
        busy = np.minimum(requests_per_s * prompts.share * packed_s / servers, BUSIEST)
        # Several servers keep a request waiting only when all are busy.
        wait_s = busy ** np.sqrt(2 * (servers + 1)) / (1 - busy) / 2 * packed_s / servers
        total += prompts.share * (_mean_prompt_s(prompts, pools) + wait_s)
    return total


def _joined(prefills: list[tuple[Pools, PromptTables]]) -> Values:
    """Statistics of prefill over all requests: that of the pools' means, and of the slower pool
    in the percentiles above its share."""
    if len(prefills) == 1:
        return _statistics(prefills[0][1], prefills[0][0])
    parts = [(_statistics(prompts, pools), prompts.share) for pools, prompts in prefills]
    mean = sum(share * found[:, 0] for found, share in parts)
    (first, first_share), (second, _) = parts
    slower = np.maximum(first, second)
    median = np.where(first_share >= 0.5, first[:, 1], second[:, 1])
    return np.column_stack([mean, median, slower[:, 2:]])


def _spread(users: Values, rate: Values, pools: Pools) -> Values:
    """A first guess of the requests on each replica."""
    guess = np.where(np.isnan(users), rate, users) / pools.replicas
    return np.maximum(guess, 1e-6)


def _burst_s(loads: Loads, pools: Pools, packed_s: Values) -> Values:
    held = np.minimum(loads.users / pools.replicas, pools.most_running)
    found: Values = np.where(np.isnan(loads.users), 0.0, held / pools.ranks * packed_s)
    return found


def _decode_s(pools: Pools, running: Values) -> Values:
    table = pools.tables.decode_s
    low, high, share = _places(pools.tables.running, running)
    row = pools.layout * table.shape[1]
    flat = table.ravel()
    low_s = flat[row + low]
    found: Values = low_s + share * (flat[row + high] - low_s)
    return found


def _added_s(pools: Pools, running: Values) -> Values:
    table = pools.tables.added_s
    low, high, share = _places(pools.tables.running, running)
    flat = table.ravel()
    cold = (pools.layout * table.shape[1] + pools.step) * table.shape[2] * table.shape[3]
    warm = cold + table.shape[3]
    cold_s = flat[cold + low] + share * (flat[cold + high] - flat[cold + low])
    warm_s = flat[warm + low] + share * (flat[warm + high] - flat[warm + low])
    found: Values = cold_s + pools.cached * (warm_s - cold_s)
    return found


def _places(grid: Values, running: Values) -> tuple[Ints, Ints, Values]:
    place = np.interp(running, grid, np.arange(len(grid)))
    low = place.astype(np.int64)
    return low, np.minimum(low + 1, len(grid) - 1), place - low


def _of_layout(table: Values, pools: Pools) -> Values:
    """A table [l, b, w] at the pools' layouts, steps and shares of cached prefixes."""
    found = table[pools.layout, pools.step]
    mixed: Values = found[:, 0] + pools.cached * (found[:, 1] - found[:, 0])
    return mixed


def _of_step(table: Values, pools: Pools) -> Values:
    found = table[pools.step]
    mixed: Values = found[:, 0] + pools.cached * (found[:, 1] - found[:, 0])
    return mixed


def _mean_prompt_s(prompts: PromptTables, pools: Pools) -> Values:
    return _of_layout(prompts.prompt_s[..., 0], pools)


def _statistics(prompts: PromptTables, pools: Pools) -> Values:
    found = prompts.prompt_s[pools.layout, pools.step]
    mixed: Values = found[:, 0] + pools.cached[:, None] * (found[:, 1] - found[:, 0])
    return mixed
