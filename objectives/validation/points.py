"""Measured operating points: what was deployed, what it was asked, and what was measured."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from objectives.validation.columns import Row, Unreadable, count, number, positive, read_rows
from objectives.validation.plausible import not_in_ms
from objectives.validation.published_runs import release_of
from spaces.plan import DeploymentPlan, Load

# Measured quantities, in the order of the tables: those of medians over requests, then those of
# means, which are told apart because bursts pull a mean of TTFT up to many times the median.
MEDIAN_COLUMNS = {"tpot": "tpot_ms_median", "ttft": "ttft_ms_median"}
MEAN_COLUMNS = {"tpot_mean": "tpot_ms_mean", "ttft_mean": "ttft_ms_mean"}
THROUGHPUT, THROUGHPUT_COLUMN = "output_throughput_per_chip", "output_tput_per_chip_tok_s"
QUANTITIES = ("tpot", "ttft", THROUGHPUT, "tpot_mean", "ttft_mean")

OPEN_OR_CLOSED = "neither a concurrency nor a request rate is stated"
NOTHING_MEASURED = "no latency and no throughput is stated"


@dataclass(frozen=True, slots=True)
class Mapping:
    """How one kind of worker is laid out: sizes of one, how many there are, chips of all.

    A size that a source leaves out is 1; `chips` is None where it is not stated.
    """

    tp: int
    ep: int
    dp: int
    pp: int
    workers: int
    chips: int | None

    @property
    def product(self) -> int:
        """Chips that the sizes ask for."""
        return self.tp * self.dp * self.pp * self.workers

    @property
    def layout(self) -> str:
        """One worker in the words of launch scripts: tp8; tep8 with experts apart; dep8 or dp8.

        >>> Mapping(tp=1, ep=8, dp=8, pp=1, workers=2, chips=16).layout
        'dep8'
        """
        experts = "e" if self.ep > 1 else ""
        return f"d{experts}p{self.dp}" if self.dp > 1 else f"t{experts}p{self.tp}"


@dataclass(frozen=True, slots=True)
class Setup:
    """What was deployed and asked, as the source names it; empty text where it does not say.

    `mappings` holds one for `agg` rows, prefill's and decode's for `disagg` rows. Lengths are
    means over requests, in tokens; the nominal ones are what the load generator was asked for.
    `requests` are those of the run, where the notes say how many; they also tell whether KV is
    kept in host memory (`offloads_kv`). `plan` is the deployment where
    it is known as one, and the mappings are then empty.
    """

    model: str
    family: str
    hardware: str
    engine: str
    release: str
    mode: str
    weights: str
    kv: str
    speculation: str
    workload: str
    mappings: tuple[Mapping, ...]
    chips: int
    input_tokens: float
    output_tokens: float
    nominal_input: int
    nominal_output: int
    prefix_hit: float
    load: Load
    requests: int | None = None
    offloads_kv: bool = False
    plan: DeploymentPlan | None = None

    @property
    def pair(self) -> tuple[str, str]:
        """The model's family and the chip: what is held out together."""
        return self.family, self.hardware


@dataclass(frozen=True, slots=True)
class Point:
    """One operating point: a configuration under a load with one software, its repeats together.

    `measured` has the median over the `rows` repeats of each quantity that they state: latencies
    in ms, output tokens per second and chip.
    """

    setup: Setup
    image: str
    config: str
    rows: int
    measured: dict[str, float]


@dataclass(frozen=True, slots=True)
class PointsFile:
    """What a file holds: the points of the grade asked for, and its rows by what became of them.

    `rows` were read, `of_grade` of them have a grade asked for, `unread` of those by reason could
    not be made into points.
    """

    name: str
    sha256: str
    rows: int
    of_grade: int
    points: tuple[Point, ...]
    unread: dict[str, int]


def read_points(path: Path, grades: Sequence[str] = ("A",)) -> PointsFile:
    """Read the points of the wanted quality grades; rows without a grade are taken as wanted."""
    rows, sha256 = read_rows(path)
    wanted = [row for row in rows if row.get("quality", "") in (*grades, "")]
    unread: Counter[str] = Counter()
    read: list[tuple[Setup, Row]] = []
    for row in wanted:
        try:
            measured, setup = _measured([row]), setup_of(row)
            if reason := not_in_ms(measured):
                raise Unreadable(reason)
            read.append((setup, row))
        except Unreadable as error:
            unread[str(error)] += 1
    return PointsFile(
        path.name, sha256, len(rows), len(wanted), tuple(_points(read)), dict(unread)
    )


