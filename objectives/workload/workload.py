"""The requests a deployment has to serve, as flat arrays: a forest of sessions of turns."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

Seconds = npt.NDArray[np.float64]
Tokens = npt.NDArray[np.int64]
Numbers = npt.NDArray[np.int32]
Codes = npt.NDArray[np.int8]

# What a turn is; `Workload.kind` holds places in this tuple. `first` begins a session, `append`
# brings the result of a tool, `user` what a person wrote; a `compaction` goes on from a summary
# of the context, an `invalidation` sends a context of which most is not cached any more, and a
# `subagent` begins a context of its own within the session.
KINDS = ("first", "append", "user", "compaction", "invalidation", "subagent")
FIRST, APPEND, USER, COMPACTION, INVALIDATION, SUBAGENT = range(len(KINDS))

NO_PARENT = -1


@dataclass(frozen=True, slots=True)
class RequestClass:
    """Whose requests they are and what they are promised; a higher priority goes first.

    The limits are those of one request, in milliseconds; one that is `None` is not promised.
    """

    tenant: str = "default"
    priority: int = 0
    ttft_ms: float | None = None
    tpot_ms: float | None = None
    e2e_ms: float | None = None


@dataclass(frozen=True, slots=True)
class Workload:
    """`n` requests in order of recorded arrival, each a turn of a session.

    `arrival_s` [n] counts from the first request and never falls. `input_tokens` and
    `output_tokens` [n] are at least 1. Equal leading prefix blocks of two requests mean an equal
    beginning of their inputs: request `i` has blocks `block_ids[block_offsets[i] :
    block_offsets[i + 1]]`, each `block_tokens` long (the last may be partial), numbered densely
    from 0. Without prefix information `block_tokens` is 0 and `block_ids` is empty.

    `session` [n] numbers the sessions densely in order of their first request. `parent` [n] is
    the request whose end a turn waits for, always an earlier one of the same session, or -1 for
    the first turn, which starts at `arrival_s`. `gap_s` [n] is the
    pause between the parent's end and the arrival of the turn, 0 without a parent; `arrival_s`
    of a turn with a parent is what was recorded, for a replay of the recorded times. `kind` [n]
    holds places in `KINDS`, `class_id` [n] places in `classes`. Where the five arrays are left
    out, every request is a session of one turn and of the one class.

    `tool_share` is the part of the pause before a turn that brings a tool's result (`append`) in
    which the tool holds a core of the deployment's hosts; 0 where tools run elsewhere.
    """

    name: str
    arrival_s: Seconds
    input_tokens: Tokens
    output_tokens: Tokens
    block_tokens: int
    block_offsets: Tokens
    block_ids: Numbers
    session: Numbers = field(default_factory=lambda: np.empty(0, np.int32))
    parent: Numbers = field(default_factory=lambda: np.empty(0, np.int32))
    gap_s: Seconds = field(default_factory=lambda: np.empty(0, np.float64))
    kind: Codes = field(default_factory=lambda: np.empty(0, np.int8))
    class_id: Numbers = field(default_factory=lambda: np.empty(0, np.int32))
    classes: tuple[RequestClass, ...] = (RequestClass(),)
    tool_share: float = 0.0

    def __post_init__(self) -> None:
        n = len(self)
        single_turns = {
            "session": np.arange(n, dtype=np.int32),
            "parent": np.full(n, NO_PARENT, dtype=np.int32),
            "gap_s": np.zeros(n),
            "kind": np.full(n, FIRST, dtype=np.int8),
            "class_id": np.zeros(n, dtype=np.int32),
        }
        for name, default in single_turns.items():
            if not len(getattr(self, name)):
                object.__setattr__(self, name, default)
            assert len(getattr(self, name)) == n, f"{name} must have one value a request"

    def __len__(self) -> int:
        return len(self.arrival_s)

    @property
    def tool_s(self) -> Seconds:
        """Seconds of a host's core in the pause before each turn [n]."""
        return np.where(self.kind == APPEND, self.tool_share * self.gap_s, 0.0)

    @property
    def sessions(self) -> int:
        """How many sessions there are."""
        return int(self.session.max()) + 1 if len(self) else 0

    def blocks(self, request: int) -> Numbers:
        """The prefix blocks of one request."""
        return self.block_ids[self.block_offsets[request] : self.block_offsets[request + 1]]


def broken_law(workload: Workload) -> str | None:
    """Which law of a workload these arrays break, in words, or `None` where all hold."""
    n = len(workload)
    parents = np.flatnonzero(workload.parent >= 0)
    waited_for = workload.parent[parents]
    blocks = np.diff(workload.block_offsets)
    limit = -(-workload.input_tokens // workload.block_tokens) if workload.block_tokens else 0
    laws = {
        "arrivals must not fall": (np.diff(workload.arrival_s) >= 0).all(),
        "lengths must be at least 1": n == 0
        or min(workload.input_tokens.min(), workload.output_tokens.min()) >= 1,
        "a parent must come before its turn": (waited_for < parents).all()
        and (workload.parent >= NO_PARENT).all(),
        "a parent must be of the same session": (
            workload.session[waited_for] == workload.session[parents]
        ).all(),
        "a session must have one turn that waits for nothing": (
            np.bincount(workload.session[workload.parent < 0], minlength=workload.sessions) == 1
        ).all(),
        "gaps must be finite and not negative": (
            np.isfinite(workload.gap_s) & (workload.gap_s >= 0)
        ).all(),
        "kinds must be known": ((workload.kind >= 0) & (workload.kind < len(KINDS))).all(),
        "classes must be known": (
            (workload.class_id >= 0) & (workload.class_id < len(workload.classes))
        ).all(),
        "blocks must lie within the input": (blocks >= 0).all() and (blocks <= limit).all(),
        "block ids must be numbered from 0": not len(workload.block_ids)
        or int(workload.block_ids.min()) >= 0,
    }
    return next((law for law, holds in laws.items() if not holds), None)
