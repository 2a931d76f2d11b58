"""Traces that are wrong: each fault is told with file, line and field, and nothing is changed."""

from __future__ import annotations

import gzip
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from objectives.workload import ColumnMapping, read_trace
from objectives.workload.workload import APPEND, COMPACTION, FIRST, SUBAGENT, USER
from spaces.errors import InputError

BURST = (
    "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type"
)
REPLAY = "session_id,arrival_time,round_idx,prefix_len,input_len,output_len,tool_wait_after_ms"
TURN = {"session_id": "s", "input_length": 600, "output_length": 5, "hash_ids": [1, 2]}
CHAT = {
    "chat_id": 1,
    "parent_chat_id": -1,
    "timestamp": 0.0,
    "input_length": 20,
    "output_length": 4,
    "hash_ids": [1, 2],
}
CALL = {"t": 0.0, "type": "s", "in": 128, "out": 5, "hash_ids": [1, 2], "api_time": 2.0}


def lines(path: Path, *rows: str | dict[str, Any]) -> Path:
    texts = [row if isinstance(row, str) else json.dumps(row) for row in rows]
    path.write_text("\n".join(texts) + "\n")
    return path


def session(*requests: dict[str, Any] | str, **others: Any) -> dict[str, Any]:
    return {"id": "x", "block_size": 64, "hash_id_scope": "local", "requests": list(requests)} | (
        others
    )


def refusal(path: Path, **options: Any) -> InputError:
    with pytest.raises(InputError) as caught:
        read_trace(path, **options)
    return caught.value


@pytest.mark.parametrize(
    ("rows", "line", "key"),
    [
        (
            [BURST, "5,,1,GPT-4,12,3,15,API log", "6,,1,GPT-4,-12,3,15,API log"],
            3,
            "Request tokens",
        ),
        ([BURST, "5,,1,GPT-4,1.5,3,15,API log"], 2, "Request tokens"),
        ([BURST, "x,,1,GPT-4,12,3,15,API log"], 2, "Timestamp"),
        ([BURST, "5,,nan,GPT-4,12,3,15,API log"], 2, "Elapsed time"),
        ([BURST, "5,,-1,GPT-4,12,3,15,API log"], 2, "Elapsed time"),
        ([BURST, "5,,1,GPT-4,12"], 2, ""),
        ([REPLAY, "0,0,0,0,512,64,100", "1,0,1,0,5,6,7"], 3, "round_idx"),
        ([REPLAY, "0,0,0,0,512,64,soon"], 2, "tool_wait_after_ms"),
        ([TURN, TURN | {"timestamp": None, "input_length": -3}], 2, "input_length"),
        ([TURN, TURN | {"hash_ids": [1]}], 2, "hash_ids"),
        ([TURN, TURN | {"delay": -1}], 2, "delay"),
        ([TURN, TURN | {"session_id": None}], 2, "session_id"),
        ([CHAT, CHAT | {"hash_ids": [1]}], 2, "hash_ids"),
        ([CHAT, CHAT | {"chat_id": "one"}], 2, "chat_id"),
        ([CHAT, CHAT | {"timestamp": "noon"}], 2, "timestamp"),
        ([session(CALL), session(CALL | {"in": 500})], 2, "requests.0.hash_ids"),
        ([session(CALL, CALL | {"t": -1})], 1, "requests.1.t"),
        ([session(CALL, block_size=16)], 1, "block_size"),
        ([session("a")], 1, "requests.0"),
        (["num_prefill_tokens,num_decode_tokens,arrived_at", "5,6,0", "5,6,-1"], 3, "arrived_at"),
        ([CHAT, '{"chat_id": 2, "par'], 2, ""),
        ([TURN, CHAT], 2, "session_id"),
        ([CHAT, TURN], 2, "chat_id"),
        ([session(CALL), TURN], 2, ""),
    ],
)
def test_wrong_row_is_refused_with_line_and_field(
    tmp_path: Path, rows: list[Any], line: int, key: str
) -> None:
    path = lines(tmp_path / "trace", *rows)
    error = refusal(path)
    assert (error.where, error.key if key else "") == (f"{path}:{line}", key)


