"""The preset of coding agents against the published quantiles of the sessions it stands for."""

from __future__ import annotations

import json
from functools import lru_cache
from pathlib import Path

import numpy as np
import pytest

from objectives.workload.presets import preset
from objectives.workload.sessions import generate_sessions
from tests.objectives.workload.agent_sessions import AgentSessions, measured

SEEDS = (1, 2, 3, 4, 5)
SESSIONS = 500
TURN_TOLERANCE = {50: 0.05, 90: 0.10, 99: 0.25}
SESSION_TOLERANCE = {50: 0.10, 90: 0.15}


@lru_cache
def generated(seed: int) -> AgentSessions:
    spec = preset("agentic-coding").sessions
    assert spec is not None
    return measured(generate_sessions(spec, seed, sessions=SESSIONS))


def published(data_dir: Path, name: str, percent: int) -> float:
    path = data_dir / "traces" / "weka_agentx" / "agentic_quantiles_dev.json"
    tables = json.loads(path.read_text())
    return float(np.interp(percent, tables["percentile_grid"], tables["quantiles"][name]))


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("percent", TURN_TOLERANCE)
def test_turns_have_the_published_quantiles(data_dir: Path, seed: int, percent: int) -> None:
    for name, values in generated(seed).turns.items():
        wanted = published(data_dir, name, percent)
        tolerance = TURN_TOLERANCE[percent]
        assert np.percentile(values, percent) == pytest.approx(wanted, rel=tolerance), name


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("percent", SESSION_TOLERANCE)
def test_sessions_have_the_published_quantiles(data_dir: Path, seed: int, percent: int) -> None:
    for name, values in generated(seed).sessions.items():
        wanted = published(data_dir, name, percent)
        tolerance = SESSION_TOLERANCE[percent]
        assert np.percentile(values, percent) == pytest.approx(wanted, rel=tolerance), name


@pytest.mark.parametrize("seed", SEEDS)
def test_an_endless_cache_gives_the_published_share(seed: int) -> None:
    assert generated(seed).cached_share == pytest.approx(0.963, abs=0.01)


@pytest.mark.parametrize("seed", SEEDS)
def test_idle_prefixes_that_are_dropped_cost_what_was_published(seed: int) -> None:
    found = generated(seed).cached_after_idle
    assert found == pytest.approx({60: 0.79, 300: 0.90, 3600: 0.96}, abs=0.02)


@pytest.mark.parametrize("seed", SEEDS)
def test_contexts_idle_as_long_as_published(seed: int) -> None:
    found = generated(seed).residency
    assert found == pytest.approx({np.inf: 17.7, 300: 5.4, 60: 2.5}, rel=0.15)
