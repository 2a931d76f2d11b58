"""Fits all-to-all times to published ones of two EP sizes, and scores them on the others.

Usage: python -m scripts.fit_exchanges [DATA]    (DATA: default $SERVEFRONT_DATA)

Prints the scores, those of the general form that prices plans among them. Writes nothing:
`scripts.fit_operators` does.
"""

from __future__ import annotations

import argparse
import hashlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Literal, cast

import numpy as np
import pandas as pd

from objectives.cost.collectives import all_to_all_s
from objectives.cost.exchanges import PublishedExchange, crossing_share
from objectives.cost.machine import machine_of
from spaces.catalog import chip
from spaces.documents import dump_yaml
from spaces.model import MoeFfn

ROOT = Path(__file__).parent.parent
COMMAND = "python -m scripts.fit_operators WHEEL"
SOURCE = (
    "READMEs of DeepEP, pplx-kernels, pplx-garden, UCCL-EP and MORI-EP, as collected in "
    "ep_alltoall_published.csv"
)
DATE = "2026-12-01"
_SERIES = ["source_repo", "hardware", "network", "library", "mode", "op", "tokens_per_rank"]
Pick = Literal["outermost", "smallest"]


def main() -> None:
    """Run as a command."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", maxsplit=1)[0])
    data = Path(os.environ.get("SERVEFRONT_DATA", ROOT.parent / "shared"))
    parser.add_argument("data", type=Path, nargs="?", default=data)
    print(exchange_report(parser.parse_args().data / "measured"))


def exchange_document(measured: Path) -> str:
    """The text of `objectives/cost/exchanges.yaml`."""
    rows = published(measured)
    fitted = [one for series in series_of(rows) if (one := fit_series(series)) is not None]
    return dump_yaml(
        {
            "source": SOURCE,
            "date": DATE,
            "command": COMMAND,
            "fingerprint": hashlib.sha256(rows.to_csv(index=False).encode()).hexdigest(),
            "exchanges": [one.model_dump(mode="json") for one in fitted],
        }
    )


def published(measured: Path) -> pd.DataFrame:
    """Rows with a latency."""
    rows = pd.read_csv(measured / "ep_alltoall_published.csv")
    return rows[rows["latency_us"].notna()].reset_index(drop=True)


def series_of(rows: pd.DataFrame) -> Iterator[pd.DataFrame]:
    """One library's exchange on one network over EP sizes, without the source's misprints."""
    sound = rows[~_misprinted(rows)]
    for _, series in sound.groupby(_SERIES, sort=True):
        yield series.sort_values("ep_size").reset_index(drop=True)


def fit_series(series: pd.DataFrame, pick: Pick = "outermost") -> PublishedExchange | None:
    """The line through two EP sizes: the outermost, or the smallest two; None for a lone size."""
    if len(series) < 2:
        return None
    first = series.iloc[0]
    second = series.iloc[-1] if pick == "outermost" else series.iloc[1]
    node, top_k, mode = int(first["gpus_per_node"]), int(first["topk"]), first["mode"]
    shares = [crossing_share(mode, float(r["ep_size"]), node, top_k) for r in (first, second)]
    rise = float(second["latency_us"] - first["latency_us"]) / float(shares[1] - shares[0])
    return PublishedExchange(
        hardware=first["hardware"],
        network=first["network"],
        library=first["library"],
        mode=mode,
        op=first["op"],
        tokens=int(first["tokens_per_rank"]),
        top_k=top_k,
        node=node,
        fixed_us=round(float(first["latency_us"]) - rise * float(shares[0]), 2),
        crossing_us=round(rise, 2),
        fitted_on_ep=(int(first["ep_size"]), int(second["ep_size"])),
    )


def held_out_errors(rows: pd.DataFrame, pick: Pick = "outermost") -> pd.DataFrame:
    """Signed errors on the EP sizes that a series' line was not drawn through."""
    found = []
    for series in series_of(rows):
        line = fit_series(series, pick)
        if line is None:
            continue
        for row in series.to_dict("records"):
            if row["ep_size"] not in line.fitted_on_ep:
                predicted = float(cast(float, line.seconds(float(row["ep_size"])))) * 1e6
                found.append(
                    {
                        **{key: row[key] for key in ("library", "network", "mode", "op")},
                        "ep": row["ep_size"],
                        "error": predicted / row["latency_us"] - 1,
                    }
                )
    return pd.DataFrame(found)


