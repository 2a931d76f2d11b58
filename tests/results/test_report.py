"""The report: complete, escaped, reproducible, and sufficient to itself."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from plotly.offline import get_plotlyjs

from objectives.goals import Objective
from objectives.metrics import METRICS
from objectives.provenance import Provenance
from results.front import hypervolume_history, knee, pareto_front
from results.report import write_report
from results.trials import TrialRecord
from spaces.plan import DeploymentPlan, Load, Pool

SPEED = Objective("tokens_per_s_per_user_p50", "maximize")
THROUGHPUT = Objective("output_tokens_per_s_per_chip", "maximize")
POWER = Objective("power_kw", "minimize")
HOSTILE = "<script>alert('x')</script> & \"quoted\""


def plan_of(concurrency: int) -> DeploymentPlan:
    pools = (
        Pool(role="prefill", chip="h100", replicas=2, tp=4),
        Pool(role="decode", chip="h200", dp=8, ep=8),
    )
    load = Load(concurrency=concurrency)
    return DeploymentPlan(model="m", topology="prefill-decode", pools=pools, load=load)


def trial(number: int, speed: float, throughput: float) -> TrialRecord:
    metrics = {SPEED.metric: speed, THROUGHPUT.metric: throughput, POWER.metric: 7.0 + number}
    bands = {SPEED.metric: (speed - 1, speed + 2)}
    return TrialRecord(number, plan_of(number + 1), "complete", metrics, bands)


TRIALS = [
    trial(0, 100.0, 50.0),
    trial(1, 80.0, 640.0),
    trial(2, 20.0, 1000.0),
    trial(3, 15.0, 600.0),
    TrialRecord(4, plan_of(90), "infeasible", violations={"memory": 0.05}, reason=HOSTILE),
    TrialRecord(5, plan_of(91), "infeasible", violations={"memory": 0.75}, reason="far too big"),
    TrialRecord(6, plan_of(92), "failed", reason=HOSTILE),
    TrialRecord(7, plan_of(1), "complete", trial(0, 100.0, 50.0).metrics, same_as=0),
    TrialRecord(8, plan_of(93), "complete", {SPEED.metric: float("nan")}),
]


class Page(HTMLParser):
    """Elements with their attributes, and the text of each kind of element."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: dict[str, list[str]] = {}
        self._open: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        self._open.append(tag)
        self.texts.setdefault(tag, []).append("")

    def handle_endtag(self, tag: str) -> None:
        while self._open and self._open.pop() != tag:
            pass

    def handle_data(self, data: str) -> None:
        if self._open:
            self.texts[self._open[-1]][-1] += data


def report(
    path: Path,
    objectives: Sequence[Objective] = (SPEED, THROUGHPUT),
    trials: Sequence[TrialRecord] = TRIALS,
    **changes: Any,
) -> str:
    """The text of a report of the trials, without the chart library."""
    front = pareto_front(trials, objectives)
    settings: dict[str, Any] = {
        "title": "kimi on h200",
        "job_yaml": "model: kimi\n",
        "history": hypervolume_history(trials, objectives, front.reference_point),
        "notes": ["the price of h200 is an estimate"],
    }
    write_report(path, trials=trials, front=front, **(settings | changes))
    return path.read_text().replace(get_plotlyjs(), "")


def chart_of(text: str) -> dict[str, Any]:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.S)
    assert found

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is no JSON")

    chart: dict[str, Any] = json.loads(found[1], parse_constant=refuse)
    return chart


@pytest.fixture
def text(tmp_path: Path) -> str:
    return report(tmp_path / "report.html")


def test_every_point_of_the_front_has_its_row_and_its_plan(text: str) -> None:
    page = Page(text)
    rows = [a["id"] for tag, a in page.elements if tag == "tr" and "id" in a]
    front = pareto_front(TRIALS, (SPEED, THROUGHPUT))
    assert rows == [f"point-{point.plan.point_id}" for point in front.points]
    assert len(rows) == 3
    plans = [one for one in page.texts["pre"] if "topology: prefill-decode" in one]
    assert plans == [point.plan.to_yaml() for point in front.points]


def test_the_answer_names_the_ends_and_the_knee(text: str) -> None:
    answer = [one for one in Page(text).texts["p"] if one.strip()][:2]
    deployment = "2x[TP4] h100 → 1x[DPAEP8] h200"
    assert answer[0] == (
        "Of 9 trials, 6 are feasible and 3 are on the front: the best decode speed per user p50 "
        f"is 100 tokens/s/user from {deployment} at concurrency 1; the best output throughput "
        f"per chip is 1,000 tokens/s/chip from {deployment} at concurrency 3."
    )
    assert answer[1] == (
        f"The knee, the best compromise, is {deployment} at concurrency 2: "
        "80 tokens/s/user and 640 tokens/s/chip."
    )


