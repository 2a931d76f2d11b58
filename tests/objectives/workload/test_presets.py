"""Presets: each with its sources, drawn the same again, and open to changes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from objectives.preset_names import preset_names
from objectives.workload import Workload, describe
from objectives.workload.presets import check_parameters, preset, workload_of
from objectives.workload.turns import hit_tokens
from objectives.workload.workload import APPEND, broken_law
from spaces.errors import InputError
from tests.objectives.workload.test_sessions import same

WANTED = {
    "agentic-coding",
    "agentic-coding-1m",
    "agentic-coding-256k",
    "chat",
    "code-completion",
    "deep-research",
    "fixed-1k1k",
    "fixed-1k8k",
    "fixed-8k1k",
    "long-doc",
    "midfill-fast",
    "mix",
    "rag",
    "reasoning",
}
OF_SESSIONS = sorted(name for name in preset_names() if preset(name).sessions is not None)


def median(workload: Workload, field: str) -> float:
    return float(np.median(getattr(workload, field)))


def test_all_presets_are_there() -> None:
    assert set(preset_names()) >= WANTED


@pytest.mark.parametrize("name", preset_names())
def test_preset_gives_a_lawful_workload_of_the_size_asked_for(name: str) -> None:
    workload = workload_of(name, 400, seed=3)
    assert broken_law(workload) is None
    assert len(workload) == pytest.approx(400, abs=2)
    assert describe(workload)["requests"] == len(workload)


@pytest.mark.parametrize("name", ["agentic-coding", "chat", "mix", "rag"])
def test_the_same_seed_gives_the_same_workload_and_another_one_another(name: str) -> None:
    same(workload_of(name, 300, seed=3), workload_of(name, 300, seed=3))
    assert not np.array_equal(
        workload_of(name, 300, seed=3).input_tokens, workload_of(name, 300, seed=4).input_tokens
    )


@pytest.mark.parametrize("name", OF_SESSIONS)
def test_every_figure_of_a_preset_of_sessions_has_a_source(name: str) -> None:
    found = preset(name)
    assert found.sessions is not None
    named = {key.split(".")[0] for key in found.sources}
    figures = found.sessions.model_dump(exclude_unset=True, exclude_none=True).keys()
    assert figures - {"requests"} <= named


@pytest.mark.parametrize(
    ("name", "inputs", "outputs"),
    [
        ("chat", (1020, 2735), (129, 424)),
        ("code-completion", (1469, 5188), (13, 55)),
        ("rag", (3140, 3959), (234, 563)),
        ("reasoning", (208, 2092), (792, 3432)),
    ],
)
def test_first_inputs_and_outputs_have_the_published_quantiles(
    name: str, inputs: tuple[int, int], outputs: tuple[int, int]
) -> None:
    workload = workload_of(name, 3000, seed=1)
    firsts = workload.input_tokens[workload.parent < 0]
    assert np.percentile(firsts, (50, 90)) == pytest.approx(inputs, rel=0.1)
    assert np.percentile(workload.output_tokens, (50, 90)) == pytest.approx(outputs, rel=0.1)


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
    workload = workload_of(name, seed=3)
    for tokens, nominal in ((workload.input_tokens, inputs), (workload.output_tokens, outputs)):
        assert int(0.8 * nominal) <= tokens.min() < 0.81 * nominal
        assert 0.99 * nominal < tokens.max() <= nominal
        assert tokens.mean() == pytest.approx(0.9 * nominal, rel=0.01)


def test_long_contexts_are_long_bounded_and_marked_as_an_assumption() -> None:
    workload = workload_of("long-context", seed=3)
    assert preset("long-context").status == "estimate"
    assert workload.input_tokens.min() >= 20_000 and workload.input_tokens.max() <= 400_000
    assert workload.input_tokens.mean() == pytest.approx(100_000, rel=0.15)
    assert workload.output_tokens.mean() == pytest.approx(500, rel=0.15)


def test_reasoning_has_about_the_published_means() -> None:
    workload = workload_of("reasoning", 4000, seed=1)
    assert workload.input_tokens.mean() == pytest.approx(1268, rel=0.15)
    assert workload.output_tokens.mean() == pytest.approx(1527, rel=0.15)


def test_rag_shares_as_much_of_its_inputs_as_published() -> None:
    workload = workload_of("rag", 3000, seed=1)
    assert hit_tokens(workload).sum() / workload.input_tokens.sum() == pytest.approx(
        0.315, abs=0.01
    )


@pytest.mark.parametrize(
    ("name", "limit"), [("agentic-coding-256k", 256_000), ("agentic-coding-1m", 1_000_000)]
)
def test_contexts_stay_within_the_limit_and_come_near_it(name: str, limit: int) -> None:
    workload = workload_of(name, 6000, seed=2)
    longest = int((workload.input_tokens + workload.output_tokens).max())
    assert 0.5 * limit < longest <= limit


def test_fast_agents_take_over_a_thousand_turns_an_hour_where_the_server_allows() -> None:
    workload = workload_of("midfill-fast", 1200, seed=1)
    turns = workload.kind == APPEND
    # A server with a TTFT of 0.3 s and 100 output tokens/s for the median answer.
    seconds = 0.3 + median(workload, "output_tokens") / 100 + workload.gap_s[turns].mean()
    assert 3600 / seconds > 1000
    grown = np.diff(workload.input_tokens[workload.session == 0])
    assert workload.input_tokens.min() >= 100_000
    assert (grown > 50).all()


def test_a_mix_has_its_parts_in_their_shares_as_tenants() -> None:
    workload = workload_of("mix", 1000, seed=1)
    tenants = [workload.classes[c].tenant for c in workload.class_id.tolist()]
    shares = {name: tenants.count(name) / len(tenants) for name in set(tenants)}
    assert shares == pytest.approx(
        {"agentic-coding": 0.3, "chat": 0.3, "code-completion": 0.3, "rag": 0.1}, abs=0.01
    )
    tenant_of = {
        (int(s), workload.classes[c].tenant)
        for s, c in zip(workload.session, workload.class_id, strict=True)
    }
    assert len(tenant_of) == workload.sessions


def test_weights_and_figures_of_a_mix_are_open_to_change() -> None:
    changes = {"mix": {"chat": 1, "rag": 1}, "chat": {"output_tokens": 7}}
    workload = workload_of("mix", 200, seed=1, parameters=changes)
    mine = [workload.classes[c].tenant == "chat" for c in workload.class_id]
    assert sum(mine) == 100
    assert set(workload.output_tokens[mine].tolist()) == {7}


def test_parameters_replace_figures_and_leave_other_draws_alone() -> None:
    plain = workload_of("chat", 500, seed=1)
    changed = workload_of("chat", 500, seed=1, parameters={"output_tokens": {"constant": 3}})
    assert set(changed.output_tokens.tolist()) == {3}
    assert np.array_equal(plain.gap_s[plain.parent < 0], changed.gap_s[changed.parent < 0])
    assert np.array_equal(np.bincount(plain.session), np.bincount(changed.session))


def test_a_part_of_a_rule_can_be_replaced() -> None:
    never = workload_of("agentic-coding", 2000, 1, {"invalidation": {"share": 0}})
    assert "invalidation" not in describe(never)["uncached_by_kind"]
    assert "invalidation" in describe(workload_of("agentic-coding", 2000, 1))["uncached_by_kind"]


@pytest.mark.parametrize(
    ("name", "parameters", "key"),
    [
        ("chat", {"outputs": 3}, "sessions.outputs"),
        ("chat", {"output_tokens": {"constant": -3}}, "sessions.output_tokens.constant"),
        ("fixed-1k1k", {"input_tokens": 0}, "synthetic.input_tokens.constant"),
        ("mix", {"chats": {}}, "parameters.chats"),
        ("mix", {"rag": {"user_pause": 3}}, "sessions.user_pause"),
    ],
)
def test_wrong_parameters_are_refused_with_their_key(
    name: str, parameters: dict[str, Any], key: str
) -> None:
    with pytest.raises(InputError) as caught:
        check_parameters(name, parameters)
    assert caught.value.key == key


@pytest.mark.parametrize("name", ["chat", "code-completion", "fixed-8k1k"])
def test_token_scale_multiplies_all_lengths(name: str) -> None:
    plain, scaled = workload_of(name, 600, 1), workload_of(name, 600, 1, token_scale=1.5)
    for field in ("input_tokens", "output_tokens"):
        before, after = getattr(plain, field).sum(), getattr(scaled, field).sum()
        assert after == pytest.approx(1.5 * before, rel=0.01)
    if plain.block_tokens:
        shares = [hit_tokens(w).sum() / w.input_tokens.sum() for w in (plain, scaled)]
        assert shares[1] == pytest.approx(shares[0], abs=0.03)


def test_a_preset_from_a_file_is_read_by_its_path(tmp_path: Path) -> None:
    path = tmp_path / "own.yaml"
    path.write_text("title: own\nsource: nobody\nbased_on: chat\nsessions: {output_tokens: 9}\n")
    workload = workload_of(str(path), 100)
    assert workload.name == "own"
    assert set(workload.output_tokens.tolist()) == {9}


def test_an_unknown_preset_is_told_with_the_nearest_names() -> None:
    with pytest.raises(InputError, match="agentic-coding"):
        preset("agentic-codin")
