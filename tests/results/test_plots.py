"""Pictures of the front: their size, their labels, what they say about what they leave out."""

from __future__ import annotations

import math
import struct
from pathlib import Path
from typing import Any

import pytest
from matplotlib.figure import Figure
from matplotlib.text import Annotation, Text

from objectives.goals import Objective
from results.front import ParetoFront, knee, pareto_front
from results.labels import MAX_LABELS, label_points
from results.plots import OKABE_ITO, TOPOLOGY_COLOURS, draw_front
from results.trials import TrialRecord
from results.words import describe_load
from spaces.plan import TOPOLOGY_ROLES, DeploymentPlan, Load, Pool

SPEED = Objective("tokens_per_s_per_user_p50", "maximize")
THROUGHPUT = Objective("output_tokens_per_s_per_chip", "maximize")
TTFT = Objective("ttft_p95_ms", "minimize")
PRICE = Objective("usd_per_m_output_tokens", "minimize")
POOLS = (Pool(role="aggregated", chip="h200", replicas=2, tp=8),)


def trial(concurrency: int) -> TrialRecord:
    """One load of a plan whose speed falls and whose throughput saturates with concurrency."""
    plan = DeploymentPlan(
        model="m", topology="aggregated", pools=POOLS, load=Load(concurrency=concurrency)
    )
    throughput = 2000 * concurrency / (concurrency + 60)
    metrics = {
        SPEED.metric: 12000 / (concurrency + 60),
        THROUGHPUT.metric: throughput,
        TTFT.metric: 100.0 + concurrency,
        PRICE.metric: 900 / throughput,
    }
    bands = {name: (0.9 * value, 1.1 * value) for name, value in metrics.items()}
    return TrialRecord(concurrency, plan, "complete", metrics, bands)


TRIALS = [trial(c) for c in (1, 2, 4, 8, 16, 32, 48, 64, 96, 128, 192, 256, 384, 512)]
REFUSED = TrialRecord(600, TRIALS[0].plan, "infeasible", violations={"memory": 1.0})


def size_of(png: bytes) -> tuple[int, int]:
    assert png.startswith(b"\x89PNG\r\n\x1a\n")
    width, height = struct.unpack(">II", png[16:24])
    return width, height


def texts_of(path: Path, trials: list[TrialRecord], front: ParetoFront, title: str) -> list[str]:
    """Draw, and return every text of the figure that was saved."""
    drawn: list[Figure] = []
    save = Figure.savefig

    def watch(figure: Figure, *arguments: Any, **settings: Any) -> None:
        drawn.append(figure)
        save(figure, *arguments, **settings)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Figure, "savefig", watch)
        draw_front(path, trials, front, title=title)
    return [text.get_text() for text in drawn[0].findobj(Text) if isinstance(text, Text)]


@pytest.mark.parametrize(
    "objectives",
    [(SPEED,), (SPEED, THROUGHPUT), (TTFT, PRICE), (SPEED, THROUGHPUT, TTFT),
     (SPEED, THROUGHPUT, TTFT, PRICE)],
)  # fmt: skip
@pytest.mark.parametrize("trials", [[*TRIALS, REFUSED], TRIALS[:1], [REFUSED], []])
def test_a_picture_of_1600_by_1000_pixels_is_written(
    tmp_path: Path, objectives: tuple[Objective, ...], trials: list[TrialRecord]
) -> None:
    path = tmp_path / "front.png"
    draw_front(path, trials, pareto_front(trials, objectives), title="model, workload")
    assert size_of(path.read_bytes()) == (1600, 1000)


def test_the_same_trials_give_the_same_picture(tmp_path: Path) -> None:
    front = pareto_front(TRIALS, (SPEED, THROUGHPUT))
    draw_front(tmp_path / "a.png", TRIALS, front)
    draw_front(tmp_path / "b.png", TRIALS[::-1], pareto_front(TRIALS[::-1], front.objectives))
    assert (tmp_path / "a.png").read_bytes() == (tmp_path / "b.png").read_bytes()