def test_the_report_loads_nothing(text: str) -> None:
    assert "http://" not in text and "https://" not in text
    elements = Page(text).elements
    assert not [a for _, a in elements if "src" in a or "href" in a]
    policy = [a["content"] or "" for tag, a in elements if "http-equiv" in a]
    assert policy and "default-src 'none'" in policy[0]
    assert "form-action 'none'" in policy[0]


def test_the_chart_library_is_inlined_once(tmp_path: Path) -> None:
    report(tmp_path / "report.html")
    assert (tmp_path / "report.html").read_text().count(get_plotlyjs()) == 1


def test_what_people_and_plans_say_is_escaped(tmp_path: Path) -> None:
    text = report(
        tmp_path / "report.html", title=HOSTILE, job_yaml=HOSTILE, notes=[HOSTILE],
        importances={SPEED.metric: {HOSTILE: 1.0}},
    )  # fmt: skip
    assert "alert('x')" not in text
    page = Page(text)
    assert page.texts["h1"] == page.texts["title"] == [HOSTILE]
    assert page.texts["pre"][-1] == HOSTILE
    assert HOSTILE in page.texts["li"] and HOSTILE in page.texts["code"]


def test_a_hostile_model_name_is_escaped_in_the_chart(tmp_path: Path) -> None:
    pool = Pool(role="aggregated", chip="</script><b>h200</b>")
    plan = DeploymentPlan(model="m", topology="aggregated", pools=(pool,))
    hostile = TrialRecord(0, plan, "complete", {SPEED.metric: 1.0, THROUGHPUT.metric: 1.0})
    text = report(tmp_path / "report.html", trials=[hostile])
    hover = chart_of(text)["points"][0]["hover"]
    assert "&lt;/script&gt;&lt;b&gt;h200" in hover
    assert "</script><b>" not in text


def test_the_chart_holds_feasible_points_with_bands_and_marks(text: str) -> None:
    chart = chart_of(text)
    points = {point["values"]["trial"]: point for point in chart["points"]}
    assert sorted(points) == [0, 1, 2, 3]
    assert [number for number, point in points.items() if point["front"]] == [0, 1, 2]
    best = knee(pareto_front(TRIALS, (SPEED, THROUGHPUT)))
    assert [number for number, point in points.items() if point["knee"]] == [best.trial]
    assert points[2]["values"][SPEED.metric] == 20.0
    assert points[2]["values"]["ttft_p50_ms"] is None
    assert points[2]["bands"] == {SPEED.metric: [19.0, 22.0]}
    assert "concurrency 3" in points[2]["hover"]
    assert "tokens/s/user p50: 20 (19 to 22)" in points[2]["hover"]
    assert chart["start"] == [SPEED.metric, THROUGHPUT.metric]
    assert len(chart["history"]) == len(chart["trials"]) == len(TRIALS)


def test_refusals_are_counted_with_the_nearest_miss(text: str) -> None:
    page = Page(text)
    cells = page.texts["td"]
    at = cells.index("refused before simulation")
    assert page.texts["code"][-2:] == ["memory", HOSTILE]
    assert cells[at + 1] == "2"
    assert cells[at + 2] == f"trial 4, 5.0% beyond: {HOSTILE}"
    assert "Trials that asked again for an earlier point: 1." in page.texts["p"]
    assert "Feasible trials without a finite value of each objective: 1." in page.texts["p"]


def test_headings_carry_the_meaning_of_their_column(text: str) -> None:
    meanings = [a.get("title") for tag, a in Page(text).elements if tag == "th"]
    assert METRICS[SPEED.metric].meaning in meanings
    assert METRICS["ttft_p95_ms"].meaning in meanings


def test_notes_job_and_importances_are_shown(tmp_path: Path) -> None:
    shares = {SPEED.metric: {"concurrency": 0.25, "tp": 0.75}}
    page = Page(report(tmp_path / "report.html", importances=shares))
    assert page.texts["li"] == ["the price of h200 is an estimate"]
    assert page.texts["pre"][-1] == "model: kimi\n"
    spans = page.texts["span"]
    assert spans.index("tp") < spans.index("75%") < spans.index("concurrency")


def test_the_same_study_gives_the_same_bytes(tmp_path: Path) -> None:
    report(tmp_path / "a.html")
    report(tmp_path / "b.html", trials=TRIALS[::-1])
    assert (tmp_path / "a.html").read_bytes() == (tmp_path / "b.html").read_bytes()


