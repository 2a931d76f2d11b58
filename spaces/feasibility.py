"""Whether a plan can exist: one rule, one function, `(plan, site) -> Infeasible or None`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise, product

from spaces.hosts import host_cores
from spaces.memory import hbm_ledger
from spaces.plan import DeploymentPlan, Pool, PoolSettings
from spaces.precision import BYTES_PER_WEIGHT
from spaces.sharding import share_scaleup_domain, stage_layers
from spaces.site import Site
from spaces.speculation import draft_head, speculation_conflict


@dataclass(frozen=True, slots=True)
class Infeasible:
    """Why a plan cannot be: the rule, a sentence with the numbers, and how far it is off.

    `shortfall` is relative to what there is and greater than zero: 0.25 is a quarter too much.
    """

    rule: str
    reason: str
    shortfall: float


Rule = Callable[[DeploymentPlan, Site], Infeasible | None]


def infeasible(plan: DeploymentPlan, site: Site) -> Infeasible | None:
    """The first rule that `plan` breaks at `site`, or None when it can be deployed."""
    for rule in RULES:
        refusal = rule(plan, site)
        if refusal is not None:
            return refusal
    return None


def figures_are_known(plan: DeploymentPlan, site: Site) -> Infeasible | None:
    """The catalogue has every figure of the chips that the plan's steps and transfers need."""
    for pool in plan.pools:
        chip = site.chips[pool.chip]
        facts = chip.facts()
        for key in _figures_needed(plan, pool, site):
            if key not in facts:
                return Infeasible("unknown figure", f"{key} of {chip.name} is not known", 1.0)
    return None


def _figures_needed(plan: DeploymentPlan, pool: Pool, site: Site) -> Iterator[str]:
    chip = site.chips[pool.chip]
    others = [other for other in plan.pools if other is not pool]
    apart = any(
        not share_scaleup_domain(pool, chip, other, site.chips[other.chip]) for other in others
    )
    yield "bf16_tflops"
    if pool.chips_per_replica > 1 or (others and not apart):
        yield "scaleup_gb_per_s"
    if pool.chips_per_replica > chip.scaleup_size or apart or plan.kv.shared_gb:
        yield "scaleout_gb_per_s"
    engine = site.engines[plan.settings(pool).engine]
    if others and chip.vendor in engine.staged_vendors:
        yield "host_link_gb_per_s"
    offloads = plan.kv.host_gb_per_chip or plan.kv.swap_gb_per_chip
    if offloads and chip.own_dram:
        yield from ("memory_levels.ddr.gb", "memory_levels.ddr.gb_per_s")
    elif offloads:
        yield from ("host_dram_gb", "host_link_gb_per_s")
    if plan.kv.ssd_gb_per_chip:
        yield "nvme_gb_per_s"


def chips_within_budget(plan: DeploymentPlan, site: Site) -> Infeasible | None:
    """Chips of each kind lie within the budget."""
    for kind, count in plan.chips_by_kind.items():
        if kind not in site.budget:
            return Infeasible("budget", f"no {kind} is in the budget, {count} are planned", 1.0)
    for kind, budget in site.budget.items():
        count = plan.chips_by_kind.get(kind, 0)
        if count > budget.most:
            over = f"{count} {kind} are planned, the budget has {budget.most}"
            return Infeasible("budget", over, count / budget.most - 1)
        if count < budget.least:
            under = f"{count} {kind} are planned, at least {budget.least} must be used"
            return Infeasible("budget", under, 1 - count / budget.least)
    return None


