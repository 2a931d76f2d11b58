"""From a job to the problem it poses: facts, requests and the space of plans, all in memory."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from objectives.cost import check_measured, estimated_blocks
from objectives.goals import Constraint, Objective
from objectives.slo import Slo, check_classes
from objectives.weighted import WeightedWorkload
from objectives.workload import (
    LoadRules,
    TraceRead,
    Workload,
    fitting,
    generate,
    offered,
    read_trace,
)
from objectives.workload.presets import preset, workload_of
from objectives.workload.tokens import token_scaled
from objectives.workload.workload import APPEND
from optimizer.job import Job, LoadRange, RateValues, UserValues, WorkloadChoice, load_job
from spaces import catalog
from spaces.branch import named
from spaces.calibration import load_calibration
from spaces.errors import InputError
from spaces.feasibility import weights_can_be_had
from spaces.model import ModelSpec
from spaces.plan import DeploymentPlan, Load, Pool, Precision
from spaces.precision import WeightsName
from spaces.site import ChipBudget, Site
from spaces.space import SearchSpace
from spaces.speculation import Speculation, speculation_conflict

REQUEST_RATES = 12
DROPPED_SHARE_TOLD_LOUDLY = 0.01
OVERFLOW_WORDS = {"drop": "dropped", "truncate": "cut at their beginning"}
ROUNDS_FOR_STEADY_STATE = 4


@dataclass(frozen=True, slots=True)
class Draw:
    """What a seed draws: the requests, what a site must hold for them, and by `seed` the rest."""

    seed: int
    site: Site
    workloads: tuple[WeightedWorkload, ...]


@dataclass(frozen=True, slots=True)
class Problem:
    """What is searched and how a plan is judged.

    `rules` say how the loads are sent; `seed` is the simulation's. `redrawn` are the draws of the
    replications after the first. `facts_digest` names the
    catalogue's entries and the trace the answers rest on. `notes` say in sentences what was left
    out, and which figures are estimates.
    """

    site: Site
    workloads: tuple[WeightedWorkload, ...]
    space: SearchSpace
    objectives: tuple[Objective, ...]
    constraints: tuple[Constraint, ...]
    slo: Slo | None
    prices: Mapping[str, float]
    rules: LoadRules
    seed: int
    notes: tuple[str, ...]
    facts_digest: Mapping[str, str]
    redrawn: tuple[Draw, ...] = ()


def posed(path: Path, **search: float | None) -> tuple[Job, Problem]:
    """The job in a file and its problem; `search` replaces settings of that key unless None."""
    job = load_job(path).with_search(**search)
    try:
        return job, prepare(job)
    except InputError as error:
        raise error.located(str(path)) from None


def prepare(job: Job) -> Problem:
    """Read what the job names; requests that cannot be served at all are dropped and told.

    Raises `InputError` where no request fits the context, a request rate finds no arrival times
    to stretch, or no weight format can be had.
    """
    model = catalog.model(job.model)
    limit = min(job.max_model_len or model.max_context_tokens, model.max_context_tokens)
    served = [_served(index, job, limit, job.search.seed) for index in range(len(job.workload))]
    workloads = tuple(one for one, _ in served)
    site = _site(job, model, [one.workload for one in workloads])
    base = _base_plan(job, site)
    weights, unavailable = _weights(job, base, site)
    loads = load_grid(job.load)
    rules = job.load.rules_of_run if job.load else LoadRules()
    for one in workloads:
        offered(one.workload, loads[-1], rules, job.search.seed)
    check_classes(job.slo, *(one.workload for one in workloads))
    space = SearchSpace(
        site=site,
        options=job.space,
        base=base,
        engines=job.engine,
        weights=weights,
        kv=job.precision.kv,
        loads=loads,
        speculation=_speculation(job, site),
        engine_sets=("block_size",) if job.hbm_fraction else ("hbm_fraction", "block_size"),
    )
    few = [(one, _few_rounds(one.workload, loads, rules)) for one in workloads]
    notes = (
        *_what_metrics_are(workloads),
        *_noted(served),
        *unavailable,
        *_noted(few),
        *_what_replications_draw(job),
        *_estimates(job, site),
    )
    return Problem(
        site=site,
        workloads=workloads,
        space=space,
        objectives=job.goals,
        constraints=job.bounds,
        slo=job.slo,
        prices=job.prices,
        rules=rules,
        seed=job.search.seed,
        notes=notes,
        facts_digest=_facts_digest(job, site),
        redrawn=tuple(
            _redrawn(number, job, site, workloads, limit)
            for number in range(2, job.search.replications + 1)
        ),
    )


def load_grid(load: LoadRange | None) -> tuple[Load | None, ...]:
    """The loads to choose from, ascending; None alone stands for arrivals as recorded.

    Of a range of concurrencies 1, 2, 3, 4, 6, 8, 12, 16, ... within it; of one of rates or factors
    of the recorded times twelve in geometric steps; its ends always. Single values are themselves.

    >>> [load.concurrency for load in load_grid(LoadRange(concurrency=(5, 32))) if load]
    [5, 6, 8, 12, 16, 24, 32]
    """
    if load is None:
        return (None,)
    if isinstance(users := load.concurrency, UserValues):
        return tuple(Load(concurrency=n) for n in users.values)
    if users is not None:
        return tuple(Load(concurrency=n) for n in _users(*users))
    if load.time_scale is not None:
        return tuple(Load(time_scale=factor) for factor in reversed(_rates(load.time_scale)))
    if load.session_rate is not None:
        return tuple(Load(session_rate=rate) for rate in _rates(load.session_rate))
    assert load.request_rate is not None, "a load has one kind"
    return tuple(Load(request_rate=rate) for rate in _rates(load.request_rate))


def _users(low: int, high: int) -> list[int]:
    powers = [2**k for k in range(high.bit_length())]
    steps = {*powers, *(3 * power // 2 for power in powers[1:])}
    return sorted({low, *(step for step in steps if low < step < high), high})


def _rates(asked: tuple[float, float] | RateValues) -> list[float]:
    if isinstance(asked, RateValues):
        return list(asked.values)
    low, high = asked
    inner = np.geomspace(low, high, REQUEST_RATES)[1:-1].tolist()
    rounded = {float(f"{rate:.3g}") for rate in inner}
    return sorted({low, *(rate for rate in rounded if low < rate < high), high})


def replication_seed(seed: int, number: int) -> int:
    """The seed of a replication, the study's own for the first; unrelated to its neighbours'."""
    if number == 1:
        return seed
    digest = hashlib.sha256(f"{seed}/replication/{number}".encode()).digest()
    return int.from_bytes(digest[:4], "big")


def _redrawn(
    number: int, job: Job, site: Site, workloads: Sequence[WeightedWorkload], limit: int
) -> Draw:
    """A further replication: what is drawn is drawn anew, the same for every plan.

    The requests of a trace stay, for they are no draw.
    """
    seed = replication_seed(job.search.seed, number)
    drawn = tuple(
        one if choice.trace is not None else _served(index, job, limit, seed)[0]
        for index, (one, choice) in enumerate(zip(workloads, job.workload, strict=True))
    )
    requests = [one.workload for one in drawn]
    own = replace(
        site,
        longest_request_tokens=_longest_request(requests),
        longest_input_tokens=_longest_input(requests),
    )
    return Draw(seed, own, drawn)


def _longest_request(workloads: Sequence[Workload]) -> int:
    return max(int((one.input_tokens + one.output_tokens).max()) for one in workloads)


def _longest_input(workloads: Sequence[Workload]) -> int:
    return max(int(one.input_tokens.max()) for one in workloads)


def _served(
    index: int, job: Job, limit: int, seed: int
) -> tuple[WeightedWorkload, tuple[str, ...]]:
    """The requests of a workload that fit into a context of `limit` tokens, and what to tell."""
    choice = job.workload[index]
    everything, told = _requests(choice, seed)
    workload, dropped = fitting(everything, limit, choice.overflow)
    if not len(workload):
        shortest = int((everything.input_tokens + everything.output_tokens).min())
        raise InputError(
            f"no request fits into the context of {limit} tokens, the shortest has {shortest}",
            key="max_model_len" if job.max_model_len else _key(index, job),
            value=limit,
            remedy="serve a longer context, or a workload of shorter requests",
        )
    notes = (*told, *_dropped(dropped, len(everything), limit, choice.overflow))
    if choice.tools is not None:
        workload = _with_tools_on_hosts(workload, choice.tools.busy_share, _key(index, job))
    return WeightedWorkload(choice.called, choice.weight or 1.0, workload), notes


def _with_tools_on_hosts(workload: Workload, busy_share: float, key: str) -> Workload:
    if not (workload.kind == APPEND).any():
        raise InputError(
            "no turn of the workload brings a tool's result",
            key=f"{key}.tools",
            value=workload.name,
            remedy="leave `tools` out, or take a workload of agents",
        )
    return replace(workload, tool_share=busy_share)


def _key(index: int, job: Job) -> str:
    """Where a workload stands in the job."""
    return f"workload.{index}" if len(job.workload) > 1 else "workload"


def _what_metrics_are(workloads: Sequence[WeightedWorkload]) -> Iterator[str]:
    if len(workloads) > 1:
        told = " and ".join(f"{one.name} (weight {one.weight:g})" for one in workloads)
        yield f"each plan serves {told}; a metric is that of the workload where it is worst"


def _noted(told: Sequence[tuple[WeightedWorkload, Iterable[str]]]) -> Iterator[str]:
    """The notes on workloads; where there are several, each with the name of its own."""
    several = len(told) > 1
    return (f"{one.name}: {note}" if several else note for one, notes in told for note in notes)


def _site(job: Job, model: ModelSpec, workloads: Sequence[Workload]) -> Site:
    if job.operator_costs == "measured":
        for kind in job.chips:
            check_measured(catalog.chip(kind).name)  # says now what is missing, not at each trial
    return Site(
        model=model,
        chips={kind: catalog.chip(kind) for kind in job.chips},
        engines={name: catalog.engine(name) for name in named(job.engine)},
        budget={kind: ChipBudget(r.min, r.max) for kind, r in job.chips.items()},
        longest_request_tokens=_longest_request(workloads),
        longest_input_tokens=_longest_input(workloads),
        operator_costs=job.operator_costs,
        calibration=None if job.calibration is None else load_calibration(Path(job.calibration)),
        hosts={kind: catalog.host(kind) for kind in job.space.host_kind},
        cores_per_chip=cores_of(job.chips),
        tools_on_hosts=any(w.tool_share > 0 for w in workloads),
    )


def cores_of(kinds: Iterable[str]) -> dict[str, float]:
    """Cores of the hosts that chips sit with, by chip, of the kinds where they are known."""
    found = {kind: catalog.cores_per_chip(kind) for kind in kinds}
    return {kind: cores for kind, cores in found.items() if cores is not None}


def _requests(choice: WorkloadChoice, seed: int) -> tuple[Workload, list[str]]:
    if choice.trace is not None:
        read = read_trace(Path(choice.trace), choice.requests, choice.columns, seed)
        notes = list(_trace_notes(read, choice.requests))
        return token_scaled(read.workload, choice.token_scale), notes
    if choice.preset is not None:
        found = preset(choice.preset)
        guess = [f"the workload {found.name} is an estimate: {found.source}"]
        workload = workload_of(
            choice.preset, choice.requests, seed, choice.parameters, choice.token_scale
        )
        return workload, guess if found.status == "estimate" else []
    assert choice.synthetic is not None, "a workload has one source"
    return token_scaled(generate(choice.synthetic, seed), choice.token_scale), []


def _trace_notes(read: TraceRead, wanted: int | None) -> Iterator[str]:
    for reason, count in read.dropped.items():
        yield f"{count} of {read.rows_read} rows of the trace were dropped: {reason}"
    if wanted is not None and read.rows_kept < wanted:
        yield f"{wanted} requests were asked for, the trace has {read.rows_kept}"
    yield from read.warnings


def _dropped(dropped: int, total: int, limit: int, overflow: str) -> Iterator[str]:
    if dropped:
        share = dropped / total
        loud = "WARNING: " if share > DROPPED_SHARE_TOLD_LOUDLY else ""
        yield (
            f"{loud}{dropped} of {total} requests ({share:.1%}) longer than the context of "
            f"{limit} tokens were {OVERFLOW_WORDS[overflow]}"
        )


def _base_plan(job: Job, site: Site) -> DeploymentPlan:
    """What all plans of the space have in common, around a pool that is only a place-holder."""
    name = next(iter(site.engines))
    engine = site.engines[name]
    kind = next(iter(job.chips))
    return DeploymentPlan(
        model=job.model,
        engine=name,
        topology="aggregated",
        pools=(Pool(role="aggregated", chip=kind),),
        hbm_fraction=job.hbm_fraction or engine.hbm_fraction,
        block_size=engine.block_size,
        max_model_len=job.max_model_len,
    )


def _weights(
    job: Job, base: DeploymentPlan, site: Site
) -> tuple[tuple[WeightsName, ...], list[str]]:
    """The formats the checkpoint can be had in, and a sentence for each of the others."""
    kept: list[WeightsName] = []
    notes = []
    for name in job.precision.weights:
        refusal = weights_can_be_had(
            base.model_copy(update={"precision": Precision(weights=name)}), site
        )
        if refusal is None:
            kept.append(name)
        else:
            notes.append(f"weights {name} are left out: {refusal.reason}")
    if not kept:
        raise InputError(
            "at least one weight format must be one the checkpoint can be had in",
            key="precision.weights",
            value=list(job.precision.weights),
            remedy="ask for native",
        )
    return tuple(kept), notes


def _speculation(job: Job, site: Site) -> tuple[Speculation | None, ...]:
    """The depths to search; one that the model cannot draft is the job's mistake."""
    if job.speculation is None:
        return (None,)
    for choice in job.speculation.choices:
        conflict = speculation_conflict(site.model, choice) if choice else ""
        if conflict:
            raise InputError(
                conflict,
                key="speculation",
                value=job.speculation.model_dump(mode="json"),
                remedy="leave the depth or the key out",
            )
    return job.speculation.choices


