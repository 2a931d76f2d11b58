"""What a step costs beside its rooflines, read from `overheads.yaml`."""

from __future__ import annotations

import re
from functools import lru_cache
from pathlib import Path

from objectives.cost.chip_efficiency import Block, Fraction, figure_of_engine
from objectives.cost.tuning import overhead_changes
from spaces.calibration import Changes
from spaces.chip import ChipSpec
from spaces.documents import Document, read_yaml, validated
from spaces.errors import InputError
from spaces.plan import EngineName, Pool
from spaces.precision import BYTES_PER_WEIGHT, Dtype

FILE = Path(__file__).parent / "overheads.yaml"


class Kernels(Block):
    """Fixed time of a small kernel, and of the gap between kernels of a CUDA graph."""

    small_us: float
    gap_us: float


class Fusion(Block):
    """Factor on the fixed time of every kernel, by engine."""

    by_engine: dict[EngineName, float]


class ReleaseLoss(Document):
    """What a layer of routed experts takes longer under releases before `before`.

    With experts in the format `weights`, in any where it is left out.
    """

    engine: EngineName
    chips: tuple[str, ...]
    before: str
    experts_layer_us: float
    weights: Dtype | None = None

    def concerns(self, engine: EngineName, chip: str, release: str, weights: Dtype) -> bool:
        """Whether an engine of this release on this chip loses the time; not where it is unknown.

        >>> loss = ReleaseLoss(engine="sglang", chips=("c",), before="0.5.12", experts_layer_us=1)
        >>> [loss.concerns("sglang", "c", release, "fp8") for release in ("0.5.9", "0.5.12", "")]
        [True, False, False]
        """
        here = engine == self.engine and chip in self.chips and self.weights in (None, weights)
        return bool(here and release and _numbers(release) < _numbers(self.before))