def test_truncated_session_file_is_told_as_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_text(json.dumps(session(CALL))[:60])
    error = refusal(path)
    assert error.where == f"{path}:1"
    assert "cut off" in error.remedy


def test_lengths_of_zero_are_dropped_and_counted(tmp_path: Path) -> None:
    path = lines(tmp_path / "t", BURST, "5,,1,a,12,0,12,x", "6,,1,a,0,0,0,x", "7,s,1,a,9,2,11,x")
    read = read_trace(path)
    assert read.dropped == {"no input tokens": 1, "no output tokens: failed request": 1}
    assert (read.rows_read, read.rows_kept) == (3, 1)


def test_turns_after_a_failed_one_wait_for_the_turn_before_it(tmp_path: Path) -> None:
    chats = [
        CHAT,
        CHAT | {"chat_id": 2, "parent_chat_id": 1, "timestamp": 5.0, "output_length": 0},
        CHAT | {"chat_id": 3, "parent_chat_id": 2, "timestamp": 9.0},
    ]
    workload = read_trace(lines(tmp_path / "t", *chats)).workload
    assert workload.parent.tolist() == [-1, 0]
    assert workload.gap_s[1] == pytest.approx(9 - 4 / 40)


def test_turns_whose_parent_is_not_in_the_file_are_told(tmp_path: Path) -> None:
    read = read_trace(lines(tmp_path / "t", CHAT, CHAT | {"chat_id": 2, "parent_chat_id": 77}))
    assert read.workload.parent.tolist() == [-1, -1]
    assert any("1 turns name one that is not before them" in note for note in read.warnings)


def test_assumed_times_of_answers_are_told(tmp_path: Path) -> None:
    later = CHAT | {"chat_id": 2, "parent_chat_id": 1, "timestamp": 60.0}
    read = read_trace(lines(tmp_path / "t", CHAT, later))
    assert any("40 output tokens/s" in note for note in read.warnings)


@pytest.mark.parametrize(("seconds", "doubted"), [(0.5, False), (2000.0, True)])
def test_answers_in_milliseconds_raise_a_doubt(
    tmp_path: Path, seconds: float, doubted: bool
) -> None:
    rows = [f"{60 * i},s,{seconds},a,100,80,180,x" for i in range(5)]
    read = read_trace(lines(tmp_path / "t", BURST, *rows))
    assert any("unit of the times of" in note for note in read.warnings) == doubted


@pytest.mark.parametrize(("step_s", "doubted"), [(90.0, False), (90_000.0, True)])
def test_arrivals_in_milliseconds_read_as_seconds_raise_a_doubt(
    tmp_path: Path, step_s: float, doubted: bool
) -> None:
    rows = [f"{step_s * i},5,6" for i in range(12)]
    path = lines(tmp_path / "t", "arrived_at,num_prefill_tokens,num_decode_tokens", *rows)
    assert any("lie between two arrivals" in note for note in read_trace(path).warnings) == doubted


def test_sessions_that_are_copies_are_told(tmp_path: Path) -> None:
    calls = [CALL | {"t": 10.0 * i, "think_time": 8.0} for i in range(3)]
    path = lines(tmp_path / "t", session(*calls), session(*calls), session(*calls[:2]))
    read = read_trace(path)
    assert read.workload.sessions == 3
    assert any("1 sessions are copies" in note for note in read.warnings)


def test_ids_of_different_sessions_of_agents_have_nothing_in_common(tmp_path: Path) -> None:
    workload = read_trace(lines(tmp_path / "t", session(CALL), session(CALL))).workload
    assert workload.block_ids.tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("absolute", [False, True])
def test_turns_of_a_subagent_count_from_its_entry_or_the_session(
    tmp_path: Path, absolute: bool
) -> None:
    begun = 100.0
    inner = [CALL | {"t": begun * absolute + at, "hash_ids": [7, 8]} for at in (0.0, 5.0)]
    agent = {"type": "subagent", "t": begun, "agent_id": "a", "requests": inner}
    after = CALL | {"t": 120.0, "think_time": 118.0, "input_types": ["tool_result"]}
    workload = read_trace(lines(tmp_path / "t", session(CALL, agent, after))).workload
    assert workload.arrival_s.tolist() == [0, 100, 105, 120]
    assert workload.parent.tolist() == [-1, 0, 1, 2]
    assert workload.kind.tolist() == [FIRST, SUBAGENT, USER, APPEND]
    # From the ends at 2, 102 and 107 s.
    assert workload.gap_s.tolist() == [0, 98, 3, 13]