def _few_rounds(
    workload: Workload, loads: tuple[Load | None, ...], rules: LoadRules
) -> Iterator[str]:
    if rules.recycle:
        return
    most = max((load.concurrency or 0 for load in loads if load), default=0)
    if most * ROUNDS_FOR_STEADY_STATE > len(workload):
        yield (
            f"the workload has {len(workload)} requests, fewer than {ROUNDS_FOR_STEADY_STATE} "
            f"for each of the {most} users of the highest load: start and end weigh in there"
        )


def _what_replications_draw(job: Job) -> Iterator[str]:
    """What differs between replications: not the requests of a trace."""
    if job.search.replications == 1:
        return
    rules = job.load.rules_of_run if job.load else LoadRules()
    traces = [choice.called for choice in job.workload if choice.trace is not None]
    drawn = {
        f"the requests of {', '.join(c.called for c in job.workload if c.trace is None)}": (
            len(traces) < len(job.workload)
        ),
        "arrivals": rules.arrivals is not None,
        "where the first sessions begin": rules.start[0] != rules.start[1],
        "which drafts are accepted": job.speculation is not None,
    }
    names = [name for name, there in drawn.items() if there]
    if names:
        yield f"replications draw anew: {', '.join(names)}"
    if traces:
        alike = "" if names else "; nothing else is drawn, so replications are alike"
        yield f"the requests of {', '.join(traces)} stay the same in all replications{alike}"


