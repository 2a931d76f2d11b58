"""Hand-made models, chips and plans for the manifest tests."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
from hypothesis import strategies as st

from spaces.chip import ChipSpec, Fact
from spaces.model import DenseFfn, GqaAttention, MlaAttention, ModelSpec, MoeFfn, WeightPrecision
from spaces.plan import DeploymentPlan, KvTiers, Pool, Precision

MakeChip = Callable[..., ChipSpec]
Case = tuple[DeploymentPlan, ModelSpec, dict[str, ChipSpec]]

GQA = GqaAttention(layers=4, heads=48, kv_heads=8, head_dim=64)
MLA = MlaAttention(
    layers=4,
    heads=48,
    q_lora_rank=256,
    kv_lora_rank=512,
    qk_nope_head_dim=64,
    qk_rope_head_dim=64,
    v_head_dim=64,
)
MOE = MoeFfn(layers=4, routed_experts=96, top_k=4, expert_intermediate_size=512)
DENSE = DenseFfn(layers=4, intermediate_size=4096)
LAYOUTS = [
    (tp, pp, dp)
    for tp, pp, dp in itertools.product([1, 2, 3, 4, 6, 8, 16], [1, 2, 3], [1, 2, 3, 7, 16])
    if tp * pp * dp <= 32
]
# KV moves between pools without stages whose tp divide each other and the KV heads.
SPLIT_LAYOUTS = [layout for layout in LAYOUTS if layout[0] in (1, 2, 4, 8) and layout[1] == 1]
ROUTERS = ("round-robin", "least-loaded", "prefix-affinity")


def _model(name: str, attention: GqaAttention | MlaAttention, ffn: MoeFfn | DenseFfn) -> ModelSpec:
    return ModelSpec(
        name=name,
        hugging_face_id=f"org/{name}",
        source="test",
        hidden_size=1024,
        vocab_size=32000,
        max_context_tokens=131072,
        attention=(attention,),
        ffn=(ffn,),
        native_weights=WeightPrecision(routed_experts="bf16", linear="bf16"),
    )


MODELS = (
    _model("toy-moe", GQA, MOE),
    _model("toy-latent", MLA, MOE),
    _model("toy-dense", GQA, DENSE),
)


@pytest.fixture(scope="session")
def moe() -> ModelSpec:
    """A mixture of experts with grouped-query attention, in bf16."""
    return MODELS[0]


@pytest.fixture(scope="session")
def latent() -> ModelSpec:
    """A mixture of experts with latent attention, in bf16."""
    return MODELS[1]


@pytest.fixture(scope="session")
def dense() -> ModelSpec:
    """A dense model, in bf16."""
    return MODELS[2]


@pytest.fixture(scope="session")
def make_chip() -> MakeChip:
    """A chip of a name, a node size and a Kubernetes resource; its other figures do not matter."""
    return _chip


@pytest.fixture(scope="session")
def legal_cases() -> st.SearchStrategy[Case]:
    """Plans that both vLLM and a cluster of equal nodes can run, with their model and chips."""
    return _cases()


def _chip(name: str, node: int = 8, resource: str = "nvidia.com/gpu") -> ChipSpec:
    any_figure = Fact(value=1.0, source="test")
    return ChipSpec(
        name=name,
        title=name.upper(),
        vendor=resource.split(".")[0],
        checked="2026-01-01",
        efficiency="test",
        manifest_resource=resource,
        chips_per_node=Fact(value=node, source="test"),
        bf16_tflops=any_figure,
        hbm_gb=any_figure,
        hbm_gb_per_s=any_figure,
        scaleup_chips=any_figure,
        scaleup_gb_per_s=any_figure,
        scaleout_gb_per_s=any_figure,
        host_link_gb_per_s=any_figure,
        host_dram_gb=any_figure,
        tdp_w=any_figure,
    )


@st.composite
def _cases(draw: st.DrawFn) -> Case:
    model = draw(st.sampled_from(MODELS))
    node = draw(st.sampled_from([2, 4, 8]))
    resource = draw(st.sampled_from(["nvidia.com/gpu", "amd.com/gpu"]))
    chips = {name: _chip(name, node, resource) for name in ("a100", "b200")}
    split = draw(st.booleans())
    roles = ("prefill", "decode") if split else ("aggregated",)
    plan = DeploymentPlan(
        model=model.name,
        topology="prefill-decode" if split else "aggregated",
        pools=tuple(draw(_pools(role, model, split)) for role in roles),
        precision=Precision(
            weights=draw(st.sampled_from(["native", "fp8", "nvfp4"])),
            kv=draw(st.sampled_from(["bf16", "fp8"])),
        ),
        kv=KvTiers(host_gb_per_chip=draw(st.sampled_from([0.0, 37.5, 200.0]))),
        max_model_len=draw(st.sampled_from([None, 32768])),
        hbm_fraction=draw(st.sampled_from([0.85, 0.9, 1.0])),
        block_size=draw(st.sampled_from([16, 64])),
        prefix_caching=draw(st.booleans()),
        router=draw(st.sampled_from(ROUTERS)),
    )
    return plan, model, chips


@st.composite
def _pools(draw: st.DrawFn, role: str, model: ModelSpec, split: bool) -> Pool:
    tp, pp, dp = draw(st.sampled_from(SPLIT_LAYOUTS if split else LAYOUTS))
    seqs = draw(st.integers(1, 512))
    return Pool.model_validate(
        {
            "role": role,
            "chip": draw(st.sampled_from(["a100", "b200"])),
            "replicas": draw(st.integers(1, 2)),
            "tp": tp,
            "pp": pp,
            "dp": dp,
            "ep": draw(st.sampled_from([1, tp * dp])) if model.moe else 1,
            "max_num_seqs": seqs,
            "max_num_batched_tokens": draw(st.integers(seqs, 16384)),
        }
    )
