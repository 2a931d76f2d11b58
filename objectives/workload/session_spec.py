"""Sessions by their distributions, as presets and jobs write them."""

from __future__ import annotations

from typing import Annotated

from pydantic import (
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    model_validator,
)

from objectives.workload.arrivals import Arrivals, Parameterless
from objectives.workload.quantity import Quantity
from spaces.documents import Document
from spaces.errors import InputError

Share = Annotated[float, Field(ge=0, le=1)]
Correlation = Annotated[float, Field(ge=-1, le=1)]


class Start(Document):
    """Sessions that begin alike: how long their first input is, how many turns they have.

    `share` weighs the starts. `turns_by_input` is the rank correlation of the two lengths. Turns
    add more or less than those of other starts by `growth_shift`, in normal values. Contexts stay
    below `context_limit_tokens`: what happens there is said by the session, but for `ends`, which
    replaces that of its compaction.
    """

    share: PositiveFloat = 1.0
    first_input_tokens: Quantity
    turns: Quantity
    turns_by_input: Correlation = 0.0
    growth_shift: Annotated[float, Field(ge=-2, le=2)] = 0.0
    ends: Share | None = None
    context_limit_tokens: PositiveInt | None = None


class LargeGrowth(Document):
    """Where the large additions are: normal values above `above` lie further apart or closer.

    What exceeds `above` is multiplied by `early` for contexts up to `early_tokens`, else by
    `late`.
    """

    above: float = Field(ge=0, le=5)
    early_tokens: PositiveInt
    early: float = Field(gt=0, le=3)
    late: float = Field(gt=0, le=3)


class Compaction(Document):
    """A context that would pass `at` times the limit goes on from a summary.

    The turn then has `to_tokens` of input, at most half the limit, of which `kept_tokens` are
    cached. The share `ends` of the sessions that come there ends instead, and a further
    `ends_later` at each later limit.
    """

    at: Quantity
    to_tokens: Quantity
    kept_tokens: Quantity
    ends: Share = 0.0
    ends_later: Share = 0.0


class Invalidation(Document):
    """Turns that find most of their context not cached any more.

    `share` of the later turns with contexts over `from_tokens`; of the context `kept_tokens` are
    cached still, at most half, and the pause before them is their own.
    """

    share: Share
    from_tokens: NonNegativeInt
    kept_tokens: Quantity
    pause_s: Quantity


class Subagents(Document):
    """Agents that a turn begins, each with a context of its own; the next turn waits for the last.

    `share` of the sessions have `groups` of them, begun at turns drawn evenly.
    """

    share: Share
    groups: Quantity
    turns: Quantity
    first_input_tokens: Quantity
    growth_tokens: Quantity
    pause_s: Quantity


class SessionSpec(Document):
    """Sessions by their distributions.

    A turn adds to the context of the turn before either `growth_tokens`, of which its answer is
    part, or that answer and `external_tokens`. `growth_by_output` is the rank correlation of
    what is added and that answer; `growth_between_sessions` is the part of the variance of growth
    (as a normal variable of the same ranks) that lies between sessions, `growth_by_turns` the
    correlation of that part with the number of turns.

    The first turns after the first input may add more: `opening_shifts` raise the normal value of
    their growth, one after the other.

    After each user turn come `tool_turns` turns of tools; without it all later turns are a user's.
    The part `tool_turns_between_sessions` of their variance (as a normal variable of the same
    ranks) lies between sessions. Sessions of short runs have more of them: `tool_turns_shift`, in
    normal values, makes up for it.

    `pause_s` of each kind is the time from the end of the turn before. `answer_s` is how long
    answers took where the figures were recorded; arrivals recorded in the workload assume it.
    With `fresh_context` a turn keeps nothing but the shared prefix, and its input is as long as a
    first one. `context_limit_tokens` replaces the limits of all starts; sessions that would begin
    beyond the least context of a compaction begin there.

    `shared_prefix_tokens` begin every session, so that all have them in common. Pauses are
    multiplied by `pause_scale` and then cut at `pause_cap_s`; lengths are multiplied by
    `token_scale`, for a tokenizer that makes more or fewer tokens of a text, but limits are not.
    """

    requests: PositiveInt
    starts: Annotated[tuple[Start, ...], Field(min_length=1)]
    arrivals: Arrivals = Arrivals(poisson=Parameterless())
    shared_prefix_tokens: NonNegativeInt = 0
    context_limit_tokens: PositiveInt | None = None
    fresh_context: bool = False
    growth_tokens: Quantity | None = None
    external_tokens: Quantity | None = None
    growth_by_output: Correlation = 0.0
    growth_between_sessions: Share = 0.0
    growth_by_turns: Correlation = 0.0
    large_growth: LargeGrowth | None = None
    output_tokens: Quantity
    opening_shifts: tuple[Annotated[float, Field(ge=-4, le=4)], ...] = ()
    tool_turns: Quantity | None = None
    tool_turns_between_sessions: Share = 0.0
    tool_turns_shift: Annotated[float, Field(ge=-2, le=2)] = 0.0
    tool_pause_s: Quantity | None = None
    user_pause_s: Quantity
    answer_s: Quantity
    answer_by_output: Correlation = 0.0
    compaction: Compaction | None = None
    invalidation: Invalidation | None = None
    subagents: Subagents | None = None
    pause_scale: NonNegativeFloat = 1.0
    pause_cap_s: PositiveFloat | None = None
    token_scale: PositiveFloat = 1.0
    block_tokens: PositiveInt = 64

    @model_validator(mode="after")
    def _one_growth(self) -> SessionSpec:
        ways = (self.growth_tokens, self.external_tokens, self.fresh_context or None)
        if sum(way is not None for way in ways) != 1:
            raise InputError(
                "exactly one of growth_tokens, external_tokens and fresh_context must be given"
            )
        if self.tool_turns is not None and self.tool_pause_s is None:
            raise InputError("turns of tools need a pause", key="tool_pause_s")
        return self
