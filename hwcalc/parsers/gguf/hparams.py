"""The hyperparameters of a GGUF file as llama.cpp reads them: ``llama_hparams`` (src/llama-hparams.h) from the keys of the
metadata.

Keys are read as the loader of each architecture reads them: ``llama_model_base::load_hparams`` (src/llama-model.cpp) and
``load_arch_hparams`` (src/models/*.cpp). A wrong value is an error that names the key, the value and what is allowed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

from hwcalc.errors import ConfigError, UnknownArchitectureError
from hwcalc.formulas import MAX_DIMENSION
from hwcalc.formulas.record import Record
from hwcalc.model import GGUF_ARCHITECTURE, VOCABULARY
from hwcalc.parsers.gguf.architectures import ARCHITECTURES, Architecture, SwaType, Window
from hwcalc.text import quoted, shown

if TYPE_CHECKING:
    from hwcalc.model import GgufTensor, ModelSpec

HPARAMS: Final = "gguf hparams"
"""Where a model keeps the result of :func:`hparams_of`."""


class Hparams(Record):
    """The values that bear on memory, with the names of llama.cpp. Tuples have one entry per layer (``n_layer_all`` entries).

    Zero or an empty tuple: the file does not say, or the architecture has no such thing. Four layers of which the last is dense have
    ``is_swa == (True, True, True, False)``.
    """

    arch: str
    n_layer_all: int
    """All blocks of the file, those for multi-token prediction included."""
    n_layer_nextn: int
    n_embd: int
    n_vocab: int
    n_ctx_train: int
    causal: bool
    n_head: tuple[int, ...]
    n_head_kv: tuple[int, ...]
    n_ff: tuple[int, ...]
    head_k: int
    head_v: int
    head_k_swa: int
    head_v_swa: int
    n_rot: int
    n_rot_swa: int = 0
    key_length_mla: int = 0
    value_length_mla: int = 0
    kv_lora_rank: int = 0
    q_lora_rank: int = 0
    kv_lora_rank_swa: int = 0
    key_length_mla_swa: int = 0
    value_length_mla_swa: int = 0
    n_swa: int = 0
    """The window that llama.cpp uses; 0 where it ignores the one of the file."""
    is_swa: tuple[bool, ...]
    swa_type: SwaType = "none"
    sliding_window: int = 0
    """The window that the file names, whether or not llama.cpp uses it."""
    named_swa: tuple[bool, ...] = ()
    """The layers that the file gives a window, where llama.cpp uses it for models of another depth alone; else empty."""
    is_recurrent: tuple[bool, ...]
    kv_from_start: int | None = None
    """How many of the first layers have a cache of their own; ``None`` if all have."""
    router_layer: int | None = None
    """A last block with one key and one value that chooses adapters (Granite Switch)."""
    loops: int = 1
    """How often the blocks of the file are run through, each time with a cache of its own."""
    ssm_d_conv: int = 0
    ssm_d_inner: int = 0
    ssm_d_state: int = 0
    ssm_dt_rank: int = 0
    ssm_n_group: int = 0
    kda_head_dim: int = 0
    head_la: int = 0
    """The width of a head of lightning attention."""
    wkv_head_size: int = 0
    token_shift_count: int = 2
    shortconv_l_cache: int = 0
    ple_conv_state: int = 0
    """Width of the convolution state of a layer with n-gram embeddings."""
    ple_layer: int | None = None
    indexer_n_head: int = 0
    indexer_head_size: int = 0
    indexer_top_k: int = 0
    indexer_kpool: int = 0
    indexer_full: tuple[bool, ...] = ()
    compress_ratios: tuple[int, ...] = ()
    n_layer_dense_lead: int = 0
    n_expert: int = 0
    n_expert_used: int = 0
    n_expert_shared: int = 0
    n_ff_exp: int = 0
    n_ff_shexp: int = 0
    hyper_connections: int = 0
    dec_n_layer: int = 0
    n_embd_per_layer: int = 0
    """Width of an embedding that each layer has for itself (Gemma 3n and 4)."""

    @property
    def architecture(self) -> Architecture:
        """The row of the architecture."""
        return ARCHITECTURES[self.arch]

    @property
    def n_layer(self) -> int:
        """The layers of the main context: all but those for multi-token prediction."""
        return self.n_layer_all - self.n_layer_nextn

    @property
    def is_mla(self) -> bool:
        """True if keys and values are one latent vector."""
        return bool(self.key_length_mla and self.value_length_mla)

    def head_width_k(self, layer: int) -> int:
        """Numbers in a key of one head."""
        return self.head_k_swa if self.is_swa[layer] else self.head_k

    def head_width_v(self, layer: int) -> int:
        """Numbers in a value of one head."""
        return self.head_v_swa if self.is_swa[layer] else self.head_v

    def n_embd_k_gqa(self, layer: int) -> int:
        """Numbers that a token's keys have in a layer, all heads together."""
        return self.head_width_k(layer) * self.n_head_kv[layer]

    def n_embd_v_gqa(self, layer: int) -> int:
        """Numbers that a token's values have in a layer."""
        return self.head_width_v(layer) * self.n_head_kv[layer]

    @cached_property
    def query_width(self) -> int:
        """Numbers of a token's queries in the widest layer."""
        return self._widest(self.key_length_mla, self.head_width_k)

    @cached_property
    def attention_width(self) -> int:
        """Numbers that the attention gives for a token in the widest layer."""
        return self._widest(self.value_length_mla, self.head_width_v)

    def _widest(self, latent: int, width: Callable[[int], int]) -> int:
        if self.is_mla:
            return max(self.n_head) * latent
        return max((self.n_head[layer] * width(layer) for layer in range(self.n_layer)), default=0)

    @property
    def n_embd_v_gqa_max(self) -> int:
        """The widest values of all layers."""
        return max(map(self.n_embd_v_gqa, range(self.n_layer_all)))

    @property
    def n_embd_r(self) -> int:
        """Numbers in the rolling state of a recurrent layer: last inputs of a convolution, or token shifts."""
        if self.wkv_head_size:
            return self.token_shift_count * self.n_embd
        if self.shortconv_l_cache:
            return self.n_embd * (self.shortconv_l_cache - 1)
        inputs = max(0, self.ssm_d_conv - 1)
        if self.kda_head_dim:
            return 3 * (inputs if self.ssm_d_conv else 3) * self.n_head[0] * self.kda_head_dim
        return inputs * (self.ssm_d_inner + 2 * self.ssm_n_group * self.ssm_d_state)

    @property
    def n_embd_s(self) -> int:
        """Numbers in the state of a recurrent layer that every token updates."""
        if self.wkv_head_size:
            return self.n_embd * self.wkv_head_size
        width = self.kda_head_dim or self.head_la
        return width * width * self.n_head[0] if width else self.ssm_d_state * self.ssm_d_inner


