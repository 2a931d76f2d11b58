"""The preset of coding agents against the published quantiles of the sessions it stands for.

Each of five seeds is held to the tolerances; ten more, on which no figure was fitted, in their
median and but for a few quantiles.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from objectives.workload import Workload
from objectives.workload.presets import preset
from objectives.workload.sessions import generate_sessions
from objectives.workload.workload import COMPACTION
from tests.objectives.workload.agent_sessions import AgentSessions, measured

SEEDS = (1, 2, 3, 4, 5)
MORE_SEEDS = tuple(range(21, 31))
SESSIONS = 500
TURN_TOLERANCE = {50: 0.05, 90: 0.10, 99: 0.25}
SESSION_TOLERANCE = {50: 0.10, 90: 0.15}
RECORDED_SESSIONS = 336
QUANTILES = "agentic_quantiles_dev.json"


class Figure(NamedTuple):
    """A quantile of generated sessions beside the published one, and how far it may be off."""

    name: str
    found: float
    wanted: float
    tolerance: float

    @property
    def off(self) -> float:
        return self.found / self.wanted - 1


@cache
def generated(seed: int) -> tuple[Workload, AgentSessions]:
    spec = preset("agentic-coding").sessions
    assert spec is not None
    workload = generate_sessions(spec, seed, sessions=SESSIONS)
    return workload, measured(workload)


@cache
def published(folder: Path) -> dict[str, dict[int, float]]:
    """Each percentile of each published quantity."""
    tables = json.loads((folder / QUANTILES).read_text())
    return {
        name: {
            percent: float(np.interp(percent, tables["percentile_grid"], values))
            for percent in (50, 90, 99)
        }
        for name, values in tables["quantiles"].items()
    }


def figures(seed: int, data_dir: Path) -> Iterator[Figure]:
    """All quantiles that the preset is held to, of one seed."""
    tables = published(data_dir / "traces" / "weka_agentx")
    _, sessions = generated(seed)
    for samples, tolerances in (
        (sessions.turns, TURN_TOLERANCE),
        (sessions.sessions, SESSION_TOLERANCE),
    ):
        for name, values in samples.items():
            for percent, tolerance in tolerances.items():
                found = float(np.percentile(values, percent))
                yield Figure(f"{name} p{percent}", found, tables[name][percent], tolerance)


@pytest.mark.parametrize("seed", SEEDS)
def test_turns_and_sessions_have_the_published_quantiles(data_dir: Path, seed: int) -> None:
    for figure in figures(seed, data_dir):
        assert figure.found == pytest.approx(figure.wanted, rel=figure.tolerance), figure.name


def test_the_median_of_ten_more_seeds_has_them_too(data_dir: Path) -> None:
    by_seed = [list(figures(seed, data_dir)) for seed in MORE_SEEDS]
    for same in zip(*by_seed, strict=True):
        median = float(np.median([figure.off for figure in same]))
        assert abs(median) <= same[0].tolerance, same[0].name


def test_hardly_any_quantile_of_ten_more_seeds_is_off(data_dir: Path) -> None:
    every = [figure for seed in MORE_SEEDS for figure in figures(seed, data_dir)]
    off = [figure for figure in every if abs(figure.off) > figure.tolerance]
    assert len(off) <= 0.02 * len(every), off
    assert all(abs(figure.off) <= 2 * figure.tolerance for figure in every)


@pytest.mark.parametrize("seed", (*SEEDS, *MORE_SEEDS))
def test_an_endless_cache_gives_the_published_share(seed: int) -> None:
    assert generated(seed)[1].cached_share == pytest.approx(0.963, abs=0.01)


@pytest.mark.parametrize("seed", (*SEEDS, *MORE_SEEDS))
def test_idle_prefixes_that_are_dropped_cost_what_was_published(seed: int) -> None:
    found = generated(seed)[1].cached_after_idle
    assert found == pytest.approx({60: 0.79, 300: 0.90, 3600: 0.96}, abs=0.02)


RESIDENCY = {np.inf: 17.7, 300: 5.4, 60: 2.5}


@pytest.mark.parametrize("seed", SEEDS)
def test_contexts_idle_as_long_as_published(seed: int) -> None:
    assert generated(seed)[1].residency == pytest.approx(RESIDENCY, rel=0.15)


def test_contexts_of_ten_more_seeds_idle_as_long_in_the_median() -> None:
    found = [generated(seed)[1].residency for seed in MORE_SEEDS]
    medians = {cap_s: float(np.median([each[cap_s] for each in found])) for cap_s in RESIDENCY}
    assert medians == pytest.approx(RESIDENCY, rel=0.15)


def test_as_many_sessions_compact_as_recorded(data_dir: Path) -> None:
    scalars = json.loads((data_dir / "traces" / "weka_agentx" / QUANTILES).read_text())["scalars"]
    compactions, compacting = [], []
    for seed in (*SEEDS, *MORE_SEEDS):
        workload, _ = generated(seed)
        rows = np.flatnonzero(workload.kind == COMPACTION)
        compactions.append(len(rows) / SESSIONS)
        compacting.append(len(set(workload.session[rows].tolist())) / SESSIONS)
    recorded = RECORDED_SESSIONS
    assert np.mean(compactions) == pytest.approx(scalars["compactions"] / recorded, rel=0.25)
    expected = scalars["sessions_with_compaction"] / recorded
    assert np.mean(compacting) == pytest.approx(expected, rel=0.25)


def test_sessions_last_as_long_as_their_recorded_pauses_and_answers(data_dir: Path) -> None:
    """The medians of all seeds; the recorded times overlap, see docs/decisions/0007."""
    recorded = recorded_durations(data_dir / "traces" / "weka_agentx" / "derived_requests_dev.csv")
    found = np.array(
        [np.percentile(durations(generated(s)[0]), (50, 90)) for s in (*SEEDS, *MORE_SEEDS)]
    )
    medians = np.median(found, axis=0)
    assert medians[0] == pytest.approx(np.percentile(recorded, 50), rel=0.10)
    # Long pauses crowd in fewer sessions than recorded ones do, so that the longest last longer.
    assert medians[1] == pytest.approx(np.percentile(recorded, 90), rel=0.25)


def durations(workload: Workload) -> np.ndarray:
    """From the first arrival of each session to the last."""
    begins, ends = np.full(workload.sessions, np.inf), np.zeros(workload.sessions)
    np.minimum.at(begins, workload.session, workload.arrival_s)
    np.maximum.at(ends, workload.session, workload.arrival_s)
    lasted: np.ndarray = ends - begins
    return lasted


def recorded_durations(path: Path) -> list[float]:
    """The pauses of each session and the answers before them."""
    total: dict[str, float] = {}
    before: dict[str, float] = {}
    with path.open(newline="") as file:
        for row in csv.DictReader(file):
            if row["is_subagent"] == "0":
                name = row["trace"]
                pause_s = float(row["think_time_s"] or 0)
                total[name] = total.get(name, 0.0) + before.get(name, 0.0) + pause_s
                before[name] = float(row["api_time_s"] or 0)
    return list(total.values())
