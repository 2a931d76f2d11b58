"""Published traces in every format: recognised by content, read whole, with known totals."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from objectives.workload import read_trace, turn_tokens
from objectives.workload.turns import hit_tokens
from objectives.workload.workload import KINDS, broken_law
from spaces.errors import InputError

# File -> format, rows read, requests kept, sessions.
FILES = {
    "mooncake/synthetic_trace.rows0-1999.jsonl": ("mooncake-jsonl", 2000, 2000, 2000),
    "aiperf_mooncake_multiturn/agentic_code_60sessions_seed42.jsonl": (
        "multi-turn-jsonl",
        783,
        783,
        63,
    ),
    "aiperf_mooncake_multiturn/precise_schedule.jsonl": ("mooncake-jsonl", 8, 8, 8),
    "weka_agentx/traces.sample.jsonl": ("agentx-jsonl", 95, 95, 12),
    "weka_agentx/traces/trace_0010.json": ("agentx-jsonl", 172, 172, 1),
    "weka_agentx/traces": ("agentx-jsonl", 715, 715, 13),
    "azure/AzureLLMInferenceTrace_code.csv": ("azure-csv", 8819, 8819, 8819),
    "burstgpt/BurstGPT_1.rows0-399.csv": ("burstgpt-csv", 400, 383, 383),
    "burstgpt/BurstGPT_3.rows0-399.csv": ("burstgpt-csv", 400, 399, 140),
    "qwen_bailian/CONVERTED_from_BurstGPT_3.bailian_format.jsonl": (
        "bailian-jsonl",
        399,
        399,
        140,
    ),
    "tracelab/example_round_trace.jsonl": ("tracelab-jsonl", 19, 19, 2),
    "tracelab/replay_multi_session_example.csv": ("session-replay-csv", 8, 8, 3),
    "tracelab/replay_multi_session_large.csv": ("session-replay-csv", 303, 303, 48),
    "tracelab/replay_session_workload_example.csv": ("session-replay-csv", 11, 11, 1),
    "agentic_replay_prathmesh/batch_1.replay.redacted.jsonl": (
        "message-replay-jsonl",
        232,
        232,
        20,
    ),
    "inference_perf/otel_fan_in_dependencies.json": ("otel-spans-json", 4, 4, 1),
    "inference_perf/otel_parallel_requests.json": ("otel-spans-json", 5, 5, 1),
    "inference_perf/otel_simple_chain.json": ("otel-spans-json", 3, 3, 1),
    "vidur/splitwise_conv.rows0-2999.csv": ("vidur-csv", 3000, 3000, 3000),
    "vidur/arxiv_summarization_stats_llama2_tokenizer_filtered_v2.rows0-3999.csv": (
        "vidur-csv",
        4000,
        4000,
        4000,
    ),
    "splitwise_sim/test_trace.csv": ("splitwise-csv", 3, 3, 3),
    "vllm_multi_turn/generate_multi_turn.json": ("vllm-multi-turn-json", 188, 188, 24),
}


@pytest.mark.parametrize("name", FILES)
def test_published_file_is_recognised_and_read_whole(data_dir: Path, name: str) -> None:
    form, rows, kept, sessions = FILES[name]
    read = read_trace(data_dir / "traces" / name)
    assert read.format == form
    assert (read.rows_read, read.rows_kept) == (rows, kept)
    assert read.rows_read == read.rows_kept + sum(read.dropped.values())
    assert read.workload.sessions == sessions
    assert broken_law(read.workload) is None


# Tokens that a cache which forgets nothing gives, as published beside the samples.
HITS = {
    "weka_agentx/traces/trace_0008.json": (4588032, 4766146),
    "weka_agentx/traces/trace_0010.json": (14193216, 15068078),
    "weka_agentx/traces/trace_0022.json": (227968, 271839),
    "weka_agentx/traces/trace_0024.json": (3735680, 4005863),
    "weka_agentx/traces/trace_0026.json": (32576, 52760),
    "weka_agentx/traces/trace_0038.json": (2107392, 2578972),
    "weka_agentx/traces/trace_0054.json": (2413312, 2721695),
    "weka_agentx/traces/trace_0132.json": (6115648, 6636565),
    "weka_agentx/traces/trace_0142.json": (1814784, 1967200),
    "weka_agentx/traces/trace_0202.json": (2418496, 2505550),
    "weka_agentx/traces/trace_0236.json": (11670272, 12387096),
    "weka_agentx/traces/trace_0260.json": (3630784, 3725438),
    "weka_agentx/traces/trace_0274.json": (5704256, 5990912),
    "mooncake/conversation_trace.rows0-5999.jsonl": (27034743, 76643649),
    "mooncake/synthetic_trace.rows0-1999.jsonl": (8317098, 24732716),
    "qwen_bailian/CONVERTED_from_BurstGPT_3.bailian_format.jsonl": (152000, 246941),
}


@pytest.mark.parametrize("name", HITS)
def test_hits_of_an_endless_cache_are_those_published(data_dir: Path, name: str) -> None:
    workload = read_trace(data_dir / "traces" / name).workload
    assert (int(hit_tokens(workload).sum()), int(workload.input_tokens.sum())) == HITS[name]


def test_ragpulse_hits_are_near_those_of_the_whole_trace(data_dir: Path) -> None:
    path = data_dir / "traces" / "ragpulse" / "0_trace.rows0-4999.jsonl"
    workload = read_trace(path, limit=3000).workload
    assert hit_tokens(workload).sum() / workload.input_tokens.sum() == pytest.approx(
        0.315, abs=0.01
    )


def test_requests_of_the_agents_files_are_those_in_the_files(data_dir: Path) -> None:
    path = data_dir / "traces" / "weka_agentx" / "traces" / "trace_0010.json"
    session = json.loads(path.read_text())
    expected = []
    for entry in session["requests"]:
        inner = entry["requests"] if entry["type"] == "subagent" else [entry]
        begun = entry["t"] if entry["type"] == "subagent" else 0.0
        expected += [(round(begun + each["t"], 6), each["in"], each["out"]) for each in inner]
    workload = read_trace(path).workload
    found = zip(
        np.round(workload.arrival_s, 6).tolist(),
        workload.input_tokens.tolist(),
        workload.output_tokens.tolist(),
        strict=True,
    )
    assert sorted(found) == sorted(expected)


def test_turns_of_an_agent_wait_as_long_as_recorded(data_dir: Path) -> None:
    path = data_dir / "traces" / "weka_agentx" / "traces" / "trace_0260.json"
    requests = json.loads(path.read_text())["requests"]
    workload = read_trace(path).workload
    assert workload.parent.tolist() == list(range(-1, len(requests) - 1))
    assert workload.gap_s[1:].tolist() == [each["think_time"] for each in requests[1:]]
    tools = [KINDS[1] if "tool_result" in each["input_types"] else KINDS[2] for each in requests]
    assert [KINDS[kind] for kind in workload.kind[1:]] == tools[1:]


def test_later_turns_of_multi_turn_rows_hold_the_whole_context(data_dir: Path) -> None:
    path = data_dir / "traces" / "aiperf_mooncake_multiturn"
    path = path / "agentic_code_60sessions_seed42.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    first_session = [row for row in rows if row["session_id"] == rows[0]["session_id"]]
    workload = read_trace(path).workload
    mine = np.flatnonzero(workload.session == 0)
    context, expected = 0, []
    for row in first_session:
        expected.append(context + row["input_length"])
        context += row["input_length"] + row["output_length"]
    assert workload.input_tokens[mine].tolist() == expected
    delays = [row["delay"] / 1000 for row in first_session[1:]]
    assert workload.gap_s[mine[1:]].tolist() == pytest.approx(delays)
    recorded = [row["input_length"] for row in first_session[1:]]
    new = turn_tokens(workload).external[mine[1:]] - recorded
    assert (new >= 0).all() and (new < 512).all()


def test_rounds_of_tracelab_keep_what_the_cache_of_the_provider_gave(data_dir: Path) -> None:
    path = data_dir / "traces" / "tracelab" / "example_round_trace.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    workload = read_trace(path).workload
    assert sorted(workload.input_tokens.tolist()) == sorted(r["input_tokens_total"] for r in rows)
    # From the last event of round 0, 05:40:31.647, to the last input of round 1, 05:40:50.938.
    claude = np.flatnonzero(workload.session == workload.session[workload.input_tokens == 35740])
    assert workload.gap_s[claude[1]] == pytest.approx(19.291, abs=1e-6)


@pytest.mark.parametrize(
    ("name", "line", "key"),
    [
        ("aiperf_mooncake_multiturn/production_trace.jsonl", 3, "hash_ids"),
        ("qwen_bailian/documented_example_rows.jsonl", 2, "hash_ids"),
    ],
)
def test_published_examples_with_contradicting_ids_are_refused(
    data_dir: Path, name: str, line: int, key: str
) -> None:
    path = data_dir / "traces" / name
    with pytest.raises(InputError) as caught:
        read_trace(path)
    assert (caught.value.where, caught.value.key) == (f"{path}:{line}", key)


@pytest.mark.parametrize("name", ["language/m-small", "reason/deepseek-r1"])
def test_clients_are_sampled_at_their_rates(data_dir: Path, name: str) -> None:
    folder = data_dir / "traces" / "servegen" / name
    files = sorted(folder.glob("chunk-*-trace.csv"))
    total = sum(float(file.read_text().split(",", 2)[1]) for file in files)
    read = read_trace(folder, limit=int(total * 500), seed=3)
    again = read_trace(folder, limit=int(total * 500), seed=3)
    assert read.format == "servegen-folder"
    assert read.rows_kept / read.span_s == pytest.approx(total, rel=0.1)
    assert np.array_equal(read.workload.input_tokens, again.workload.input_tokens)


def test_vllm_conversations_are_those_described(data_dir: Path) -> None:
    path = data_dir / "traces" / "vllm_multi_turn" / "generate_multi_turn.json"
    workload = read_trace(path, seed=2).workload
    turns = np.bincount(workload.session)
    assert set(turns.tolist()) <= {6, 7, 8, 9}
    assert workload.output_tokens.min() >= 80 and workload.output_tokens.max() <= 120
    growth = np.diff(workload.input_tokens)[np.diff(workload.session) == 0]
    answers = workload.output_tokens[:-1][np.diff(workload.session) == 0]
    assert ((growth - answers >= 120) & (growth - answers <= 160)).all()
    # The common prefix of 500 tokens is 31 whole blocks of 16.
    firsts = workload.block_offsets[:-1][workload.parent < 0]
    for place in range(31):
        assert (workload.block_ids[firsts + place] == place).all()


def test_cached_input_of_replayed_sessions_is_that_recorded(data_dir: Path) -> None:
    path = data_dir / "traces" / "agentic_replay_prathmesh" / "batch_1.replay.redacted.jsonl"
    turns = [turn for row in path.read_text().splitlines() for turn in json.loads(row)["turns"]]
    recorded = sum(turn["rec_cache_read_tokens"] for turn in turns)
    workload = read_trace(path).workload
    # All but the first turn of all, for which nothing was there, in blocks of 64 tokens.
    expected = recorded - turns[0]["rec_cache_read_tokens"]
    assert hit_tokens(workload).sum() == pytest.approx(expected, rel=0.002)


def test_pauses_after_an_answer_of_unknown_time_do_not_count_from_an_earlier_one(
    data_dir: Path,
) -> None:
    read = read_trace(data_dir / "traces" / "weka_agentx" / "traces")
    workload = read.workload
    later = np.flatnonzero(workload.parent >= 0)
    begun_s = workload.arrival_s[later] - workload.arrival_s[workload.parent[later]]
    assert (workload.gap_s[later] <= begun_s + 1).all()
    assert any("assume 40 output tokens/s" in note for note in read.warnings)


def test_times_on_a_grid_are_told(data_dir: Path) -> None:
    folder = data_dir / "traces" / "mooncake"
    on_grid = read_trace(folder / "conversation_trace.rows0-5999.jsonl", limit=600)
    assert any("a grid of 3 s" in note for note in on_grid.warnings)
    exact = read_trace(folder / "synthetic_trace.rows0-1999.jsonl", limit=600)
    assert not any("grid" in note for note in exact.warnings)