def read_hparams(keys: Mapping[str, Any], tensors: Sequence[GgufTensor] = ()) -> Hparams:
    """Read the metadata of a file. ``tensors`` are those of the file, if it is one.

    Raises :class:`~hwcalc.errors.UnknownArchitectureError` for an architecture that llama.cpp does not know, and
    :class:`~hwcalc.errors.ConfigError` for a value that makes no sense.
    """
    name = keys.get(GGUF_ARCHITECTURE)
    if not isinstance(name, str) or not name:
        raise ConfigError(f"{GGUF_ARCHITECTURE} is {quoted(name)}, but must be a name such as llama.", hint=_HINT)
    row = ARCHITECTURES.get(name)
    if row is None:
        from difflib import get_close_matches

        near = get_close_matches(name[:60], ARCHITECTURES, 3)
        known = f"llama.cpp v0.5.0 knows {len(ARCHITECTURES)}, such as llama, qwen3, gemma3."
        known = f"Near it: {', '.join(near)}." if near else known
        raise UnknownArchitectureError(
            f"No parser knows {GGUF_ARCHITECTURE} {shown(name, 60)}.",
            hint=f"{known} Give the model's config.json instead, if it has one.",
        )
    return Hparams(**_values(Keys(keys, name), row, tensors))


def hparams_of(model: ModelSpec) -> Hparams:
    """The hyperparameters of a model: from its file, or from the keys that the converter would write for its config."""

    def make() -> Hparams:
        if model.gguf is not None:
            return read_hparams(model.gguf.keys, model.gguf.tensors)
        from hwcalc.parsers.gguf.from_config import gguf_keys

        return read_hparams(gguf_keys(model))

    found: Hparams = model.once(HPARAMS, make)
    return found


