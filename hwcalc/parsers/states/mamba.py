"""Mamba layers, alone and in one stack with attention.

Mirrors ``modeling_*.py`` in transformers 5.23 of Mamba, Nemotron-H (each layer has Mamba-2, attention, an MLP or experts),
Jamba, Bamba, Falcon-H1, Granite 4, Zamba and Zamba2. These two have Mamba on every layer, and a few attention blocks that many
layers share: Zamba's block exists once, however many layers run it. So does each of Zamba2's ``num_mem_blocks``, but there every
layer that runs a block has an adapter of its own. The code of the others lives with the models:

- phi4flash (SambaY): the cache is that of ``SambaYCache`` for 32 layers, the weights are those of vLLM's ``phi4flash.py``.
  Layers 0 to 16 alternate between Mamba-1 and a window, and layer 17 has the only full attention. The layers after it keep
  nothing: odd ones read the cache of layer 17, even ones gate the current token with the output of layer 16.
- plamo2: attention where i % mamba_step == mamba_step // 2, or only on the last layer if the stack is no longer than half a step
  (``is_mamba`` in the model and in vLLM's ``plamo2.py``, which the weights follow too). Attention keeps the last
  ``attention_window_size`` tokens, and all tokens on the layers of ``full_attention_idx``. The state is that of Mamba-2, but only
  x passes the convolution.
- plamo3: full attention where (i + 1) % sliding_window_pattern == 0, else the last ``window_size`` tokens (``is_full_attn``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, Final

from hwcalc.errors import ConfigError
from hwcalc.formulas import AttentionKind, Layer, Mamba1, Mamba2, NoCache, SharedCache
from hwcalc.formulas import weights as w
from hwcalc.formulas.weights import Block, Part, WeightRole
from hwcalc.parsers.blocks import Named, Weighed, attention_of, ends, gated_experts, repeated, rms_norms, tied_head
from hwcalc.parsers.config import MAX_LAYERS, Config
from hwcalc.parsers.reading import (
    LayerReader,
    Readers,
    Reading,
    attention_dims,
    build_layers,
    equal_dims,
    every,
    full_layer,
    kind_in,
    read_layer_types,
)
from hwcalc.parsers.states import FULL, HYBRID, LINEAR, Interleaved, Mixers, mixed, mixed_layers, state_dtype

# Keys of one type of layer, which nobody reads in a stack without that type, and keys that never bear on the cache.
_HYBRID_KEYS: Final = (
    "head_dim", "mamba_chunk_size", "mamba_d_conv", "mamba_d_state", "mamba_dt_rank", "mamba_expand", "num_attention_heads",
    "num_key_value_heads", "use_mamba_kernels",
)  # fmt: skip
_WITHOUT_EFFECT: Final = ("chunk_size", "d_inner", "use_conv_bias", "use_falcon_mambapy", "use_mamba_kernels", "use_mambapy")


def _inner_width(config: Config, expand_key: str) -> int:
    """Channels inside a Mamba layer: expand x hidden_size. With expand 2, 4 channels become 8."""
    return config.checked_integer(expand_key, int(config.integer("hidden_size") * config.number(expand_key, 2)))


def _mamba1_layer(config: Config, index: int) -> Layer:
    """A Mamba-1 layer of a hybrid, by the mamba_* keys."""
    inner = _inner_width(config, "mamba_expand")
    return (Mamba1(d_inner=inner, d_state=config.integer("mamba_d_state"), d_conv=config.integer("mamba_d_conv")),)


def _mamba2_kind(config: Config, heads: int, head_dim: int, *keys: str) -> Mamba2:
    """Mamba-2 with these heads. ``keys`` name the width of the state, the groups and the kernel of the convolution."""
    d_state, n_groups, d_conv = (config.integer(key) for key in keys)
    return Mamba2(num_heads=heads, head_dim=head_dim, d_state=d_state, n_groups=n_groups, d_conv=d_conv)


def _hybrid_readers(mamba: LayerReader, attention: LayerReader = full_layer) -> Mapping[str, LayerReader]:
    """The readers of the layers of hybrids. A layer has Mamba, attention, both at once, or an MLP or experts alone."""

    def both(config: Config, index: int) -> Layer:
        return (*attention(config, index), *mamba(config, index))

    def neither(config: Config, index: int) -> Layer:
        return (NoCache(),)

    return {LINEAR: mamba, FULL: attention, HYBRID: both, "mlp": neither, "moe": neither}


def _time_step_rank(config: Config, key: str = "mamba_dt_rank") -> int:
    """The rank of Mamba-1's time step. ``"auto"`` is a sixteenth of ``hidden_size``, rounded up."""
    if config.get(key) in (None, "auto"):
        return -(-config.integer("hidden_size") // 16)
    return config.integer(key)


def _mamba1_mixer(config: Config, *, norms: bool = False, heads: int | None = None) -> Callable[..., Weighed]:
    """A function that weighs the Mamba-1 of a hybrid. Its arguments are the fields of :class:`Mamba1`."""
    hidden, bias, conv_bias = config.integer("hidden_size"), config.flag("mamba_proj_bias"), config.flag("mamba_conv_bias")
    rank = _time_step_rank(config)
    return partial(w.mamba1, hidden, dt_rank=rank, bias=bias, conv_bias=conv_bias, norms=norms, heads=heads, path="mamba")


def _alike(kind_of: Callable[[Config], Mamba1 | Mamba2]) -> Readers:
    """A family without attention, whose layers are all alike."""

    def read(config: Config) -> Reading:
        count = config.number_of_layers()
        config.ignore(*_WITHOUT_EFFECT)
        return Reading(layers=((kind_of(config),),) * count, config=config, state_dtype=state_dtype(config))

    return Readers(layers=read, weights=_weights)


def _mamba1(config: Config) -> Mamba1:
    # Falcon-Mamba-7B has expand 16 and intermediate_size 8,192 with hidden_size 4,096: the intermediate_size is right.
    inner = config.maybe_integer("intermediate_size") or _inner_width(config, "expand")
    return Mamba1(d_inner=inner, d_state=config.integer("state_size"), d_conv=config.integer("conv_kernel"))


def _mamba2(config: Config) -> Mamba2:
    heads, head_dim = config.integer("num_heads"), config.integer("head_dim")
    inner = _inner_width(config, "expand")
    if heads * head_dim != inner:
        raise config.error("num_heads", heads, f"such that num_heads x head_dim is expand x hidden_size ({inner:,})")
    return _mamba2_kind(config, heads, head_dim, "state_size", "n_groups", "conv_kernel")


def _weights(config: Config, top: Config, reading: Reading) -> list[Block]:
    """Each layer has one mixer and one norm."""
    hidden = config.integer("hidden_size")
    biases: dict[str, Any] = {"bias": config.flag("use_bias"), "conv_bias": config.flag("use_conv_bias")}
    rank = partial(_time_step_rank, config, "time_step_rank")
    mixers: Mixers = {
        Mamba1: ("mamba", lambda kind: w.mamba1(hidden, **kind.numbers(), dt_rank=rank(), **biases)),
        Mamba2: ("mamba", lambda kind: w.mamba2(hidden, **kind.numbers(), **biases)),
    }
    out = ends(config, top, embed="backbone.embeddings", norm="backbone.norm_f")
    return out + mixed_layers(reading.layers, mixers, ("norm", w.rms_norm("norm", hidden)))


_LETTERS: Final = {"M": LINEAR, "*": FULL, "-": "mlp", "E": "moe"}
"""One letter for each layer: Mamba, attention, feed-forward, experts."""
_NEMOTRON_IGNORED: Final = (
    *_HYBRID_KEYS, "attention_head_dim", "chunk_size", "conv_kernel", "expand", "hybrid_override_pattern", "mamba_head_dim",
    "mamba_n_groups", "mamba_num_heads", "moe_latent_size", "mtp_hybrid_override_pattern", "mtp_layers_block_type", "n_groups",
    "num_hidden_layers", "sliding_window", "ssm_state_size",
)  # fmt: skip


def _nemotron(config: Config) -> Reading:
    """Types by a list, else by a pattern such as ``M-M*``. Its length is the number of layers, not num_hidden_layers."""
    spelled = config.strings("layers_block_type")
    if spelled is None:
        # The default of the class: one layer of each type.
        types = _pattern(config, "hybrid_override_pattern") or [LINEAR, "moe", FULL, "mlp"]
    elif 1 <= len(spelled) <= MAX_LAYERS:
        types = read_layer_types(config, len(spelled), "layers_block_type") or []
    else:
        raise config.error_in_words("layers_block_type", f"{len(spelled)} items long", f"a list of 1 to {MAX_LAYERS:,} items")
    config.ignore(*_NEMOTRON_IGNORED)
    layers = build_layers(config, types, _hybrid_readers(_nemotron_mamba, _nemotron_attention))
    return Reading(layers=layers, config=config, types=tuple(types), state_dtype=state_dtype(config))


def _pattern(config: Config, key: str) -> list[str] | None:
    pattern = config.text(key)
    if pattern is None:
        return None
    if not pattern or len(pattern) > MAX_LAYERS or set(pattern) - set(_LETTERS):
        raise config.error(key, pattern, f"1 to {MAX_LAYERS:,} letters out of {' '.join(_LETTERS)}")
    return [_LETTERS[letter] for letter in pattern]


def _nemotron_mamba(config: Config, index: int) -> Layer:
    """Mamba-2 whose inner width is mamba_num_heads x mamba_head_dim and not expand x hidden_size.

    Nemotron-3-Nano: 64 x 64 = 4,096, where expand x hidden_size would be 5,376. Early files have mamba_n_groups and mamba_d_conv.
    """
    heads, head_dim = config.integer("mamba_num_heads"), config.integer("mamba_head_dim")
    groups = "mamba_n_groups" if config.maybe_integer("mamba_n_groups") else "n_groups"
    conv = "mamba_d_conv" if config.maybe_integer("mamba_d_conv") else "conv_kernel"
    return (_mamba2_kind(config, heads, head_dim, "ssm_state_size", groups, conv),)


def _nemotron_attention(config: Config, index: int) -> Layer:
    # The name in early files is attention_head_dim.
    early = None if config.has("head_dim") else config.maybe_integer("attention_head_dim")
    if early is None:
        return full_layer(config, index)
    return (equal_dims(config.integer("num_attention_heads"), config.maybe_integer("num_key_value_heads"), early).full(),)


def _nemotron_weights(config: Config, top: Config, reading: Reading) -> list[Block]:
    """Each layer has a norm and Mamba, attention, an MLP or experts. An MLP or expert has two matrices."""
    hidden = config.integer("hidden_size")
    bias, mlp_bias = config.flag("use_bias"), config.flag("mlp_bias")
    conv_bias = config.flag("mamba_conv_bias" if config.has("mamba_conv_bias") else "use_conv_bias")

    def weigh(key: tuple[str, Layer]) -> Iterator[Named]:
        name, layer = key
        yield "norm", w.rms_norm("norm", hidden)
        if name == "mlp":
            yield "mlp", _two_matrices(hidden, config.integer("intermediate_size"), bias=mlp_bias, path="mixer")
        elif name == "moe":
            yield "moe", _nemotron_experts(config)
        for kind in layer:
            if isinstance(kind, Mamba2):
                yield "mamba", w.mamba2(hidden, **kind.numbers(), bias=bias, conv_bias=conv_bias)
            elif isinstance(kind, AttentionKind):
                yield "attention", attention_of(kind, hidden, path="mixer")

    out = ends(config, top, embed="backbone.embeddings", norm="backbone.norm_f")
    out += repeated(zip(reading.types, reading.layers, strict=True), weigh)
    steps = config.maybe_integer("num_nextn_predict_layers", minimum=0)
    if not steps:
        return out
    # One step has attention and experts unless the file says otherwise.
    spelled = config.strings("mtp_layers_block_type")
    if spelled:
        predicted = read_layer_types(config, min(len(spelled), MAX_LAYERS), "mtp_layers_block_type") or []
    else:
        predicted = _pattern(config, "mtp_hybrid_override_pattern") or [FULL, "moe"]
    layers = dict(zip(reading.types, reading.layers, strict=True))
    if not set(predicted) <= set(layers):
        return out
    join = rms_norms(hidden, "enorm", "hnorm") + w.linear("eh_proj", 2 * hidden, hidden) + w.rms_norm("final_layernorm", hidden)
    out.append(Block(kind="mtp", weights=join, part=Part.MTP, count=steps))
    return out + repeated([(name, layers[name]) for name in predicted * steps], weigh, Part.MTP)


def _nemotron_experts(config: Config) -> Weighed:
    """Experts of two matrices. If ``moe_latent_size`` is set, one projection leads to that width and one back."""
    hidden, bias = config.integer("hidden_size"), config.flag("mlp_bias")
    latent, count = config.maybe_integer("moe_latent_size"), config.integer("n_routed_experts")
    expert = _two_matrices(latent or hidden, config.integer("moe_intermediate_size"), bias=False, path="mixer.experts")
    weights = w.experts(expert, count, config.integer("num_experts_per_tok"))
    weights += w.linear("mixer.gate", hidden, count, role=WeightRole.ROUTER)
    weights += _two_matrices(
        hidden, config.integer("moe_shared_expert_intermediate_size"), bias=bias, path="mixer.shared_experts"
    )
    if latent is not None:
        weights += w.linear("mixer.fc1_latent_proj", hidden, latent, bias=bias)
        weights += w.linear("mixer.fc2_latent_proj", latent, hidden, bias=bias)
    return weights


_HEADS: Final = ("mamba_d_head", "mamba_n_groups", "mamba_n_heads")


def _jamba_types(config: Config, count: int) -> list[str]:
    period, offset = config.integer("attn_layer_period"), config.integer("attn_layer_offset", minimum=0)
    if offset >= period:
        raise config.error("attn_layer_offset", offset, f"less than attn_layer_period ({period})")
    return every(period, count, FULL, LINEAR, offset)


def _bamba_types(config: Config, count: int) -> list[str]:
    """``attn_layer_indices`` counts from 0. Without it no layer has attention."""
    full = set(config.integers("attn_layer_indices") or ())
    return [FULL if i in full else LINEAR for i in range(count)]


def _mamba2_layer(config: Config, index: int) -> Layer:
    """Mamba-2 by the mamba_* keys. ``mamba_d_head`` may be ``"auto"``: the inner width divided by the heads.

    Falcon-H1 gives the inner width as ``mamba_d_ssm``: 34B has 4,096, where expand x hidden_size would be 10,240.
    """
    heads = config.integer("mamba_n_heads")
    named = config.maybe_integer("mamba_d_ssm") if config.model_type == "falcon_h1" else None
    inner = named or _inner_width(config, "mamba_expand")
    head_dim = config.get("mamba_d_head")
    head_dim = inner // heads if head_dim in (None, "auto") else config.checked_integer("mamba_d_head", head_dim)
    if heads * head_dim != inner:
        if config.model_type == "falcon_h1" and not config.has("mamba_d_ssm"):
            raise ConfigError(
                f"mamba_d_ssm is missing: the class's default is {inner:,}, but {heads} heads are {heads * head_dim:,} wide.",
                hint=f"Transformers refuses such a file too. The published files have mamba_d_ssm: here {heads * head_dim}.",
            )
        raise config.error("mamba_n_heads", heads, f"such that mamba_n_heads x mamba_d_head is the inner width ({inner:,})")
    return (_mamba2_kind(config, heads, head_dim, "mamba_d_state", "mamba_n_groups", "mamba_d_conv"),)


def _mixers(config: Config, *, bias: bool, norm: bool = True, out_bias: bool | None = None) -> Mixers:
    """Attention and Mamba-2. ``bias`` is that of attention, ``out_bias`` that of Mamba's output if it differs from the input's."""
    hidden = config.integer("hidden_size")
    biases: dict[str, Any] = {"bias": config.flag("mamba_proj_bias"), "conv_bias": config.flag("mamba_conv_bias")}
    mamba = partial(w.mamba2, hidden, **biases, out_bias=out_bias, norm=norm, path="mamba")
    return {
        AttentionKind: ("attention", lambda kind: attention_of(kind, hidden, qkv_bias=bias, o_bias=bias)),
        Mamba2: ("mamba", lambda kind: mamba(**kind.numbers())),
    }


def _jamba(config: Config, top: Config, reading: Reading) -> list[Block]:
    """Layers with i % expert_layer_period == expert_layer_offset have experts, unless there is only one expert."""
    hidden, width = config.integer("hidden_size"), config.integer("intermediate_size")
    count, active = config.integer("num_experts"), config.integer("num_experts_per_tok")
    period, offset = config.integer("expert_layer_period"), config.integer("expert_layer_offset", minimum=0)
    mixer = _mamba1_mixer(config, norms=True)
    norms = rms_norms(hidden, "input_layernorm", "pre_ff_layernorm")
    mixers: Mixers = {
        AttentionKind: ("attention", lambda kind: attention_of(kind, hidden)),
        Mamba1: ("mamba", lambda kind: mixer(**kind.numbers())),
    }

    def weigh(key: tuple[Layer, bool]) -> list[Named]:
        layer, sparse = key
        moe = gated_experts(hidden, width, count, active, path="feed_forward", router="router")
        mlp = w.gated_mlp(hidden, width, path="feed_forward")
        return [("norm", norms), *mixed(layer, mixers), ("moe", moe) if sparse else ("mlp", mlp)]

    layers = [(layer, count > 1 and i % period == offset) for i, layer in enumerate(reading.layers)]
    return ends(config, top, norm="model.final_layernorm") + repeated(layers, weigh)


def _bamba(config: Config, top: Config, reading: Reading) -> list[Block]:
    """Bamba and Falcon-H1. Each layer of Falcon-H1 has both mixers, and its Mamba may have no norm."""
    hidden, falcon = config.integer("hidden_size"), config.model_type == "falcon_h1"
    norm = config.flag("mamba_rms_norm") if falcon else True
    out_bias = config.flag("projectors_bias") if falcon else None
    mixers = _mixers(config, bias=config.flag("attention_bias"), norm=norm, out_bias=out_bias)
    mlp = w.gated_mlp(hidden, config.integer("intermediate_size"), bias=config.flag("mlp_bias"), path="feed_forward")
    norms = rms_norms(hidden, "input_layernorm", "pre_ff_layernorm")
    out = ends(config, top, norm="model.final_layernorm")
    return out + mixed_layers(reading.layers, mixers, ("mlp", mlp), before=(("norm", norms),))


def _granite(config: Config, top: Config, reading: Reading) -> list[Block]:
    """A shared MLP on every layer, with experts beside it if the model has any."""
    hidden, shared = config.integer("hidden_size"), config.integer("shared_intermediate_size")
    count = config.maybe_integer("num_local_experts", minimum=0) or 0
    mlp = w.linear("shared_mlp.input_linear", hidden, 2 * shared) + w.linear("shared_mlp.output_linear", shared, hidden)
    rest: list[Named] = [("norm", rms_norms(hidden, "input_layernorm", "post_attention_layernorm")), ("mlp", mlp)]
    if count:
        width, active = config.integer("intermediate_size"), config.integer("num_experts_per_tok")
        rest.append(("moe", gated_experts(hidden, width, count, active, path="block_sparse_moe", router="router")))
    mixers = _mixers(config, bias=config.flag("attention_bias"))
    return ends(config, top) + mixed_layers(reading.layers, mixers, *rest)


# Zamba2's stack where the file does not list it: of 54 layers, these have attention as well.
_ZAMBA2_LAYERS: Final = 54
_ZAMBA2_HYBRID: Final = frozenset({6, 12, 18, 24, 30, 36, 42, 47, 51})


def _zamba_types(config: Config, count: int) -> list[str]:
    """Two Mamba layers and a hybrid one, then one hybrid layer in each period, counted from there."""
    period, offset = config.integer("attn_layer_period"), config.integer("attn_layer_offset", minimum=0)
    rest = [HYBRID if i % period == offset else LINEAR for i in range(max(0, count - 3))]
    return [LINEAR, LINEAR, HYBRID, *rest][:count]


def _zamba2_types(config: Config, count: int) -> list[str]:
    if count != _ZAMBA2_LAYERS:
        raise config.missing("layers_block_type")
    return [HYBRID if i in _ZAMBA2_HYBRID else LINEAR for i in range(count)]


def _zamba2_mamba(config: Config, index: int) -> Layer:
    # Published files have a state_size beside mamba_d_state. The model reads mamba_d_state.
    config.ignore("state_size")
    heads = config.integer("n_mamba_heads")
    inner = _inner_width(config, "mamba_expand")
    head_dim = config.maybe_integer("mamba_headdim") or inner // heads
    if heads * head_dim != inner:
        raise config.error("n_mamba_heads", heads, f"such that n_mamba_heads x mamba_headdim is the inner width ({inner:,})")
    return (_mamba2_kind(config, heads, head_dim, "mamba_d_state", "mamba_ngroups", "mamba_d_conv"),)


def _zamba_attention(config: Config, index: int) -> Layer:
    """Attention over the layer's input beside the embeddings: head_dim is 2 x hidden_size / heads.

    Layers share the weights of attention, but not the keys and values.
    """
    heads = config.integer("num_attention_heads")
    head_dim = config.maybe_integer("attention_head_dim") or 2 * config.integer("hidden_size") // heads
    return (equal_dims(heads, config.maybe_integer("num_key_value_heads"), head_dim).full(),)


def _zamba_layers(config: Config, top: Config, reading: Reading, mixer: Callable[..., Weighed]) -> tuple[list[Block], list[int]]:
    """Everything except the shared blocks, and the layers that run such a block: each has a matrix for the block's output."""
    hidden = config.integer("hidden_size")

    def weigh(layer: Layer) -> list[Named]:
        kind = layer[-1]
        if not isinstance(kind, (Mamba1, Mamba2)):
            raise ConfigError(f"a {config.model_type} model has Mamba on every layer.")
        out = [("mamba", mixer(**kind.numbers())), ("norm", w.rms_norm("input_layernorm", hidden))]
        return out if len(layer) == 1 else [*out, ("join", w.linear("linear", hidden, hidden))]

    attending = [i for i, layer in enumerate(reading.layers) if len(layer) > 1]
    return ends(config, top, norm="model.final_layernorm") + repeated(reading.layers, weigh), attending


def _shared(config: Config, layer: Layer, mlp: Weighed, path: str, count: int = 1) -> list[Block]:
    """The blocks that a layer shares. They have no layer numbers, since they belong to no layer and run in many.

    Their attention reads the layer's input beside the embeddings, so its input is twice as wide as its output.
    """
    hidden, kind = config.integer("hidden_size"), kind_in(config, layer, AttentionKind)
    wide = 2 * hidden
    weights = attention_of(kind, wide, path=f"{path}.self_attn")[:-1]
    weights += w.linear(f"{path}.self_attn.o_proj", kind.num_attention_heads * kind.head_dim, hidden)
    weights += w.rms_norm(f"{path}.input_layernorm", wide) + w.rms_norm(f"{path}.pre_ff_layernorm", hidden)
    return [Block(kind="attention", weights=weights, count=count), Block(kind="mlp", weights=mlp, count=count)]


def _zamba(config: Config, top: Config, reading: Reading) -> list[Block]:
    """Mamba-1 and one shared block."""
    out, attending = _zamba_layers(config, top, reading, _mamba1_mixer(config, heads=config.integer("n_mamba_heads")))
    if attending:
        mlp = w.gated_mlp(config.integer("hidden_size"), config.integer("intermediate_size"), path="shared_transf.feed_forward")
        # Untied embeddings untie the block too: the class then keeps one for each layer that runs it.
        count = 1 if tied_head(config, top) else len(attending)
        out += _shared(config, reading.layers[attending[0]], mlp, "shared_transf", count)
    return out


def _zamba2(config: Config, top: Config, reading: Reading) -> list[Block]:
    """Mamba-2, the shared blocks, and an adapter for each layer that runs one."""
    hidden, bias = config.integer("hidden_size"), config.flag("add_bias_linear")
    width = config.maybe_integer("intermediate_size") or 4 * hidden
    mixer = partial(w.mamba2, hidden, bias=bias, conv_bias=True, path="mamba")
    out, attending = _zamba_layers(config, top, reading, mixer)
    if not attending:
        return out
    path = "shared_transformer"
    mlp = w.gated_mlp(hidden, width, bias=bias, path=f"{path}.feed_forward", fused="gate_up_proj")
    different = min(config.integer("num_mem_blocks"), len(attending))
    # Untied embeddings untie the blocks too: each layer then has its own, with the adapters of all layers that would share it.
    tied = tied_head(config, top)
    shared = different if tied else len(attending)
    adapters = len(attending) if tied else sum(len(attending[i % different :: different]) for i in range(len(attending)))
    out += _shared(config, reading.layers[attending[0]], mlp, path, shared)
    rank = config.integer("adapter_rank")
    adapter = w.linear(f"{path}.feed_forward.gate_up_proj_adapter_list.0", hidden, rank)
    adapter += w.linear(f"{path}.feed_forward.gate_up_proj_adapter_list.1", rank, 2 * width)
    for name in "qkv" if config.flag("use_shared_attention_adapter") else "":
        adapter += w.linear(f"{path}.self_attn.linear_{name}_adapter_list.0", 2 * hidden, rank)
        adapter += w.linear(f"{path}.self_attn.linear_{name}_adapter_list.1", rank, 2 * hidden)
    places = tuple(attending) if tied else None
    return [*out, Block(kind="adapter", weights=adapter, count=adapters, layers=places)]


_ZAMBA_IGNORED: Final = (*_HYBRID_KEYS, "attention_head_dim", "attention_hidden_size", "n_mamba_heads")


def _phi4flash(config: Config) -> Reading:
    count, dims = config.number_of_layers(), attention_dims(config)
    period = config.maybe_integer("mb_per_layer", minimum=0) or 0
    half = count // 2
    # The file gives a list of windows, or one number for the odd layers.
    if isinstance(config.get("sliding_window"), (list, tuple)):
        given = config.sequence("sliding_window", length=count) or []
        windows = [None if entry is None else config.checked_integer("sliding_window", entry) for entry in given]
    else:
        window = config.maybe_integer("sliding_window")
        windows = [window if index % 2 else None for index in range(count)]
    # The code that wrote the file derived these from the same numbers.
    config.ignore("layer_types", "layers_block_type", "mamba_dt_rank", "mamba_conv_bias", "mamba_proj_bias")
    inner = config.integer("mamba_expand") * config.integer("hidden_size")
    mamba = Mamba1(d_inner=inner, d_state=config.integer("mamba_d_state"), d_conv=config.integer("mamba_d_conv"))

    def layer(index: int) -> Layer:
        is_mamba = period > 0 and index % period == 0
        if index >= half + 2:
            return (NoCache() if is_mamba else SharedCache(),)
        if is_mamba:
            return (mamba,)
        return (dims.within(windows[index] if index < half else None),)

    return Reading(layers=tuple(layer(i) for i in range(count)), config=config)


def _phi4flash_weights(config: Config, top: Config, reading: Reading) -> list[Block]:
    """Layer norms and differential attention. Past the middle, attention has only queries, and Mamba only a gate and an output."""
    hidden = config.integer("hidden_size")
    out = ends(config, top, norm=w.layer_norm("model.final_layernorm", hidden))
    # A layer that reads another layer's cache has the dims of that layer, but its own kind does not hold them.
    dims = attention_dims(config)
    width = config.integer("intermediate_size")
    mlp = w.linear("mlp.fc1", hidden, 2 * width) + w.linear("mlp.fc2", width, hidden)
    queries, keys = dims.num_attention_heads * dims.head_dim, dims.num_key_value_heads * dims.head_dim
    inner = config.integer("mamba_expand") * hidden

    def weigh(layer: Layer) -> Iterator[Named]:
        kind = layer[0]
        if isinstance(kind, Mamba1):
            yield "mamba", w.mamba1(hidden, **kind.numbers(), dt_rank=_time_step_rank(config), path="attn")
        elif isinstance(kind, NoCache):
            yield "gate", w.linear("attn.in_proj", hidden, inner) + w.linear("attn.out_proj", inner, hidden)
        else:
            own = queries + 2 * keys if isinstance(kind, AttentionKind) else queries
            weights = w.linear("attn.Wqkv", hidden, own, bias=True) + w.linear("attn.out_proj", queries, hidden, bias=True)
            for name in ("q1", "k1", "q2", "k2"):
                weights += w.parameter(f"attn.inner_cross_attn.lambda_{name}", dims.head_dim)
            yield "attention", weights + w.rms_norm("attn.inner_cross_attn.subln", 2 * dims.head_dim)
        yield "mlp", mlp
        yield "norm", w.layer_norm("input_layernorm", hidden) + w.layer_norm("post_attention_layernorm", hidden)

    return out + repeated(reading.layers, weigh)


_PLAMO2_WINDOW: Final = 2_048
"""The default of ``attention_window_size`` in the model's config class. Null means no window."""


def _plamo2(config: Config) -> Reading:
    count = config.number_of_layers()
    # Some engine writes a head_dim of its own into the file. The model reads hidden_size_per_head.
    config.ignore("head_dim")
    head_dim = config.integer("hidden_size_per_head")
    dims = equal_dims(config.integer("num_attention_heads"), config.integer("num_key_value_heads"), head_dim)
    step = config.integer("mamba_step", minimum=2)
    window = config.maybe_integer("attention_window_size") if config.has("attention_window_size") else _PLAMO2_WINDOW
    full = set(config.integers("full_attention_idx") or [])
    # Older files give the window a second time, for an engine that reads only this key.
    config.ignore("sliding_window", "mamba_chunk_size", "interleaved_sliding_window")
    mamba: Layer = (
        Mamba2(
            num_heads=config.integer("mamba_num_heads"),
            head_dim=head_dim,
            d_state=config.integer("mamba_d_state"),
            n_groups=0,
            d_conv=config.integer("mamba_d_conv"),
        ),
    )
    enabled = config.flag("mamba_enabled", default=True)

    def layer(index: int) -> Layer:
        attends = index == count - 1 if count <= step // 2 else index % step == step // 2
        if enabled and not attends:
            return mamba
        return (dims.within(None if index in full else window),)

    return Reading(layers=tuple(layer(i) for i in range(count)), config=config)


def _plamo2_weights(config: Config, top: Config, reading: Reading) -> list[Block]:
    """Each layer has four norms. Queries and keys have a scale for each channel of each head."""
    hidden = config.integer("hidden_size")
    norms = rms_norms(hidden, "pre_mixer_norm", "post_mixer_norm", "pre_mlp_norm", "post_mlp_norm")
    mlp = w.gated_mlp(hidden, config.integer("intermediate_size"), fused="gate_up_proj")

    def attention(kind: AttentionKind) -> Weighed:
        heads, kv_heads, width = kind.num_attention_heads, kind.num_key_value_heads, kind.head_dim
        weights = w.attention(hidden, heads, kv_heads, width, path="mixer", fused="qkv_proj")
        weights += w.parameter("mixer.q_weight", heads, width, role=WeightRole.NORM)
        return weights + w.parameter("mixer.k_weight", kv_heads, width, role=WeightRole.NORM)

    def mamba(kind: Mamba2) -> Weighed:
        """The heads of Mamba-2 with the projections of Mamba-1: B, C and the time step come from x, each with a norm."""
        inner, state = kind.num_heads * kind.head_dim, kind.d_state
        rank = max(64, hidden // 16)
        weights = w.linear("mixer.in_proj", hidden, 2 * inner) + w.convolution("mixer.conv1d", inner, kind.d_conv)
        weights += w.linear("mixer.bcdt_proj", inner, rank + 2 * state) + w.linear("mixer.dt_proj", rank, kind.num_heads)
        weights += w.parameter("mixer.dt_bias", kind.num_heads, role=WeightRole.BIAS)
        weights += w.parameter("mixer.A_log", kind.num_heads) + w.parameter("mixer.D", kind.num_heads)
        weights += rms_norms(rank, "mixer.dt_norm") + rms_norms(state, "mixer.B_norm", "mixer.C_norm")
        return weights + w.linear("mixer.out_proj", inner, hidden)

    mixers: Mixers = {Mamba2: ("mamba", mamba), AttentionKind: ("attention", attention)}
    return ends(config, top) + mixed_layers(reading.layers, mixers, ("mlp", mlp), ("norm", norms))


def _plamo3(config: Config) -> Reading:
    count, dims = config.number_of_layers(), attention_dims(config)
    period = config.integer("sliding_window_pattern")
    sliding = dims.sliding(config.integer("window_size"))
    # Files repeat the same rule for other engines.
    config.ignore("sliding_window", "interleaved_sliding_window", "layer_types")
    return Reading(layers=tuple((sliding if (i + 1) % period else dims.full(),) for i in range(count)), config=config)


_two_matrices: Final = partial(w.plain_mlp, names=("up_proj", "down_proj"))
MAMBA1: Final = _alike(_mamba1)
MAMBA2: Final = _alike(_mamba2)
NEMOTRON_H: Final = Readers(layers=_nemotron, weights=_nemotron_weights)
JAMBA: Final = Interleaved(
    types=_jamba_types,
    readers=_hybrid_readers(_mamba1_layer),
    weights=_jamba,
    ignored=(*_HYBRID_KEYS, "use_mambapy"),
    spelled=False,
)
_MAMBA2_READERS: Final = _hybrid_readers(_mamba2_layer)
BAMBA: Final = Interleaved(
    types=_bamba_types, readers=_MAMBA2_READERS, weights=_bamba, ignored=(*_HYBRID_KEYS, *_HEADS, "attn_layer_indices")
)
FALCON_H1: Final = Interleaved(
    types=lambda _, count: [HYBRID] * count,
    readers=_MAMBA2_READERS,
    weights=_bamba,
    ignored=(
        *_HYBRID_KEYS, "layer_types", "layers_block_type", "mamba_use_mlp", "ssm_in_multiplier", "ssm_multipliers",
        "ssm_out_multiplier",
    ),
    spelled=False,
)  # fmt: skip
GRANITE: Final = Interleaved(
    types=lambda _, count: [LINEAR] * count, readers=_MAMBA2_READERS, weights=_granite, ignored=(*_HYBRID_KEYS, *_HEADS)
)
# Zamba's heads only split the channels of Mamba-1: n_mamba_heads x (d_inner / n_mamba_heads) x d_state is d_inner x d_state.
ZAMBA: Final = Interleaved(
    types=_zamba_types,
    readers=_hybrid_readers(_mamba1_layer, _zamba_attention),
    weights=_zamba,
    ignored=(*_ZAMBA_IGNORED, "attn_layer_offset", "attn_layer_period"),
)
ZAMBA2: Final = Interleaved(
    types=_zamba2_types,
    readers=_hybrid_readers(_zamba2_mamba, _zamba_attention),
    weights=_zamba2,
    ignored=(
        *_ZAMBA_IGNORED, "chunk_size", "hybrid_layer_ids", "kv_channels", "mamba_headdim", "mamba_ngroups", "num_query_groups",
        "use_shared_attention_adapter",
    ),
)  # fmt: skip
PHI4FLASH: Final = Readers(layers=_phi4flash, weights=_phi4flash_weights)
PLAMO2: Final = Readers(layers=_plamo2, weights=_plamo2_weights)
PLAMO3: Final = Readers(layers=_plamo3)
