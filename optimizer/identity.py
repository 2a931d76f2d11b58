"""Which job a study belongs to: it continues under the same job only.

A study made of two jobs would hold values that cannot be compared. Only the budget, the time limit
and what is replicated after the search may change, for they say how long to search, not what for.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

import optuna

from objectives.provenance import Provenance, provenance
from optimizer.grounds import GROUNDS, grounds_of
from optimizer.job import Job
from optimizer.problem import Problem
from optimizer.proposing.draws import Parameters
from spaces.errors import InputError

PROVENANCE = "provenance"
_FREE = {
    f"search.{key}" for key in ("trials", "timeout_s", "patience", "replications", "confidence")
}
_ABSENT = "nothing"


@dataclass(frozen=True, slots=True)
class Identity:
    """What a study was made for; `job` is the resolved job, `facts` digests of what it names,
    `grounds` those of what its evaluations rest on, `provenance` that in words.
    """

    job: Mapping[str, Any]
    facts: Mapping[str, str]
    grounds: Mapping[str, str]
    notes: tuple[str, ...]
    provenance: Provenance

    @classmethod
    def of(cls, job: Job, problem: Problem) -> Identity:
        """The identity of a study for `job`."""
        facts = {"version of servefront": version("servefront"), **problem.facts_digest}
        told = provenance(problem.site)
        return cls(job.resolved(), facts, grounds_of(problem), problem.notes, told)

    def without_budget(self) -> dict[str, Any]:
        """The job's keys, dotted, without those that may change."""
        return {key: value for key, value in _flat(self.job).items() if key not in _FREE}


def claim(
    study: optuna.Study, identity: Identity, where: str, seeds: list[Parameters] | None = None
) -> None:
    """Make the study this job's, or check that it is.

    Raises `InputError` with every changed key, its old and its new value. `seeds` are stored with
    a new study.
    """
    stored = study.user_attrs
    if "job" not in stored:
        if study.get_trials(deepcopy=False):
            raise InputError(
                "the study in the storage is none of servefront's",
                where=where,
                remedy="choose another directory with --out, or another storage",
            )
        study.set_user_attr("seeds", seeds or [])
        study.set_user_attr("facts", dict(identity.facts))
        study.set_user_attr(GROUNDS, dict(identity.grounds))
        study.set_user_attr("job", dict(identity.job))
    elif changes := list(_changes(stored, identity)):
        raise InputError(
            f"the job of this study has changed: {'; '.join(changes)}",
            where=where,
            remedy="restore the old values, or start a study with the new ones: --fork NEWDIR",
        )
    study.set_user_attr("job", dict(identity.job))
    study.set_user_attr("notes", list(identity.notes))
    study.set_user_attr(PROVENANCE, identity.provenance.model_dump(mode="json"))


def _changes(stored: Mapping[str, Any], identity: Identity) -> Iterator[str]:
    old = _flat(stored["job"])
    new = _flat(identity.job)
    moved = {key for key in new if key.endswith(".trace") and _same_content(key, stored, identity)}
    free = _FREE | moved
    for key in sorted((old.keys() | new.keys()) - free):
        if old.get(key) != new.get(key):
            yield f"{key}: {old.get(key, _ABSENT)} -> {new.get(key, _ABSENT)}"
    for name in sorted(stored["facts"].keys() | identity.facts.keys()):
        before, now = stored["facts"].get(name), identity.facts.get(name)
        if before != now:
            yield f"{name}: {_short(before)} -> {_short(now)}"


def _same_content(key: str, stored: Mapping[str, Any], identity: Identity) -> bool:
    fact = f"content of {key}"
    before: Mapping[str, str] = stored["facts"]
    return before.get(fact) == identity.facts.get(fact)


def _flat(data: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested mappings, and lists of them, as one; keys and places are joined by dots."""
    flat: dict[str, Any] = {}
    for key, value in data.items():
        if isinstance(value, Mapping):
            flat |= _flat(value, f"{prefix}{key}.")
        elif isinstance(value, list) and value and all(isinstance(v, Mapping) for v in value):
            places = {str(place): one for place, one in enumerate(value)}
            flat |= _flat(places, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def _short(digest: str | None) -> str:
    return _ABSENT if digest is None else digest[:12]
