"""From a steady state to the metrics of `objectives.metrics`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt

from objectives.cost import idle_saving_kw, power_kw, usd_per_hour
from objectives.estimate.demand import Demand
from objectives.estimate.steady import Loads, Steady, share_together
from objectives.metrics import ALL_STATISTICS, POOL_METRICS, STATISTICS, pool_metric
from objectives.slo import Slo
from spaces.enumeration import BranchPlans
from spaces.plan import Role
from spaces.site import Site

Values = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
DECODING: tuple[Role, ...] = ("aggregated", "decode", "decode-attention")


def _of_a_steady_state(role: Role, stem: str) -> bool:
    """Whether a steady state tells this metric of a pool: how busy it is, and its batch."""
    if stem == "batch_mean":
        return role in DECODING
    return stem == "utilization" and role != "decode-experts"


# Metrics of which a steady state says nothing: caches and memory, spreads, single seconds, what
# is in single pools, and lengths, which no plan changes.
NOT_ESTIMATED = frozenset(
    {
        "hbm_gb_per_chip",
        "prefix_hit_fraction",
        "hbm_hit_fraction",
        "host_hit_fraction",
        "ssd_hit_fraction",
        "store_hit_fraction",
        "theoretical_hit_fraction",
        *(f"{tier}_fetched_gb" for tier in ("host", "ssd", "store")),
        *(f"{tier}_written_gb" for tier in ("host", "ssd", "store")),
        "tool_wait_mean_ms",
        "tool_wait_p95_ms",
        "tool_core_utilization",
        "front_end_utilization",
        "handed_off_gb",
        "peak_kv_fraction",
        "preemptions_per_request",
        "rejected_fraction",
        "fitted_operators",
        "queue_full_fraction",
        "saturated",
        "queue_growth_ms",
        "tokens_per_decode_step",
        *(f"{stem}_std_ms" for stem in ("ttft", "tpot", "itl", "e2e")),
        "tokens_per_s_per_user_std",
        "e2e_tokens_per_s_per_user_std",
        *(
            name
            for name, (role, stem) in POOL_METRICS.items()
            if not _of_a_steady_state(role, stem)
        ),
        *(f"qps_{name}" for name in ALL_STATISTICS if name != "mean"),
        *(f"{kind}_tokens_{name}" for kind in ("input", "output") for name in ALL_STATISTICS),
    }
)
SLO_METRICS = frozenset(
    {
        "slo_attainment",
        "slo_attainment_worst_class",
        "goodput_requests_per_s",
        "goodput_requests_per_s_per_chip",
    }
)
_QUANTILES = np.array([float(name[1:]) / 100 for name in STATISTICS[1:]])


def not_estimated(slo: Slo | None) -> frozenset[str]:
    """The metrics of which a steady state says nothing, under such an SLO."""
    told = slo is None or slo.for_all_alike
    return NOT_ESTIMATED if told else NOT_ESTIMATED | SLO_METRICS


@dataclass(frozen=True)
class Money:
    """What each combination of pools costs and draws; nan where a chip's figure is not known.

    `idle_saving_kw` [n, pools] is what each pool draws less than its limit when no step runs.
    """

    usd_per_hour: Values
    power_kw: Values
    idle_saving_kw: Values

    @classmethod
    def of(cls, plans: BranchPlans, site: Site, prices: Mapping[str, float] | None) -> Money:
        """Both are sums over chips, so one plan of each pool's chip tells the rate."""
        dollars, power = np.zeros(len(plans.variant)), np.zeros(len(plans.variant))
        saving = np.zeros((len(plans.variant), len(plans.variants)))
        for place, variants in enumerate(plans.variants):
            one = plans.settings[0].model_copy(update={"pools": (variants[0],), "hosts": None})
            sizes = np.array([float(pool.chips_per_replica) for pool in variants])
            count = sizes[plans.variant[:, place]] * plans.replicas[:, place] / sizes[0]
            usd, kw = usd_per_hour(one, site.chips, prices), power_kw(one, site.chips, site.hosts)
            dollars += count * (np.nan if usd is None else usd)
            power += count * (np.nan if kw is None else kw)
            each_kw = idle_saving_kw(site.chips[variants[0].chip])
            saving[:, place] = count * variants[0].chips * each_kw
        return cls(dollars, power, saving)

    def of_rows(self, rows: Ints) -> Money:
        """That of the combinations `rows`."""
        return Money(self.usd_per_hour[rows], self.power_kw[rows], self.idle_saving_kw[rows])

    def power_drawn_kw(self, utilization: Values) -> Values:
        """Mean kW of each combination whose pools run steps for such shares [n, pools] of time."""
        drawn: Values = self.power_kw - ((1.0 - utilization) * self.idle_saving_kw).sum(axis=1)
        return drawn

    def beside(self, usd_per_hour: float | None, power_kw: float | None) -> Money:
        """With what is beside the pools; nan where it is not known."""
        return Money(
            self.usd_per_hour + (np.nan if usd_per_hour is None else usd_per_hour),
            self.power_kw + (np.nan if power_kw is None else power_kw),
            self.idle_saving_kw,
        )