def test_background_agents_are_not_waited_for(tmp_path: Path) -> None:
    inner = [CALL | {"t": 0.0, "hash_ids": [7, 8], "api_time": 500.0}]
    agent = {"type": "subagent", "t": 10.0, "requests": inner}
    after = CALL | {"t": 20.0, "think_time": 18.0}
    workload = read_trace(lines(tmp_path / "t", session(CALL, agent, after))).workload
    assert workload.parent.tolist() == [-1, 0, 0]
    assert workload.gap_s.tolist() == [0, 8, 18]


def test_a_context_that_shrinks_is_a_compaction(tmp_path: Path) -> None:
    def call(at: float, blocks: int) -> dict[str, Any]:
        ids = list(range(blocks))
        return CALL | {"t": at, "in": 64 * blocks, "hash_ids": ids, "think_time": 1.0}

    calls = [call(0, 1500), call(10, 1600), call(20, 500), call(30, 520)]
    workload = read_trace(lines(tmp_path / "t", session(*calls))).workload
    assert workload.kind.tolist() == [FIRST, USER, COMPACTION, USER]


def test_rows_of_a_session_out_of_order_are_told(tmp_path: Path) -> None:
    rows = [f"{at},s,1,a,{size},2,11,x" for at, size in ((50, 9), (20, 12), (90, 15))]
    read = read_trace(lines(tmp_path / "t", BURST, *rows))
    assert any("came after a later one" in note for note in read.warnings)
    assert read.workload.parent.tolist() == [-1, 0, 1]


def test_zstd_reads_as_the_plain_file(tmp_path: Path) -> None:
    zstandard = pytest.importorskip("zstandard")
    plain = lines(tmp_path / "plain", CHAT, CHAT | {"chat_id": 2, "timestamp": 3.0})
    frames = [
        zstandard.compress(part) for part in (plain.read_bytes()[:50], plain.read_bytes()[50:])
    ]
    packed = tmp_path / "packed"
    packed.write_bytes(b"".join(frames))
    assert read_trace(packed).workload.arrival_s.tolist() == [0, 3]
    for damaged in (frames[0][:-6], frames[0] + b"junk"):
        packed.write_bytes(damaged)
        assert "damaged or cut off" in refusal(packed).rule


def test_without_the_package_zstd_is_told_how_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "zstandard", None)
    path = tmp_path / "packed"
    path.write_bytes(b"\x28\xb5\x2f\xfd rest")
    assert "servefront[zstd]" in refusal(path).remedy


def test_gzip_of_a_session_file_reads(tmp_path: Path) -> None:
    path = tmp_path / "packed"
    path.write_bytes(gzip.compress(json.dumps(session(CALL), indent=1).encode()))
    assert read_trace(path).format == "agentx-jsonl"


def test_files_of_a_folder_must_be_of_one_format(tmp_path: Path) -> None:
    lines(tmp_path / "a.json", session(CALL))
    lines(tmp_path / "b.json", CHAT)
    error = refusal(tmp_path)
    assert error.where == str(tmp_path / "b.json")
    assert error.value == "bailian-jsonl"


def test_ragpulse_without_its_tables_is_refused(tmp_path: Path) -> None:
    ids = {
        "sys_prompt": [1],
        "passages_ids": [],
        "history": [],
        "web_search": [],
        "user_input": [],
    }
    row = {"timestamp": "8", "input_length": 9, "output_length": 9, "session_id": "s"}
    error = refusal(lines(tmp_path / "t", row | {"hash_ids": ids}))
    assert error.where.endswith("1_sys_prompt.jsonl")


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("0,-1,1,Gamma,1,1", "above 0"),
        ("0,5,1,Pareto,1,1", "Gamma or Weibull"),
        ("0,5,1", "six fields"),
        ("0,0,1,Gamma,1,1", "must have traffic"),
    ],
)
def test_wrong_clients_are_refused(tmp_path: Path, text: str, rule: str) -> None:
    (tmp_path / "chunk-1-trace.csv").write_text(text + "\n")
    (tmp_path / "chunk-1-dataset.json").write_text('{"0": {"input_tokens": "{5: 1.0}"}}')
    assert rule in refusal(tmp_path).rule


