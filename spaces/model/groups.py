"""The kinds of layers a model is put together from, told apart by their `kind`."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from spaces.model.attention import GqaAttention, MlaAttention
from spaces.model.compressed import CompressedAttention
from spaces.model.feed_forward import DenseFfn, MoeFfn
from spaces.model.recurrent import RecurrentAttention

AttentionGroup = GqaAttention | MlaAttention | CompressedAttention | RecurrentAttention

Attention = Annotated[AttentionGroup, Field(discriminator="kind")]
Ffn = Annotated[DenseFfn | MoeFfn, Field(discriminator="kind")]
