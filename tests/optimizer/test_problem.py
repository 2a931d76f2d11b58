"""What a job becomes before the search: requests kept and dropped, loads, facts, notes."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest

from optimizer.job import Job, LoadRange
from optimizer.problem import load_grid, posed, prepare
from optimizer.proposing.candidates import Candidates
from spaces.documents import dump_yaml, validated
from spaces.errors import InputError
from spaces.plan import LOAD_AXES, Load
from tests.optimizer.toy import job_data, job_of, searched, small_space


def trace_of(folder: Path, inputs: list[int], **other: int) -> str:
    rows = [
        {"timestamp": 1000 * i, "input_length": n, "output_length": 10} | other
        for i, n in enumerate(inputs)
    ]
    path = folder / "trace.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


@pytest.mark.parametrize(
    ("low", "high", "grid"),
    [
        (1, 1, [1]),
        (1, 2, [1, 2]),
        (1, 24, [1, 2, 3, 4, 6, 8, 12, 16, 24]),
        (5, 100, [5, 6, 8, 12, 16, 24, 32, 48, 64, 96, 100]),
        (7, 7, [7]),
    ],
)
def test_concurrencies_grow_geometrically_between_both_ends(
    low: int, high: int, grid: list[int]
) -> None:
    found = load_grid(LoadRange(concurrency=(low, high)))
    assert [load.concurrency for load in found if load] == grid


def test_request_rates_are_twelve_steps_between_both_ends() -> None:
    rates = [load.request_rate for load in load_grid(LoadRange(request_rate=(0.5, 50.0))) if load]
    assert len(rates) == 12 and (rates[0], rates[-1]) == (0.5, 50.0)
    ratios = [b / a for a, b in itertools.pairwise(rates) if a and b]
    assert max(ratios) / min(ratios) < 1.02
    assert len(load_grid(LoadRange(request_rate=(2.0, 2.0)))) == 1


@pytest.mark.parametrize("axis", LOAD_AXES)
def test_single_loads_are_those_and_no_others(axis: str) -> None:
    job = job_of(load={axis: {"values": [64, 3, 3, 10]}})
    assert job.load is not None
    found = [load.value for load in load_grid(job.load) if load]
    assert found == ([64, 10, 3] if axis == "time_scale" else [3, 10, 64])
    assert validated(Job, job.resolved(), "again") == job


def test_a_space_with_single_loads_is_counted_estimated_and_searched_to_the_last_point(
    tmp_path: Path,
) -> None:
    keys = {"space": small_space(), "search": {"trials": 500, "batch_size": 4}}
    job = job_of(load={"concurrency": {"values": [3, 7, 10]}}, **keys)
    problem, at_one = prepare(job), prepare(job_of(load={"concurrency": 3}, **keys))
    size = problem.space.size()
    assert size == 3 * at_one.space.size()
    assert problem.space.dimensions()["load"] == [f"concurrency {n}" for n in (3, 7, 10)]
    assert len(Candidates.of(problem).estimates) == size
    records = searched(job, tmp_path).records
    assert len(records) == size
    assert {record.plan.load for record in records} == {Load(concurrency=n) for n in (3, 7, 10)}


def test_no_load_means_arrivals_as_recorded() -> None:
    assert load_grid(None) == (None,)


def test_requests_beyond_the_context_are_dropped_counted_and_told(tmp_path: Path) -> None:
    trace = trace_of(tmp_path, [100] * 199 + [5000])
    problem = prepare(job_of(workload={"trace": trace}, max_model_len=4096, load=None))
    assert len(problem.workloads[0].workload) == 199
    assert problem.site.longest_request_tokens == 110
    said = "1 of 200 requests (0.5%) longer than the context of 4096 tokens were dropped"
    assert said in problem.notes


def test_many_dropped_requests_are_a_warning_and_all_an_error(tmp_path: Path) -> None:
    trace = trace_of(tmp_path, [100] * 9 + [5000])
    problem = prepare(job_of(workload={"trace": trace}, max_model_len=4096, load=None))
    assert any(note.startswith("WARNING: 1 of 10 requests") for note in problem.notes)
    with pytest.raises(InputError, match="no request fits into the context of 50 tokens"):
        prepare(job_of(workload={"trace": trace}, max_model_len=50))


def test_failed_requests_of_a_trace_are_told(tmp_path: Path) -> None:
    path = Path(trace_of(tmp_path, [10, 20, 30]))
    path.write_text(path.read_text().replace('"output_length": 10', '"output_length": 0', 1))
    problem = prepare(job_of(workload={"trace": str(path)}, load=None))
    assert "1 of 3 rows of the trace were dropped: no output tokens: failed request" in (
        problem.notes
    )


def test_requests_limit_a_trace_and_a_preset(tmp_path: Path) -> None:
    trace = trace_of(tmp_path, [10] * 8)
    assert (
        len(prepare(job_of(workload={"trace": trace, "requests": 5})).workloads[0].workload) == 5
    )
    problem = prepare(job_of(workload={"trace": trace, "requests": 50}))
    assert "50 requests were asked for, the trace has 8" in problem.notes
    preset = {"preset": "fixed-1k8k", "requests": 7}
    assert len(prepare(job_of(workload=preset)).workloads[0].workload) == 7


def test_a_rate_over_requests_of_one_moment_is_refused_with_the_jobs_file(tmp_path: Path) -> None:
    data = job_data(
        workload={"trace": trace_of(tmp_path, [10, 10], timestamp=0)}, load={"request_rate": 2}
    )
    job = tmp_path / "job.yaml"
    job.write_text(dump_yaml(data))
    with pytest.raises(InputError, match="request_rate: a rate needs recorded starts"):
        posed(job)


def test_formats_the_checkpoint_cannot_be_had_in_are_left_out_and_told() -> None:
    weights = ["nvfp4", "bf16"]
    problem = prepare(job_of(model="gpt-oss-120b", precision={"weights": ["native", "bf16"]}))
    assert problem.space.weights == ("native",)
    assert any(note.startswith("weights bf16 are left out:") for note in problem.notes)
    with pytest.raises(InputError, match=r"precision\.weights: at least one weight format"):
        prepare(job_of(model="gpt-oss-120b", precision={"weights": weights[1:]}))


def test_estimates_the_answers_rest_on_are_named() -> None:
    job = job_of(chips={"a100": 8}, engine="sglang", workload={"preset": "long-context"})
    notes = "\n".join(prepare(job).notes)
    assert (
        "figures of a100 that are estimates or contradicted:" in notes and "usd_per_hour" in notes
    )
    assert "the description of the engine sglang holds estimates" in notes
    assert "the workload long-context is an estimate" in notes
    priced = "\n".join(prepare(job.model_copy(update={"prices": {"a100": 1.0}})).notes)
    assert "usd_per_hour" not in priced


def test_a_load_beyond_what_the_requests_can_fill_is_told() -> None:
    notes = prepare(job_of(load={"concurrency": [1, 11]})).notes
    assert any("40 requests, fewer than 4 for each of the 11 users" in note for note in notes)
    assert not any("users" in note for note in prepare(job_of(load={"concurrency": 10})).notes)


def test_the_engine_gives_memory_share_and_block_size_unless_the_job_does() -> None:
    base = prepare(job_of(engine="sglang")).space.base
    assert (base.hbm_fraction, base.block_size) == (0.88, 1)
    assert prepare(job_of(hbm_fraction=0.5)).space.base.hbm_fraction == 0.5


def test_other_facts_or_requests_have_another_digest(tmp_path: Path) -> None:
    def digest(**keys: Any) -> dict[str, str]:
        return dict(prepare(job_of(**keys)).facts_digest)

    assert digest() == digest(search={"trials": 3})
    assert digest() != digest(chips={"h200": 8})
    trace = trace_of(tmp_path, [10, 20])
    before = digest(workload={"trace": trace})
    trace_of(tmp_path, [10, 21])
    after = digest(workload={"trace": trace})
    assert before["catalogue entries"] == after["catalogue entries"]
    assert before["content of workload.trace"] != after["content of workload.trace"]


def test_depths_of_speculation_are_searched_and_their_order_does_not_matter() -> None:
    jobs = [
        job_of(
            model="deepseek-r1",
            chips={"h200": 8},
            speculation={"depth": depth, "acceptance": "mtp"},
        )
        for depth in ([0, 3], [3, 0, 3])
    ]
    spaces = [prepare(job).space for job in jobs]
    depths = [[found.depth if found else 0 for found in s.speculation] for s in spaces]
    assert depths == [[0, 3], [0, 3]]
    assert spaces[0].dimensions()["drafts"] == ["0", "3"]
    assert spaces[0].size() > prepare(job_of(model="deepseek-r1", chips={"h200": 8})).space.size()


def test_a_depth_the_model_cannot_draft_is_the_jobs_mistake() -> None:
    with pytest.raises(InputError, match="known up to depth 3, not at 9") as error:
        prepare(job_of(model="deepseek-r1", speculation={"depth": 9}))
    assert error.value.key == "speculation"


def test_measured_operator_costs_reach_the_site_or_are_refused_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("objectives.cost.silicon.tables.PACKAGE", "no_such_package")
    with pytest.raises(InputError) as refused:
        prepare(job_of(operator_costs="measured"))
    assert refused.value.key == "operator_costs"
    assert prepare(job_of()).site.operator_costs == "fitted"