def _numbers(release: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", release)]


class OlderReleases(Block):
    """What older releases of engines lose."""

    losses: tuple[ReleaseLoss, ...]


class TritonRule(Document):
    """Deployments whose routed experts run in the portable Triton kernel.

    Of `models`, all where there are none; under releases before `before`, all where it is empty.
    """

    engine: EngineName
    weights: tuple[Dtype, ...]
    models: tuple[str, ...] = ()
    before: str = ""

    def concerns(self, engine: EngineName, release: str, model: str, weights: Dtype) -> bool:
        """Whether a model in this format under a release (current if unknown) is among them."""
        older = not self.before or bool(release and _numbers(release) < _numbers(self.before))
        named = not self.models or model in self.models
        return engine == self.engine and weights in self.weights and named and older


class TritonExpertsRules(Block):
    """Which engines run which models' experts in the portable Triton kernel."""

    rules: tuple[TritonRule, ...]


class FusedNorms(Document):
    """Models whose all-reduce kernels hold the norm that follows, from a release on."""

    since: str
    models: tuple[str, ...]


class Norms(Block):
    """By engine, the models to which it is limited on NVIDIA chips; all under other engines."""

    fused: dict[EngineName, tuple[FusedNorms, ...]]

    def apart(self, engine: EngineName, release: str, model: str, vendor: str) -> bool:
        """Whether a norm after an all-reduce is a kernel of its own; under a current release
        where that is not known, and not where the model is not.
        """
        rules = self.fused.get(engine, ())
        if not rules or not model or vendor != "NVIDIA":
            return False
        reached = [r for r in rules if not release or _numbers(release) >= _numbers(r.since)]
        return not any(model in rule.models for rule in reached)


class LaunchRule(Document):
    """Prefill steps of an engine on a vendor's chips whose kernels the host launches one by one.

    An operator of the cost model takes the host `operator_us`. Releases from `graphs_since` on
    replay CUDA graphs where the rest allows it (`in_graph`), before `graphs_wider_since` in fewer
    places.
    """

    engine: EngineName
    vendor: str
    operator_us: float
    graphs_since: str
    graphs_wider_since: str

    def in_graph(self, release: str, pool: Pool, *, drafts: bool, vendor_experts: bool) -> bool:
        """Whether a pool's prefill runs as CUDA graphs under a release, a current one if unknown.

        Not beside attention data parallelism, pipeline stages or disaggregation; before
        `graphs_wider_since` not beside drafts either, nor beside `vendor_experts`: kernels of
        routed experts that choose them themselves.
        """
        reached = _numbers(release) if release else _numbers(self.graphs_wider_since)
        plain = pool.dp == pool.pp == 1 and pool.role == "aggregated"
        narrow = reached < _numbers(self.graphs_wider_since)
        in_the_way = narrow and (drafts or vendor_experts)
        return reached >= _numbers(self.graphs_since) and plain and not in_the_way


class Launches(Block):
    """What launching prefill from the host takes, by engine."""

    rules: tuple[LaunchRule, ...]

    def of(self, engine: EngineName, vendor: str) -> LaunchRule | None:
        """The rule that holds, None where eager steps only lose time (`eager_layer_us`)."""
        found = (rule for rule in self.rules if (rule.engine, rule.vendor) == (engine, vendor))
        return next(found, None)


class ExchangeRule(Document):
    """How an engine brings tokens to experts of other attention ranks.

    Releases before `narrow_before` do so directly only where there are more ranks than experts of
    a token. Inputs in the formats `quantised` are gathered as they are multiplied, others in
    16 bits.
    """

    narrow_before: str
    quantised: tuple[Dtype, ...]

    def directed(self, chip: ChipSpec, ranks: int, top_k: int, release: str) -> bool:
        """Whether each token goes to its experts alone, not to all ranks.

        `release` may be unknown (empty) and is then a current one.
        """
        older = bool(release) and _numbers(release) < _numbers(self.narrow_before)
        return chip.scaleup_size > chip.node_size and (ranks > top_k or not older)

    def gathered_share(self, weights: Dtype) -> float:
        """Bytes of a gathered input over those of one in 16 bits.

        >>> rule = ExchangeRule(narrow_before="1.2", quantised=("nvfp4",))
        >>> rule.gathered_share("nvfp4"), rule.gathered_share("fp8")
        (0.28125, 1.0)
        """
        return BYTES_PER_WEIGHT[weights] / 2.0 if weights in self.quantised else 1.0


class Exchange(Block):
    """Rules of the engines that choose for themselves."""

    by_engine: dict[EngineName, ExchangeRule]


class Grouped(Block):
    """Inner width of an expert slice at which grouped products reach half their efficiency."""

    half_width: float


class Sustained(Block):
    """Shares of a kernel benchmark's FLOP/s, and of its rate of reading KV, left in service."""

    compute: Fraction
    kv_read: Fraction


class Recurrence(Block):
    """Share of the bf16 peak that linear attention's chunked recurrence reaches, by engine."""

    by_engine: dict[EngineName, Fraction]


class EngineOverhead(Document):
    """Host time of a step and of each request in it; loss of a layer outside the full graph."""

    step_us: float
    request_us: float
    eager_layer_us: float


class Engines(Block):
    """Overheads by engine."""

    by_engine: dict[EngineName, EngineOverhead]


class Frontend(Block):
    """Time between a client and the engine's queue, both ways, by engine."""

    by_engine_ms: dict[EngineName, float]


class Network(Block):
    """Shares of the network line reached, and start-up times."""

    collective_fraction: Fraction
    collective_latency_us: float
    all_to_all_fraction: Fraction
    forwarding_latency_us: float
    send_fraction: Fraction
    send_latency_us: float


class KvTransfer(Block):
    """Share of the line that KV transfers between engines reach, and their start-up time."""

    fraction: Fraction
    latency_us: float


class HostLink(Block):
    """Shares of the link to host memory reached; links faster than a bound are not PCIe."""

    pcie_fraction: Fraction
    c2c_fraction: Fraction
    coherent_gb_per_s: float
    latency_us: float


class HostWork(Block):
    """Time of a core for a request's front end, and for each token of its prompt."""

    request_us: float
    input_token_us: float


class Overheads(Document):
    """Everything a step costs beside its rooflines."""

    kernels: Kernels
    fusion: Fusion
    older_releases: OlderReleases
    launches: Launches
    norms: Norms
    triton_experts: TritonExpertsRules
    exchange: Exchange
    grouped: Grouped
    sustained: Sustained
    recurrence: Recurrence
    engines: Engines
    frontend: Frontend
    network: Network
    kv_transfer: KvTransfer
    host_link: HostLink
    host_work: HostWork


def frontend_seconds(engine: EngineName, changes: Changes = ()) -> float:
    """Seconds a request spends between its client and the engine's queue, both ways together."""
    return figure_of_engine(load_overheads(changes).frontend.by_engine_ms, engine) / 1e3


def overhead_blocks() -> dict[str, Block]:
    """The blocks of `overheads.yaml` by name, with their sources."""
    told = load_overheads()
    return {name: getattr(told, name) for name in type(told).model_fields}


@lru_cache(maxsize=256)
def load_overheads(changes: Changes = (), chip: str = "") -> Overheads:
    """The figures of `overheads.yaml`, those that a calibration names replaced by its own.

    Changes for one chip count where `chip` is its name.

    Raises `InputError` where a path names no figure of the file.
    """
    data = read_yaml(FILE)
    for path, value in overhead_changes(changes, chip):
        *folders, key = path.split(".")
        place = data
        for folder in folders:
            place = place.get(folder, {})
        if not isinstance(place, dict) or not isinstance(place.get(key), int | float):
            raise InputError(
                "a calibration's constant must be a figure of overheads.yaml",
                key=f"constants.{path}",
                remedy="fit it anew with this version: servefront calibrate",
            )
        place[key] = value
    return validated(Overheads, data, str(FILE))
