"""What a calibration says of single operators and of single chips, beside general constants.

`Changes` name figures by their path. Beside those of `overheads.yaml` there are

    chips.CHIP.PATH                              such a figure on one chip
    operators.CHIP.OPERATOR.FORMAT.ENGINE.TERM   a factor on a part of an operator's seconds

with `ENGINE` `any` where the cost model tells no engines apart, and `TERM` one of `multiply` (what
multiplication bounds), `move` (what bandwidth bounds) and `fixed` (what every call takes).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, get_args

from spaces.calibration import Changes
from spaces.errors import InputError

Operator = Literal[
    "product",
    "experts",
    "decode_attention",
    "prefill_attention",
    "latent_decode",
    "latent_prefill",
    "all_reduce",
    "all_gather",
    "reduce_scatter",
]
ANY_ENGINE = "any"
_CHIPS, _OPERATORS = "chips", "operators"


@dataclass(frozen=True, slots=True)
class Factors:
    """Factors on the seconds of an operator's parts."""

    multiply: float = 1.0
    move: float = 1.0
    fixed: float = 1.0


UNTUNED = Factors()
TERMS = ("multiply", "move", "fixed")
# Factors by operator, format and engine.
Tuning = tuple[tuple[tuple[str, str, str], Factors], ...]


def operator_path(chip: str, operator: Operator, form: str, engine: str, term: str) -> str:
    """The name of a factor among `Changes`."""
    return ".".join((_OPERATORS, chip, operator, form, engine, term))


def chip_path(chip: str, path: str) -> str:
    """The name of a figure of `overheads.yaml` on one chip."""
    return ".".join((_CHIPS, chip, path))


def overhead_changes(changes: Changes, chip: str = "") -> Changes:
    """The changes of `overheads.yaml` that count on a chip; its own come last and prevail."""
    general = [(path, v) for path, v in changes if path.split(".")[0] not in (_CHIPS, _OPERATORS)]
    prefix = f"{_CHIPS}.{chip}."
    own = [(path[len(prefix) :], v) for path, v in changes if chip and path.startswith(prefix)]
    return tuple(general + own)


@lru_cache(maxsize=256)
def tuning_of(changes: Changes, chip: str) -> Tuning:
    """The factors of a chip's operators; `InputError` where a path names none."""
    found: dict[tuple[str, str, str], dict[str, float]] = {}
    for path, value in changes:
        head, *rest = path.split(".")
        if head != _OPERATORS:
            continue
        if len(rest) != 5 or rest[1] not in get_args(Operator) or rest[4] not in TERMS:
            raise InputError(
                "a factor must be named operators.CHIP.OPERATOR.FORMAT.ENGINE.TERM",
                key=f"constants.{path}",
                remedy="fit it anew with this version: servefront calibrate",
            )
        if rest[0] == chip:
            found.setdefault((rest[1], rest[2], rest[3]), {})[rest[4]] = value
    return tuple((key, Factors(**terms)) for key, terms in sorted(found.items()))
