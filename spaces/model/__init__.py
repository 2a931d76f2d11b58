"""The shape of a served model: what its layers hold, what a token adds to the KV cache.

Every formula counts one whole model on no particular chip; dividing it over chips is the work of
`spaces.sharding`.
"""

from spaces.model.attention import GqaAttention, MlaAttention, SparseIndex
from spaces.model.compressed import CompressedAttention
from spaces.model.feed_forward import DenseFfn, MoeFfn
from spaces.model.recurrent import GdnAttention, KdaAttention, MambaAttention, RecurrentAttention
from spaces.model.spec import AttentionGroup, ModelSpec, WeightPrecision

__all__ = [
    "AttentionGroup",
    "CompressedAttention",
    "DenseFfn",
    "GdnAttention",
    "GqaAttention",
    "KdaAttention",
    "MambaAttention",
    "MlaAttention",
    "ModelSpec",
    "MoeFfn",
    "RecurrentAttention",
    "SparseIndex",
    "WeightPrecision",
]
