"""Workloads by name."""

from __future__ import annotations

import pytest

from objectives.workload import generate
from objectives.workload.presets import preset, preset_names
from spaces.errors import InputError


@pytest.mark.parametrize("name", preset_names())
def test_each_preset_has_a_source_and_can_be_drawn(name: str) -> None:
    found = preset(name)
    assert found.name == name and found.source and found.title
    assert len(generate(found.synthetic, seed=1)) == found.synthetic.requests


@pytest.mark.parametrize(
    ("name", "inputs", "outputs"),
    [
        ("fixed-1k1k", 1024, 1024),
        ("fixed-8k1k", 8192, 1024),
        ("fixed-1k8k", 1024, 8192),
    ],
)
def test_fixed_lengths_lie_between_four_fifths_of_the_nominal_and_it(
    name: str, inputs: int, outputs: int
) -> None:
    workload = generate(preset(name).synthetic, seed=3)
    for tokens, nominal in ((workload.input_tokens, inputs), (workload.output_tokens, outputs)):
        assert int(0.8 * nominal) <= tokens.min() < 0.81 * nominal
        assert 0.99 * nominal < tokens.max() <= nominal
        assert tokens.mean() == pytest.approx(0.9 * nominal, rel=0.01)


def test_long_contexts_are_long_bounded_and_marked_as_an_assumption() -> None:
    found = preset("long-context")
    workload = generate(found.synthetic, seed=3)
    assert found.status == "estimate"
    assert workload.input_tokens.min() >= 20_000 and workload.input_tokens.max() <= 400_000
    assert workload.input_tokens.mean() == pytest.approx(100_000, rel=0.15)
    assert workload.output_tokens.mean() == pytest.approx(500, rel=0.15)


def test_an_unknown_preset_is_told_with_the_nearest() -> None:
    with pytest.raises(InputError, match="did you mean fixed-1k"):
        preset("fixed-1k2k")
