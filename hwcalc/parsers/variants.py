"""Attention-only models whose layers differ in more than a window: head counts by layer kind, an indexer, image layers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from hwcalc.formulas import CrossAttention, Layer, SparseIndexer
from hwcalc.model import Note
from hwcalc.parsers.config import Config
from hwcalc.parsers.reading import AttentionDims, Reading, attention_dims, read_layer_types

__all__ = ["read"]

_FULL: Final = "full_attention"
_SLIDING: Final = "sliding_attention"


def _mimo_v2(config: Config) -> Reading:
    """MiMo-V2: sliding layers have more key/value heads, and keys are wider than values on both.

    The published files name the layers by ``hybrid_layer_pattern`` (1 slides); transformers' class does not read that key
    and derives full attention on layer 0 and on every sixth. ``sliding_window_size`` counts the tokens before the query,
    so the window is one more.
    """
    count = config.number_of_layers()
    full = attention_dims(config)
    config.ignore("attention_chunk_size", "add_swa_attention_sink_bias", "add_full_attention_sink_bias", "swa_rope_theta")
    config.ignore("sliding_window")
    sliding = AttentionDims(
        num_attention_heads=config.maybe_integer("swa_num_attention_heads") or full.num_attention_heads,
        num_key_value_heads=config.maybe_integer("swa_num_key_value_heads") or 8,
        head_dim=config.maybe_integer("swa_head_dim") or full.head_dim,
        v_head_dim=config.maybe_integer("swa_v_head_dim") or full.v_head_dim,
    )
    before = config.maybe_integer("sliding_window_size")
    window = config.integer("sliding_window") if before is None else before + 1
    derived = [_FULL if i == 0 or (i + 1) % 6 == 0 else _SLIDING for i in range(count)]
    spelled = read_layer_types(config, count)
    pattern = config.integers("hybrid_layer_pattern", length=count)
    named = spelled or ([_SLIDING if flag else _FULL for flag in pattern] if pattern else derived)

    def layers(types: list[str]) -> tuple[Layer, ...]:
        return tuple((full.full(),) if name == _FULL else (sliding.sliding(window),) for name in types)

    other = {} if spelled or named == derived else {"transformers": layers(derived)}
    return Reading(layers=layers(named), config=config, readings=other)


def _minimax_m3(config: Config) -> Reading:
    """MiniMax-M3: grouped-query attention whose sparse layers keep one indexer key a token beside keys and values.

    The key stays in the cache dtype, as transformers 5.23 and SGLang 0.5.23 keep it.
    """
    count = config.number_of_layers()
    dims = attention_dims(config)
    nested = config.sub("sparse_attention_config")
    sparse = nested.integers("sparse_attention_freq", length=count) if nested is not None else None
    if nested is not None:
        nested.ignore(*nested.raw)
    types = read_layer_types(config, count) or ["minimax_m3_sparse" if flag else _FULL for flag in (sparse or [0] * count)]
    heads = (nested and nested.maybe_integer("sparse_num_index_heads")) or config.maybe_integer("index_n_heads")
    width = (nested and nested.maybe_integer("sparse_index_dim")) or config.maybe_integer("index_head_dim")
    config.ignore("index_block_size", "index_topk_blocks", "index_local_blocks")
    layers: list[Layer] = []
    for name in types:
        if name == "minimax_m3_sparse":
            if heads is None or width is None:
                raise config.missing("index_head_dim")
            layers.append((dims.full(), SparseIndexer(index_n_heads=heads, index_head_dim=width, index_quantized=False)))
        elif name == _FULL:
            layers.append((dims.full(),))
        else:
            raise config.error("layer_types", name, f"{_FULL} or minimax_m3_sparse")
    return Reading(layers=tuple(layers), config=config)


def _mllama(config: Config) -> Reading:
    """Llama 3.2 Vision: some layers attend to the image instead of the text, and keep nothing on a text-only run."""
    count = config.number_of_layers()
    dims = attention_dims(config)
    images = set(config.integers("cross_attention_layers") or [])
    cross = CrossAttention(**vars(dims))
    return Reading(
        layers=tuple((cross,) if index in images else (dims.full(),) for index in range(count)),
        config=config,
        encoder_tokens=0,
        notes=(
            Note(
                code="text-only",
                message=f"{len(images)} layers attend to the image: without one they keep nothing. Give the number of image "
                "tokens with --encoder-seq.",
            ),
        ),
    )


def _unlimited_ocr(config: Config) -> Reading:
    """Every prompt token is kept whole and a window of the generated ones: all tokens, where the prompt is most of them."""
    count = config.number_of_layers()
    window = config.integer("sliding_window")
    types = read_layer_types(config, count) or ["reference_sliding_attention"] * count
    dims = attention_dims(config)
    for name in types:
        if name != "reference_sliding_attention":
            raise config.error("layer_types", name, "reference_sliding_attention")
    note = Note(
        code="prompt-kept-whole",
        message=f"All tokens are counted as prompt, which is kept whole; of generated tokens only {window:,} would be kept.",
    )
    return Reading(layers=((dims.full(),),) * count, config=config, notes=(note,))


def _step3p5(config: Config) -> Reading:
    """Step-3.7: sliding layers may have other head counts; the per-layer lists also cover the trailing draft layers."""
    count = config.number_of_layers()
    full = attention_dims(config)
    other = config.get("attention_other_setting")
    sliding = full
    if isinstance(other, Mapping):
        nested = Config(other, None, "attention_other_setting")
        sliding = AttentionDims(
            num_attention_heads=nested.maybe_integer("num_attention_heads") or full.num_attention_heads,
            num_key_value_heads=nested.maybe_integer("num_attention_groups")
            or nested.maybe_integer("num_key_value_heads")
            or full.num_key_value_heads,
            head_dim=nested.maybe_integer("head_dim") or full.head_dim,
            v_head_dim=nested.maybe_integer("head_dim") or full.v_head_dim,
        )
    config.ignore("num_sliding_attention_heads", "attention_other_setting", "mtp_layer_types")
    types = read_layer_types(config, count) or [_FULL] * count
    window = config.maybe_integer("sliding_window")
    layers: list[Layer] = []
    for name in types:
        if name == _FULL or window is None:
            layers.append((full.full(),))
        elif name == _SLIDING:
            layers.append((sliding.sliding(window),))
        else:
            raise config.error("layer_types", name, f"{_FULL} or {_SLIDING}")
    readings = {}
    if not config.where:
        # transformers reads only text_config: a file that keeps the keys at the top gets the class's defaults.
        default = Config({}, config.model_type)
        readings["transformers"] = ((attention_dims(default).full(),),) * default.number_of_layers()
    return Reading(layers=tuple(layers), config=config, readings=readings)


_READERS: Final[Mapping[str, Callable[[Config], Reading]]] = {
    "mimo_v2_flash": _mimo_v2,
    "minimax_m3_vl_text": _minimax_m3,
    "mllama_text_model": _mllama,
    "step3p5": _step3p5,
    "unlimited_ocr_text": _unlimited_ocr,
}


def read(config: Config) -> Reading:
    """Read one of the models above."""
    return _READERS[config.model_type or ""](config)
