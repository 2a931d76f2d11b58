"""What a step costs beside its rooflines, read from `overheads.yaml`."""

from __future__ import annotations

import re
from functools import lru_cache
from pathlib import Path

from objectives.cost.chip_efficiency import Block, Fraction, figure_of_engine
from objectives.cost.tuning import overhead_changes
from spaces.calibration import Changes
from spaces.documents import Document, read_yaml, validated
from spaces.errors import InputError
from spaces.plan import EngineName
from spaces.precision import Dtype

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