def metrics_of(
    names: Sequence[str],
    steady: Steady,
    loads: Loads,
    demand: Demand,
    outside_s: Values,
    chips: Values,
    money: Money,
    slo: Slo | None,
    budget_chips: int,
    roles: Sequence[Role],
) -> dict[str, Values]:
    """The metrics `names` of steady states of pools of these `roles`.

    They are nan where a steady state tells nothing about one, or there is no such pool.
    """
    view = _View(steady, loads, demand, outside_s)
    requests_per_s = view.measured_requests_per_s()
    rate = requests_per_s * demand.output_tokens
    told = slo is not None and slo.for_all_alike
    attained = view.attained(slo) if slo and told else np.full(len(rate), np.nan)
    good = requests_per_s * attained
    taken = requests_per_s * demand.input_tokens
    known: dict[str, Callable[[], Values]] = {
        "requests_per_s": lambda: requests_per_s,
        "output_tokens_per_s_per_budget_chip": lambda: rate / budget_chips,
        "qps_mean": lambda: requests_per_s,
        "sessions_per_chip": lambda: loads.users / chips,
        "sessions_per_kw": lambda: loads.users / money.power_kw,
        "slo_attainment": lambda: attained,
        "slo_attainment_worst_class": lambda: attained,
        "goodput_requests_per_s": lambda: good,
        "goodput_requests_per_s_per_chip": lambda: good / chips,
        "chips": lambda: chips,
        "usd_per_hour": lambda: money.usd_per_hour,
        "power_kw": lambda: money.power_kw,
        "usd_per_m_output_tokens": lambda: money.usd_per_hour / (rate * 3600) * 1e6,
        "power_drawn_kw": lambda: money.power_drawn_kw(steady.utilization),
        "joules_per_output_token": lambda: money.power_drawn_kw(steady.utilization) * 1e3 / rate,
    }
    known |= _token_rates({"input": taken, "output": rate, "total": taken + rate}, chips)
    for place, name in enumerate(STATISTICS):
        known |= view.latencies(place, name)
    known |= _of_pools(steady, roles)
    unknown = np.full(len(rate), np.nan)
    return {name: known[name]() if name in known else unknown for name in names}


def _of_pools(steady: Steady, roles: Sequence[Role]) -> dict[str, Callable[[], Values]]:
    """How busy the pools are, and the requests of a decode step."""
    known: dict[str, Callable[[], Values]] = {
        pool_metric(role, "utilization"): partial(np.asarray, steady.utilization[:, place])
        for place, role in enumerate(roles)
        if role != "decode-experts"
    }
    (decoding,) = (role for role in roles if role in DECODING)
    known[pool_metric(decoding, "batch_mean")] = partial(np.asarray, steady.batch)
    return known


def _token_rates(rates: Mapping[str, Values], chips: Values) -> dict[str, Callable[[], Values]]:
    """Token rates by kind, of all chips and of one; a phase of a steady state is the whole."""
    known: dict[str, Callable[[], Values]] = {}
    for kind, rate in rates.items():
        for name in (f"{kind}_tokens_per_s", f"phase_{kind}_tokens_per_s"):
            known[name] = partial(np.asarray, rate)
            known[f"{name}_per_chip"] = partial(np.divide, rate, chips)
    return known


