"""Calibration files: what an offset names, what is known of a deployment, and wrong files."""

from __future__ import annotations

from pathlib import Path

import pytest

from spaces.calibration import Calibration, MeasuredPair, Offset, Stack, load_calibration
from spaces.errors import InputError

PAIR = MeasuredPair(models=("m", "n"), chip="h100", vendor="NVIDIA", points=9)
SHA = "a" * 64


def test_all_offsets_that_name_a_deployment_count() -> None:
    calibration = Calibration(
        offsets=(
            Offset(models=("m",), factor=1.1, points=3),
            Offset(chip="h100", engine="vllm", factor=2.0, points=3),
            Offset(vendor="AMD", factor=5.0, points=3),
            Offset(weights="fp8", factor=3.0, points=3),
            Offset(speculates=True, factor=7.0, points=3),
            Offset(engine="vllm", generation="0.15-0.19", factor=1.5, points=3),
        )
    )
    stacks = {
        Stack("m", "h100", "NVIDIA", "vllm", "bf16"): 2.2,
        Stack("x", "h100", "NVIDIA", "sglang", "fp8"): 3.0,
        Stack("x", "h100", "NVIDIA", "sglang", "bf16"): 1.0,
        Stack("x", "h100", "NVIDIA", "sglang", "bf16", speculates=True): 7.0,
        Stack("x", "h200", "NVIDIA", "vllm", "bf16", generation="0.15-0.19"): 1.5,
        Stack("x", "h200", "NVIDIA", "vllm", "bf16", generation="0.20-0.24"): 1.0,
    }
    for stack, factor in stacks.items():
        assert calibration.step_factor(stack) == pytest.approx(factor)


@pytest.mark.parametrize(
    ("model", "chip", "vendor", "known"),
    [
        ("n", "h100", "NVIDIA", "pair"),
        ("x", "h100", "NVIDIA", "chip"),
        ("m", "b200", "NVIDIA", "vendor"),
        ("m", "mi355x", "AMD", "none"),
    ],
)
def test_what_is_known_of_a_deployment(model: str, chip: str, vendor: str, known: str) -> None:
    assert Calibration(pairs=(PAIR,)).knowledge(model, chip, vendor) == known


def test_a_calibration_comes_back_from_its_file(tmp_path: Path) -> None:
    told = {"file": "p.csv", "sha256": SHA, "points": 4}
    calibration = Calibration.model_validate(
        {
            "command": "servefront calibrate p.csv --out c.yaml",
            "fitted": "2026-12-01",
            "data": told,
            "constants": {"engines.by_engine.vllm.step_us": 260.0},
            "offsets": [{"models": ["m"], "factor": 1.05, "points": 4}],
            "pairs": [PAIR.model_dump()],
            "residuals": [
                {"quantity": "tpot", "knowledge": "pair", "low": 0.9, "high": 1.1, "points": 4}
            ],
        }
    )
    path = tmp_path / "c.yaml"
    path.write_text(calibration.to_yaml())
    assert load_calibration(path) == calibration


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("offsets: [{factor: 0, points: 1}]", "offsets.0.factor"),
        ("offets: []", "did you mean offsets"),
        ("data: {file: p, sha256: x, points: 1}", "data.sha256"),
        ("residuals: [{quantity: tpot, knowledge: pair, low: 2, high: 1, points: 1}]", "low must"),
    ],
)
def test_a_wrong_file_is_one_message(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(text)
    with pytest.raises(InputError, match=message):
        load_calibration(path)
