"""What can go wrong, as one tree.

    ServefrontError
    ├── InputError            the user's input is wrong (exit code 2)
    ├── NothingFeasible       the input is right, but no plan meets it (exit code 3)
    └── StorageUnavailable    the database of the study does not answer (exit code 1)

A plan that breaks a rule is not an error: it is an `Infeasible` value (see `spaces.feasibility`).
A broken law of the code itself is an `AssertionError`.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class ServefrontError(Exception):
    """Anything the command line reports as one message, without a traceback."""


class InputError(ServefrontError, ValueError):
    """The user's input is wrong: says where, what was read, which rule it breaks and the remedy.

    A `ValueError` too, so that a validator may raise it and the document reader adds the place.
    """

    def __init__(
        self,
        rule: str,
        *,
        where: str = "",
        key: str = "",
        value: object = None,
        remedy: str = "",
    ) -> None:
        self.rule, self.where, self.key, self.value, self.remedy = rule, where, key, value, remedy
        super().__init__(self._sentence())

    def _sentence(self) -> str:
        place = ": ".join(part for part in (self.where, self.key) if part)
        got = "" if self.value is None else f", but got {self.value!r}"
        remedy = f"; {self.remedy}" if self.remedy else ""
        return f"{place + ': ' if place else ''}{self.rule}{got}{remedy}"

    def located(self, where: str, key: str = "") -> InputError:
        """The same error with the file (and the key's parent) it was found in filled in."""
        full_key = ".".join(part for part in (key, self.key) if part)
        return InputError(
            self.rule,
            where=self.where or where,
            key=full_key,
            value=self.value,
            remedy=self.remedy,
        )


class NothingFeasible(ServefrontError):
    """No plan is feasible, or none meets the constraints; the message holds counts by rule."""


class StorageUnavailable(ServefrontError):
    """The database that keeps a study does not answer; trying again later may help."""

    def __init__(self, reason: str, url: str) -> None:
        self.reason, self.url = reason, url
        super().__init__(
            f"the storage {url} does not answer ({reason}); "
            "what it holds is safe, the same command goes on from there"
        )


def did_you_mean(word: str, known: Iterable[str], aliases: Iterable[str] = ()) -> str:
    """A remedy that names the nearest known words or aliases, or lists the known words.

    >>> did_you_mean("h20", ["h100", "h200", "mi355x"])
    'did you mean h200?'
    >>> did_you_mean("zzz", ["a", "b"])
    'known are a, b'
    """
    names = sorted(set(known))
    near = difflib.get_close_matches(word.lower(), sorted({*names, *aliases}), n=2, cutoff=0.6)
    if near:
        return f"did you mean {' or '.join(near)}?"
    return f"known are {', '.join(names)}"
