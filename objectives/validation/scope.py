"""Which points can be scored at all: those whose own columns do not contradict one another."""

from __future__ import annotations

from objectives.validation.points import Setup

CONTRADICTION = "the mapping contradicts the chip count (tp x dp x pp x workers)"


def contradiction(setup: Setup) -> str | None:
    """Why the point is left out of the scores, or None.

    Chips of one kind of worker = tp x dp x pp x workers, and all of them are the deployment's.
    Rows that break this describe no deployment, whatever was measured on it.
    """
    if setup.plan is not None:
        return None
    stated = [mapping.chips for mapping in setup.mappings]
    products = [mapping.product for mapping in setup.mappings]
    if any(c is not None and c != p for c, p in zip(stated, products, strict=True)):
        return CONTRADICTION
    return None if sum(products) == setup.chips else CONTRADICTION
