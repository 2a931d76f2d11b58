"""From a measured setup to the plan and the site that the simulator is asked about."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import cast, get_args

from objectives.validation.points import Mapping, Setup
from objectives.validation.published_recipes import Limits, Row, Start, start_of
from objectives.validation.published_runs import Match, RunSetting, accepted_rates, run_setting
from spaces import catalog
from spaces.calibration import Calibration
from spaces.chip import ChipSpec
from spaces.engine import EngineSpec
from spaces.errors import InputError
from spaces.model import ModelSpec
from spaces.plan import DeploymentPlan, EngineName, Pool, Precision, Role, Topology
from spaces.precision import KvDtype, WeightsName
from spaces.site import ChipBudget, Site
from spaces.speculation import Speculation, speculation_conflict

# What engines are started with in the published runs, where neither a row nor its launch script
# says.
STEP_TOKENS, LEAST_SEATS = 8192, 256
# Drafts of a step where a row does not say.
DRAFTS = 3
TOPOLOGIES: dict[str, tuple[Topology, tuple[Role, ...]]] = {
    "agg": ("aggregated", ("aggregated",)),
    "disagg": ("prefill-decode", ("prefill", "decode")),
}


def deployed(
    setup: Setup, longest_tokens: int, calibration: Calibration | None = None
) -> tuple[DeploymentPlan, Site]:
    """The mapping as a plan under its load, at a site that is just large enough.

    `longest_tokens` is the longest input and output of its workload. Raises `InputError` where
    the catalogue lacks the model, chip, engine or host, or a format is not known.
    """
    engine = catalog.engine(setup.engine)
    plan = setup.plan
    if plan is None:
        setting = _setting(setup, cast(EngineName, engine.name))
        start = _start(setup, cast(EngineName, engine.name))
        plan = _plan(setup, engine, setting, start)
        started = {
            "admission_steps": setting.admission_steps_at(setup.load.concurrency or 1),
            "admission_together": setting.admission_together,
            "stream_interval": max(setting.stream_interval, start.stream_interval),
        }
        engine = engine.model_copy(update=started)
    kinds = plan.chips_by_kind
    site = Site(
        model=catalog.model(plan.model),
        chips={kind: catalog.chip(kind) for kind in kinds},
        engines={name: catalog.engine(name) for name in plan.engines} | {plan.engine: engine},
        budget={kind: ChipBudget(0, chips) for kind, chips in kinds.items()},
        longest_request_tokens=longest_tokens,
        longest_input_tokens=longest_tokens,
        calibration=calibration,
        hosts={} if plan.hosts is None else {plan.hosts.kind: catalog.host(plan.hosts.kind)},
    )
    return plan, site


def _plan(setup: Setup, engine: EngineSpec, setting: RunSetting, start: Start) -> DeploymentPlan:
    model, chip = catalog.model(setup.model), catalog.chip(setup.hardware)
    if setup.mode not in TOPOLOGIES:
        raise InputError("the row must say whether it is aggregated or disaggregated")
    topology, roles = TOPOLOGIES[setup.mode]
    mappings = [_one_rank(m) if setting.one_attention_rank else m for m in setup.mappings]
    return DeploymentPlan(
        model=model.name,
        engine=cast(EngineName, engine.name),
        engine_version=setup.release,
        topology=topology,
        pools=tuple(
            _pool(role, chip.name, mapping, setup, _limits(role, mapping, setup, setting, start))
            for role, mapping in zip(roles, mappings, strict=True)
        ),
        precision=_precision(setup, model, chip, setting.kv),
        hbm_fraction=setting.hbm_fraction or engine.hbm_fraction,
        speculation=_speculation(setup, model, start.drafts or setting.drafts),
        block_size=engine.block_size,
        load=setup.load,
        prefix_caching=setup.prefix_hit > 0,
        router=start.router,
    )


def _setting(setup: Setup, engine: EngineName) -> RunSetting:
    """Flags of the launch script; those of disaggregated runs are not known, but for KV."""
    mapping = setup.mappings[-1]
    found = run_setting(
        setup.workload,
        engine=engine,
        chip=catalog.chip(setup.hardware).name,
        model=catalog.model(setup.model).name,
        weights=setup.weights,
        tp=mapping.tp,
        attention_dp=mapping.dp > 1,
        drafts=_drafts(setup),
        input_tokens=setup.nominal_input,
        output_tokens=setup.nominal_output,
    )
    return found if setup.mode == "agg" else RunSetting(match=Match(engine=engine), kv=found.kv)


def _drafts(setup: Setup) -> bool:
    return setup.speculation not in ("", "none")


def _one_rank(mapping: Mapping) -> Mapping:
    """The same chips with attention shared by tensor parallelism instead of data parallelism."""
    return replace(mapping, tp=mapping.tp * mapping.dp, dp=1)


def _start(setup: Setup, engine: EngineName) -> Start:
    """How the published recipe of a disaggregated row started it."""
    if setup.mode != "disagg":
        return Start()
    model, chip = catalog.model(setup.model), catalog.chip(setup.hardware)
    prefill, decode = setup.mappings
    row = Row(
        engine=engine,
        chip=chip.name,
        model=model.name,
        weights=setup.weights,
        input_tokens=setup.nominal_input,
        output_tokens=setup.nominal_output,
        prefill=prefill.layout,
        decode=f"{decode.workers} {decode.layout}",
        drafts=_drafts(setup),
        users=setup.load.concurrency,
    )
    return start_of(setup.workload, row)


def _limits(
    role: Role, mapping: Mapping, setup: Setup, setting: RunSetting, start: Start
) -> Limits:
    """Tokens of a step and requests of a rank, as far as a launch script or a recipe tells."""
    if role == "prefill":
        return start.prefill.of_rank(mapping.dp)
    share = _share(setup, mapping)
    drafts = (setting.drafts or DRAFTS) if _drafts(setup) else 0
    tokens = setting.step_tokens_at(setup.nominal_input, share, drafts)
    return Limits(step_tokens=tokens, seats=start.seats)


def _share(setup: Setup, mapping: Mapping) -> int:
    """Requests of a rank where all of a closed loop are spread evenly."""
    return -(-(setup.load.concurrency or 0) // (mapping.dp * mapping.workers))


def _speculation(setup: Setup, model: ModelSpec, published: int | None) -> Speculation | None:
    """What a row that names a kind of draft (`mtp`, `mtp3`, `eagle-steps3`) speculates.

    Models that bring a multi-token-prediction layer draft with it where a row says EAGLE, which is
    how SGLang runs that layer. The number of drafts is hardly ever recorded and the share accepted
    never. The model's head of that kind is taken with the acceptance that runs of the benchmark
    show, or else its published one, at as many drafts as the row says, or else its launch script
    (`published`), or else `DRAFTS`.
    """
    if setup.speculation == "none":
        return None
    if not setup.speculation:
        raise InputError("the row does not say whether tokens were speculated")
    methods = {head.method for head in model.drafts}
    kind = "mtp" if "mtp" in setup.speculation or methods == {"mtp"} else "eagle3"
    told = re.search(r"(?:mtp|steps)(\d+)", setup.speculation)
    head = next((head for head in model.drafts if head.method == kind), None)
    depth = int(told.group(1)) if told else published or DRAFTS
    accepted = accepted_rates(setup.workload, model.name, depth) if kind == "mtp" else None
    found = Speculation(depth=depth, acceptance=accepted or (head.name if head else kind))
    if conflict := speculation_conflict(model, found):
        raise InputError(conflict)
    return found


def _pool(role: Role, chip: str, mapping: Mapping, setup: Setup, limits: Limits) -> Pool:
    """Workers that may hold all requests of a closed loop at once, unless `limits` say less."""
    share = _share(setup, mapping)
    seats = limits.seats or max(LEAST_SEATS, share)
    return Pool(
        role=role,
        chip=chip,
        replicas=mapping.workers,
        tp=mapping.tp,
        pp=mapping.pp,
        ep=mapping.ep,
        dp=mapping.dp,
        max_num_seqs=seats,
        max_num_batched_tokens=max(limits.step_tokens or STEP_TOKENS, min(share, seats)),
    )


def _precision(
    setup: Setup, model: ModelSpec, chip: ChipSpec, published: KvDtype | None
) -> Precision:
    """Formats of a row, which names one for the weights and hardly ever one for KV.

    Four-bit weights are mxfp4 where the checkpoint's own are, else the vendor's format; bf16 of a
    smaller checkpoint is that checkpoint, multiplied in bf16. KV is as
    `published` where the row's launch script is known, else taken as fp8 on chips with fp4 units
    and as bf16 elsewhere.
    """
    native = model.native_weights.routed_experts
    four_bit = "mxfp4" if native == "mxfp4" or chip.vendor == "AMD" else "nvfp4"
    weights = {"fp4": four_bit, "bf16": native, "": native}.get(setup.weights, setup.weights)
    if weights not in get_args(WeightsName):
        raise InputError("must be a known weight format", value=weights)
    kv = setup.kv or published or ("fp8" if chip.fp4_tflops else "bf16")
    if kv not in get_args(KvDtype):
        raise InputError("must be a known format of the KV cache", value=kv)
    return Precision(
        weights="native" if weights == native else cast(WeightsName, weights),
        kv=cast(KvDtype, kv),
    )