def test_the_picture_says_what_it_shows_and_what_is_not_feasible(tmp_path: Path) -> None:
    front = pareto_front(TRIALS, (SPEED, THROUGHPUT))
    texts = texts_of(tmp_path / "a.png", [*TRIALS, REFUSED], front, "kimi on h200")
    assert "kimi on h200" in texts
    assert "Decode speed per user p50 (tokens/s/user)   better →" in texts
    caption = "15 trials, 14 feasible, 14 on the front. Not feasible: memory (1)."
    assert caption in texts
    assert sum(text.startswith("knee: 2x[TP8] h200") for text in texts) == 1


def test_an_axis_of_a_minimized_metric_points_the_other_way(tmp_path: Path) -> None:
    texts = texts_of(tmp_path / "a.png", TRIALS, pareto_front(TRIALS, (TTFT, PRICE)), "")
    assert "← better   TTFT p95 (ms)" in texts


def test_trials_beyond_the_axes_are_counted(tmp_path: Path) -> None:
    hopeless = TrialRecord(700, trial(700).plan, "complete", {TTFT.metric: 1e7, PRICE.metric: 1e7})
    trials = [*TRIALS, hopeless]
    texts = texts_of(tmp_path / "a.png", trials, pareto_front(trials, (TTFT, PRICE)), "")
    assert any("1 feasible beyond the axes." in text for text in texts)


def test_money_signs_and_endless_bands_are_drawn_as_they_are(tmp_path: Path) -> None:
    plan = TRIALS[0].plan.model_copy(update={"pools": (Pool(role="aggregated", chip="$^{$b"),)})
    metrics = {SPEED.metric: 1.0, PRICE.metric: 2.0}
    odd = TrialRecord(0, plan, "complete", metrics, {SPEED.metric: (0.5, math.inf)})
    refused = TrialRecord(1, plan, "infeasible", reason="costs $5^{\nof $4")
    title = "from $3^{ to $4"
    front = pareto_front([odd, refused], (SPEED, PRICE))
    texts = texts_of(tmp_path / "a.png", [odd, refused], front, title)
    assert title in texts
    assert any("costs $5^{ of $4 (1)" in text for text in texts)
    assert any("1x[TP1] $^{$b" in text for text in texts)


def test_labels_cover_neither_each_other_nor_a_point() -> None:
    front = pareto_front(TRIALS, (SPEED, THROUGHPUT))
    figure = Figure(figsize=(7, 5), dpi=100)  # so small that the first places are taken
    axes = figure.add_axes((0.07, 0.1, 0.9, 0.8))
    axes.set(xlim=(0, 220), ylim=(0, 2100))
    label_points(axes, front)
    figure.draw_without_rendering()
    labels = [text for text in axes.texts if isinstance(text, Annotation)]
    boxes = [Text.get_window_extent(label) for label in labels]
    marks = axes.transData.transform(
        [(p.metrics[SPEED.metric], p.metrics[THROUGHPUT.metric]) for p in front.points]
    )
    assert 3 <= len(labels) <= MAX_LABELS
    assert not any(a.overlaps(b) for i, a in enumerate(boxes) for b in boxes[:i])
    assert not any(box.contains(*mark) for box in boxes for mark in marks)
    frame = axes.get_window_extent()
    assert all(frame.contains(b.x0, b.y0) and frame.contains(b.x1, b.y1) for b in boxes)
    assert any(describe_load(knee(front).plan) in label.get_text() for label in labels)


def test_every_topology_has_a_colour_of_its_own() -> None:
    assert set(TOPOLOGY_COLOURS) == set(TOPOLOGY_ROLES)
    assert len(set(TOPOLOGY_COLOURS.values())) == len(TOPOLOGY_ROLES) <= len(OKABE_ITO)
