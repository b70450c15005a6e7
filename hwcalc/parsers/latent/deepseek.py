"""DeepSeek-V2 to V3.2, and models with the same layers: Kimi K2, GLM, Mistral 4, MiniCPM3, Youtu."""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace

from hwcalc.parsers.config import Config
from hwcalc.parsers.decoder.build import AFTER_PREFIX, ROUTED, Decoder, mtp_copies, mtp_shared, sparse_by_types
from hwcalc.parsers.latent.layers import LatentLayers, attention_weights
from hwcalc.parsers.reading import Reading


def _v32(config: Config) -> Reading:
    """A layer may use the indexer of an earlier one. transformers does not read those keys and gives each its own."""
    reading = LatentLayers(sparse=True).read(config)
    own = LatentLayers(sparse=True, own_indexers=True).read(config).layers
    return reading if own == reading.layers else replace(reading, readings={"transformers": own}, weighs_readings=True)


YOUTU: Final = Decoder(layers=LatentLayers().read, attention=attention_weights)
MINICPM3: Final = replace(YOUTU, mlp_bias="mlp_bias")
MISTRAL4: Final = replace(YOUTU, experts=AFTER_PREFIX)
DEEPSEEK_V2: Final = replace(YOUTU, mlp_bias="mlp_bias", experts=replace(AFTER_PREFIX, shared_bias="mlp_bias"))
# Published sizes of checkpoints confirm these layouts of multi-token prediction.
DEEPSEEK_V3: Final = replace(MISTRAL4, mtp=mtp_copies)
GLM4_MOE_LITE: Final = replace(YOUTU, experts=replace(ROUTED, sparse=sparse_by_types(1, None)), mtp=mtp_copies)
SPARSE: Final = replace(YOUTU, layers=LatentLayers(sparse=True).read, experts=replace(ROUTED, sparse=sparse_by_types()))
"""Every layer has an indexer, unless the file says that it uses that of an earlier layer."""
DEEPSEEK_V32: Final = replace(SPARSE, layers=_v32, mtp=mtp_copies)
GLM_MOE_DSA: Final = replace(SPARSE, mtp=mtp_shared)
