"""The page of tables: goals by the figures they name, marks, and the worst groups first."""

from __future__ import annotations

from typing import Any

import pytest

from results.accuracy_goals import goal_rows
from results.accuracy_page import BEGIN, END, SECTIONS, between_marks, tables
from spaces.errors import InputError


def score(median: float, mean: float, coverage: float = 0.8, n: int = 100) -> dict[str, Any]:
    return {
        "n": n,
        "median_ape_pct": median,
        "mape_pct": mean,
        "bias_pct": 1.0,
        "within_10_pct": 50.0,
        "within_20_pct": 80.0,
        "interval_coverage": coverage,
        "pairs": 3,
        "pair_median_ape_pct": median,
    }


def document(**groups: dict[str, Any]) -> dict[str, Any]:
    return {
        "points": {"file": "p.csv", "sha256": "ab" * 32, "rows": 200},
        "grades": ["A"],
        "how": "as said",
        "left_out": {"contradiction": 3},
        "overall": {
            "n": 100,
            "answered": 96,
            "answered_pct": 96.0,
            "refused": {"unknown model": 4},
            "tpot": score(9.0, 14.0),
            "output_throughput_per_chip": score(7.0, 11.0, 0.9),
            "rank_correlation": {},
        },
        "groups": [{"group": {"mode": name}, "tpot": one} for name, one in groups.items()],
    }


def test_a_goal_is_met_or_missed_by_its_own_figures() -> None:
    told = document(agg=score(7.5, 13.0), disagg=score(12.0, 14.0))
    rows = {row[0]: row for row in goal_rows(told["overall"], told["groups"])}
    assert rows["TPOT, aggregated, median / mean"][3] == "- / 1.0"
    assert rows["TPOT, disaggregated, median / mean"][3] == "2.0 / -"
    assert rows["output tokens/s/chip, median / mean"][3] == "-"
    assert rows["median TTFT, aggregated"][2] == "no points"
    assert rows["rows answered"][3] == "-"
    assert rows["80 % interval of tpot covers"][3] == "-"
    assert rows["80 % interval of output throughput per chip covers"][3] == "5.0"


def test_groups_that_add_most_to_the_error_come_first() -> None:
    told = document(few=score(50.0, 60.0, n=6), many=score(10.0, 20.0, n=100))
    page = tables(dict.fromkeys(SECTIONS, told), "servefront validate p.csv")
    worst = page[page.index("### Pairs that miss most") : page.index("### By mode")]
    assert worst.index("| many |") < worst.index("| few |")
    assert "| left out | contradiction | 3 |" in page
    assert "| refused | unknown model | 4 |" in page


def test_only_what_stands_between_the_marks_is_replaced() -> None:
    page = f"a\n{BEGIN}\nold\n{END}\nb\n"
    once = between_marks(page, "new", "page.md")
    assert once == f"a\n{BEGIN}\n\nnew\n\n{END}\nb\n"
    assert between_marks(once, "new", "page.md") == once
    with pytest.raises(InputError, match="tables: begin"):
        between_marks("no marks", "new", "page.md")
