"""Model types that are another type under a name of their own.

- deepseek_ref: DeepSeek-V4 with the key names of its reference code, which transformers' ``deepseek_v4`` takes too
  (``compress_ratios``, ``sliding_window``, ``index_*``).
- minimax_m3: the language model of ``minimax_m3_vl`` by itself, with the same ``sparse_attention_config``.
- step3_vl: its ``text_config`` is a ``step3_text`` model, though not every file says so.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from hwcalc.formulas.record import Record
from hwcalc.formulas.weights import Block
from hwcalc.parsers.config import Config
from hwcalc.parsers.reading import Readers, Reading
from hwcalc.parsers.registry import known_family


class Relabelled(Record):
    """A whole file that is read as another model type."""

    model_type: str

    def read(self, config: Config) -> Reading:
        """The layers."""
        return known_family(self.model_type).read(config.retyped(self.model_type))

    def weigh(self, config: Config, top: Config, reading: Reading) -> Sequence[Block] | None:
        """The blocks of weights of these layers."""
        del config
        return known_family(self.model_type).weigh(reading.config, top, reading)


def read_nested(config: Config, model_type: str) -> Reading:
    """The layers of a language model in ``text_config``, of this type unless the file names another."""
    text = config.sub("text_config", model_type)
    if text is None:
        raise config.missing("text_config")
    if text.model_type == config.model_type:
        raise config.error("text_config.model_type", config.model_type, model_type)
    # Later layers mix the outputs of groups of so many layers, within the step of one token: nothing of them is cached.
    text.ignore("attn_res_block_size")
    return known_family(text.model_type).read(text)


DEEPSEEK_REF: Final = Relabelled(model_type="deepseek_v4")
MINIMAX_M3: Final = Relabelled(model_type="minimax_m3_vl_text")
STEP3_VL: Final = Readers(layers=lambda config: read_nested(config, "step3_text"))
