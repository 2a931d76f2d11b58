"""All-to-all across nodes against published times of EP sizes that were not fitted."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from objectives.cost.exchanges import Mode, crossing_share, load_exchanges
from objectives.cost.overheads import load_overheads
from scripts.fit_exchanges import (
    exchange_document,
    fit_series,
    held_out_errors,
    published,
    series_of,
)
from spaces.documents import dump_yaml, parse_yaml

SIZES = np.array([4.0, 8.0, 16.0, 32.0, 64.0, 128.0])


@pytest.mark.parametrize("mode", ["low_latency", "normal"])
def test_nothing_crosses_the_network_inside_a_node(mode: Mode) -> None:
    shares = np.asarray(crossing_share(mode, SIZES, 8, 8))
    assert shares[:2].tolist() == [0.0, 0.0]
    assert (shares[2:] > 0.1).all()
    assert (shares < 1.0).all()


def test_normal_kernels_send_one_copy_to_each_remote_node() -> None:
    """Against counting: distinct remote nodes of 8 independent draws over the nodes."""
    rng = np.random.default_rng(0)
    for nodes in (2, 4, 16):
        drawn = rng.integers(nodes, size=(20000, 8))
        copies = np.mean([len(set(line) - {0}) for line in drawn.tolist()])
        assert 8 * crossing_share("normal", 8.0 * nodes, 8, 8) == pytest.approx(copies, rel=0.02)


def test_normal_kernels_never_send_more_than_low_latency_ones() -> None:
    few = crossing_share("normal", SIZES, 8, 8)
    assert (np.asarray(few) <= np.asarray(crossing_share("low_latency", SIZES, 8, 8))).all()
    assert (np.diff(np.asarray(few)) >= 0).all()


def test_the_network_runs_at_the_median_of_the_fitted_lines() -> None:
    """Lines from a single node on, 128 and more tokens, over 400 Gb/s a chip."""
    lines = [
        line
        for line in load_exchanges().exchanges
        if line.fitted_on_ep[0] == line.node and line.tokens > 1 and line.op != "all_to_all"
    ]
    bytes_each = {"dispatch": 1, "combine": 2}
    speeds = [
        one.tokens * one.top_k * 7168 * bytes_each[one.op] / one.crossing_us / 1e3
        for one in lines
        if not one.library.startswith("DeepEP (as quoted")
    ]
    assert len(speeds) == 22
    fraction = load_overheads().network.all_to_all_fraction
    assert fraction == pytest.approx(np.median(speeds) / 50, abs=0.01)


def test_the_shipped_lines_are_those_of_the_published_rows(data_dir: Path) -> None:
    made = parse_yaml(exchange_document(data_dir / "measured"), "made")
    assert parse_yaml(dump_yaml(load_exchanges().model_dump(mode="json")), "shipped") == made


def test_sizes_that_were_not_fitted_are_within_ten_percent(data_dir: Path) -> None:
    rows = published(data_dir / "measured")
    assert len(rows) == 180
    errors = held_out_errors(rows)["error"].abs()
    assert len(errors) > 80
    assert errors.median() < 0.10


def test_a_line_passes_through_the_two_sizes_it_is_drawn_through(data_dir: Path) -> None:
    for series in series_of(published(data_dir / "measured")):
        line = fit_series(series)
        if line is None:
            continue
        for ep in line.fitted_on_ep:
            (measured,) = series.loc[series["ep_size"] == ep, "latency_us"]
            assert float(np.asarray(line.seconds(float(ep)))) * 1e6 == pytest.approx(
                measured, abs=0.1
            )
