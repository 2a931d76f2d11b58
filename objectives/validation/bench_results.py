"""Results of load generators as measured points: vLLM's and SGLang's benchmarks, and AIPerf.

They tell the load, the lengths and the latencies, but not what was deployed: that is a plan. The
format is told by the content. vLLM's `bench serve --save-result` and SGLang's `bench_serving
--output-file` (one JSON object a line) share their names of totals and latencies; AIPerf's profile
export has one object of statistics for each metric.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from objectives.validation.bench_runs import check_run
from objectives.validation.plausible import more_than_the_users, not_in_ms
from objectives.validation.points import THROUGHPUT, Point, Setup
from spaces import catalog
from spaces.documents import read_text
from spaces.errors import InputError
from spaces.plan import DeploymentPlan, Load

FORMATS = "vLLM `bench serve`, SGLang `bench_serving` or AIPerf profile export"
# Runs of no more requests than this are simulated request for request.
SHORT_RUN = 2000
_UNIT_MS = {"ms": 1.0, "milliseconds": 1.0, "s": 1e3, "sec": 1e3, "seconds": 1e3, "us": 1e-3}


def read_results(path: Path, plan: DeploymentPlan) -> list[Point]:
    """The points of a result file of a deployment; `InputError` where it is none."""
    return [
        _point(result, plan, f"{path}" if number == 1 else f"{path}:{number}")
        for number, result in enumerate(_results(path), 1)
    ]


def _results(path: Path) -> Iterator[dict[str, Any]]:
    """The JSON object of a file, or those of its lines."""
    text = read_text(path)
    try:
        objects = [json.loads(text)]
    except json.JSONDecodeError:
        objects = list(_lines(text, path))
    for one in objects:
        if not isinstance(one, dict):
            raise InputError(f"the file must hold a JSON object of {FORMATS}", where=str(path))
        yield one


def _lines(text: str, path: Path) -> Iterator[Any]:
    lines = [(n, line) for n, line in enumerate(text.splitlines(), 1) if line.strip()]
    if not lines:
        raise InputError(f"the file is empty; {FORMATS} is needed", where=str(path))
    for number, line in lines:
        try:
            yield json.loads(line)
        except json.JSONDecodeError as error:
            raise InputError(
                f"the text must be JSON ({error.msg})", where=f"{path}:{number}"
            ) from None


def _point(result: Mapping[str, Any], plan: DeploymentPlan, where: str) -> Point:
    if "time_to_first_token" in result:
        measured, inputs, outputs = _aiperf(result, where)
        load = _aiperf_load(result)
    elif "total_input_tokens" in result and "completed" in result:
        measured, inputs, outputs = _bench(result, where)
        load = _bench_load(result)
    else:
        raise InputError(
            f"the result must be one of {FORMATS}",
            where=where,
            value=", ".join(sorted(result)[:6]),
            remedy="of AIPerf it is profile_export_aiperf.json; other points go into a CSV with "
            "the columns of docs/calibration.md",
        )
    load = load or _planned(plan, where)
    check_run(result, plan, where)
    rate = measured[THROUGHPUT]
    reason = not_in_ms(measured) or more_than_the_users(measured, rate, load)
    if reason is not None:
        raise InputError(reason, where=where)
    measured[THROUGHPUT] /= plan.chips
    setup = _setup(plan, load, inputs, outputs, _requests(result))
    return Point(setup, str(result.get("aiperf_version", "")), plan.plan_id, 1, measured)


def _bench(result: Mapping[str, Any], where: str) -> tuple[dict[str, float], float, float]:
    """What vLLM's and SGLang's clients measured, and the mean lengths."""
    completed = _number(result, "completed", where)
    measured = {
        name: value
        for name, key in (("tpot", "median_tpot_ms"), ("ttft", "median_ttft_ms"))
        if (value := _found(result.get(key))) is not None
    }
    for name, key in (("tpot_mean", "mean_tpot_ms"), ("ttft_mean", "mean_ttft_ms")):
        mean = _found(result.get(key))
        if mean is not None and name.removesuffix("_mean") not in measured:
            measured[name] = mean
    measured[THROUGHPUT] = _number(result, "output_throughput", where)
    lengths = (_number(result, f"total_{side}_tokens", where) for side in ("input", "output"))
    inputs, outputs = (total / completed for total in lengths)
    return measured, inputs, outputs


def _bench_load(result: Mapping[str, Any]) -> Load | None:
    """A bound on the requests in flight makes a closed loop, whatever rate they are offered at."""
    users, rate = _found(result.get("max_concurrency")), _found(result.get("request_rate"))
    if users is not None:
        return Load(concurrency=max(1, round(users)))
    return None if rate is None else Load(request_rate=rate)


def _aiperf(result: Mapping[str, Any], where: str) -> tuple[dict[str, float], float, float]:
    """What AIPerf measured; its inter-token latency is one value a request, that is TPOT."""
    measured = {}
    for name, key in (("tpot", "inter_token_latency"), ("ttft", "time_to_first_token")):
        statistics = result.get(key)
        if isinstance(statistics, Mapping):
            factor = _unit(statistics, key, where)
            for quantity, statistic in ((name, "p50"), (f"{name}_mean", "avg")):
                value = _found(statistics.get(statistic))
                if value is not None and name not in measured:
                    measured[quantity] = value * factor
    measured[THROUGHPUT] = _average(result, "output_token_throughput", where)
    inputs = _average(result, "input_sequence_length", where)
    return measured, inputs, _average(result, "output_sequence_length", where)


def _aiperf_load(result: Mapping[str, Any]) -> Load | None:
    """The load of the profile's configuration, which moved between versions of the export.

    Of a configuration with phases that of its one profiling phase; None where there are several.
    """
    config = result.get("input_config")
    if not isinstance(config, Mapping):
        return None
    for place in (*_profiling_phases(config), config.get("loadgen"), config):
        if isinstance(place, Mapping):
            rate = _found(place.get("rate")) or _found(place.get("request_rate"))
            users = _found(place.get("concurrency"))
            if users is not None:
                return Load(concurrency=max(1, round(users)))
            if rate is not None:
                return Load(request_rate=rate)
    return None


def _profiling_phases(config: Mapping[str, Any]) -> list[Any]:
    """The phase that was measured, if it is one."""
    phases = config.get("phases")
    told = [one for one in phases if isinstance(one, Mapping)] if isinstance(phases, list) else []
    measured = [one for one in told if "profiling" in (one.get("kind"), one.get("name"))]
    return measured if len(measured) == 1 else []


def _planned(plan: DeploymentPlan, where: str) -> Load:
    if plan.load is None:
        raise InputError(
            "the result does not tell its load, and neither does the plan",
            where=where,
            remedy="add for example load: {concurrency: 64} to the plan",
        )
    return plan.load


def _requests(result: Mapping[str, Any]) -> int | None:
    """How many requests a short run was: its start and end weigh in what it shows."""
    statistics = result.get("request_count")
    told = statistics.get("avg") if isinstance(statistics, Mapping) else result.get("completed")
    count = _found(told)
    return round(count) if count is not None and count <= SHORT_RUN else None


def _setup(
    plan: DeploymentPlan, load: Load, inputs: float, outputs: float, requests: int | None
) -> Setup:
    model = catalog.model(plan.model)
    return Setup(
        model=model.name,
        family=model.name,
        hardware=plan.pools[0].chip,
        engine=plan.engine,
        mode="agg" if len(plan.pools) == 1 else "disagg",
        weights=model.weights(plan.precision.weights).routed_experts,
        kv=plan.precision.kv,
        speculation="none",
        workload="",
        mappings=(),
        chips=plan.chips,
        input_tokens=inputs,
        output_tokens=outputs,
        nominal_input=round(inputs),
        nominal_output=round(outputs),
        prefix_hit=0.0,
        load=load,
        requests=requests,
        release=plan.engine_version,
        plan=plan.at(load),
    )


def _average(result: Mapping[str, Any], key: str, where: str) -> float:
    statistics = result.get(key)
    if not isinstance(statistics, Mapping):
        raise InputError("the export must hold this metric", where=where, key=key)
    return _number(statistics, "avg", where)


def _unit(statistics: Mapping[str, Any], key: str, where: str) -> float:
    unit = str(statistics.get("unit", "ms"))
    if unit not in _UNIT_MS:
        raise InputError("must be a unit of time", where=where, key=f"{key}.unit", value=unit)
    return _UNIT_MS[unit]


def _number(result: Mapping[str, Any], key: str, where: str) -> float:
    value = _found(result.get(key))
    if value is None:
        raise InputError(
            "the result must hold a positive number", where=where, key=key, value=result.get(key)
        )
    return value


def _found(value: Any) -> float | None:
    """A finite number above 0 (clients write `inf` for no bound on the rate), or None."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if 0 < value < math.inf else None
