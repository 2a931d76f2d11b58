"""Several workloads served at once, as one."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from objectives.workload.selection import dense, selected
from objectives.workload.workload import NO_PARENT, RequestClass, Workload
from spaces.errors import InputError


def mixed(name: str, parts: Sequence[Workload]) -> Workload:
    """The requests of all parts in order of arrival, each with its own sessions and prefixes.

    Blocks of different parts have nothing to do with one another; all parts that know prefixes
    must count them in blocks of one size. Classes that are equal become one.
    """
    sizes = {part.block_tokens for part in parts if part.block_tokens}
    if len(sizes) > 1:
        raise InputError(
            "workloads that are mixed must have prefix blocks of one size",
            where=name,
            key="block_tokens",
            value=sorted(sizes),
        )
    classes = list(dict.fromkeys(each for part in parts for each in part.classes))
    together = _joined(name, parts, max(sizes, default=0), classes)
    return selected(together, np.argsort(together.arrival_s, kind="stable"))


def _joined(
    name: str, parts: Sequence[Workload], block_tokens: int, classes: list[RequestClass]
) -> Workload:
    first = np.cumsum([0, *(len(part) for part in parts)])
    first_session = np.cumsum([0, *(part.sessions for part in parts)])
    first_block = np.cumsum([0, *(int(part.block_ids.max(initial=-1)) + 1 for part in parts)])
    first_place = np.cumsum([0, *(len(part.block_ids) for part in parts)])
    parents, offsets, class_ids = [], [np.zeros(1, dtype=np.int64)], []
    for part, row, place in zip(parts, first, first_place, strict=False):
        parents.append(np.where(part.parent == NO_PARENT, NO_PARENT, part.parent + row))
        offsets.append(part.block_offsets[1:] + place)
        table = np.array([classes.index(each) for each in part.classes], dtype=np.int32)
        class_ids.append(table[part.class_id])
    numbered = list(zip(parts, first_session, first_block, strict=False))
    return Workload(
        name=name,
        arrival_s=np.concatenate([part.arrival_s for part in parts]),
        input_tokens=np.concatenate([part.input_tokens for part in parts]),
        output_tokens=np.concatenate([part.output_tokens for part in parts]),
        block_tokens=block_tokens,
        block_offsets=np.concatenate(offsets),
        block_ids=np.concatenate([p.block_ids + b for p, _, b in numbered]).astype(np.int32),
        session=dense(np.concatenate([p.session + s for p, s, _ in numbered]).astype(np.int32)),
        parent=np.concatenate(parents).astype(np.int32),
        gap_s=np.concatenate([part.gap_s for part in parts]),
        kind=np.concatenate([part.kind for part in parts]),
        class_id=np.concatenate(class_ids),
        classes=tuple(classes),
    )