MAX_LAYERS: Final = 512
"""``LLAMA_MAX_LAYERS`` (src/llama-hparams.h): most blocks of a file, and most entries of a list per layer."""

_HINT: Final = "Check that the keys are those of the file: kvplan reads them as llama.cpp does."


class Keys:
    """The keys of one file. Getters take a key without the architecture in front: ``attention.head_count``."""

    def __init__(self, values: Mapping[str, Any], architecture: str) -> None:
        self.values = values
        self.architecture = architecture

    def get(self, key: str) -> Any:
        """The value as it is; ``None`` if the file has no such key."""
        return self.values.get(f"{self.architecture}.{key}")

    def has(self, key: str) -> bool:
        """True if the file has the key."""
        return self.get(key) is not None

    def is_list(self, key: str) -> bool:
        """True if the file has a list under this key."""
        return isinstance(self.get(key), (list, tuple))

    def error(self, key: str, value: object, allowed: str) -> ConfigError:
        """Make the error about a value. The caller raises it."""
        return self.error_in_words(key, quoted(value), allowed)

    def error_in_words(self, key: str, words: str, allowed: str) -> ConfigError:
        """As :meth:`error`, about a value that is described and not shown."""
        return ConfigError(f"{shown(self.architecture, 40)[1:-1]}.{key} is {words}, but must be {allowed}.", hint=_HINT)

    def missing(self, key: str) -> ConfigError:
        """Make the error about a missing key. The caller raises it."""
        name = shown(self.architecture, 40)[1:-1]
        return ConfigError(f"{name}.{key} is missing: llama.cpp does not load a {name} file without it.", hint=_HINT)

    def whole(self, key: str, default: int | None = 0, *, minimum: int = 0, maximum: int = MAX_DIMENSION) -> int:
        """A whole number. Without a default the key must be there."""
        value = self.get(key)
        if value is None:
            if default is None:
                raise self.missing(key)
            return default
        return self._whole(key, value, minimum, maximum)

    def _whole(self, key: str, value: object, minimum: int, maximum: int) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not minimum <= value <= maximum:
            raise self.error(key, value, f"a whole number from {minimum:,} to {maximum:,}")
        return value

    def switch(self, key: str, *, default: bool) -> bool:
        """True or false."""
        value = self.get(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.error(key, value, "true or false")
        return value

    def per_layer(self, key: str, layers: int, default: Sequence[int] | None = None) -> tuple[int, ...]:
        """One number for each layer: a list of that length, or one number for all. Without a default it must be there."""
        if not self.has(key):
            if default is None:
                raise self.missing(key)
            return tuple(default)
        if not self.is_list(key):
            return (self.whole(key),) * layers
        numbers = self.numbers(key)
        if len(numbers) != layers:
            raise self.error_in_words(key, f"a list of {len(numbers):,}", f"one number, or a list of {layers:,}")
        return numbers

    def numbers(self, key: str) -> tuple[int, ...]:
        """A list of whole numbers; true counts as 1. It has no entry if the file has no such key."""
        values = self.get(key)
        if values is None:
            return ()
        if not isinstance(values, (list, tuple)):
            raise self.error(key, values, "a list")
        if len(values) > MAX_LAYERS:
            raise self.error_in_words(key, f"a list of {len(values):,}", f"a list of at most {MAX_LAYERS:,}")
        return tuple(int(value) if isinstance(value, bool) else self._whole(key, value, 0, MAX_DIMENSION) for value in values)

    def vocabulary(self) -> int:
        """The number of tokens: of the list, or as the file says; 0 if it does not say."""
        count = self.values.get(VOCABULARY)
        tokens = self.values.get("tokenizer.ggml.tokens")
        if count is None and isinstance(tokens, (list, tuple)):
            count = len(tokens)
        if count is None:
            return self.whole("vocab_size")
        if isinstance(count, bool) or not isinstance(count, int) or not 0 <= count <= MAX_DIMENSION:
            raise ConfigError(
                f"{VOCABULARY} is {quoted(count)}, but must be a whole number from 0 to {MAX_DIMENSION:,}.", hint=_HINT
            )
        return count


def _values(file: Keys, row: Architecture, tensors: Sequence[GgufTensor]) -> dict[str, Any]:
    """The fields of :class:`Hparams` by name."""
    layers = file.whole("block_count", None, minimum=1, maximum=MAX_LAYERS)
    none = (0,) * layers
    nextn = file.whole("nextn_predict_layers", maximum=layers)
    probe = f"blk.{layers - nextn}.nextn.eh_proj.weight"
    if row.memory == "compressed" and tensors and all(tensor.name != probe for tensor in tensors):
        # A DeepSeek-V4 file may name layers for multi-token prediction and not have them.
        nextn = 0
    shapes = (tensor.shape for tensor in tensors if tensor.name == "token_embd.weight")
    table = next(shapes, ())
    heads = file.per_layer("attention.head_count", layers, none)
    read: dict[str, Any] = {
        "arch": file.architecture,
        "n_layer_all": layers,
        "n_layer_nextn": nextn,
        "n_embd": file.whole(row.width_key, None, minimum=1),
        "n_vocab": file.vocabulary() or (table[-1] if len(table) > 1 else 0),
        "n_ctx_train": file.whole("context_length", None),
        "causal": row.causal and file.switch("attention.causal", default=True),
        "n_head": heads,
        "n_head_kv": file.per_layer("attention.head_count_kv", layers, heads),
        "n_ff": file.per_layer("feed_forward_length", layers, none),
        "dec_n_layer": file.whole("decoder_block_count", layers - nextn, maximum=MAX_LAYERS) if row.encoder_decoder else 0,
        "n_embd_per_layer": file.whole("embedding_length_per_layer_input"),
    }
    read |= _head_widths(file, row, read)
    read |= _latents(file, row) | _states(file, row, read)
    # Numbers of experts: the most of any layer where layers differ.
    read |= {
        "n_expert": file.whole("expert_count"),
        "n_expert_used": max(file.per_layer("expert_used_count", layers, none)),
        "n_expert_shared": file.whole("expert_shared_count"),
        "n_ff_exp": max(file.per_layer("expert_feed_forward_length", layers, none)),
        "n_ff_shexp": file.whole("expert_shared_feed_forward_length"),
        "n_layer_dense_lead": file.whole("leading_dense_block_count"),
    }
    recurrent = _recurrent_layers(file, row, read)
    read |= {"is_recurrent": recurrent} | _window(file, row, layers - nextn, layers, recurrent)
    read |= _indexer(file, row, layers, layers - nextn, read["n_ctx_train"])
    if row.cached_layers is not None:
        read["kv_from_start"] = row.cached_layers
    elif row.shared_layers:
        read["kv_from_start"] = layers - file.whole("attention.shared_kv_layers", maximum=layers)
    return read | _unrolled(file, row, read)


def _head_widths(file: Keys, row: Architecture, read: Mapping[str, Any]) -> dict[str, int]:
    """Widths of keys and values. A first layer without heads makes them 0 for the whole model, except where the loader asks again."""
    first = read["n_head"][0]
    each = read["n_embd"] // first if first else 0
    asked = bool(first) or row.widths_without_heads
    key = file.whole("attention.key_length", each) if asked else 0
    value = file.whole("attention.value_length", each) if asked else 0
    rotary = file.whole("rope.dimension_count", key) if first else 0
    rotary_swa = file.whole("rope.dimension_count_swa", rotary)
    return {
        "head_k": key,
        "head_v": value,
        "head_k_swa": file.whole("attention.key_length_swa", key),
        "head_v_swa": file.whole("attention.value_length_swa", value),
        "n_rot": rotary // 2 if row.rotates_half else rotary,
        "n_rot_swa": rotary_swa,
    }


def _latents(file: Keys, row: Architecture) -> dict[str, Any]:
    if row.latents == "none":
        return {}
    out = {"kv_lora_rank": file.whole("attention.kv_lora_rank", None), "q_lora_rank": file.whole("attention.q_lora_rank")}
    if row.latents == "never":
        return out
    default = None if row.latents == "required" else 0
    out |= {f"{name}_mla": file.whole(f"attention.{name}_mla", default) for name in ("key_length", "value_length")}
    if row.memory == "dsa-window":
        names = ("kv_lora_rank", "key_length_mla", "value_length_mla")
        out |= {f"{name}_swa": file.whole(f"attention.{name}_swa", None) for name in names}
    return out


def _states(file: Keys, row: Architecture, read: Mapping[str, Any]) -> dict[str, Any]:
    """The sizes of a recurrent state, from the keys that the architecture reads and no others."""
    states = row.states
    if states == "kda":
        out = {"ssm_d_conv": file.whole("ssm.conv_kernel", None), "kda_head_dim": file.whole("kda.head_dim", None)}
        return {**out, "hyper_connections": file.whole("hyper_connection.count")}
    if states == "wkv":
        shifts = file.whole("token_shift_count", 2)
        return {"wkv_head_size": file.whole("wkv.head_size", None, minimum=1), "token_shift_count": shifts}
    if states == "short-conv":
        return {"shortconv_l_cache": file.whole("shortconv.l_cache", None, minimum=1)}
    if states == "lightning":
        return {"head_la": read["head_k"]}
    if states == "none":
        return {}
    names = {
        "ssm_d_conv": "conv_kernel",
        "ssm_d_inner": "inner_size",
        "ssm_d_state": "state_size",
        "ssm_dt_rank": "time_step_rank",
    }
    if states != "mamba1":
        names["ssm_n_group"] = "group_count"
    out = {name: file.whole(f"ssm.{key}", None) for name, key in names.items()}
    if row.ngrams:
        # The layer that looks n-grams up keeps (kernel - 1) x n inputs of every residual stream.
        streams = out["hyper_connections"] = file.whole("hyper_connection.count", None, minimum=2)
        layers = file.numbers("ple.layers")
        if layers:
            if len(layers) != 1 or layers[0] >= read["n_layer_all"]:
                raise file.error("ple.layers", list(layers), f"one layer from 0 to {read['n_layer_all'] - 1}")
            size = file.whole("ple.ngram_size", None, minimum=2, maximum=8)
            kernel = file.whole("ple.conv_kernel", None, minimum=1)
            out |= {"ple_layer": layers[0], "ple_conv_state": (kernel - 1) * size * streams * read["n_embd"]}
    return out


def _recurrent_layers(file: Keys, row: Architecture, read: Mapping[str, Any]) -> tuple[bool, ...]:
    """For each layer, True if it has a recurrent state. Those for multi-token prediction have none."""
    count: int = read["n_layer_all"]
    trunk = count - read["n_layer_nextn"]
    rule = row.recurrence
    if rule in ("all", "beside"):
        return (True,) * count
    if rule == "interval":
        if file.has("attention.recurrent_layers"):
            return tuple(map(bool, file.per_layer("attention.recurrent_layers", count)))
        interval = file.whole("full_attention_interval", row.interval, minimum=1)
        return tuple(layer < trunk and (layer + 1) % interval != 0 for layer in range(count))
    if rule == "none":
        return (False,) * count
    fed = read["n_ff"] if rule == "no-keys-no-ffn" else (0,) * count
    asked = count if row.recurrent_drafts else trunk
    return tuple(layer < asked and not read["n_head_kv"][layer] and not fed[layer] for layer in range(count))


def _window(file: Keys, row: Architecture, trunk: int, layers: int, recurrent: tuple[bool, ...]) -> dict[str, Any]:
    """The window, and the layers that have it."""
    key, window = "attention.sliding_window", row.window
    named = file.whole(key)
    none = {"sliding_window": named, "n_swa": 0, "is_swa": (False,) * layers}
    if window is None:
        return none
    if window.only_layers not in (None, trunk):
        slides = _layers_with_a_window(file, window, trunk, layers, recurrent, streams=False) if named else ()
        return none | {"n_swa": named, "named_swa": slides}
    streams = window.pattern == "streams" and file.whole("hyper_connection.count") > 0
    required = not window.optional or streams
    size = file.whole(key, window.default if required or window.default is not None else 0)
    if not size and (window.optional or window.forced):
        return none
    return {
        "sliding_window": named or size,
        "n_swa": window.forced or size,
        "swa_type": window.kind,
        "is_swa": _layers_with_a_window(file, window, trunk, layers, recurrent, streams=streams),
        **({"hyper_connections": file.whole("hyper_connection.count")} if streams else {}),
    }


def _layers_with_a_window(
    file: Keys, window: Window, trunk: int, layers: int, recurrent: tuple[bool, ...], *, streams: bool
) -> tuple[bool, ...]:
    key, pattern = "attention.sliding_window_pattern", window.pattern
    if pattern == "all" or streams:
        return (True,) * layers
    if pattern == "attention":
        return tuple(layer < trunk and not recurrent[layer] for layer in range(layers))
    if file.is_list(key):
        # llama.cpp takes a list of any length: layers behind its end are full.
        listed = file.numbers(key)[:layers]
        return (*map(bool, listed), *(False,) * (layers - len(listed)))
    if pattern != "period":
        raise file.missing(key) if not file.has(key) else file.error(key, file.get(key), "a list with one entry for each layer")
    period = file.whole(key, window.period)
    if not period:
        return tuple(layer < trunk for layer in range(layers))
    # All of a period have the window but its last, or its first.
    full = 0 if window.dense_first else period - 1
    return tuple(layer < trunk and layer % period != full for layer in range(layers))


def _indexer(file: Keys, row: Architecture, layers: int, trunk: int, trained: int) -> dict[str, Any]:
    """The indexer, and the layers that have one of their own; others use the choice of the layer before."""
    if not row.indexer:
        return {}
    needed = None if row.memory != "dsa-or-attention" else 0
    out: dict[str, Any] = {
        "indexer_n_head": file.whole("attention.indexer.head_count", needed),
        "indexer_head_size": file.whole("attention.indexer.key_length", needed),
        "indexer_top_k": file.whole("attention.indexer.top_k", needed),
    }
    key = "attention.indexer.types"
    full: tuple[int, ...] = (1,) * trunk
    if row.memory == "compressed":
        ratios = file.numbers("attention.compress_ratios")
        if len(ratios) < layers:
            raise file.error_in_words("attention.compress_ratios", f"a list of {len(ratios):,}", f"a list of at least {layers:,}")
        out["compress_ratios"] = ratios[:layers]
    elif row.indexers_by_context:
        if trained >= _GLM_5_2_CONTEXT:
            # Layers of GLM-5.2 with an indexer of their own: the first two, and then every fourth up to layer 77.
            full = tuple(int(layer < 2 or (layer % 4 == 2 and layer < 78)) for layer in range(trunk))
        full = file.per_layer(key, trunk, full)
    elif row.pooled_indexer:
        out["indexer_kpool"] = file.whole("attention.indexer.kpool", None, minimum=2)
        full = file.per_layer(key, trunk, full)
    elif row.memory == "dsa-or-attention" and out["indexer_top_k"]:
        full = file.per_layer(key, trunk, (0,) * trunk)
    elif row.memory == "dsa-window":
        full = (*file.numbers(key), *(0,) * trunk)[:trunk]
    return out | {"indexer_full": (*map(bool, full), *(False,) * (layers - trunk))}


_GLM_5_2_CONTEXT: Final = 1_048_576
"""From this training context on, a GLM file without a list of indexers is GLM-5.2 (src/models/glm-dsa.cpp)."""


def _unrolled(file: Keys, row: Architecture, read: Mapping[str, Any]) -> dict[str, Any]:
    """The layers of a model that runs its blocks several times, or that has one more than the file counts."""
    trunk = read["n_layer_all"] - read["n_layer_nextn"]
    if row.loops:
        loops = file.whole("num_loops", 1, minimum=1, maximum=MAX_LAYERS)
        if loops * trunk > MAX_LAYERS:
            raise file.error("num_loops", loops, f"a number that makes at most {MAX_LAYERS} layers")
        if loops == 1:
            return {}
        return {"n_layer_all": loops * trunk, "loops": loops} | {name: read[name][:trunk] * loops for name in _ROUTER_LAYER}
    if row.router_block:
        more = {name: (*read[name][:trunk], last) for name, last in _ROUTER_LAYER.items()}
        return {"n_layer_all": trunk + 1, "n_layer_nextn": 1, "router_layer": trunk} | more
    return {}


_ROUTER_LAYER: Final[Mapping[str, int | bool]] = {"n_head": 1, "n_head_kv": 1, "n_ff": 0, "is_swa": False, "is_recurrent": False}
