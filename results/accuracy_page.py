"""The tables of a validation as Markdown, written between two marks of a page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from results.accuracy_goals import HEADINGS as GOAL_HEADINGS
from results.accuracy_goals import goal_rows
from spaces.errors import InputError

BEGIN, END = "<!-- tables: begin -->", "<!-- tables: end -->"

QUANTITY_WORDS = {
    "tpot": "TPOT, median of requests",
    "ttft": "TTFT, median of requests",
    "output_throughput_per_chip": "output tokens/s/chip",
    "tpot_mean": "TPOT, rows with means only",
    "ttft_mean": "TTFT, rows with means only",
}
HEADINGS = (
    "group",
    "quantity",
    "points",
    "median error %",
    "mean error %",
    "bias %",
    "within 10 %",
    "within 20 %",
    "median of pairs %",
    "in 80 % band",
)
LEAST_POINTS = 5
MOST_WORST = 8
BY_MODE, BY_PAIR = "By mode", "By model, chip, engine and format"
# The tables of a page: title, and what the points are grouped by.
SECTIONS: Mapping[str, tuple[str, ...]] = {
    BY_MODE: ("mode",),
    "By mode and speculation": ("mode", "speculation"),
    "By engine": ("engine", "mode"),
    "By chip": ("chip", "mode"),
    "By model": ("model", "mode"),
    "By load": ("load", "mode"),
    BY_PAIR: ("family", "chip", "engine", "precision", "mode"),
}


def between_marks(page: str, text: str, where: str) -> str:
    """The page with `text` in the place of what stood between its marks, which must be there."""
    begin, end = page.find(BEGIN), page.find(END)
    if begin < 0 or end < begin:
        raise InputError(
            f"a page to write tables into needs the lines {BEGIN} and {END}",
            where=where,
            key="--markdown",
            remedy="put them where the tables are to stand",
        )
    return f"{page[: begin + len(BEGIN)]}\n\n{text.strip()}\n\n{page[end:]}"


def tables(documents: Mapping[str, dict[str, Any]], command: str) -> str:
    """Sections of tables: the whole and its goals, then each document's groups under its title.

    `documents` has one for each of `SECTIONS`.
    """
    whole = documents[BY_MODE]
    goals = goal_rows(whole["overall"], whole["groups"])
    parts = [
        _head(whole, command),
        f"### Goals\n\n{table(GOAL_HEADINGS, goals)}",
        f"### Pairs that miss most\n\n{_worst(documents[BY_PAIR])}",
    ]
    for title, document in documents.items():
        rows = [
            line
            for group in document["groups"]
            for line in score_rows(" ".join(group["group"].values()), group, LEAST_POINTS)
        ]
        parts.append(f"### {title}\n\n{table(HEADINGS, rows)}")
    return "\n\n".join(parts)


def _worst(by_pair: Mapping[str, Any]) -> str:
    """Groups by what they add to the mean error of TPOT, the most first."""
    having = [g for g in by_pair["groups"] if "tpot" in g and g["tpot"]["n"] >= LEAST_POINTS]
    total = sum(g["tpot"]["n"] * g["tpot"]["mape_pct"] for g in having)
    added = sorted(having, key=lambda g: -g["tpot"]["n"] * g["tpot"]["mape_pct"])[:MOST_WORST]
    rows = [
        (
            " ".join(g["group"].values()),
            str(g["tpot"]["n"]),
            f"{g['tpot']['median_ape_pct']:.1f}",
            f"{g['tpot']['bias_pct']:+.1f}",
            f"{100 * g['tpot']['n'] * g['tpot']['mape_pct'] / total:.0f} %",
        )
        for g in added
    ]
    names = ("group", "points", "TPOT median error %", "bias %", "share of all TPOT errors")
    return table(names, rows)


def _head(whole: dict[str, Any], command: str) -> str:
    """What was read, answered and refused, the whole's errors, and the order of mappings."""
    points, overall = whole["points"], whole["overall"]
    lines = [
        f"Written by `{command}` from {points['file']} (SHA-256 `{points['sha256'][:16]}`).",
        f"{points['rows']} rows, of which {overall['n']} of grade {', '.join(whole['grades'])} "
        f"are in scope; {overall['answered']} of them ({overall['answered_pct']:.1f} %) are "
        f"answered; {whole['how']}.",
    ]
    reasons = [
        *(("left out", reason, rows) for reason, rows in whole["left_out"].items()),
        *(("refused", reason, rows) for reason, rows in overall["refused"].items()),
    ]
    told = table(("", "reason", "rows"), [(a, reason, str(n)) for a, reason, n in reasons])
    return "\n\n".join(
        [
            "\n".join(lines),
            told,
            "### All points",
            table(HEADINGS, score_rows("all", overall, 1)),
            "\n".join(f"- {line}" for line in rank_lines(overall["rank_correlation"])),
        ]
    )


def score_rows(
    name: str, group: Mapping[str, Any], least_points: int = 1
) -> list[tuple[str, ...]]:
    """A line for each quantity with so many points, for a table with `HEADINGS`."""
    return [
        (name, words, *_cells(group[quantity]))
        for quantity, words in QUANTITY_WORDS.items()
        if quantity in group and group[quantity]["n"] >= least_points
    ]


def _cells(one: Mapping[str, Any]) -> tuple[str, ...]:
    coverage = one["interval_coverage"]
    return (
        str(one["n"]),
        f"{one['median_ape_pct']:.1f}",
        f"{one['mape_pct']:.1f}",
        f"{one['bias_pct']:+.1f}",
        f"{one['within_10_pct']:.0f}",
        f"{one['within_20_pct']:.0f}",
        f"{one['pair_median_ape_pct']:.1f}",
        "-" if coverage is None else f"{100 * coverage:.0f} %",
    )


def rank_lines(correlations: Mapping[str, Mapping[str, float]]) -> list[str]:
    """How well the order of mappings was told, one sentence for each quantity."""
    return [
        f"Order of mappings at equal load, {QUANTITY_WORDS[name]}: Spearman "
        f"{one['median_spearman']:.2f} (median), {one['mean_spearman']:.2f} (mean) over "
        f"{one['sweeps']:.0f} sweeps; the best mapping is found in {one['best_found_pct']:.0f} %."
        for name, one in correlations.items()
    ]


def table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [headings, ["---"] * len(headings), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