@dataclass(frozen=True)
class _View:
    """Latencies seen from outside."""

    steady: Steady
    loads: Loads
    demand: Demand
    outside_s: Values

    def measured_requests_per_s(self) -> Values:
        """The rate a run of so many requests shows.

        Metrics take rates between the first tenth of the finishes and the last request sent, but
        over the whole run where that is less than half of it. Then the end of a closed loop
        weighs in, when ever fewer users are left: the last request takes about its p95. Near half
        nobody can tell which it will be, so the rate goes over from one to the other.
        """
        steady, requests = self.steady, self.demand.requests
        users = np.minimum(np.nan_to_num(self.loads.users), requests)
        sent_s = (requests - users) / steady.requests_per_s
        whole_s = sent_s + self.e2e_s(STATISTICS.index("p95"))
        within_s = sent_s - 0.1 * requests / steady.requests_per_s
        steadily = np.clip((within_s / whole_s - 0.4) / 0.2, 0.0, 1.0)
        whole = np.minimum(requests / whole_s, steady.requests_per_s)
        shown = steadily * steady.requests_per_s + (1 - steadily) * whole
        return np.where(users > 0, shown, steady.requests_per_s)

    def latencies(self, place: int, name: str) -> dict[str, Callable[[], Values]]:
        """The metrics of one statistic, the `place`-th of `STATISTICS`."""
        tpot_s = self.steady.tpot_s
        return {
            f"ttft_{name}_ms": lambda: self.ttft_s(place) * 1e3,
            f"tpot_{name}_ms": lambda: tpot_s * 1e3,
            f"itl_{name}_ms": lambda: tpot_s * 1e3,
            f"tokens_per_s_per_user_{name}": lambda: 1 / tpot_s,
            f"e2e_{name}_ms": lambda: self.e2e_s(place) * 1e3,
            f"e2e_tokens_per_s_per_user_{name}": lambda: (
                self.demand.output_tokens / (self.ttft_s(place) + self.decoding_s)
            ),
        }

    @property
    def decoding_s(self) -> Values:
        """Seconds from the first token to the last of a mean answer."""
        return self.steady.tpot_s * max(self.demand.output_tokens - 1.0, 0.0)

    def ttft_s(self, place: int) -> Values:
        """Time to first token: outside the engine, waiting, prefill.

        The prompts of requests that begin together are spread over `burst_s`.
        """
        steady = self.steady
        calm = self.outside_s + steady.queue_s + steady.prompt_s[:, place]
        together = share_together(self.loads, self.demand)
        if place == 0:
            return calm + together * steady.burst_s / 2
        rest = 1.0 - _QUANTILES[place - 1]
        within = 1.0 - rest / np.maximum(together, 1e-12)
        burst = self.outside_s + steady.prompt_s[:, 1] + steady.burst_s * within
        return np.where(together > rest, np.maximum(calm, burst), calm)

    def e2e_s(self, place: int) -> Values:
        """End to end: TTFT and the output tokens of the same statistic."""
        tokens = max(float(self.demand.output_statistics[place]) - 1.0, 0.0)
        return self.ttft_s(place) + self.steady.tpot_s * tokens

    def attained(self, slo: Slo) -> Values:
        """The share of requests within every limit, the limits taken as independent."""
        good = np.ones(len(self.steady.tpot_s))
        if slo.ttft_ms is not None:
            good *= self._share_below(self.ttft_s, slo.ttft_ms / 1e3)
        if slo.e2e_ms is not None:
            good *= self._share_below(self.e2e_s, slo.e2e_ms / 1e3)
        if slo.tpot_ms is not None:
            good *= self.steady.tpot_s <= slo.tpot_ms / 1e3
        return good

    def _share_below(self, seconds: Callable[[int], Values], limit_s: float) -> Values:
        """The share below a limit: the quantiles joined by straight lines, from nothing at 0 s."""
        share = np.zeros(len(self.steady.tpot_s))
        low_s, low = np.zeros_like(share), 0.0
        for place, quantile in enumerate(_QUANTILES, start=1):
            high_s = np.maximum(seconds(place), low_s)
            inside = np.clip((limit_s - low_s) / np.maximum(high_s - low_s, 1e-12), 0.0, 1.0)
            share += inside * (quantile - low)
            low_s, low = high_s, float(quantile)
        return np.where(limit_s >= low_s, 1.0, share)
