"""The shape of a served model: what its layers hold, what a token adds to the KV cache.

Every formula counts one whole model on no particular chip; dividing it over chips is the work of
`spaces.sharding`.
"""

from spaces.model.attention import GqaAttention, MlaAttention, SparseIndex
from spaces.model.compressed import CompressedAttention
from spaces.model.drafts import DraftHead, DraftMethod
from spaces.model.feed_forward import DenseFfn, MoeFfn
from spaces.model.groups import AttentionGroup
from spaces.model.recurrent import GdnAttention, KdaAttention, MambaAttention, RecurrentAttention
from spaces.model.spec import ModelSpec, WeightPrecision

__all__ = [
    "AttentionGroup",
    "CompressedAttention",
    "DenseFfn",
    "DraftHead",
    "DraftMethod",
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