def exchange_report(measured: Path) -> str:
    """The part of `docs/accuracy_operators.md` on exchanges."""
    rows = published(measured)
    errors = held_out_errors(rows)
    near = held_out_errors(rows, "smallest")["error"].abs().median() * 100
    lines = ["| library | network | mode | scored rows | median error % | bias % |"]
    lines.append("| --- | --- | --- | --- | --- | --- |")
    for key, mine in errors.groupby(["library", "network", "mode"]):
        lines.append(f"| {' | '.join(map(str, key))} | {_figures(mine['error'])} |")
    for mode, mine in errors.groupby("mode"):
        lines.append(f"| all | | {mode} | {_figures(mine['error'])} |")
    lines.append(f"| all | | | {_figures(errors['error'])} |")
    table = "\n".join(lines)
    lone = sum(len(s) == 1 for s in series_of(rows))
    pairs = 2 * sum(len(s) > 1 for s in series_of(rows))
    return f"""## All-to-all across nodes

Of {len(rows)} published rows with a latency, {pairs} draw the lines (two EP sizes of each library,
network, kernel kind, direction and token count: the smallest and the largest), {len(errors)} score
them; {lone} stand alone in their series, and {int(_misprinted(rows).sum())} are misprints in the
source. Drawn through the two smallest sizes instead, so that all others are extrapolated, the
lines' median error is {near:.0f} %.

{table}

The general form that prices plans (`all_to_all_s`) adds to the measured kernel inside a node what
crosses the network, at 0.94 of its line: the median of these lines. Against dispatch plus combine
of 128 tokens in low-latency kernels of DeepEP, pplx-garden and MORI-EP over 400 Gb/s (all EP
sizes, the lines' own among them):

{_general_form(rows)}

And against DeepEP in SGLang on H100, measured by aiconfigurator on 2, 4 and 8 nodes, the faster
kernel kind with its best number of SMs at each size (hidden 7168, top-8 of 256):

{_measured_nodes(measured)}
"""


def _figures(errors: pd.Series) -> str:
    return f"{len(errors)} | {errors.abs().median() * 100:.1f} | {errors.median() * 100:+.1f}"


def _misprinted(rows: pd.DataFrame) -> pd.Series:
    return rows["notes"].fillna("").str.contains("misprint")


def _general_form(rows: pd.DataFrame) -> str:
    mine = rows[
        (rows["mode"] == "low_latency")
        & rows["library"].isin(["DeepEP V1", "DeepEP", "pplx-garden", "MORI-EP"])
        & ~rows["network"].str.contains("EFA")
        & (rows["tokens_per_rank"] == 128)
        & (rows["ep_size"] > 8)
    ]
    both = mine.groupby([*_SERIES[1:4], "ep_size"])["latency_us"].sum().reset_index()
    moe = MoeFfn(layers=1, routed_experts=256, top_k=8, expert_intermediate_size=2048)
    lines = [
        "| library | chip | EP | published us | predicted us |",
        "| --- | --- | --- | --- | --- |",
    ]
    errors = []
    for row in both.to_dict("records"):
        name = str(row["hardware"]).lower()
        spec = chip(name if name in ("mi300x", "mi355x") else "h100")
        ep = int(row["ep_size"])
        tokens = np.array([128.0])
        found = all_to_all_s(machine_of(spec, "sglang"), moe, 7168, "fp8", tokens, ep)
        predicted, true = float(found[0]) * 1e6, float(row["latency_us"])
        errors.append(abs(predicted / true - 1))
        lines.append(f"| {row['library']} | {spec.name} | {ep} | {true:.0f} | {predicted:.0f} |")
    lines.append(f"\nMedian error {np.median(errors) * 100:.0f} %.")
    return "\n".join(lines)


def _measured_nodes(measured: Path) -> str:
    table = pd.read_csv(measured / "ep_alltoall_aiconfigurator.csv")
    keys = {"hardware": "H100", "hidden": 7168, "topk": 8, "num_experts": 256}
    mine = table[(table[list(keys)] == pd.Series(keys)).all(axis=1) & (table["ep_size"] > 8)]
    best = mine.groupby(["ep_size", "tokens_per_rank", "mode", "op"])["latency_us"].min()
    both = best.groupby(["ep_size", "tokens_per_rank", "mode"]).agg(["sum", "size"])
    whole = both[both["size"] == 2]["sum"].groupby(["ep_size", "tokens_per_rank"]).min()
    moe = MoeFfn(layers=1, routed_experts=256, top_k=8, expert_intermediate_size=2048)
    machine = machine_of(chip("h100"), "sglang")
    lines = ["| EP | sizes | tokens a rank | median error % | bias % |"]
    lines.append("| --- | --- | --- | --- | --- |")
    for ep in sorted({int(str(key[0])) for key in whole.index}):
        series = whole.loc[ep]
        tokens = np.array(series.index, dtype=np.float64)
        predicted = all_to_all_s(machine, moe, 7168, "fp8", tokens, ep) * 1e6
        error = pd.Series(predicted / series.to_numpy() - 1)
        size, median, bias = _figures(error).split(" | ")
        lines.append(f"| {ep} | {size} | {tokens[0]:g} to {tokens[-1]:g} | {median} | {bias} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
