"""servefront trace and the workload of a job, from the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from objectives.workload import read_parquet, read_trace
from objectives.workload.presets import workload_of
from optimizer.cli import app
from optimizer.job import Job, load_job
from optimizer.problem import prepare
from spaces.errors import InputError

REPLAY = """session_id,arrival_time,round_idx,prefix_len,input_len,output_len,tool_wait_after_ms
0,0,0,0,512,64,100
0,0,1,576,128,64,100
0,0,2,768,128,64,0
1,200,0,0,400,48,80
1,200,1,448,100,48,0
"""


def call(*arguments: object) -> Result:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert result.exit_code == 0, result.output
    return result


def job(tmp_path: Path, workload: str) -> Job:
    path = tmp_path / "job.yaml"
    path.write_text(f"model: deepseek-r1\nchips: {{h200: 8}}\nworkload: {workload}\n")
    return load_job(path)


def test_a_trace_is_described_fitted_drawn_and_kept(tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv"
    trace.write_text(REPLAY)
    out = {name: tmp_path / f"out.{name}" for name in ("yaml", "png", "parquet")}
    result = call(
        "trace", trace, "--json", "--fit", out["yaml"], "--plot", out["png"],
        "--parquet", out["parquet"],
    )  # fmt: skip
    document = json.loads(result.stdout)
    assert document["format"] == "session-replay-csv"
    assert document["statistics"]["sessions"]["count"] == 2
    assert set(document["distance_from_presets"]) >= {"chat", "agentic-coding"}
    assert out["png"].read_bytes().startswith(b"\x89PNG")
    kept, read = read_parquet(out["parquet"]), read_trace(trace).workload
    assert kept.gap_s.tolist() == read.gap_s.tolist()
    fitted = job(tmp_path, "{preset: out.yaml, requests: 40}")
    assert len(prepare(fitted).workloads[0].workload) == 40


def test_columns_of_any_table_are_mapped(tmp_path: Path) -> None:
    table = tmp_path / "table.csv"
    table.write_text("when,prompt,answer\n0,10,5\n500,20,6\n")
    columns = "arrival=when,input_tokens=prompt,output_tokens=answer,time_unit=ms"
    document = json.loads(call("trace", table, "--json", "--columns", columns).stdout)
    assert document["statistics"]["span_s"] == 0.5
    mapped = "{input_tokens: prompt, output_tokens: answer, arrival: when, time_unit: ms}"
    found = prepare(job(tmp_path, f"{{trace: table.csv, columns: {mapped}}}"))
    assert found.workloads[0].workload.arrival_s.tolist() == [0, 0.5]


def test_a_wrong_mapping_is_one_message(tmp_path: Path) -> None:
    table = tmp_path / "table.csv"
    table.write_text("a,b\n1,2\n")
    result = CliRunner().invoke(app, ["trace", str(table), "--columns", "a"])
    assert result.exit_code == 2
    assert "KEY=COLUMN" in result.stderr


def test_parameters_and_token_scale_of_a_job_reach_the_workload(tmp_path: Path) -> None:
    asked = "{preset: chat, requests: 50, parameters: {output_tokens: 8}, token_scale: 2}"
    found = prepare(job(tmp_path, asked)).workloads[0].workload
    assert set(found.output_tokens.tolist()) == {16}
    plain = workload_of("chat", 50, seed=1)
    assert found.input_tokens[0] == pytest.approx(2 * plain.input_tokens[0], abs=2)


@pytest.mark.parametrize(
    ("workload", "key"),
    [
        ("{preset: chat, parameters: {outputs: 3}}", "sessions.outputs"),
        ("{trace: job.yaml, parameters: {outputs: 3}}", "workload.parameters"),
        ("{preset: chat, columns: {input_tokens: a, output_tokens: b}}", "workload.columns"),
        ("{preset: chat, token_scale: 0}", "workload.token_scale"),
        ("{preset: chat, overflow: ignore}", "workload.overflow"),
    ],
)
def test_wrong_keys_of_a_workload_are_refused(tmp_path: Path, workload: str, key: str) -> None:
    with pytest.raises(InputError) as caught:
        job(tmp_path, workload)
    assert caught.value.key == key


def test_long_requests_are_cut_or_refused_as_the_job_says(tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv"
    trace.write_text(REPLAY)
    cut = tmp_path / "job.yaml"
    body = "model: deepseek-r1\nchips: {h200: 8}\nmax_model_len: 600\nworkload: "
    cut.write_text(body + "{trace: trace.csv, overflow: truncate}\n")
    found = prepare(load_job(cut))
    workload = found.workloads[0].workload
    assert len(workload) == 5
    assert int((workload.input_tokens + workload.output_tokens).max()) == 600
    assert any(note.startswith("WARNING") and "cut" in note for note in found.notes)
    cut.write_text(body + "{trace: trace.csv, overflow: error}\n")
    with pytest.raises(InputError, match="must fit"):
        prepare(load_job(cut))