def engine_runs_it(plan: DeploymentPlan, site: Site) -> Infeasible | None:
    """Each pool's engine runs on its chips, with the weights' format and the experts' layout."""
    weights = site.model.weights(plan.precision.weights)
    for pool in plan.pools:
        engine = site.engines[plan.settings(pool).engine]
        for dtype in sorted({weights.routed_experts, weights.linear}):
            if dtype not in engine.weight_formats:
                return Infeasible("engine", f"{engine.title} does not run {dtype} weights", 1.0)
        vendor = site.chips[pool.chip].vendor
        if vendor not in engine.chip_vendors:
            reason = f"{engine.title} does not run on {pool.chip} ({vendor})"
            return Infeasible("engine", reason, 1.0)
        ranks = pool.tp * pool.dp
        if site.model.moe and pool.ep not in engine.expert_parallel_choices(ranks):
            choices = engine.expert_parallel_choices(ranks)
            reason = (
                f"{engine.title} spreads experts of {ranks} ranks over {choices}, not {pool.ep}"
            )
            return Infeasible("engine", reason, 1.0)
        if not engine.allows_attention_dp(pool.tp, pool.dp):
            reason = f"{engine.title} cannot run attention DP {pool.dp} with TP {pool.tp}"
            return Infeasible("engine", reason, 1.0)
    return None


def pools_exchange_kv(plan: DeploymentPlan, site: Site) -> Infeasible | None:
    """The engines can move KV between the layouts of the pools."""
    if plan.topology == "aggregated":
        return None
    limited = None
    for pool in plan.pools:
        engine = site.engines[plan.settings(pool).engine]
        if engine.stages_exchange_kv:
            continue
        limited = engine
        if pool.pp > 1:
            reason = (
                f"{engine.title} moves KV between pools without pipeline stages, not pp {pool.pp}"
            )
            return Infeasible("engine", reason, 1.0)
    if limited is None:
        return None
    sizes = sorted(pool.tp for pool in plan.serving_pools)
    for small, large in pairwise(sizes):
        if large % small:
            reason = (
                f"{limited.title} moves KV between TP sizes that divide, not {small} and {large}"
            )
            return Infeasible("engine", reason, 1.0)
    return None


def engines_take_over(plan: DeploymentPlan, site: Site) -> Infeasible | None:
    """Every engine that decodes takes over the KV of those that prefill, in their format.

    Engines that prefill share what is cached, and so do those that share the work of decoding:
    they are of one kind and keep KV in one format.
    """
    givers = [pool for pool in plan.pools if pool.takes_prompts]
    takers = [pool for pool in plan.pools if not pool.takes_prompts]
    for first, other in (*pairwise(givers), *pairwise(takers)):
        one, two = plan.settings(first), plan.settings(other)
        if (one.engine, one.precision) != (two.engine, two.precision):
            reason = (
                f"{first.role} and {other.role} pools share KV, so they need one engine and one "
                f"KV format, not {one.engine} {one.precision.kv} and "
                f"{two.engine} {two.precision.kv}"
            )
            return Infeasible("engine", reason, 1.0)
    if plan.kv.handoff not in (None, "after-prefill") and _copies_kv(plan, site):
        reason = f"KV that is staged or converted is handed over as a whole, not {plan.kv.handoff}"
        return Infeasible("engine", reason, 1.0)
    for giver, taker in product(givers, takers):
        reason = hand_over_conflict(plan.settings(giver), plan.settings(taker), site)
        if reason:
            return Infeasible("engine", reason, 1.0)
    return None


def _copies_kv(plan: DeploymentPlan, site: Site) -> bool:
    """Whether KV is converted between the pools, or staged in host memory."""
    settings = [plan.settings(pool) for pool in plan.pools]
    unlike = len({(own.engine, own.precision.kv) for own in settings}) > 1
    return unlike or any(
        site.chips[pool.chip].vendor in site.engines[own.engine].staged_vendors
        for pool, own in zip(plan.pools, settings, strict=True)
    )


def hand_over_conflict(giver: PoolSettings, taker: PoolSettings, site: Site) -> str:
    """Why one pool's engine cannot decode on another's KV, in words; empty when it can."""
    source, target = site.engines[giver.engine], site.engines[taker.engine]
    if source != target and giver.engine not in target.takes_kv_from:
        return f"{target.title} is not known to take over KV from {source.title}"
    if giver.precision.kv != taker.precision.kv and not target.converts_kv:
        return (
            f"{target.title} takes over KV in its own format only, "
            f"not {giver.precision.kv} for {taker.precision.kv}"
        )
    return ""


