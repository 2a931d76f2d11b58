"""Whether measured figures can be in the units that they are read in."""

from __future__ import annotations

from collections.abc import Mapping

from spaces.plan import Load

# Beyond these, in ms, nothing was ever measured: figures are in seconds or microseconds then.
_TPOT_MS, _TTFT_MS = (0.1, 10_000.0), (1.0, 3_600_000.0)
# So many requests are in decode for each user of a closed loop, at most. It should be 1, but TPOT
# is a median and throughput a mean: 2,990 public points stay below 1.2.
_MOST_IN_DECODE = 1.5


def not_in_ms(measured_ms: Mapping[str, float]) -> str | None:
    """Why latencies (`tpot`, `ttft`, and their `_mean`) cannot be in ms, or None."""
    for kind, (least, most) in (("tpot", _TPOT_MS), ("ttft", _TTFT_MS)):
        for name in (kind, f"{kind}_mean"):
            if name in measured_ms and not least <= measured_ms[name] <= most:
                return f"{kind.upper()} is no time in ms, it must be {least:g} to {most:,.0f}"
    return None


def more_than_the_users(
    measured_ms: Mapping[str, float], output_tokens_per_s: float | None, load: Load
) -> str | None:
    """Why throughput cannot be what it is read as, or None.

    `output_tokens_per_s` are those of all chips. By Little's law that x TPOT is the mean number of
    requests in decode, and a closed loop has no more requests than users.
    """
    tpot_ms = measured_ms.get("tpot", measured_ms.get("tpot_mean"))
    if tpot_ms is None or output_tokens_per_s is None or load.concurrency is None:
        return None
    if output_tokens_per_s * tpot_ms / 1e3 <= _MOST_IN_DECODE * load.concurrency:
        return None
    return (
        "throughput x TPOT is more requests than there are users: throughput must be output "
        "tokens per second and chip, TPOT in ms"
    )