def _estimates(job: Job, site: Site) -> Iterator[str]:
    if site.tools_on_hosts or site.hosts:
        yield "the work of the front end on a core is an estimate, and which cores engines keep"
    for kind, processor in site.hosts.items():
        if processor.estimates():
            yield f"figures of {kind} that are estimates: {', '.join(processor.estimates())}"
    for kind, chip in site.chips.items():
        unused = {"nvme_gb_per_s", *(["usd_per_hour"] if kind in job.prices else [])}
        names = [name for name in chip.estimates() if name not in unused]
        if names:
            yield f"figures of {kind} that are estimates or contradicted: {', '.join(names)}"
        blocks = [
            block.replace("_", " ") for block in estimated_blocks(chip.efficiency, site.model)
        ]
        if blocks:
            yield (
                f"what {kind} achieves of its peaks is an estimate (table {chip.efficiency}) in: "
                f"{', '.join(blocks)}"
            )
    for name, engine in site.engines.items():
        if engine.status == "estimate":
            yield f"the description of the engine {name} holds estimates"
    if site.model.status == "estimate":
        yield f"the description of the model {site.model.name} holds estimates"


def _facts_digest(job: Job, site: Site) -> dict[str, str]:
    facts = [
        site.model,
        *site.chips.values(),
        *site.engines.values(),
        *site.hosts.values(),
    ]
    texts = "".join(fact.model_dump_json() for fact in facts)
    digests = {"catalogue entries": hashlib.sha256(texts.encode()).hexdigest()}
    for index, choice in enumerate(job.workload):
        for key in ("trace", "preset"):
            source = getattr(choice, key)
            if source is not None and Path(source).exists():
                digests[f"content of {_key(index, job)}.{key}"] = _content_digest(Path(source))
    if job.calibration is not None:
        digests["content of calibration"] = _content_digest(Path(job.calibration))
    return digests


def _content_digest(path: Path) -> str:
    """Of a file, or of the names and contents of the files in a folder."""
    digest = hashlib.sha256()
    for file in sorted(path.iterdir()) if path.is_dir() else [path]:
        if file.is_file():
            digest.update(b"" if file == path else file.name.encode())
            digest.update(file.read_bytes())
    return digest.hexdigest()
