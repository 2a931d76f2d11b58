"""A chip under an engine: nominal peaks times achieved fractions, in SI units."""

from __future__ import annotations

from dataclasses import dataclass, field

from objectives.cost.chip_efficiency import (
    ChipEfficiency,
    DecodeAttentionRow,
    ExpertsRow,
    GemmRow,
    MlaDecodeRow,
    figure_of_engine,
    load_efficiency,
    row_of_engine,
)
from objectives.cost.kernel_tables import KernelSet, kernels_of
from objectives.cost.overheads import EngineOverhead, ExchangeRule, Overheads, load_overheads
from objectives.cost.silicon import measured_kernels
from objectives.cost.sources import SourceLog
from objectives.cost.tuning import ANY_ENGINE, UNTUNED, Factors, Operator, Tuning, tuning_of
from spaces.calibration import Changes
from spaces.chip import ChipSpec
from spaces.plan import EngineName
from spaces.precision import Dtype, KvDtype
from spaces.site import OperatorCosts

SECONDS_PER_US = 1e-6
# Where a table lacks a format, the next one that is stored and multiplied alike.
_NEXT_GEMM: dict[Dtype, Dtype] = {"mxfp4": "nvfp4", "nvfp4": "fp8", "fp8": "bf16", "int4": "bf16"}
_NEXT_EXPERTS: dict[Dtype, Dtype] = {
    "nvfp4": "mxfp4",
    "mxfp4": "int4",
    "int4": "fp8",
    "fp8": "bf16",
}


