"""What a replay of conversations finds in the prefix cache, where its source does not say."""

from __future__ import annotations

from dataclasses import replace

from objectives.validation.points import Setup
from objectives.validation.published_runs import Conversations, published_runs
from spaces.memory import hbm_ledger
from spaces.plan import DeploymentPlan
from spaces.site import Site


def with_cached_history(setup: Setup, plan: DeploymentPlan, site: Site) -> Setup:
    """The setup with its share of cached prompt tokens, for benchmarks that send conversations.

    Users come in turn and blocks go least recently used first. So either the KV of all
    conversations fits and every history is found, or each is gone before its user comes back:
    a round robin over more than fits hits nothing (Belady 1966, on cyclic reference strings).
    Host memory that KV is offloaded to keeps them all; bringing them back is taken to be free.
    With several replicas each is taken to see all users, as under a router that knows no prefixes.
    """
    sent = _conversations(setup)
    if sent is None or setup.prefix_hit:
        return setup
    kept_tokens = sent.users * (setup.input_tokens + setup.output_tokens)
    if kept_tokens > _kv_tokens(plan, site) and not setup.offloads_kv:
        return setup
    return replace(setup, prefix_hit=max(0.0, 1 - sent.question_tokens / setup.input_tokens))


def _conversations(setup: Setup) -> Conversations | None:
    return next((c for c in published_runs().conversations if c.workload in setup.workload), None)


def _kv_tokens(plan: DeploymentPlan, site: Site) -> int:
    """Tokens whose KV a replica holds, in the pool that prompts enter."""
    pool = plan.pools[0]
    chip = site.chips[pool.chip]
    ledger = hbm_ledger(site.model, chip, pool, plan, site.longest_request_tokens)
    return ledger.kv_blocks(plan.block_size) * plan.block_size * pool.dp
