"""job.yaml: what to serve, on what, and what matters. Nothing else reads that file.

A loaded job is canonical: aliases are replaced by catalogue names, single values by lists, and
paths are absolute, so that equal questions give equal jobs.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    BeforeValidator,
    Discriminator,
    Field,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    SerializerFunctionWrapHandler,
    Tag,
    field_serializer,
    field_validator,
    model_validator,
)

from objectives.goals import Constraint, Objective, parse_constraint, parse_objective
from objectives.metrics import MEAN
from objectives.slo import Slo
from objectives.workload import ColumnMapping, SyntheticSpec
from objectives.workload.load import Overflow
from objectives.workload.offering import PRESET_RULES, LoadRules
from objectives.workload.presets import check_parameters, preset
from optimizer.job_checks import check_together
from spaces import catalog
from spaces.documents import Document, dump_yaml, read_yaml, validated
from spaces.errors import InputError, did_you_mean
from spaces.options import OneOrMore, Several, SpaceOptions, distinct
from spaces.plan import LOAD_AXES, EngineName, Role
from spaces.precision import KvDtype, WeightsName
from spaces.site import OperatorCosts
from spaces.speculation import Speculation, checked_acceptance

DEFAULT_OBJECTIVES = (
    "maximize tokens_per_s_per_user_p50",
    "maximize output_tokens_per_s_per_chip",
)
SAMPLERS = ("auto", "exhaustive", "estimate", "nsga2", "tpe", "gp", "qmc", "random")
SamplerName = Literal["auto", "exhaustive", "estimate", "nsga2", "tpe", "gp", "qmc", "random"]


def _one_of(*known: str) -> BeforeValidator:
    """Refuse a word that is not among the known ones, with the nearest of them."""

    def check(value: Any) -> Any:
        if value not in known:
            raise InputError(
                f"must be one of {', '.join(known)}",
                value=value,
                remedy=did_you_mean(str(value), known),
            )
        return value

    return BeforeValidator(check)


def _canonical(found: Callable[[str], Any]) -> BeforeValidator:
    """Replace a name or alias by the name the catalogue has for it."""
    return BeforeValidator(lambda name: found(str(name)).name)


Engines = Several[Annotated[EngineName, _canonical(catalog.engine)]]
Weights = Annotated[WeightsName, _one_of("native", "bf16", "fp8", "mxfp4", "nvfp4", "int4")]
Kv = Annotated[KvDtype, _one_of("bf16", "fp8")]
Kvs = Several[Kv]


def _for_all_or_by_role(value: Any) -> str:
    """Which form a choice has; tags in brackets are left out of the paths of errors."""
    return "[by role]" if isinstance(value, dict) else "[for all]"


EngineChoice = Annotated[
    Annotated[Engines, Tag("[for all]")] | Annotated[dict[Role, Engines], Tag("[by role]")],
    Discriminator(_for_all_or_by_role),
]
KvChoice = Annotated[
    Annotated[Kvs, Tag("[for all]")] | Annotated[dict[Role, Kvs], Tag("[by role]")],
    Discriminator(_for_all_or_by_role),
]


class ChipRange(Document):
    """How many chips of a kind must be taken at least and may be taken at most."""

    min: NonNegativeInt = 0
    max: PositiveInt

    @model_validator(mode="before")
    @classmethod
    def _from_number(cls, value: Any) -> Any:
        if isinstance(value, int) and not isinstance(value, bool):
            if value < 1:
                raise InputError(
                    "a chip budget must be at least 1",
                    value=value,
                    remedy="give a positive number, or leave the kind out",
                )
            return {"max": value}
        if not isinstance(value, dict | ChipRange):
            raise InputError(
                "a chip budget is a number or {min: N, max: N}",
                value=value,
                remedy="for example {gb200: 64} or {gb200: {min: 16, max: 64}}",
            )
        return value

    @model_validator(mode="after")
    def _ordered(self) -> ChipRange:
        if self.min > self.max:
            raise InputError(
                "min must not exceed max", value=f"{self.min} > {self.max}", remedy="swap them"
            )
        return self


class PrecisionChoice(Document):
    """The number formats to search; `native` weights are the checkpoint's own.

    KV formats are those of all pools of a plan alike, or those of each role.
    """

    weights: Several[Weights] = ("native",)
    kv: KvChoice = ("bf16",)


class ToolCalls(Document):
    """Tools that agents call run on the deployment's hosts, each holding a core.

    It does so in the last `busy_share` of the pause before the turn that brings its result.
    """

    on: Literal["hosts"] = "hosts"
    busy_share: Annotated[float, Field(gt=0, le=1)] = 1.0


class WorkloadChoice(Document):
    """Where the requests come from: a trace file, a preset or stated distributions.

    A preset is a name or a YAML file; `parameters` replace figures of it. `columns` maps the
    columns of a trace that is no known format. `token_scale` multiplies all lengths, for a
    tokenizer that is not the one they were counted with. Requests longer than the context are
    dropped or, with `overflow: truncate`, lose the beginning of their input; `error` refuses.
    Tools run elsewhere unless `tools` says that they do on the deployment's hosts.
    Of several workloads each has a `name` (else that of its source) and a `weight` (else 1), the
    share of time for which it is served.
    """

    trace: str | None = None
    preset: str | None = None
    synthetic: SyntheticSpec | None = None
    requests: PositiveInt | None = None
    parameters: dict[str, Any] = Field(default_factory=dict)
    columns: ColumnMapping | None = None
    token_scale: Annotated[float, Field(gt=0, lt=100)] = 1.0
    overflow: Overflow = "drop"
    tools: ToolCalls | None = None
    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]+$")] | None = None
    weight: PositiveFloat | None = None

    @field_validator("preset")
    @classmethod
    def _known_preset(cls, name: str | None) -> str | None:
        if name is None or name.endswith((".yaml", ".yml")):
            return name
        return preset(name).name

    @property
    def called(self) -> str:
        """Its name among several workloads: the given one, or that of its source."""
        source = self.preset or self.trace
        stem = Path(source).name.split(".")[0] if source else "synthetic"
        return self.name or re.sub(r"[^A-Za-z0-9_.-]", "-", stem)

    @model_validator(mode="after")
    def _one_source(self) -> WorkloadChoice:
        given = [k for k in ("trace", "preset", "synthetic") if getattr(self, k) is not None]
        if len(given) != 1:
            raise InputError(
                "a workload is exactly one of `trace`, `preset` and `synthetic`",
                value=given or "none of them",
                remedy="for example {preset: fixed-8k1k} or {trace: requests.jsonl}",
            )
        if self.synthetic is not None and self.requests is not None:
            raise InputError(
                "requests of a synthetic workload stand within `synthetic`",
                key="requests",
                value=self.requests,
                remedy="move the key there",
            )
        for key, needs in (("parameters", "preset"), ("columns", "trace")):
            if getattr(self, key) and getattr(self, needs) is None:
                raise InputError(f"{key} belong to a {needs}", key=key, value=needs)
        return self


def _single_sizes(value: Any) -> Any:
    if not isinstance(value, list | tuple) or not value or not all(map(_positive, value)):
        raise InputError(
            "values of a load are a list of positive numbers",
            value=value,
            remedy="for example concurrency: {values: [1, 8, 64]}",
        )
    return tuple(sorted(set(value)))


class UserValues(Document):
    """Single concurrencies, ascending."""

    values: Annotated[tuple[PositiveInt, ...], BeforeValidator(_single_sizes)]


class RateValues(Document):
    """Single rates, or factors of the recorded times, ascending."""

    values: Annotated[tuple[PositiveFloat, ...], BeforeValidator(_single_sizes)]


def _range_or_values(value: Any) -> str:
    return "[values]" if isinstance(value, dict | UserValues | RateValues) else "[range]"


Users = Annotated[
    Annotated[tuple[PositiveInt, PositiveInt], Tag("[range]")]
    | Annotated[UserValues, Tag("[values]")],
    Discriminator(_range_or_values),
]
Rates = Annotated[
    Annotated[tuple[PositiveFloat, PositiveFloat], Tag("[range]")]
    | Annotated[RateValues, Tag("[values]")],
    Discriminator(_range_or_values),
]


class LoadRange(LoadRules):
    """The loads to search, of the whole deployment, and the rules by which they are sent.

    A size is a range of which a grid is searched, or single values. `rules: agentx` stands for the
    rules of that benchmark; keys beside it replace single ones.
    """

    concurrency: Users | None = None
    request_rate: Rates | None = None
    session_rate: Rates | None = None
    time_scale: Rates | None = None

    @model_validator(mode="before")
    @classmethod
    def _from_named_rules(cls, value: Any) -> Any:
        if not isinstance(value, dict) or "rules" not in value:
            return value
        name = value["rules"]
        if name not in PRESET_RULES:
            raise InputError(
                f"rules are named {', '.join(PRESET_RULES)}",
                key="rules",
                value=name,
                remedy=did_you_mean(str(name), PRESET_RULES),
            )
        own = {key: given for key, given in value.items() if key != "rules"}
        return PRESET_RULES[name]().model_dump(exclude_unset=True) | own

    @field_validator(*LOAD_AXES, mode="before")
    @classmethod
    def _range(cls, value: Any) -> Any:
        if value is None or isinstance(value, dict | UserValues | RateValues):
            return value
        numbers = value if isinstance(value, list | tuple) else [value, value]
        if len(numbers) != 2 or not all(_positive(number) for number in numbers):
            raise InputError(
                "a load is a positive number, [low, high] or {values: [...]}",
                value=value,
                remedy="for example concurrency: [1, 256], or concurrency: {values: [1, 16, 256]}",
            )
        if numbers[0] > numbers[1]:
            raise InputError(
                "low must not exceed high", value=value, remedy=f"[{numbers[1]}, {numbers[0]}]?"
            )
        return tuple(numbers)

    @model_validator(mode="after")
    def _one_kind(self) -> LoadRange:
        given = [axis for axis in LOAD_AXES if getattr(self, axis) is not None]
        if len(given) != 1:
            raise InputError(
                f"a load is exactly one of {', '.join(LOAD_AXES)}",
                value=" and ".join(given) or "none of them",
                remedy="leave `load` out to keep the arrivals as recorded",
            )
        self.check(given[0])
        return self

    @property
    def rules_of_run(self) -> LoadRules:
        """The rules without the sizes of the load."""
        return LoadRules(**{key: getattr(self, key) for key in LoadRules.model_fields})


class SpeculationChoice(Document):
    """The depths of speculation to search, 0 being none, and how often drafts are accepted."""

    depth: Several[NonNegativeInt]
    acceptance: str | tuple[float, ...] = "mtp"

    @field_validator("acceptance", mode="before")
    @classmethod
    def _name_or_rates(cls, value: Any) -> Any:
        return checked_acceptance(value)

    @property
    def choices(self) -> tuple[Speculation | None, ...]:
        """One speculation for each depth, None for 0."""
        return tuple(
            Speculation(depth=depth, acceptance=self.acceptance) if depth else None
            for depth in sorted(self.depth)
        )

    @model_validator(mode="after")
    def _each_can_be(self) -> SpeculationChoice:
        for depth in self.depth:
            Speculation(depth=depth, acceptance=self.acceptance)
        return self


class SearchSettings(Document):
    """How to search; `trials` counts different points, those of earlier runs included.

    `patience` ends a search whose hypervolume has not grown in so many evaluations.
    `warm_starts` are plan files of deployments to try first. With `short_fraction` each plan is
    first simulated under so small a part of its requests, and as a whole only where it could still
    be on the front. After the search the points near the front are simulated again with other
    draws, up to `replications` times in all, until its order is sure at this `confidence`.
    """

    trials: PositiveInt = 300
    seed: NonNegativeInt = 1
    timeout_s: PositiveFloat | None = None
    sampler: Annotated[SamplerName, _one_of(*SAMPLERS)] = "auto"
    batch_size: PositiveInt = 8
    patience: PositiveInt | None = None
    short_fraction: Annotated[float, Field(gt=0, le=0.5)] | None = None
    replications: Annotated[int, Field(ge=1, le=100)] = 1
    confidence: Annotated[float, Field(ge=0.5, lt=1)] = 0.95
    warm_starts: Annotated[tuple[str, ...], OneOrMore] = ()


class Job(Document):
    """Everything that defines a study."""

    model: str
    chips: dict[Annotated[str, _canonical(catalog.chip)], ChipRange] = Field(min_length=1)
    engine: EngineChoice = ("vllm",)
    precision: PrecisionChoice = PrecisionChoice()
    workload: Annotated[tuple[WorkloadChoice, ...], OneOrMore, Field(min_length=1)]
    load: LoadRange | None = None
    objectives: Annotated[tuple[str, ...], OneOrMore, Field(min_length=1, max_length=4)] = (
        DEFAULT_OBJECTIVES
    )
    constraints: Annotated[tuple[str, ...], OneOrMore] = ()
    slo: Slo | None = None
    prices: dict[Annotated[str, _canonical(catalog.priced)], PositiveFloat] = Field(
        default_factory=dict
    )
    speculation: SpeculationChoice | None = None
    space: SpaceOptions = SpaceOptions()
    calibration: str | None = None
    hbm_fraction: Annotated[float, Field(gt=0, le=1)] | None = None
    operator_costs: OperatorCosts = "fitted"
    max_model_len: PositiveInt | None = None
    baseline: str | None = None
    search: SearchSettings = SearchSettings()

    @field_validator("chips", "prices", mode="before")
    @classmethod
    def _each_chip_once(cls, value: Any) -> Any:
        given = [str(name) for name in value] if isinstance(value, dict) else []
        names = [catalog.priced(name).name for name in given]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise InputError(
                "a chip kind may stand only once, whatever its alias",
                value=", ".join(twice),
                remedy="add its entries up",
            )
        return value

    @field_validator("workload", mode="after")
    @classmethod
    def _named_workloads(cls, choices: tuple[WorkloadChoice, ...]) -> tuple[WorkloadChoice, ...]:
        """Each of several with its name and weight; one alone needs neither."""
        if len(choices) == 1:
            return (choices[0].model_copy(update={"name": None, "weight": None}),)
        named = tuple(
            choice.model_copy(update={"name": choice.called, "weight": choice.weight or 1.0})
            for choice in choices
        )
        names = [choice.called for choice in named]
        for index, name in enumerate(names):
            if name == MEAN or name in names[:index]:
                raise InputError(
                    "workloads need different names, and `mean` stands for their mean",
                    key=f"{index}.name",
                    value=name,
                    remedy="give it a `name` of its own",
                )
        return named

    @field_serializer("workload", mode="wrap")
    def _one_as_itself(
        self, choices: tuple[WorkloadChoice, ...], plain: SerializerFunctionWrapHandler
    ) -> Any:
        written = plain(choices)
        return written[0] if len(choices) == 1 else written

    @field_validator("objectives", mode="after")
    @classmethod
    def _goals(cls, texts: tuple[str, ...]) -> tuple[str, ...]:
        goals = [_located(parse_objective, text, index) for index, text in enumerate(texts)]
        metrics = [goal.metric for goal in goals]
        for index, metric in enumerate(metrics):
            if metric in metrics[:index]:
                raise InputError(
                    "an objective may stand only once",
                    key=str(index),
                    value=metric,
                    remedy="remove one of the two",
                )
        return tuple(str(goal) for goal in goals)

    @field_validator("constraints", mode="after")
    @classmethod
    def _bounds(cls, texts: tuple[str, ...]) -> tuple[str, ...]:
        bounds = [_located(parse_constraint, text, index) for index, text in enumerate(texts)]
        return tuple(f"{c.metric} {c.relation} {_number(c.bound)}" for c in bounds)

    @field_validator("space", mode="after")
    @classmethod
    def _canonical_kinds(cls, space: SpaceOptions) -> SpaceOptions:
        pools = {
            role: pool.model_copy(update={"chips": distinct(_named(role, pool.chips))})
            for role, pool in space.pools.items()
        }
        try:
            kinds = tuple(catalog.host(kind).name for kind in space.host_kind)
        except InputError as error:
            raise error.located("", "host_kind") from None
        return space.model_copy(update={"pools": pools, "host_kind": distinct(kinds)})

    @property
    def goals(self) -> tuple[Objective, ...]:
        """The objectives, parsed."""
        return tuple(parse_objective(text) for text in self.objectives)

    @property
    def bounds(self) -> tuple[Constraint, ...]:
        """The constraints, parsed."""
        return tuple(parse_constraint(text) for text in self.constraints)

    def with_search(self, **changes: float | None) -> Job:
        """The job with settings of `search` replaced; None keeps one."""
        wanted = {key: value for key, value in changes.items() if value is not None}
        data = self.search.model_dump() | wanted
        search = validated(SearchSettings, data, "command line")
        return self.model_copy(update={"search": search})

    def resolved(self) -> dict[str, Any]:
        """The whole job with its defaults; `load_job` reads it back from anywhere."""
        return self.model_dump(mode="json", exclude_none=True)

    def to_yaml(self) -> str:
        """`resolved` as YAML text."""
        return dump_yaml(self.resolved())


def load_job(path: Path) -> Job:
    """Read and check a job file; whatever is wrong is told as an `InputError` with its remedy."""
    try:
        job = validated(Job, read_yaml(path), str(path))
        job = _anchored(job, path.parent)
        check_together(job)
    except InputError as error:
        raise InputError(
            error.rule,
            where=error.where or str(path),
            key=error.key,
            value=error.value,
            remedy=error.remedy or "compare with a job that `servefront init` writes",
        ) from None
    return job


def _anchored(job: Job, folder: Path) -> Job:
    """The job with its paths made absolute and its model by its catalogue name."""
    starts = tuple(str((folder / start).absolute()) for start in job.search.warm_starts)
    return job.model_copy(
        update={
            "workload": tuple(_anchored_workload(choice, folder) for choice in job.workload),
            "model": _model_name(job.model, folder),
            "calibration": job.calibration and str((folder / job.calibration).absolute()),
            "baseline": job.baseline and str((folder / job.baseline).absolute()),
            "search": job.search.model_copy(update={"warm_starts": starts}),
        }
    )


def _anchored_workload(workload: WorkloadChoice, folder: Path) -> WorkloadChoice:
    if workload.trace is not None:
        trace = (folder / workload.trace).absolute()
        workload = workload.model_copy(update={"trace": str(trace)})
    if workload.preset is not None and workload.preset.endswith((".yaml", ".yml")):
        own = (folder / workload.preset).absolute()
        workload = workload.model_copy(update={"preset": str(own)})
    if workload.preset is not None:
        check_parameters(workload.preset, workload.parameters)
    return workload


def _model_name(name: str, folder: Path) -> str:
    """A config's absolute path, or the catalogue's name."""
    path = (folder / name).absolute()
    if path.suffix == ".json" or (path / "config.json").is_file():
        return str(path)
    try:
        return catalog.model(name).name
    except InputError as error:
        remedy = f"{error.remedy}; a path to a Hugging Face config.json will do too"
        raise InputError(error.rule, key="model", value=name, remedy=remedy) from None


def _located(parse: Callable[[str], Any], text: str, index: int) -> Any:
    """What `parse` makes of the text; an error gets the place in its list."""
    try:
        return parse(text)
    except InputError as error:
        raise error.located("", str(index)) from None


def _named(role: str, chips: tuple[str, ...]) -> tuple[str, ...]:
    """The chips of a pool by the catalogue's names."""
    try:
        return tuple(catalog.chip(chip).name for chip in chips)
    except InputError as error:
        raise error.located("", f"pools.{role}.chips") from None


def _number(value: float) -> str:
    """The shortest text that reads back to the same number."""
    return repr(value).removesuffix(".0")


def _positive(number: Any) -> bool:
    return (
        isinstance(number, int | float) and not isinstance(number, bool) and 0 < number < math.inf
    )
