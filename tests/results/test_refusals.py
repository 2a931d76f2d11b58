"""Each refused, missed or failed trial is counted under its rule."""

from __future__ import annotations

import math

from results.refusals import count_refusals, refusals_in_words
from results.trials import TrialRecord
from spaces.plan import DeploymentPlan, Pool

PLAN = DeploymentPlan(
    model="m", topology="aggregated", pools=(Pool(role="aggregated", chip="h200"),)
)
TRIALS = [
    TrialRecord(0, PLAN, "complete", violations={"power_kw <= 5": -0.1}),
    TrialRecord(1, PLAN, "infeasible", violations={"memory": 0.5, "chips": -1.0}, reason="A"),
    TrialRecord(2, PLAN, "infeasible", violations={"memory": 0.2, "chips": 1.0}, reason="B"),
    TrialRecord(3, PLAN, "complete", violations={"power_kw <= 5": 0.25}),
    TrialRecord(4, PLAN, "failed", reason="the trace ended"),
    TrialRecord(5, PLAN, "infeasible"),
    TrialRecord(6, PLAN, "complete", violations={"power_kw <= 5": math.nan}),
]


def test_each_rule_has_its_count_and_its_nearest_miss() -> None:
    found = {r.rule: (r.stage, r.trials, r.nearest.trial) for r in count_refusals(TRIALS)}
    assert found == {
        "memory": ("refused", 2, 2),
        "chips": ("refused", 1, 2),
        "power_kw <= 5": ("missed", 2, 3),
        "the trace ended": ("failed", 1, 4),
        "no reason recorded": ("refused", 1, 5),
    }


def test_every_trial_that_is_not_feasible_is_counted() -> None:
    for trial in TRIALS:
        assert bool(count_refusals([trial])) is not trial.feasible


def test_the_most_frequent_rule_comes_first_and_order_of_trials_does_not_matter() -> None:
    rules = [refusal.rule for refusal in count_refusals(TRIALS)]
    assert rules[:2] == ["power_kw <= 5", "memory"]
    assert [refusal.rule for refusal in count_refusals(TRIALS[::-1])] == rules


def test_words_say_how_far_and_why() -> None:
    lines = refusals_in_words(TRIALS).splitlines()
    assert "memory: refused 2 trials; nearest miss: trial 2, 20.0% beyond (B)" in lines
    assert "power_kw <= 5: missed 2 trials; nearest miss: trial 3, 25.0% beyond" in lines
    assert "the trace ended: failed 1 trial; nearest miss: trial 4" in lines