@pytest.mark.parametrize(
    ("objectives", "start"),
    [
        ((SPEED,), ["trial", SPEED.metric]),
        ((SPEED, THROUGHPUT, POWER), [SPEED.metric, THROUGHPUT.metric]),
    ],
)
def test_one_objective_and_three_are_reported_too(
    tmp_path: Path, objectives: tuple[Objective, ...], start: list[str]
) -> None:
    chart = chart_of(report(tmp_path / "report.html", objectives, TRIALS[:7]))
    assert chart["objectives"] == [objective.metric for objective in objectives]
    assert chart["start"] == start
    assert {*chart["objectives"], *start} <= set(chart["metrics"])


def test_without_a_feasible_trial_the_report_says_why_and_draws_nothing(tmp_path: Path) -> None:
    text = report(tmp_path / "report.html", trials=TRIALS[4:7])
    assert "None of 3 trials is feasible; the table below says why." in text
    assert "far too big" not in text and "memory" in text
    assert "Plotly" not in text
    assert (tmp_path / "report.html").stat().st_size < 20_000


def test_each_pool_of_the_front_is_told_with_its_batches(tmp_path: Path) -> None:
    inside = {"prefill_utilization": 0.625, "prefill_batch_p95": 17.0, "decode_utilization": 0.5}
    told = [replace(TRIALS[1], metrics={**TRIALS[1].metrics, **inside})]
    text = report(tmp_path / "report.html", trials=told)
    rows = text.split("Inside the pools")[1].split("</table>")[0].split("<tr>")[2:]
    assert ["prefill: 2x[TP4] h100" in rows[0], "decode: 1x[DPAEP8] h200" in rows[1]] == [True] * 2
    assert "0.625" in rows[0] and ">17<" in rows[0] and ">-<" in rows[1]


def test_pools_under_several_workloads_have_a_row_for_each(tmp_path: Path) -> None:
    inside = {f"{pool}_utilization@{of}": 0.5 for pool in ("prefill", "decode") for of in "ab"}
    told = [replace(TRIALS[1], metrics={**TRIALS[1].metrics, **inside, "chips@mean": 1.0})]
    text = report(tmp_path / "report.html", trials=told)
    assert text.count("@a</td>") == text.count("@b</td>") == 2


def test_without_figures_of_pools_there_is_no_table_of_them(text: str) -> None:
    assert "Inside the pools" not in text


def provenance_of(**changes: Any) -> Provenance:
    """Few grounds, and residuals of a known chip and of an unknown one."""
    kinds = {"quantity": "tpot", "low": 0.9, "high": 1.2, "points": 1234}
    told: dict[str, Any] = {
        "calibration": "the shipped calibration, fitted once",
        "operator_costs": "fitted",
        "corrections": [f"steps of {HOSTILE} x 1.100, from 12 points"],
        "grounds": [
            {"what": "h200: gemm", "status": "measured", "source": "kernel tables"},
            {"what": "h100: experts", "status": "estimate", "source": "a guess"},
        ],
        "knowledge": {"h100": "pair", "h200": "chip"},
        "residuals": [
            kinds | {"knowledge": "pair", "low": 0.95},
            kinds | {"knowledge": "chip", "disaggregated": True, "strained": False},
        ],
    }
    return Provenance.model_validate(told | changes)


def test_what_the_figures_rest_on_is_told(tmp_path: Path) -> None:
    text = report(tmp_path / "report.html", provenance=provenance_of())
    cells = Page(text).texts["td"]
    assert "the shipped calibration, fitted once" in text
    assert "none was read from a measured table" in text
    assert "0.900 to 1.20" in cells and "0.950 to 1.20" not in cells  # the lesser known chip's
    assert "1,234" in cells
    assert "a model that the fit had not seen on the chip, pools apart, short queues" in cells
    assert cells.count("no measured point is like it: a guess") == 2  # TTFT and throughput
    assert "1 measured, 1 estimate" in text
    assert {"h200: gemm", "h100: experts", "a guess"} <= set(cells)
    assert "<script>alert" not in text


def test_operators_read_from_measured_tables_are_told_as_such(tmp_path: Path) -> None:
    told = provenance_of(operator_costs="measured", corrections=[])
    text = report(tmp_path / "report.html", provenance=told)
    assert "Operators were read from measured tables where these go." in text
    assert "no correction for this model on these chips" in text


def test_a_study_that_does_not_know_what_it_rests_on_has_no_such_part(text: str) -> None:
    assert "What the figures rest on" not in text