def _points(read: Iterable[tuple[Setup, Row]]) -> list[Point]:
    """Repeats of one configuration, load and image as one point each, in the file's order."""
    groups: dict[tuple[object, ...], list[tuple[Setup, Row]]] = {}
    for setup, row in read:
        key = (_config(setup, row), setup.load, row.get("engine_version", ""))
        groups.setdefault(key, []).append((setup, row))
    return [
        Point(
            setup=same[0][0],
            image=same[0][1].get("engine_version", ""),
            config=str(key[0]),
            rows=len(same),
            measured=_measured([row for _, row in same]),
        )
        for key, same in groups.items()
    ]


def _config(setup: Setup, row: Row) -> object:
    """The row's own name of its configuration, or else everything but the load."""
    named = row.get("config_id", "")
    fields = (setup.model, setup.hardware, setup.engine, setup.mode, setup.weights, setup.kv)
    lengths = (setup.input_tokens, setup.output_tokens, setup.prefix_hit, setup.workload)
    return named or (*fields, setup.speculation, setup.mappings, *lengths)


def _measured(rows: Sequence[Row]) -> dict[str, float]:
    """Median over rows of each quantity; means of requests only where no median is stated."""
    found: dict[str, float] = {}
    for (name, column), (mean, mean_column) in zip(
        MEDIAN_COLUMNS.items(), MEAN_COLUMNS.items(), strict=True
    ):
        if values := _values(rows, column):
            found[name] = median(values)
        elif values := _values(rows, mean_column):
            found[mean] = median(values)
    if values := _values(rows, THROUGHPUT_COLUMN):
        found[THROUGHPUT] = median(values)
    if not found:
        raise Unreadable(NOTHING_MEASURED)
    return found


def _values(rows: Sequence[Row], column: str) -> list[float]:
    return [value for row in rows if (value := positive(row, column)) is not None]


def setup_of(row: Row) -> Setup:
    """What a row says was deployed and asked; `Unreadable` where it says too little."""
    chips = count(row, "num_chips")
    if chips is None:
        raise Unreadable("the number of chips is not stated")
    mode = row.get("mode", "") or "agg"
    return Setup(
        model=row["model"],
        family=row.get("model_family", "") or row["model"],
        hardware=row["hardware"],
        engine=row["engine"],
        release=release_of(row.get("engine_version", ""), row["engine"], row.get("date", "")),
        mode=mode,
        weights=row.get("precision_weights", ""),
        kv=row.get("precision_kv", ""),
        speculation=row.get("spec_decode", "none"),
        workload=row.get("workload", ""),
        mappings=_mappings(row, mode, chips),
        chips=chips,
        input_tokens=_length(row, "isl"),
        output_tokens=_length(row, "osl"),
        nominal_input=_nominal(row, "isl"),
        nominal_output=_nominal(row, "osl"),
        prefix_hit=number(row, "prefix_hit") or 0.0,
        load=_load(row),
        requests=_requests(row),
        offloads_kv="lmcache" in row.get("notes", "").lower(),
    )


def _mappings(row: Row, mode: str, chips: int) -> tuple[Mapping, ...]:
    if mode != "disagg":
        return (_mapping(row, "decode", chips),)
    return tuple(
        _mapping(row, part, count(row, f"{part}_chips")) for part in ("prefill", "decode")
    )


def _mapping(row: Row, part: str, chips: int | None) -> Mapping:
    tp = count(row, f"{part}_tp")
    if tp is None:
        raise Unreadable(f"the {part} mapping is not stated")
    ep, dp, workers = (count(row, f"{part}_{size}") or 1 for size in ("ep", "dp", "workers"))
    return Mapping(tp, ep, dp, count(row, "pp") or 1, workers, chips)


def _length(row: Row, name: str) -> float:
    """Mean tokens really sent, or else what was asked for."""
    found = positive(row, f"{name}_mean") or positive(row, name)
    if found is None:
        raise Unreadable(f"{name} is not stated")
    return found


def _nominal(row: Row, name: str) -> int:
    """Tokens asked for, or else really sent."""
    return round(positive(row, name) or positive(row, f"{name}_mean") or 0)


def _requests(row: Row) -> int | None:
    """Requests of the run, which short runs are noted with: `n=251`, `80 requests only`."""
    text = f"{row.get('notes')} {row.get('workload')}"
    told = re.search(r"\bn=(\d+)\b|\b(\d+) requests\b", text)
    return int(told.group(1) or told.group(2)) if told else None


def _load(row: Row) -> Load:
    concurrency, rate = positive(row, "concurrency"), positive(row, "request_rate")
    if concurrency is not None:
        return Load(concurrency=max(1, round(concurrency)))
    if rate is None:
        raise Unreadable(OPEN_OR_CLOSED)
    return Load(request_rate=rate)