def decode_can_be_split(plan: DeploymentPlan, site: Site) -> Infeasible | None:
    """Attention and experts exchange tokens in every layer, so neither has pipeline stages.

    Published systems have none there: their plans choose tensor and data parallelism of attention
    and tensor and expert parallelism of experts (MegaScale-Infer, arXiv 2504.02263; Step-3, arXiv
    2507.19427; alibaba/rtp-llm#372), and their pipeline is that of the micro-batches between the
    two.
    """
    for pool in plan.pools:
        if pool.role not in ("decode-attention", "decode-experts"):
            continue
        if site.model.moe is None:
            reason = f"{site.model.name} has no experts to set apart"
            return Infeasible("split decode", reason, 1.0)
        if pool.pp > 1:
            reason = (
                f"a {pool.role} pool has no pipeline stages (attention and experts pass "
                f"micro-batches to one another in every layer), not pp {pool.pp}: use pp 1"
            )
            return Infeasible("split decode", reason, pool.pp - 1.0)
    return None


def layout_divides(plan: DeploymentPlan, site: Site) -> Infeasible | None:
    """Heads, experts and layers divide over the ranks."""
    for pool in plan.pools:
        reason = layout_conflict(pool, site)
        if reason:
            return Infeasible("layout", f"{pool.role} pool {pool.layout}: {reason}", 1.0)
    return None


def layout_conflict(pool: Pool, site: Site) -> str:
    """What does not divide in a pool's layout, in words; empty when all does."""
    model, moe = site.model, site.model.moe
    if pool.role == "decode-experts":
        return _experts_conflict(pool, site)
    for group in model.attention:
        if group.heads % pool.tp:
            return f"tp must divide the {group.heads} attention heads"
        if group.kind == "gqa" and group.kv_heads % pool.tp and pool.tp % group.kv_heads:
            return f"tp must divide the {group.kv_heads} KV heads or be a multiple of them"
        if group.kind == "compressed" and group.output_groups % pool.tp:
            return f"tp must divide the {group.output_groups} output groups"
    for ffn in model.ffn:
        if ffn.kind == "dense" and ffn.intermediate_size % pool.tp:
            return f"tp must divide the feed-forward width {ffn.intermediate_size}"
    if pool.pp > model.layers:
        return f"{pool.pp} stages for {model.layers} layers"
    if pool.tp > site.chips[pool.chip].scaleup_size:
        return f"tp must stay within the {site.chips[pool.chip].scaleup_size} chips of a domain"
    if moe is None:
        if pool.ep > 1 or pool.dp > 1:
            return "a dense model has no experts to spread: ep and dp must be 1, use replicas"
        return ""
    if pool.role == "decode-attention":
        return "" if pool.ep == 1 else "its experts lie in the decode-experts pool: ep must be 1"
    return _experts_conflict(pool, site)


def _experts_conflict(pool: Pool, site: Site) -> str:
    moe = site.model.moe
    if moe is None:
        return "a dense model has no experts to set apart"
    if (pool.tp * pool.dp) % pool.ep:
        return f"ep must divide the tp x dp = {pool.tp * pool.dp} ranks"
    slices = pool.tp * pool.dp // pool.ep
    if pool.role == "decode-experts" and slices > site.chips[pool.chip].scaleup_size:
        return "the slices of an expert must stay within a domain, use a larger ep"
    if moe.routed_experts % pool.ep:
        return f"ep must divide the {moe.routed_experts} experts"
    return _expert_slice_conflict(slices, site)


