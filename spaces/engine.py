"""A serving engine as the catalogue describes it: how it batches, and which layouts it can run."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, NonNegativeInt, PositiveInt

from spaces.documents import Document
from spaces.model import DraftMethod
from spaces.plan import Handoff
from spaces.precision import Dtype


class EngineSpec(Document):
    """One serving engine at the version that plans assume unless they name another.

    `scheduling` is `mixed` where one step holds decoding requests and prefill chunks together, and
    `alternating` where a step is either prefill or decode. `block_size` is in tokens.
    `expert_parallel_sizes` is the rule for the ranks over which experts are spread: `one-or-all`
    of the tp x dp ranks of a stage, or any of their `divisors`. Prompts are let in beside running
    requests every `admission_steps` steps, or, with `admission_together`, as soon as every
    attention data-parallel rank has one, too. Tokens of a request go to its client
    `stream_interval` at a time, the first alone. `attention_dp_sizes` is the rule
    for attention data parallelism: `any`, or `one-or-all` ranks. Without
    `stages_exchange_kv`, pools that hand KV to one another have a single pipeline stage and TP
    sizes of which one divides the other. It takes over KV from engines of its own kind and from
    those of `takes_kv_from`, in another number format than its own only if it `converts_kv`.
    `staged_vendors` are makers of chips whose KV it moves through host memory, because their
    memory is no source or target of network cards. On the hosts it keeps so many cores busy for
    every chip and for every attention data-parallel rank, and beside these has so many front-end
    processes for every rank that takes prompts. `speculation` lists the kinds of draft heads
    it runs, all of them without pipeline stages. `handoff` is how it sends KV from pool to pool
    unless a plan says otherwise.
    """

    name: str
    title: str
    aliases: tuple[str, ...] = ()
    version: str
    scheduling: Literal["mixed", "alternating"]
    block_size: PositiveInt
    hbm_fraction: float = Field(gt=0, le=1)
    chip_vendors: tuple[str, ...] = Field(min_length=1)
    weight_formats: tuple[Dtype, ...] = Field(min_length=1)
    expert_parallel_sizes: Literal["one-or-all", "divisors"]
    attention_dp_sizes: Literal["any", "one-or-all"]
    stages_exchange_kv: bool = True
    takes_kv_from: tuple[str, ...] = ()
    converts_kv: bool = False
    staged_vendors: tuple[str, ...] = ()
    cores_per_chip: NonNegativeInt = 1
    cores_per_rank: NonNegativeInt = 1
    front_end_cores_per_rank: PositiveInt = 1
    admission_steps: PositiveInt = 1
    admission_together: bool = False
    stream_interval: PositiveInt = 1
    speculation: tuple[DraftMethod, ...] = ()
    handoff: Handoff = "after-prefill"
    exportable: bool = True
    source: str
    checked: str
    status: Literal["verified", "estimate"] = "verified"
    notes: tuple[str, ...] = ()

    def expert_parallel_choices(self, ranks: int) -> list[int]:
        """The sizes `ep` may take in a stage of `ranks` = tp x dp ranks, ascending.

        >>> engine = EngineSpec(
        ...     name="e", title="E", version="1", scheduling="mixed", block_size=16,
        ...     hbm_fraction=0.9, chip_vendors=("NVIDIA",), weight_formats=("bf16",),
        ...     expert_parallel_sizes="divisors", attention_dp_sizes="any", source="", checked="")
        >>> engine.expert_parallel_choices(8)
        [1, 2, 4, 8]
        """
        if self.expert_parallel_sizes == "one-or-all":
            return sorted({1, ranks})
        return [size for size in range(1, ranks + 1) if ranks % size == 0]

    def allows_attention_dp(self, tp: int, dp: int) -> bool:
        """Whether the engine can run `dp` attention ranks of `tp` chips each in one stage."""
        return self.attention_dp_sizes == "any" or tp == 1 or dp == 1
