"""The fit: what it finds where the truth is known, and that held-out rows are not seen."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from objectives.calibration.assemble import calibration_of_rows
from objectives.calibration.fit import fitted, pair_weights, remaining
from objectives.calibration.held_out import chosen_strengths, held_out
from objectives.calibration.observations import Observations, observations
from objectives.calibration.pair_offsets import (
    scattered_stacks,
    stack_offsets,
    stacks,
    without_own_configuration,
)
from objectives.calibration.parameters import CONSTANTS
from objectives.calibration.residuals import residuals, weighted_quantiles
from spaces.calibration import Calibration, Stack
from tests.objectives.calibration.problems import CHIPS, MODELS, everywhere, problem

SLOW = {(MODELS[0], chip): 0.2 for chip in CHIPS}


def all_rows(told: Observations) -> np.ndarray:
    return np.ones(len(told.log_ratio), dtype=np.bool_)


def family_offset(told: Observations, solved: np.ndarray, family: str) -> float:
    return float(solved[told.names.index(("family", family))])


def test_a_family_that_is_slow_everywhere_gets_an_offset_and_others_none() -> None:
    told = problem(everywhere() | SLOW)
    solved = fitted(told, all_rows(told), {"family": 0.5})
    assert family_offset(told, solved, MODELS[0]) == pytest.approx(0.2, rel=0.05)
    assert family_offset(told, solved, MODELS[1]) == pytest.approx(0, abs=1e-9)


def test_narrow_priors_shrink_and_absent_ones_leave_the_model_as_it_is() -> None:
    told = problem(everywhere() | SLOW)
    offsets = [
        family_offset(told, fitted(told, all_rows(told), {"family": sd}), MODELS[0])
        for sd in (0.01, 0.05, 0.5)
    ]
    assert 0 < offsets[0] < offsets[1] < offsets[2] < 0.21
    assert not fitted(told, all_rows(told), {}).any()


def test_one_broken_point_moves_a_fit_less_than_its_share() -> None:
    told = problem(everywhere())
    broken = replace(told, log_ratio=np.where(told.point == 0, np.log(30.0), told.log_ratio))
    share = 1 / 24  # of the family's points
    moved = family_offset(told, fitted(broken, all_rows(told), {"family": 5.0}), MODELS[0])
    assert 0 < moved < share * np.log(30.0) / 2


def test_points_that_are_not_fitted_tell_the_intervals_what_remains() -> None:
    told = problem(everywhere() | SLOW, points=20, noise=0.05)
    slow = np.array([told.points[p].plan.model == MODELS[0] for p in told.point.tolist()])
    aside = observations(
        told.points,
        {c.path: told.points for c in CONSTANTS if not c.in_ttft},
        [p.plan.model != MODELS[0] for p in told.points],
    )
    assert not fitted(aside, slow, {"family": 0.5}).any()
    assert chosen_strengths(aside, all_rows(told)) == chosen_strengths(aside, ~slow)
    assert fitted(aside, all_rows(told), {"family": 0.5}) == pytest.approx(
        fitted(aside, ~slow, {"family": 0.5})
    )
    with_them, without = (
        next(
            r for r in residuals(aside, rows, {}) if (r.quantity, r.knowledge) == ("tpot", "none")
        )
        for rows in (all_rows(told), ~slow)
    )
    assert with_them.high > without.high + 0.1  # they are a fifth slower than predicted
    assert calibration_of_rows(aside, slow, pair_offsets=True) == Calibration()


def test_a_pair_of_many_points_weighs_less_than_they_are() -> None:
    told = problem(everywhere(), points=2)
    more = problem(everywhere(), points=20)
    few_w, many_w = pair_weights(told, all_rows(told)), pair_weights(more, all_rows(more))
    assert many_w.sum() / few_w.sum() == pytest.approx(10**0.35)


def test_rows_that_are_held_out_are_not_seen() -> None:
    told = problem(everywhere() | SLOW, noise=0.05)
    own = np.array([pair == (MODELS[0], CHIPS[0]) for pair in told.pairs()])
    shifted = replace(told, log_ratio=told.log_ratio + np.where(own, 1.0, 0.0))
    before, after = (
        held_out(one, all_rows(one), {"family": 0.1}, one.pairs()) for one in (told, shifted)
    )
    assert after[own] - before[own] == pytest.approx(1.0)


def test_priors_are_chosen_by_what_they_do_for_pairs_not_seen() -> None:
    assert chosen_strengths(*_with_all(problem(everywhere(0.0), noise=0.02))) == {}
    wide = chosen_strengths(*_with_all(problem(everywhere() | SLOW, noise=0.02)))
    assert wide["family"] >= 0.06


def test_a_generation_of_an_engine_that_is_slow_on_every_pair_is_chosen_and_named() -> None:
    told = problem(everywhere(), noise=0.02, older=0.25)
    strengths = chosen_strengths(told, all_rows(told))
    assert "generation" in strengths
    solved = fitted(told, all_rows(told), strengths)
    values = {
        value: float(x)
        for (lvl, value), x in zip(told.names, solved, strict=True)
        if lvl == "generation"
    }
    assert values["vllm 0.10-0.14"] - values["vllm 0.15-0.19"] > 0.15
    found = calibration_of_rows(told, all_rows(told), pair_offsets=False)
    older = [one for one in found.offsets if one.generation == "0.10-0.14"]
    assert [one.engine for one in older] == ["vllm"]
    stack = Stack(MODELS[0], CHIPS[0], "NVIDIA", "vllm", "bf16", generation="0.10-0.14")
    newer = replace(stack, generation="0.15-0.19")
    assert found.step_factor(stack) > 1.1 * found.step_factor(newer)


def _with_all(told: Observations) -> tuple[Observations, np.ndarray]:
    return told, all_rows(told)


def test_a_stack_of_few_points_is_believed_less_than_one_of_many() -> None:
    found = {}
    for points in (1, 30):
        told = problem({(MODELS[0], CHIPS[0]): 0.3}, points=points)
        ((offset, count),) = stack_offsets(told, all_rows(told), told.log_ratio).values()
        assert count == points
        found[points] = offset
    assert found[1] == pytest.approx(0.1)
    assert 0.27 < found[30] < 0.3


def test_points_that_scatter_beyond_one_factor_give_a_stack_no_offset() -> None:
    offsets = {(MODELS[0], CHIPS[0]): 1.2, (MODELS[1], CHIPS[0]): 1.2}
    told = problem(offsets, points=20)
    left = told.log_ratio.copy()
    wide = np.array([stack[0] == MODELS[0] for stack in stacks(told)])
    left[wide] *= np.linspace(0.0, 2.0, int(wide.sum()))
    (kept,) = stack_offsets(told, all_rows(told), left)
    (dropped,) = scattered_stacks(told, all_rows(told), left).items()
    assert kept[0] == MODELS[1]
    assert dropped == ((MODELS[0], *kept[1:]), 20)


def test_other_configurations_of_a_stack_take_its_offset_away() -> None:
    told = problem({(MODELS[0], CHIPS[0]): 0.3, (MODELS[1], CHIPS[0]): 0.0}, points=20)
    left = without_own_configuration(told, all_rows(told), {})
    tpot = np.array([quantity == "tpot" for quantity in told.quantity])
    assert np.abs(left[tpot]).max() < 0.05
    assert np.abs(remaining(told, np.zeros(len(told.names)))[tpot]).max() == pytest.approx(0.3)


def test_intervals_hold_four_fifths_of_new_points() -> None:
    told = problem(everywhere(), points=60, noise=0.1)
    rows = [r for r in residuals(told, all_rows(told), {}) if r.quantity == "tpot"]
    assert {row.knowledge for row in rows} == {"pair", "chip", "vendor", "none"}
    new = np.exp(0.1 * np.random.default_rng(9).standard_normal(4000))
    for row in rows:
        assert np.mean((row.low <= new) & (new <= row.high)) == pytest.approx(0.8, abs=0.04)


def test_quantiles_follow_the_weights() -> None:
    values, weights = np.array([3.0, 1.0, 2.0]), np.array([1.0, 1e6, 1.0])
    assert weighted_quantiles(values, weights, [0.5])[0] == pytest.approx(1.0, abs=1e-3)
    assert weighted_quantiles(values, np.ones(3), [0.0, 1.0]).tolist() == [1.0, 3.0]
