"""Seconds of exchanges between the chips of one replica."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Literal, TypeVar

import numpy as np

from objectives.cost.chip_efficiency import AllToAllTable
from objectives.cost.curves import along_sizes
from objectives.cost.exchanges import crossing_share
from objectives.cost.kernel_work import ACTIVATION_BYTES
from objectives.cost.machine import SECONDS_PER_US, Machine
from objectives.cost.readings import read_all_reduce_s, read_all_to_all_s, read_gather_s
from objectives.cost.step_costs import Floats
from objectives.cost.tuning import UNTUNED, Factors
from spaces.model import MoeFfn
from spaces.precision import Dtype

_MIB = float(1 << 20)
# Below this size a gather takes its latency alone.
_LATENCY_BYTES = 65536.0
_GATHER_SIZES = np.array([_LATENCY_BYTES, _MIB, 16 * _MIB, 512 * _MIB])


def all_reduce_s(machine: Machine, message_bytes: Floats, ranks: int) -> Floats:
    """Seconds of summing a message over `ranks` chips.

    Inside a scale-up domain from measured kernels; across domains the sum within each is followed
    by a ring over the network, in which a chip carries 2 (n - 1) / n of its share of the message
    (Patarasuk and Yuan, JPDC 2009). A layer has two of them (Megatron-LM, arXiv 1909.08053).
    """
    domain = machine.chip.scaleup_size
    if ranks <= domain:
        return _all_reduce_within_s(machine, message_bytes, ranks)
    within = _all_reduce_within_s(machine, message_bytes, domain)
    nodes = math.ceil(ranks / domain)
    carried = 2 * (nodes - 1) / nodes * message_bytes / domain
    return within + _network_s(machine, carried, 2)


def gather_scatter_s(
    machine: Machine, scattered_bytes: Floats, ranks: int, gathered_share: float = 1.0
) -> Floats:
    """Seconds of an all-gather and the reduce-scatter of `scattered_bytes` that undoes it.

    The gather brings together `gathered_share` as many bytes. Each carries (n - 1) / n of the
    whole past every chip (Thakur et al., IJHPCA 2005).
    """
    domain = machine.chip.scaleup_size
    inside = min(ranks, domain)
    gathered_bytes = gathered_share * scattered_bytes
    seconds = gather_within_s(machine, "all_gather", gathered_bytes, inside)
    seconds = seconds + gather_within_s(machine, "reduce_scatter", scattered_bytes, inside)
    if ranks > domain:
        nodes = math.ceil(ranks / domain)
        carried = (nodes - 1) / nodes * (gathered_bytes + scattered_bytes) / domain
        seconds = seconds + _network_s(machine, carried, 2)
    return seconds


def all_to_all_s(
    machine: Machine, moe: MoeFfn, hidden_size: int, dtype: Dtype, tokens: Floats, ep: int
) -> Floats:
    """Seconds of bringing `tokens` of each rank to their experts on `ep` ranks and back.

    A dispatched element has one byte (two where experts are multiplied in bf16), a combined one
    two. Inside a scale-up domain from measured kernels, the best for each size. Across domains the
    copies that leave follow: one to each remote expert (low latency), or one to each remote domain
    forwarded inside it (high throughput; both kinds as in deepseek-ai/DeepEP), whichever is
    faster. Both parts add up, as they do in published kernels (`exchanges`): those run at the
    network's line beyond what they take inside.
    """
    read = read_all_to_all_s(machine, moe, hidden_size, dtype, tokens, ep)
    if read is not None:
        return read
    width = 2.0 if machine.chip.compute_dtype(dtype) == "bf16" else 1.0
    elements = moe.top_k * moe.expert_width(hidden_size) * tokens
    inside = _all_to_all_within_s(machine, elements, width, ep)
    domain = machine.chip.scaleup_size
    if ep <= domain:
        return inside
    copies = float(crossing_share("low_latency", float(ep), domain, moe.top_k))
    once = float(crossing_share("normal", float(ep), domain, moe.top_k))
    forwarding = 2 * machine.overheads.network.forwarding_latency_us * SECONDS_PER_US
    direct = _across_s(machine, elements * copies, width)
    forwarded = forwarding + _across_s(machine, elements * once, width)
    return inside + np.minimum(direct, forwarded)


def send_s(machine: Machine, message_bytes: Floats, chips: int) -> Floats:
    """Seconds of passing a message on to the next pipeline stage of a replica of `chips`.

    The hidden states of its tokens, point to point (Megatron-LM, arXiv 2104.04473, section 2.2).
    """
    network = machine.overheads.network
    inside = chips <= machine.chip.scaleup_size
    line = machine.chip.scaleup_bytes_per_s if inside else machine.chip.scaleout_bytes_per_s
    latency = network.send_latency_us * SECONDS_PER_US
    return latency + message_bytes / (line * network.send_fraction)


def _all_reduce_within_s(machine: Machine, message_bytes: Floats, ranks: int) -> Floats:
    if ranks == 1:
        return np.zeros_like(message_bytes)
    read = read_all_reduce_s(machine, message_bytes, ranks)
    if read is not None:
        return read
    table = machine.achieved.all_reduce
    measured, growth = _nearest(table.ranks, ranks)
    seconds = SECONDS_PER_US * np.maximum.accumulate(np.array(measured))
    taken = along_sizes(np.array(table.message_bytes, dtype=np.float64), seconds, message_bytes)
    factors = machine.factors("all_reduce", "bf16")
    return _on_link(machine, taken, seconds[0], growth, table.link_gb_per_s, factors)


def gather_within_s(
    machine: Machine,
    kind: Literal["all_gather", "reduce_scatter"],
    gathered_bytes: Floats,
    ranks: int,
) -> Floats:
    """Seconds inside a scale-up domain: the library's kernel, or a sum of the whole if faster."""
    if ranks == 1:
        return np.zeros_like(gathered_bytes)
    read = read_gather_s(machine, kind, gathered_bytes, ranks)
    if read is not None:
        return np.minimum(read, _all_reduce_within_s(machine, gathered_bytes, ranks))
    table = machine.achieved.gather_scatter
    rows = table.all_gather if kind == "all_gather" else table.reduce_scatter
    row, growth = _nearest(rows, ranks)
    latency = row[0] * SECONDS_PER_US
    bus = np.array(row[1:]) * 1e9
    seconds = np.array([latency, *((ranks - 1) / ranks * _GATHER_SIZES[1:] / bus)])
    seconds = np.maximum.accumulate(seconds)
    taken = along_sizes(_GATHER_SIZES, seconds, gathered_bytes)
    factors = machine.factors(kind, "bf16")
    own = _on_link(machine, taken, latency, growth, table.link_gb_per_s, factors)
    return np.minimum(own, _all_reduce_within_s(machine, gathered_bytes, ranks))


