"""Speculative decoding as a plan states it, and what it asks of a model."""

from __future__ import annotations

from typing import Any

from pydantic import NonNegativeInt, field_validator, model_validator

from spaces.documents import Document
from spaces.errors import InputError, did_you_mean
from spaces.model import DenseFfn, DraftHead, ModelSpec, MoeFfn
from spaces.model.drafts import check_rates
from spaces.model.groups import AttentionGroup


class Speculation(Document):
    """How many tokens are drafted in a decode step, and how often they are accepted.

    `acceptance` names a draft head of the model, with its table, or gives for each position the
    share of steps in which the draft there is accepted (what vLLM logs as the per-position
    acceptance rate); those are then drafted by the model's first head.
    """

    depth: NonNegativeInt
    acceptance: str | tuple[float, ...] = "mtp"

    @field_validator("acceptance", mode="before")
    @classmethod
    def _name_or_falling_rates(cls, value: Any) -> Any:
        return checked_acceptance(value)

    @model_validator(mode="after")
    def _every_draft_has_a_rate(self) -> Speculation:
        if not isinstance(self.acceptance, str) and len(self.acceptance) < self.depth:
            raise InputError(
                f"{self.depth} drafts need as many acceptance rates",
                key="acceptance",
                value=list(self.acceptance),
                remedy="give one for each position, or lower `depth`",
            )
        return self


def checked_acceptance(value: Any) -> str | tuple[float, ...]:
    """`value` as a name or as rates, or an `InputError`."""
    if isinstance(value, str):
        return value
    told = value if isinstance(value, list | tuple) else ()
    rates = tuple(float(rate) for rate in told if isinstance(rate, int | float))
    if not rates or len(rates) < len(told):
        raise InputError(
            "acceptance is the name of a draft head or a list of rates",
            value=value,
            remedy="for example mtp, or [0.8, 0.5] for two drafts",
        )
    check_rates(rates, rates)
    return rates


def draft_head(model: ModelSpec, speculation: Speculation) -> DraftHead | None:
    """The head of the model that drafts, or None where it has no such head."""
    if isinstance(speculation.acceptance, str):
        return next((head for head in model.drafts if head.name == speculation.acceptance), None)
    return model.drafts[0] if model.drafts else None


def speculation_conflict(model: ModelSpec, speculation: Speculation) -> str:
    """Why the model cannot speculate so, in words; empty where it can."""
    head = draft_head(model, speculation)
    if head is None:
        known = [head.name for head in model.drafts]
        if not known:
            return f"{model.name} has no draft head in the catalogue"
        return f"{model.name} has no draft head {speculation.acceptance!r}; " + did_you_mean(
            str(speculation.acceptance), known
        )
    if isinstance(speculation.acceptance, str) and len(head.acceptance) < speculation.depth:
        reach = f"up to depth {len(head.acceptance)}" if head.acceptance else "at no depth"
        return (
            f"the acceptance of {model.name}'s {head.name} is known {reach}, not at "
            f"{speculation.depth}: state `acceptance` as a list"
        )
    return ""


def acceptance_rates_of(model: ModelSpec, speculation: Speculation) -> tuple[float, ...]:
    """The rate of each of the `depth` draft positions; the model must be able to speculate so."""
    if not isinstance(speculation.acceptance, str):
        return speculation.acceptance[: speculation.depth]
    head = draft_head(model, speculation)
    assert head is not None, "a plan that speculates has a draft head"
    return head.acceptance[: speculation.depth]


def draft_layer(model: ModelSpec, head: DraftHead) -> tuple[AttentionGroup, DenseFfn | MoeFfn]:
    """Attention and feed-forward part of the head's one layer."""
    attention = head.attention or model.attention[head.attention_group]
    ffn = head.ffn or model.ffn[head.ffn_group]
    return attention.model_copy(update={"layers": 1}), ffn.model_copy(update={"layers": 1})


def joining_parameters(model: ModelSpec, head: DraftHead) -> int:
    """Weights that project the joined inputs to one vector, and of a head with its own words."""
    joined = head.joined_inputs * model.hidden_size**2
    return joined + (head.vocab_size or 0) * model.hidden_size


def served_model(model: ModelSpec, speculation: Speculation | None) -> ModelSpec:
    """The model with its draft layer among the others, for what memory and KV it takes.

    The projection of the joined inputs is not part of it (`joining_parameters`).
    """
    head = draft_head(model, speculation) if speculation else None
    if head is None:
        return model
    attention, ffn = draft_layer(model, head)
    return model.model_copy(
        update={"attention": (*model.attention, attention), "ffn": (*model.ffn, ffn)}
    )
