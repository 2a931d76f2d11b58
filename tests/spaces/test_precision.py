"""Bytes of weights and KV elements, scales included."""

from __future__ import annotations

import pytest

from spaces import catalog
from spaces.precision import BYTES_PER_KV_ELEMENT, BYTES_PER_WEIGHT, Dtype


@pytest.mark.parametrize(
    ("dtype", "block", "bits"),
    [
        ("bf16", 1, 16),
        ("fp8", 128 * 128, 128 * 128 * 8 + 32),  # one fp32 scale a block
        ("mxfp4", 32, 32 * 4 + 8),  # one 8-bit exponent for 32
        ("nvfp4", 16, 16 * 4 + 8),  # one fp8 scale for 16
        ("int4", 32, 32 * 4 + 16),  # one bf16 scale for 32
    ],
)
def test_a_weight_costs_its_share_of_the_block_it_is_stored_in(
    dtype: Dtype, block: int, bits: int
) -> None:
    assert BYTES_PER_WEIGHT[dtype] == pytest.approx(bits / 8 / block, rel=1e-12)


def test_kv_elements_are_plain() -> None:
    assert BYTES_PER_KV_ELEMENT == {"bf16": 2.0, "fp8": 1.0}


@pytest.mark.parametrize(
    ("name", "gigabytes"),
    [
        ("deepseek-v3", 673.0),
        ("kimi-k2", 1029.0),
        ("kimi-k2.5", 594.2),
        ("kimi-k3", 1559.9),
        ("gpt-oss-120b", 65.2),
        ("gpt-oss-20b", 13.8),
        ("llama-3.3-70b", 141.1),
        ("minimax-m2", 230.0),
    ],
)
def test_checkpoints_have_the_size_of_their_native_formats(name: str, gigabytes: float) -> None:
    model = catalog.model(name)
    native = model.native_weights
    size = (
        model.routed_parameters * BYTES_PER_WEIGHT[native.routed_experts]
        + model.linear_parameters * BYTES_PER_WEIGHT[native.linear]
        + model.embedding_parameters * BYTES_PER_WEIGHT[native.embeddings]
    )
    assert size / 1e9 == pytest.approx(gigabytes, abs=0.06)
