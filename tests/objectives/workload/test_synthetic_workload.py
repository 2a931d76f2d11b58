"""Workloads from distributions: moments, bounds, independent streams, clear refusals."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from objectives.workload import SyntheticSpec, Workload, describe, generate, prefix_hit_tokens
from spaces.documents import dump_yaml, parse_yaml, validated
from spaces.errors import InputError

BASE: dict[str, Any] = {"requests": 20_000, "input_tokens": 1000, "output_tokens": 100}


def spec(**changes: Any) -> SyntheticSpec:
    return validated(SyntheticSpec, BASE | changes, "job.yaml")


def made(seed: int = 1, **changes: Any) -> Workload:
    return generate(spec(**changes), seed)


def test_constant_lengths() -> None:
    workload = made(input_tokens=1000.0)
    assert (workload.input_tokens == 1000).all()
    assert (workload.output_tokens == 100).all()
    assert workload.input_tokens.dtype == workload.output_tokens.dtype == np.int64


def test_uniform_draws_both_ends_and_all_between_equally() -> None:
    counts = np.bincount(made(input_tokens={"uniform": [3, 6]}).input_tokens)
    assert counts[:3].tolist() == [0, 0, 0]
    assert len(counts) == 7
    assert np.allclose(counts[3:] / 20_000, 0.25, atol=0.015)


@pytest.mark.parametrize(("mean", "cv"), [(8000, 0.7), (500, 1.5), (1000, 0)])
def test_lognormal_has_the_mean_and_cv_asked_for(mean: float, cv: float) -> None:
    tokens = made(input_tokens={"lognormal": {"mean": mean, "cv": cv}}).input_tokens
    assert tokens.mean() == pytest.approx(mean, rel=0.04)
    assert tokens.std() / tokens.mean() == pytest.approx(cv, rel=0.1, abs=1e-9)


def test_lognormal_has_the_median_and_sigma_asked_for() -> None:
    tokens = made(input_tokens={"lognormal": {"median": 8000, "sigma": 0.5}}).input_tokens
    assert np.median(tokens) == pytest.approx(8000, rel=0.03)
    assert np.log(tokens).std() == pytest.approx(0.5, rel=0.03)


def test_both_ways_to_state_a_lognormal_agree() -> None:
    cv, median = 0.8, 2000.0
    sigma = float(np.sqrt(np.log(1 + cv**2)))
    mean = median * float(np.exp(sigma**2 / 2))
    one = made(input_tokens={"lognormal": {"mean": mean, "cv": cv}}).input_tokens
    other = made(input_tokens={"lognormal": {"median": median, "sigma": sigma}}).input_tokens
    assert np.abs(one - other).max() <= 1


def test_empirical_values_come_by_their_weights() -> None:
    values = {"values": [10, 20, 30], "weights": [1, 0, 3]}
    tokens = made(input_tokens={"empirical": values}).input_tokens
    assert set(tokens.tolist()) == {10, 30}
    assert (tokens == 30).mean() == pytest.approx(0.75, abs=0.015)


def test_empirical_without_weights_is_even() -> None:
    tokens = made(input_tokens={"empirical": {"values": [10, 20]}}).input_tokens
    assert (tokens == 10).mean() == pytest.approx(0.5, abs=0.015)


def test_values_beyond_a_bound_become_the_bound_and_no_other_changes() -> None:
    shape = {"lognormal": {"mean": 1000, "cv": 1}}
    free = made(input_tokens=shape).input_tokens
    bound = made(input_tokens=shape | {"min": 300, "max": 2000}).input_tokens
    assert np.array_equal(bound, np.clip(free, 300, 2000))
    assert 300 in bound and 2000 in bound


def test_lengths_are_at_least_one_token() -> None:
    tokens = made(input_tokens={"lognormal": {"median": 1, "sigma": 2}}).input_tokens
    assert tokens.min() == 1


@pytest.mark.parametrize(
    ("arrivals", "cv"), [("poisson", 1.0), ("constant", 0.0), ({"gamma": {"cv": 3}}, 3.0)]
)
def test_gaps_have_mean_one_and_the_shape_asked_for(arrivals: Any, cv: float) -> None:
    workload = made(arrivals=arrivals)
    gaps = np.diff(workload.arrival_s)
    assert workload.arrival_s[0] == 0
    assert (gaps >= 0).all()
    assert gaps.mean() == pytest.approx(1, abs=4 * cv / np.sqrt(20_000) + 1e-9)
    assert gaps.std() / gaps.mean() == pytest.approx(cv, rel=0.07, abs=1e-9)


def test_poisson_counts_are_not_dispersed() -> None:
    statistics = describe(made())
    assert statistics["dispersion_by_bin_s"]["1"] == pytest.approx(1, abs=0.06)
    assert statistics["dispersion_by_bin_s"]["60"] == pytest.approx(1, abs=0.35)


def test_same_seed_same_workload_and_another_seed_another() -> None:
    shape = {"lognormal": {"mean": 1000, "cv": 1}}
    one, again, other = (made(seed, input_tokens=shape) for seed in (7, 7, 8))
    assert np.array_equal(one.arrival_s, again.arrival_s)
    assert np.array_equal(one.input_tokens, again.input_tokens)
    assert not np.array_equal(one.arrival_s, other.arrival_s)
    assert not np.array_equal(one.input_tokens, other.input_tokens)


def test_each_quantity_has_a_stream_of_its_own() -> None:
    shape = {"lognormal": {"mean": 1000, "cv": 1}}
    both = made(input_tokens=shape, output_tokens=shape)
    assert not np.array_equal(both.input_tokens, both.output_tokens)
    changed = made(input_tokens=5, output_tokens=shape, arrivals="constant")
    assert np.array_equal(both.output_tokens, changed.output_tokens)
    changed = made(input_tokens={"uniform": [1, 9]}, output_tokens=7)
    assert np.array_equal(both.arrival_s, changed.arrival_s)


def test_more_requests_begin_with_the_same_ones() -> None:
    shape = {"lognormal": {"mean": 1000, "cv": 1}}
    few, many = (made(input_tokens=shape, requests=n) for n in (100, 300))
    assert np.array_equal(few.input_tokens, many.input_tokens[:100])
    assert np.array_equal(few.arrival_s, many.arrival_s[:100])


def test_shared_prefix_is_hit_by_all_but_the_first_request() -> None:
    workload = made(requests=50, input_tokens={"uniform": [700, 900]}, shared_prefix_tokens=650)
    assert workload.block_tokens == 64
    assert prefix_hit_tokens(workload) == 49 * 640


def test_inputs_shorter_than_the_prefix_share_their_whole_blocks() -> None:
    values = {"empirical": {"values": [40, 100, 128, 300]}}
    workload = made(requests=400, input_tokens=values, shared_prefix_tokens=128)
    shared = {40: 0, 100: 64, 128: 128, 300: 128}
    most = sum(shared[tokens] for tokens in workload.input_tokens.tolist())
    assert most - 128 <= prefix_hit_tokens(workload) <= most


def test_blocks_cover_the_inputs_and_are_numbered_densely() -> None:
    workload = made(requests=300, input_tokens={"uniform": [1, 999]}, shared_prefix_tokens=200)
    counts = np.diff(workload.block_offsets)
    assert np.array_equal(counts, np.ceil(workload.input_tokens / 64))
    assert workload.block_offsets[-1] == len(workload.block_ids)
    assert np.array_equal(np.unique(workload.block_ids), np.arange(workload.block_ids.max() + 1))
    assert workload.block_ids.dtype == np.int32


def test_without_a_shared_prefix_there_is_no_prefix_information() -> None:
    workload = made(requests=10)
    assert workload.block_tokens == 0
    assert len(workload.block_ids) == 0
    assert len(workload.block_offsets) == 11


def test_one_request_is_a_workload() -> None:
    assert made(requests=1).arrival_s.tolist() == [0]


def test_spec_written_and_read_again_is_the_same() -> None:
    one = spec(
        input_tokens={"lognormal": {"mean": 8000, "cv": 0.7}, "max": 60_000},
        output_tokens={"empirical": {"values": [1, 2], "weights": [0.5, 1]}},
        shared_prefix_tokens=1000,
        arrivals={"gamma": {"cv": 2}},
    )
    for each in (one, spec(input_tokens={"uniform": [1, 5]})):
        text = dump_yaml(each.model_dump(mode="json", exclude_none=True))
        assert validated(SyntheticSpec, parse_yaml(text, "again"), "again") == each


@pytest.mark.parametrize(
    ("changes", "key", "words"),
    [
        ({"input_tokens": "8k"}, "input_tokens", "number of tokens"),
        ({"input_tokens": [1, 2]}, "input_tokens", "number of tokens"),
        ({"input_tokens": True}, "input_tokens", "number of tokens"),
        ({"input_tokens": 0}, "input_tokens.constant", "greater than or equal to 1"),
        ({"input_tokens": float("nan")}, "input_tokens.constant", ""),
        ({"input_tokens": {}}, "input_tokens", "exactly one of"),
        ({"input_tokens": {"max": 5}}, "input_tokens", "exactly one of"),
        ({"input_tokens": {"constant": 5, "uniform": [1, 2]}}, "input_tokens", "exactly one of"),
        ({"input_tokens": {"lognorma": {"mean": 5, "cv": 1}}}, "input_tokens.lognorma", "unknown"),
        ({"input_tokens": {"uniform": [9, 2]}}, "input_tokens.uniform", "must not exceed"),
        ({"input_tokens": {"uniform": [0, 2]}}, "input_tokens.uniform.0", "greater than"),
        ({"input_tokens": {"uniform": [3]}}, "input_tokens.uniform.1", "required"),
        ({"input_tokens": {"constant": 5, "min": 9, "max": 3}}, "input_tokens.min", "max"),
        ({"input_tokens": {"lognormal": {"mean": 5}}}, "input_tokens.lognormal", "mean and cv"),
        (
            {"input_tokens": {"lognormal": {"mean": 5, "sigma": 1}}},
            "input_tokens.lognormal",
            "median and sigma",
        ),
        (
            {"input_tokens": {"lognormal": {"mean": 5, "cv": -1}}},
            "input_tokens.lognormal.cv",
            "greater than or equal to 0",
        ),
        (
            {"input_tokens": {"empirical": {"values": [1, 2], "weights": [1]}}},
            "input_tokens.empirical.weights",
            "one weight",
        ),
        (
            {"input_tokens": {"empirical": {"values": [1, 2], "weights": [0, 0]}}},
            "input_tokens.empirical.weights",
            "positive",
        ),
        ({"input_tokens": {"empirical": {"values": []}}}, "input_tokens.empirical.values", ""),
        ({"arrivals": "poison"}, "arrivals.poison", "did you mean poisson"),
        ({"arrivals": "gamma"}, "arrivals.gamma.cv", "required"),
        ({"arrivals": {"gamma": {"cv": 0}}}, "arrivals.gamma.cv", "greater than 0"),
        ({"arrivals": {}}, "arrivals", "exactly one of"),
        ({"shared_prefix_tokens": 20}, "shared_prefix_tokens", "64"),
        ({"shared_prefix_tokens": -64}, "shared_prefix_tokens", "greater than or equal to 0"),
        ({"requests": 0}, "requests", "greater than 0"),
        ({"output": 3}, "output", "did you mean output_tokens"),
    ],
)
def test_wrong_spec_is_refused_with_its_key(changes: dict[str, Any], key: str, words: str) -> None:
    with pytest.raises(InputError) as caught:
        spec(**changes)
    assert caught.value.where == "job.yaml"
    assert caught.value.key == key
    assert words in str(caught.value)