@dataclass(frozen=True, slots=True)
class Machine:
    """What an engine gets out of a chip.

    Where it is `measured`, operators are read from measured tables as far as these go, and `log`
    holds for each whether it was. With `quantised_inputs` products in fp8 get their inputs in fp8
    from the kernels before them.
    """

    chip: ChipSpec
    engine: EngineName
    achieved: ChipEfficiency
    overheads: Overheads
    kernels: KernelSet | None = None
    release: str = ""
    model: str = ""
    measured: bool = False
    tuning: Tuning = ()
    quantised_inputs: bool = False
    log: SourceLog = field(default_factory=SourceLog, compare=False, repr=False)

    def note(self, operator: str, shape: str, origin: str | None, missing: str) -> None:
        """Log that a measured machine read an operator from `origin`, or why it did not."""
        if self.measured:
            read = origin is not None
            self.log.note(operator, shape, measured=read, origin=origin or missing)

    def factors(self, operator: Operator, form: str) -> Factors:
        """What a calibration multiplies the parts of an operator in a format by.

        Factors were fitted against fitted costs, so they do not count where tables are read.
        """
        if self.measured or not self.tuning:
            return UNTUNED
        found = dict(self.tuning)
        own = found.get((operator, form, self.engine))
        return own or found.get((operator, form, ANY_ENGINE), UNTUNED)

    def release_loss_s(self, weights: Dtype) -> float:
        """Seconds that a layer of routed experts in a format loses under the engine's release."""
        losses = self.overheads.older_releases.losses
        here = (self.engine, self.chip.name, self.release, weights)
        found = (loss for loss in losses if loss.concerns(*here))
        return sum(loss.experts_layer_us for loss in found) * SECONDS_PER_US

    @property
    def exchange_rule(self) -> ExchangeRule | None:
        """How the engine brings tokens to experts of other ranks; None where a flag says it."""
        return self.overheads.exchange.by_engine.get(self.engine)

    @property
    def kernel_gap_s(self) -> float:
        """Seconds between two kernels of a CUDA graph."""
        return self.overheads.kernels.gap_us * SECONDS_PER_US * self._kernel_time

    @property
    def small_kernel_s(self) -> float:
        """Seconds of a kernel too small to be bound by anything, gap included."""
        own = self.overheads.kernels.small_us * SECONDS_PER_US * self._kernel_time
        return own + self.kernel_gap_s

    @property
    def engine_overhead(self) -> EngineOverhead:
        """Host overheads of the engine."""
        return row_of_engine(self.overheads.engines.by_engine, self.engine)

    @property
    def stream_bytes_per_s(self) -> float:
        """Bandwidth of kernels that only move activations."""
        return self.chip.hbm_bytes_per_s * self.achieved.gemm.formats["bf16"].stream

    @property
    def kv_bytes_per_s(self) -> float:
        """Memory bandwidth for batches of contexts of different lengths."""
        return self.chip.hbm_bytes_per_s * self.overheads.sustained.kv_read

    @property
    def recurrence_flops(self) -> float:
        """FLOP/s of linear attention's chunked recurrence in prefill, clocks under load."""
        share = figure_of_engine(self.overheads.recurrence.by_engine, self.engine)
        return self.sustained_flops("bf16") * share

    def launch_s(self, latency_us: float) -> float:
        """Seconds a kernel takes beyond its roofline, gap included."""
        return latency_us * SECONDS_PER_US * self._kernel_time + self.kernel_gap_s

    def gemm(self, weights: Dtype) -> GemmRow:
        """The measured row for products with weights of a format."""
        formats = self.achieved.gemm.formats
        chosen: Dtype = weights if self.chip.compute_dtype(weights) != "bf16" else "bf16"
        while chosen not in formats:
            chosen = _NEXT_GEMM[chosen]
        return formats[chosen]

    def experts(self, weights: Dtype) -> ExpertsRow:
        """The measured row for grouped products with weights of a format.

        Fixed time is what sorts rows to experts and sums their outputs, which no weight format
        changes. The benchmark launches these kernels one by one from the host, and where a
        format's library takes the host longer (61 us for mxfp4 on H100, 27 for fp8) a CUDA graph
        does not, so the least of the chip's formats counts for all.
        """
        triton = self.achieved.experts.triton
        if triton and weights in triton.formats and self.runs_triton(weights):
            return triton.formats[weights]
        formats = self.achieved.experts.formats
        chosen = weights
        while chosen not in formats:
            chosen = _NEXT_EXPERTS[chosen]
        least_us = min(row.latency_us for row in formats.values())
        return formats[chosen].model_copy(update={"latency_us": least_us})

    def norm_is_apart(self, tp: int) -> bool:
        """Whether norms are kernels of their own: without an all-reduce to be part of, and where
        the engine's does not hold them.
        """
        norms = self.overheads.norms
        return tp == 1 or norms.apart(self.engine, self.release, self.model, self.chip.vendor)

    def runs_triton(self, weights: Dtype) -> bool:
        """Whether the engine runs the model's routed experts in the portable Triton kernel."""
        rules = self.overheads.triton_experts.rules
        return any(r.concerns(self.engine, self.release, self.model, weights) for r in rules)

    def sustained_flops(self, weights: Dtype) -> float:
        """FLOP/s of the format in which the chip multiplies `weights`, clocks under load."""
        peak = self.chip.peak_flops(self.chip.compute_dtype(weights))
        return peak * self.overheads.sustained.compute

    def decode_attention(self, kv: KvDtype) -> DecodeAttentionRow:
        """The engine's grouped-query decode kernel."""
        return row_of_engine(self.achieved.decode_attention.kv[kv], self.engine)

    def mla_decode(self, kv: KvDtype) -> MlaDecodeRow:
        """The engine's latent decode kernel."""
        return row_of_engine(self.achieved.mla_decode.kv[kv], self.engine)

    def prefill_attention_flops(self, kv: KvDtype) -> float:
        """FLOP/s of causal attention in prefill, clocks under load."""
        fraction = figure_of_engine(self.achieved.prefill_attention.kv[kv], self.engine)
        return self.sustained_flops("bf16") * fraction

    @property
    def _kernel_time(self) -> float:
        chip = self.achieved.kernel_time.factor if self.achieved.kernel_time else 1.0
        return chip * figure_of_engine(self.overheads.fusion.by_engine, self.engine)


def machine_of(
    chip: ChipSpec,
    engine: EngineName,
    release: str = "",
    operator_costs: OperatorCosts = "fitted",
    changes: Changes = (),
) -> Machine:
    """The chip with its tables, under a release of an engine (by default a current one).

    `changes` are the constants of a calibration. `InputError` where the table is unknown, or where
    `operator_costs` asks for measured ones that do not exist or are not installed.
    """
    measured = operator_costs == "measured"
    kernels = measured_kernels(chip) if measured else kernels_of(chip)
    efficiency = load_efficiency(chip.efficiency)
    overheads, tuning = load_overheads(changes, chip.name), tuning_of(changes, chip.name)
    return Machine(
        chip, engine, efficiency, overheads, kernels, release, measured=measured, tuning=tuning
    )
