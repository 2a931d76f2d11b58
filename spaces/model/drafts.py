"""What drafts tokens for the model to verify: a multi-token-prediction layer or an EAGLE head."""

from __future__ import annotations

from itertools import pairwise
from typing import Annotated, Literal

from pydantic import Field, PositiveInt, field_validator

from spaces.documents import Document
from spaces.errors import InputError
from spaces.model.groups import Attention, Ffn

DraftMethod = Literal["mtp", "eagle3"]


class DraftHead(Document):
    """One layer that is run once for each draft token, and how often its drafts are accepted.

    A layer of multi-token prediction (arXiv 2412.19437, section 2.2) has the shapes of the model's
    own attention and feed-forward groups at the places `attention_group` and `ffn_group`; a
    separate head (EAGLE-3, arXiv 2503.01840) states its own `attention` and `ffn`, of one layer
    each. `joined_inputs` vectors of the hidden size are joined and projected to one before it.
    Embeddings and LM head are the model's, unless the head has a `vocab_size` of its own. A head
    of a checkpoint of its own names it in `hugging_face_id`.

    `acceptance_lengths[n - 1]` are the mean tokens a step gives out with `n` drafts, the model's
    own token included. Without them a plan must state its acceptance.
    """

    name: str
    method: DraftMethod
    hugging_face_id: str = ""
    attention_group: int = -1
    ffn_group: int = -1
    attention: Attention | None = None
    ffn: Ffn | None = None
    joined_inputs: PositiveInt = 2
    vocab_size: PositiveInt | None = None
    acceptance_lengths: tuple[Annotated[float, Field(ge=1)], ...] = ()
    source: str
    checked: str = ""
    status: Literal["verified", "derived", "estimate"] = "verified"
    notes: tuple[str, ...] = ()

    @field_validator("acceptance_lengths")
    @classmethod
    def _drafts_help_less_and_less(cls, lengths: tuple[float, ...]) -> tuple[float, ...]:
        acceptance_rates(lengths)
        return lengths

    @property
    def acceptance(self) -> tuple[float, ...]:
        """The share of steps in which the draft at each position is accepted."""
        return acceptance_rates(self.acceptance_lengths)


def acceptance_rates(lengths: tuple[float, ...]) -> tuple[float, ...]:
    """Per-position rates of the mean tokens a step gives out with 1, 2, ... drafts.

    A draft counts only when all before it were accepted, so position `n` adds its rate to the
    mean: rate = length(n) - length(n - 1), with length(0) = 1. Raises `InputError` where the rates
    rise or leave [0, 1].

    >>> [round(rate, 2) for rate in acceptance_rates((1.79, 2.27, 2.49))]
    [0.79, 0.48, 0.22]
    """
    rates = tuple(after - before for before, after in pairwise((1.0, *lengths)))
    check_rates(rates, lengths)
    return rates


def check_rates(rates: tuple[float, ...], told: tuple[float, ...]) -> None:
    """Raise an `InputError` that shows `told` unless the rates fall within [0, 1]."""
    if any(later > earlier + 1e-9 for earlier, later in pairwise((1.0, *rates, 0.0))):
        raise InputError(
            "a draft is accepted only after those before it: rates must fall from at most 1 to "
            "at least 0",
            value=list(told),
        )
