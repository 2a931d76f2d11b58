"""The first half of a batch where plans are screened: short simulations, and what follows.

Verdicts are stored before any trial of the batch is told. So a batch that was broken off has
either all of them, or none of its trials is told and they are found anew from the same trials as
before.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field

from optimizer.evaluate import Evaluation
from optimizer.execution.executor import Executor
from optimizer.fidelity.screening import Screening, Verdict
from optimizer.storing.records import SHORT, VERDICT, AskedTrial, sample_data


@dataclass(frozen=True, slots=True)
class Settled:
    """What short simulations settle, by `point_id`: the outcome of plans that need no whole one,
    and the short simulations themselves.
    """

    outcomes: dict[str, Evaluation] = field(default_factory=dict)
    shorts: dict[str, Evaluation] = field(default_factory=dict)


def settled(
    screening: Screening,
    trials: Sequence[AskedTrial],
    executor: Executor,
    cancelled: Callable[[], bool],
) -> Settled | None:
    """Screen the plans of some trials, each another point; None when the search is cut short."""
    shorts = _short_simulations(screening, trials, executor, cancelled)
    if shorts is None:
        return None
    there = [shorts.get(trial.plan.point_id) for trial in trials]
    found = Settled()
    for trial, short, verdict in zip(
        trials, there, _verdicts(screening, trials, there), strict=True
    ):
        name = trial.plan.point_id
        if short is not None and short.state == "infeasible":
            found.outcomes[name] = short
            continue
        if short is not None:
            found.shorts[name] = short
        if not verdict.promoted:
            found.outcomes[name] = Evaluation("pruned", reason=verdict.reason)
    return found


def _short_simulations(
    screening: Screening,
    trials: Sequence[AskedTrial],
    executor: Executor,
    cancelled: Callable[[], bool],
) -> dict[str, Evaluation] | None:
    """Those that an earlier run left, and the others made now and stored."""
    found = {t.plan.point_id: t.short for t in trials if t.short is not None}
    wanted = [
        (trial, sample)
        for trial in trials
        if trial.plan.point_id not in found
        and (sample := screening.sample_of(trial.plan)) is not None
    ]
    with closing(executor.evaluate([sample for _, sample in wanted], cancelled)) as results:
        for trial, _ in wanted:
            short = next(results, None)
            if short is None:
                return None
            trial.trial.set_user_attr(SHORT, sample_data(short))
            found[trial.plan.point_id] = short
    return found


def _verdicts(
    screening: Screening, trials: Sequence[AskedTrial], shorts: Sequence[Evaluation | None]
) -> list[Verdict]:
    stored = [Verdict(**v) for t in trials if (v := t.trial.user_attrs.get(VERDICT))]
    if len(stored) == len(trials):
        return stored
    plans = [trial.plan for trial in trials]
    found = screening.verdicts(list(zip(plans, shorts, strict=True)))
    for trial, verdict in zip(trials, found, strict=True):
        trial.trial.set_user_attr(VERDICT, asdict(verdict))
    return found
