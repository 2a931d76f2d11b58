"""Requests of sessions as they are made, and the workload they become."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from objectives.workload.chains import chained
from objectives.workload.session_spec import SessionSpec
from objectives.workload.workload import NO_PARENT, RequestClass, Workload


@dataclass(slots=True)
class Rows:
    """Requests session by session; `source` is the row whose beginning is kept."""

    session: list[int] = field(default_factory=list)
    parent: list[int] = field(default_factory=list)
    source: list[int] = field(default_factory=list)
    kept_tokens: list[int] = field(default_factory=list)
    input_tokens: list[int] = field(default_factory=list)
    output_tokens: list[int] = field(default_factory=list)
    kind: list[int] = field(default_factory=list)
    gap_s: list[float] = field(default_factory=list)
    arrival_s: list[float] = field(default_factory=list)
    end_s: list[float] = field(default_factory=list)
    user_pauses: int = 0

    def add(
        self,
        parent: int,
        source: int,
        kept: int,
        tokens: tuple[int, int],
        kind: int,
        gap_s: float,
        answer_s: float,
        start_s: float,
    ) -> int:
        """Take a request of the newest session; where it stands."""
        self.session.append(self.session[parent] if parent >= 0 else self._next_session())
        self.parent.append(parent)
        self.source.append(source)
        self.kept_tokens.append(kept)
        self.input_tokens.append(tokens[0])
        self.output_tokens.append(tokens[1])
        self.kind.append(kind)
        self.gap_s.append(gap_s)
        self.arrival_s.append(start_s if parent < 0 else self.end_s[parent] + gap_s)
        self.end_s.append(self.arrival_s[-1] + answer_s)
        return len(self.parent) - 1

    def _next_session(self) -> int:
        return self.session[-1] + 1 if self.session else 0

    def workload(self, spec: SessionSpec, name: str, request_class: RequestClass) -> Workload:
        """The rows in order of arrival."""
        arrival_s = np.array(self.arrival_s)
        order = np.argsort(arrival_s, kind="stable")
        place = np.empty(len(order) + 1, dtype=np.int32)
        place[order] = np.arange(len(order), dtype=np.int32)
        place[NO_PARENT] = NO_PARENT
        input_tokens = np.array(self.input_tokens)[order]
        offsets, ids = chained(
            place[np.array(self.source)[order]],
            np.array(self.kept_tokens)[order],
            input_tokens,
            spec.block_tokens,
        )
        return Workload(
            name=name,
            arrival_s=arrival_s[order],
            input_tokens=input_tokens,
            output_tokens=np.array(self.output_tokens)[order],
            block_tokens=spec.block_tokens,
            block_offsets=offsets,
            block_ids=ids,
            session=np.array(self.session, dtype=np.int32)[order],
            parent=place[np.array(self.parent)[order]],
            gap_s=np.array(self.gap_s)[order],
            kind=np.array(self.kind, dtype=np.int8)[order],
            class_id=np.zeros(len(order), dtype=np.int32),
            classes=(request_class,),
        )