def test_clients_without_lengths_are_dropped_and_counted(tmp_path: Path) -> None:
    for client, table in ((1, '"{5: 1.0}"'), (2, '"{}"')):
        (tmp_path / f"chunk-{client}-trace.csv").write_text("0,1,1,Gamma,1,1\n")
        (tmp_path / f"chunk-{client}-dataset.json").write_text(
            f'{{"0": {{"input_tokens": {table}, "output_tokens": "{{7: 0.5, 9: 0.5}}"}}}}'
        )
    read = read_trace(tmp_path)
    assert set(read.workload.output_tokens.tolist()) == {7, 9}
    assert read.dropped.keys() == {"no length distribution of that client at that time"}
    assert read.rows_read == read.rows_kept + sum(read.dropped.values())


def test_any_table_is_read_with_a_mapping(tmp_path: Path) -> None:
    path = lines(
        tmp_path / "t.csv",
        "when;x".replace(";", ",") + ",in,out,who,cached,vip",
        "1000,a,50,5,s1,0,2",
        "3000,b,90,6,s1,48,2",
        "2500,c,10,7,,0,0",
    )
    mapping = ColumnMapping(
        input_tokens="in",
        output_tokens="out",
        arrival="when",
        session="who",
        kept_tokens="cached",
        priority="vip",
        time_unit="ms",
    )
    workload = read_trace(path, columns=mapping).workload
    assert workload.arrival_s.tolist() == [0, 1.5, 2]
    assert workload.parent.tolist() == [-1, -1, 0]
    assert [workload.classes[c].priority for c in workload.class_id] == [2, 0, 2]
    assert len(set(workload.blocks(0).tolist()) & set(workload.blocks(2).tolist())) == 3


def test_mapped_json_lines_and_parquet_read_alike(tmp_path: Path) -> None:
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    rows = [{"when": 10.0, "in": 50, "out": 5}, {"when": 11.5, "in": 70, "out": 6}]
    mapping = ColumnMapping(input_tokens="in", output_tokens="out", arrival="when")
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "t.parquet")
    for path in (lines(tmp_path / "t.jsonl", *rows), tmp_path / "t.parquet"):
        workload = read_trace(path, columns=mapping).workload
        assert workload.arrival_s.tolist() == [0, 1.5]
        assert workload.input_tokens.tolist() == [50, 70]


def test_a_column_that_is_not_there_is_named_with_the_nearest(tmp_path: Path) -> None:
    path = lines(tmp_path / "t", "prompt_tokens,out", "1,2")
    error = refusal(path, columns=ColumnMapping(input_tokens="prompt_token", output_tokens="out"))
    assert error.key == "prompt_token"
    assert "prompt_tokens" in error.remedy


def test_parquet_of_another_program_asks_for_a_mapping(tmp_path: Path) -> None:
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "t.parquet"
    pq.write_table(pa.table({"in": [1]}), path)
    assert "mapping" in refusal(path).rule


def test_many_rows_are_read_in_bounded_memory(tmp_path: Path) -> None:
    import tracemalloc

    rows = 15_000
    path = tmp_path / "t"
    with path.open("w") as file:
        file.write(BURST + "\n")
        for i in range(rows):
            file.write(f"{i},,3,ChatGPT,30,20,50,API log\n")
    tracemalloc.start()
    workload = read_trace(path).workload
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(workload) == rows
    # Some hundred bytes a request, far from the thousands that rows as objects would take.
    assert peak / rows < 600


def test_tokens_in_seconds_read_as_milliseconds_raise_a_doubt(tmp_path: Path) -> None:
    def trace(step: int) -> Path:
        row = {"input_length": 12_000, "output_length": 300}
        return lines(tmp_path / "t", *(row | {"timestamp": step * i} for i in range(40)))

    def doubted(step: int) -> bool:
        return any("tokens/s arrive" in note for note in read_trace(trace(step)).warnings)

    assert doubted(1)
    assert not doubted(300)
