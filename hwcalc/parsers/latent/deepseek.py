"""DeepSeek-V2 to V3.2, and the models that have their layers: Kimi K2, GLM, Mistral 4, MiniCPM3, Youtu."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from hwcalc.parsers.config import Config
from hwcalc.parsers.decoder.build import AFTER_PREFIX, ROUTED, Decoder, by_types, mtp_copies, mtp_shared
from hwcalc.parsers.latent.layers import LatentLayers, attention_weights
from hwcalc.parsers.reading import Reading


def _v32(config: Config) -> Reading:
    """Layers may use the indexer of an earlier one. transformers gives each its own, and does not read the keys for it."""
    reading = LatentLayers(sparse=True).read(config)
    own = LatentLayers(sparse=True, own_indexers=True).read(config).layers
    return reading if own == reading.layers else replace(reading, readings={"transformers": own})


YOUTU: Final = Decoder(layers=LatentLayers().read, attention=attention_weights)
MINICPM3: Final = replace(YOUTU, mlp_bias="mlp_bias")
MISTRAL4: Final = replace(YOUTU, experts=AFTER_PREFIX)
DEEPSEEK_V2: Final = replace(YOUTU, mlp_bias="mlp_bias", experts=replace(AFTER_PREFIX, shared_bias="mlp_bias"))
# The layouts of multi-token prediction are those that the published sizes of checkpoints confirm.
DEEPSEEK_V3: Final = replace(MISTRAL4, mtp=mtp_copies)
GLM4_MOE_LITE: Final = replace(YOUTU, experts=replace(ROUTED, sparse=by_types(1, None)), mtp=mtp_copies)
SPARSE: Final = replace(YOUTU, layers=LatentLayers(sparse=True).read, experts=replace(ROUTED, sparse=by_types()))
"""An indexer on every layer, unless the file says that it uses that of an earlier one."""
DEEPSEEK_V32: Final = replace(SPARSE, layers=_v32, mtp=mtp_copies)
GLM_MOE_DSA: Final = replace(SPARSE, mtp=mtp_shared)