def _all_to_all_within_s(machine: Machine, elements: Floats, width: float, ep: int) -> Floats:
    table = machine.achieved.all_to_all
    wide = [kernel for kernel in table.tables if kernel.ep >= ep]
    reach = min((k.ep for k in wide), default=max(k.ep for k in table.tables))
    fitting = [kernel for kernel in table.tables if kernel.ep == reach]
    options = [_kernel_s(machine, kernel, elements, width) for kernel in fitting]
    return np.asarray(np.min(options, axis=0))


def _kernel_s(machine: Machine, kernel: AllToAllTable, elements: Floats, width: float) -> Floats:
    """Measured seconds of dispatch and combine at the token counts that move as many bytes."""
    table = machine.achieved.all_to_all
    reference = table.top_k * table.hidden_size
    counts = np.array(list(kernel.us), dtype=np.float64)
    columns = np.array(list(kernel.us.values())).T * SECONDS_PER_US
    seconds = np.zeros_like(elements)
    for measured, bytes_ratio in zip(
        np.maximum.accumulate(columns, axis=1),
        (width / kernel.dispatch_bytes_per_element, 1.0),
        strict=True,
    ):
        taken = along_sizes(counts, measured, elements / reference * bytes_ratio)
        seconds += _on_link(machine, taken, measured[0], 1.0, table.link_gb_per_s)
    return seconds


def _across_s(machine: Machine, elements: Floats, width: float) -> Floats:
    line = machine.chip.scaleout_bytes_per_s * machine.overheads.network.all_to_all_fraction
    return elements * (width + ACTIVATION_BYTES) / line


def _network_s(machine: Machine, carried_bytes: Floats, phases: int) -> Floats:
    network = machine.overheads.network
    line = machine.chip.scaleout_bytes_per_s * network.collective_fraction
    return phases * network.collective_latency_us * SECONDS_PER_US + carried_bytes / line


def _on_link(
    machine: Machine,
    seconds: Floats,
    latency_s: float,
    growth: float,
    measured_gb_per_s: float,
    factors: Factors = UNTUNED,
) -> Floats:
    """Measured seconds with their latency grown, and the rest as fast as this chip's fabric is."""
    slower = measured_gb_per_s * 1e9 / machine.chip.scaleup_bytes_per_s
    moving_s = (seconds - latency_s) * slower
    return factors.fixed * growth * latency_s + factors.move * moving_s


Measured = TypeVar("Measured")


def _nearest(rows: Mapping[int, Measured], ranks: int) -> tuple[Measured, float]:
    """The smallest measured group that holds `ranks`; growth of latency beyond the largest.

    Latencies of 2, 4 and 8 ranks grow about with the square root of their number.
    """
    wide = [size for size in rows if size >= ranks]
    chosen = min(wide) if wide else max(rows)
    return rows[chosen], math.sqrt(max(1.0, ranks / chosen))
