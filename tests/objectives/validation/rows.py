"""Rows of measured points made up for tests, and the CSV they stand in."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping
from pathlib import Path

COLUMNS = (
    "model",
    "model_family",
    "hardware",
    "num_chips",
    "engine",
    "mode",
    "precision_weights",
    "precision_kv",
    "prefill_tp",
    "prefill_ep",
    "prefill_dp",
    "prefill_workers",
    "prefill_chips",
    "decode_tp",
    "decode_ep",
    "decode_dp",
    "decode_workers",
    "decode_chips",
    "pp",
    "spec_decode",
    "isl",
    "osl",
    "isl_mean",
    "osl_mean",
    "concurrency",
    "request_rate",
    "tpot_ms_median",
    "tpot_ms_mean",
    "ttft_ms_median",
    "ttft_ms_mean",
    "output_tput_per_chip_tok_s",
    "prefix_hit",
    "workload",
    "notes",
    "engine_version",
    "quality",
    "config_id",
)

AGGREGATED: dict[str, object] = {
    "model": "Llama-3.3-70B",
    "model_family": "Llama-3.x-70B",
    "hardware": "H200",
    "num_chips": 4,
    "engine": "vllm",
    "mode": "agg",
    "precision_weights": "fp8",
    "decode_tp": 4,
    "spec_decode": "none",
    "isl": 1024,
    "osl": 128,
    "isl_mean": 922,
    "osl_mean": 115,
    "concurrency": 8.0,
    "tpot_ms_median": 12.0,
    "ttft_ms_median": 100.0,
    "output_tput_per_chip_tok_s": 150.0,
    "workload": "random (InferenceX fixed-seq: lengths uniform in [0.8,1.0]x nominal)",
    "engine_version": "vllm/vllm-openai:v0.11",
    "quality": "A",
    "config_id": "one",
}
DISAGGREGATED: dict[str, object] = AGGREGATED | {
    "mode": "disagg",
    "num_chips": 12,
    "prefill_tp": 4,
    "prefill_workers": 1,
    "prefill_chips": 4,
    "decode_tp": 4,
    "decode_workers": 2,
    "decode_chips": 8,
    "config_id": "two",
}


def write_rows(path: Path, rows: Iterable[Mapping[str, object]]) -> Path:
    """The rows as a CSV; cells that are not given are empty."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        writer.writerows({name: row.get(name, "") for name in COLUMNS} for row in rows)
    return path
