"""What InferenceX and AgentX report of the measured phase as a whole.

Their definitions: SemiAnalysisAI/InferenceX, utils/agentic/aggregation/request_metrics.py (commit
554e0882). The latencies of a request are the same as ours under other names: its ITL, TPOT and
full-response ITL are our `tpot`, its E2EL our `e2e`, its interactivity `tokens_per_s_per_user` and
its E2E-normalized interactivity `e2e_tokens_per_s_per_user`.
"""

from __future__ import annotations

import numpy as np

from objectives.measures import Values, summary
from objectives.simulator import SimulationResult
from objectives.workload import Workload
from objectives.workload.turns import hit_tokens

QPS_WINDOW_S = 1.0


def phase_metrics(result: SimulationResult, sent: Workload) -> dict[str, float]:
    """Throughput, rate and lengths over the measured requests that finished.

    Throughput is all their tokens over the time from the first of them sent to the last one
    finished, filling up and running dry included; so it lies below the steady one in short runs.
    """
    records = result.requests
    rows = records.finished & records.measured
    if not rows.any():
        return {}
    lengths = {"input": records.input_tokens[rows], "output": records.output_tokens[rows]}
    metrics = {
        f"{kind}_tokens_{name}": value
        for kind, tokens in lengths.items()
        for name, value in summary(tokens.astype(float)).items()
    }
    seconds = float(records.finish_s[rows].max() - records.arrival_s[rows].min())
    if seconds > 0:
        totals = {kind: float(tokens.sum()) for kind, tokens in lengths.items()}
        totals["total"] = sum(totals.values())
        metrics |= {f"phase_{kind}_tokens_per_s": n / seconds for kind, n in totals.items()}
    metrics |= {f"qps_{name}": v for name, v in _qps(np.sort(records.finish_s[rows])).items()}
    if sent.block_tokens:
        metrics["theoretical_hit_fraction"] = theoretical_hit_fraction(sent)
    return metrics


def theoretical_hit_fraction(workload: Workload) -> float:
    """The share of prefix blocks that a cache which forgets nothing has, over all requests."""
    blocks = -(-hit_tokens(workload) // workload.block_tokens)
    return float(blocks.sum() / max(1, len(workload.block_ids)))


def _qps(finish_s: Values) -> dict[str, float]:
    """The summary of requests finished in whole seconds from the first one finished."""
    windows = int((finish_s[-1] - finish_s[0]) // QPS_WINDOW_S)
    if windows < 1:
        return {}
    place = ((finish_s - finish_s[0]) // QPS_WINDOW_S).astype(int)
    counts = np.bincount(place, minlength=windows + 1)[:windows]
    return summary(counts / QPS_WINDOW_S)