def _expert_slice_conflict(slices: int, site: Site) -> str:
    """A tensor-sliced expert must keep whole quantisation blocks."""
    moe = site.model.moe
    assert moe is not None
    width = moe.expert_intermediate_size
    if width % slices:
        return f"expert width {width} must divide over {slices} tensor slices"
    native = site.model.native_weights.routed_experts
    if native == "fp8" and slices > 1 and (width // slices) % 128:
        return f"slices of expert width {width} must keep blocks of 128, use a larger ep"
    return ""


def drafts_can_be_had(plan: DeploymentPlan, site: Site) -> Infeasible | None:
    """The model has the draft head, its acceptance is known, and the engine runs it.

    Engines do not draft under pipeline parallelism: only the last stage knows which drafts were
    accepted (vllm-project/vllm#44697).
    """
    if plan.speculation is None:
        return None
    conflict = speculation_conflict(site.model, plan.speculation)
    if conflict:
        return Infeasible("speculation", conflict, 1.0)
    head = draft_head(site.model, plan.speculation)
    for pool in plan.pools:
        engine = site.engines[plan.settings(pool).engine]
        if head is not None and pool.decodes and head.method not in engine.speculation:
            reason = f"{engine.title} has no draft head of the kind {head.method}"
            return Infeasible("speculation", reason, 1.0)
        if pool.pp > 1:
            reason = f"engines do not speculate over {pool.pp} pipeline stages"
            return Infeasible("speculation", reason, pool.pp - 1.0)
    return None


def batch_within_step(plan: DeploymentPlan, site: Site) -> Infeasible | None:
    """A step has room for every running request: one token, and its drafts where it has any."""
    for pool in plan.pools:
        tokens = pool.max_num_seqs * plan.verified_tokens(pool)
        if pool.max_num_batched_tokens < tokens:
            drafts = "" if tokens == pool.max_num_seqs else " x (1 + drafts)"
            reason = (
                f"max_num_batched_tokens {pool.max_num_batched_tokens} must be at least "
                f"max_num_seqs{drafts} {tokens} in the {pool.role} pool"
            )
            return Infeasible("batch", reason, tokens / pool.max_num_batched_tokens - 1)
    return None


def context_within_model(plan: DeploymentPlan, site: Site) -> Infeasible | None:
    """The longest request fits into the context the plan serves."""
    limit = min(plan.max_model_len or site.model.max_context_tokens, site.model.max_context_tokens)
    if site.longest_request_tokens <= limit:
        return None
    reason = f"the longest request has {site.longest_request_tokens} tokens, {limit} are served"
    return Infeasible("context", reason, site.longest_request_tokens / limit - 1)


def memory_suffices(plan: DeploymentPlan, site: Site) -> Infeasible | None:
    """Weights, activations and the KV of the longest request fit into HBM."""
    for pool in plan.pools:
        chip = site.chips[pool.chip]
        ledger = hbm_ledger(site.model, chip, pool, plan, site.longest_request_tokens)
        tokens = _longest_context(plan, pool, site)
        kv = tokens * ledger.kv_bytes_per_token + ledger.request_bytes
        needed = ledger.usable_bytes - ledger.kv_budget_bytes + kv
        blocks = -(-tokens // plan.block_size) + ledger.request_blocks(plan.block_size)
        if ledger.kv_budget_bytes < 0 or blocks > ledger.kv_blocks(plan.block_size):
            reason = (
                f"{pool.role} pool {pool.layout} on {pool.chip}: {needed / 1e9:.1f} GB a chip "
                f"needed ({ledger.sentence()}; KV of the longest request, {tokens} tokens, "
                f"{kv / 1e9:.1f})"
            )
            short = max(needed / ledger.usable_bytes - 1, 1e-6)
            return Infeasible("memory", reason, short)
    return None


def _longest_context(plan: DeploymentPlan, pool: Pool, site: Site) -> int:
    """Tokens of KV of the longest request in a pool; rejected drafts take room too."""
    if pool.role == "decode-experts":
        return 0
    longest = site.longest_request_tokens if pool.decodes else site.longest_input_tokens
    return longest + plan.verified_tokens(pool) - 1


def host_memory_suffices(plan: DeploymentPlan, site: Site) -> Infeasible | None:
    """Host tier and swap space are no larger than the host memory, or own DRAM, of a chip."""
    wanted = plan.kv.host_gb_per_chip + plan.kv.swap_gb_per_chip
    for pool in plan.pools:
        if not wanted:
            continue
        chip = site.chips[pool.chip]
        there = chip.offload_gb
        if wanted > there:
            reason = (
                f"host tier and swap space of {wanted:g} GB a chip, a {pool.chip} has "
                f"{there:g} GB of {'its own DRAM' if chip.own_dram else 'host memory'}"
            )
            return Infeasible("host memory", reason, wanted / there - 1)
    return None


def midfill_can_reach_kv(plan: DeploymentPlan, site: Site) -> Infeasible | None:
    """A midfill pool finds the KV of earlier turns in a store that all pools share."""
    if not plan.has_midfill:
        return None
    if plan.kv.shared_gb == 0:
        return Infeasible("midfill", "a midfill pool needs a shared KV store (kv.shared_gb)", 1.0)
    if plan.kv.retention not in ("write-through", "offload-at-turn-end"):
        reason = f"retention {plan.kv.retention} never puts KV into the store before a turn ends"
        return Infeasible("midfill", reason, 1.0)
    if not plan.prefix_caching:
        return Infeasible("midfill", "a midfill pool needs prefix caching", 1.0)
    return None


def retention_has_a_tier(plan: DeploymentPlan, site: Site) -> Infeasible | None:
    """KV is copied or moved down, and fetched, only where there is a tier below HBM."""
    moves = plan.kv.retention in ("write-through", "offload-at-turn-end")
    if moves and not plan.kv.below_hbm:
        reason = f"retention {plan.kv.retention} needs host memory, disks or a store to move KV to"
        return Infeasible("retention", reason, 1.0)
    idle = plan.kv.fetch == "when-faster" or plan.kv.layerwise or plan.kv.prefetch
    if idle and not plan.kv.below_hbm:
        reason = "without a tier below HBM `fetch`, `layerwise` and `prefetch` do nothing"
        return Infeasible("retention", reason, 1.0)
    return None


def weights_can_be_had(plan: DeploymentPlan, site: Site) -> Infeasible | None:
    """Converting never widens: weights are not asked for in more bytes than the checkpoint has."""
    native = (
        site.model.native_weights.routed_experts
        if site.model.moe
        else (site.model.native_weights.linear)
    )
    asked = plan.precision.weights
    if asked != "native" and BYTES_PER_WEIGHT[asked] > BYTES_PER_WEIGHT[native]:
        reason = f"the checkpoint is in {native}, {asked} weights would only be larger"
        return Infeasible("precision", reason, BYTES_PER_WEIGHT[asked] / BYTES_PER_WEIGHT[native])
    return None


def stages_even_enough(plan: DeploymentPlan, site: Site) -> Infeasible | None:
    """No pipeline stage has less than half the layers of the fullest."""
    for pool in plan.pools:
        shares = stage_layers(site.model.layers, pool.pp)
        if 2 * shares[-1] < shares[0]:
            reason = f"{pool.pp} stages of {site.model.layers} layers are too uneven"
            return Infeasible("layout", reason, shares[0] / shares[-1] - 1)
    return None


def hosts_suffice(plan: DeploymentPlan, site: Site) -> Infeasible | None:
    """There are cores for the front end, and for tools where they run on hosts."""
    if plan.hosts is None and not site.tools_on_hosts:
        return None
    if plan.hosts is not None and plan.hosts.kind not in site.hosts:
        return Infeasible("hosts", f"{plan.hosts.kind} is no host of the site", 1.0)
    cores = host_cores(plan, site)
    if cores.tools >= (1 if site.tools_on_hosts else 0):
        return None
    whose = "the hosts that the chips sit with" if plan.hosts is None else str(plan.hosts)
    unknown = sorted({pool.chip for pool in plan.pools} - site.cores_per_chip.keys())
    if plan.hosts is None and unknown:
        whose += f" (those of {', '.join(unknown)} are not known)"
    reason = f"{whose} have no core left for tools, {cores.front_end} are for the front end"
    return Infeasible("hosts", reason, 1.0 - cores.tools)


RULES: tuple[Rule, ...] = (
    chips_within_budget,
    figures_are_known,
    decode_can_be_split,
    layout_divides,
    stages_even_enough,
    engine_runs_it,
    engines_take_over,
    pools_exchange_kv,
    weights_can_be_had,
    drafts_can_be_had,
    batch_within_step,
    context_within_model,
    host_memory_suffices,
    retention_has_a_tier,
    midfill_can_reach_kv,
    hosts_suffice,
    memory_suffices,
)
