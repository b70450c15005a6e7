"""One spec for each family of decoder-only models, from which its layers are read and their weights are built.

Each spec mirrors the model's ``modeling_*.py`` in transformers 5.23, or the model's own code where it lives with the model.
Names of tensors are those of the checkpoints. ``layer_types`` in the file says which layers have a window. Without it the rule
of the model's class does, its ``__post_init__``. Where the class has no rule, :func:`by_window` is one: transformers' cache
looks at the window that is set, whether the class has such a key or not.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Final, TypeVar

from msgspec.structs import replace

from hwcalc.formulas import ChunkedAttention, Layer
from hwcalc.formulas import weights as w
from hwcalc.formulas.record import Record
from hwcalc.formulas.weights import Block, Part, WeightRole
from hwcalc.parsers.blocks import Switch, Weighed, attention_of, norm, output_head, repeated, rms_norms, switched, tied_head
from hwcalc.parsers.config import Config
from hwcalc.parsers.reading import (
    AttentionDims,
    LayerReader,
    Reading,
    attention_dims,
    build_layers,
    dims_of,
    every,
    read_layer_types,
    windowed,
)

FULL: Final = "full_attention"
SLIDING: Final = "sliding_attention"
CHUNKED: Final = "chunked_attention"

Rule = Callable[[Config, int], list[str]]
"""Gives the type of each layer, by the config and the number of layers."""


def by_window(*ignored: str) -> Rule:
    """Every layer has a window if ``sliding_window`` or ``attention_chunk_size`` is set, as in ``get_layer_types_and_kwargs``.

    ``ignored`` are keys without effect on the cache.
    """

    def rule(config: Config, count: int) -> list[str]:
        config.ignore(*ignored)
        if config.maybe_integer("sliding_window") is not None:
            return [SLIDING] * count
        return [FULL if config.maybe_integer("attention_chunk_size") is None else CHUNKED] * count

    return rule


def layer_types(config: Config, rule: Rule) -> list[str]:
    """The type of every layer: as the file lists it, or by the class's rule."""
    count = config.number_of_layers()
    # Query heads are never cached. The others are derived from layer_types, or mask tokens that stay in the cache.
    config.ignore("num_attention_heads_per_layer", "_sliding_window_pattern", "keep_window_size", "full_attn_mod")
    # The rule is asked first even where the file lists the types, so that its keys count as read.
    derived = rule(config, count)
    # If no layer of these types has a window, these keys have no effect.
    config.ignore("sliding_window", "attention_chunk_size")
    return read_layer_types(config, count) or derived


def full(*ignored: str) -> Rule:
    """For classes that list full attention themselves, so that a window alone changes nothing.

    ``ignored`` are keys without effect on the cache.
    """

    def rule(config: Config, count: int) -> list[str]:
        config.ignore(*ignored)
        return [FULL] * count

    return rule


def last_of(period: int, key: str | None = None, *, offset: int = -1) -> Rule:
    """Full attention on the last layer of every ``period``; ``key`` may set another period."""

    def rule(config: Config, count: int) -> list[str]:
        return every((config.maybe_integer(key) if key else None) or period, count, FULL, SLIDING, offset)

    return rule


def first_of(period: int, key: str | None = None) -> Rule:
    """Full attention on the first layer of every ``period``; ``key`` may set another period."""
    return last_of(period, key, offset=0)


def from_a_layer_on(config: Config, count: int, *, always: bool = False) -> list[str]:
    """Layers from ``max_window_layers`` on slide, if ``use_sliding_window`` or ``always``."""
    first = config.maybe_integer("max_window_layers", minimum=0) or 0
    window = config.maybe_integer("sliding_window", minimum=0)
    # The flag is read beside a null window as well, where it has no effect.
    slides = (config.flag("use_sliding_window") or always) and window
    return [SLIDING if slides and i >= first else FULL for i in range(count)]


def nullable_window(config: Config, count: int) -> list[str]:
    """Full attention on the last of every ``sliding_window_pattern`` layers, and on all of them if ``sliding_window`` is null.

    The pattern is a number, or letters that repeat: ``LLLG`` is three local layers and a global one.
    """
    pattern = config.get("sliding_window_pattern")
    if isinstance(pattern, str):
        if not pattern or set(pattern) - {"L", "G"}:
            raise config.error("sliding_window_pattern", pattern, "a number, or letters L (local) and G (global)")
        types = [SLIDING if pattern[i % len(pattern)] == "L" else FULL for i in range(count)]
    else:
        types = every(config.maybe_integer("sliding_window_pattern", minimum=0) or 4, count, FULL, SLIDING)
    return [FULL] * count if config.maybe_integer("sliding_window") is None else types


def with_positions(config: Config, count: int, *, exact: bool = True) -> list[int]:
    """1 for each layer with rotary positions, 0 for each without.

    ``no_rope_layers`` lists just that, whatever its name says. Unless ``exact``, it may be longer than the stack. Without it
    every ``no_rope_layer_interval``-th layer (every fourth) has no positions.
    """
    given = config.integers("no_rope_layers", length=count if exact else None)
    period = config.maybe_integer("no_rope_layer_interval") or 4
    if given and len(given) < count:
        raise config.error_in_words("no_rope_layers", f"{len(given)} items long", f"a list of {count} items, one for each layer")
    return given or [int((i + 1) % period != 0) for i in range(count)]


class Experts(Record):
    """A mixture of experts: the config keys of its sizes, and what stands beside the experts."""

    count: str = "num_experts"
    per_token: str = "num_experts_per_tok"
    width: str = "moe_intermediate_size"
    path: str = "mlp"
    router: str = "gate"
    shared: Callable[[Config], int] | None = None
    """Width of the shared expert, 0 for none."""
    shared_path: str = "shared_experts"
    shared_bias: Switch = False
    shared_gate: bool = False
    router_bias: bool = False
    expert_bias: Switch = False
    sparse: Callable[[Config, int], list[bool]] | None = None
    """Which layers have them, and not a plain MLP; ``None`` is every layer."""
    extra: Callable[[Config], Weighed] | None = None
    """Further tensors of each layer with experts."""


class Decoder(Record):
    """A :class:`~hwcalc.parsers.reading.Family` of decoder-only models, by what it adds to Llama or leaves out."""

    types: Rule = by_window()
    """Which layers have a window where the file does not say."""
    dims: Callable[[Config], AttentionDims] = attention_dims
    """Reads heads and widths of a layer."""
    layers: Callable[[Config], Reading] | None = None
    """Reads all layers, where ``types`` and ``dims`` do not describe them."""
    numbers: Callable[[Config, Reading], Sequence[int]] | None = None
    """For each layer of weights the number of the layer that was read, where they are not one to one."""
    adapt: Callable[[Config, Decoder], Decoder | None] | None = None
    """Changes the fields below by the config; gives ``None`` where the file does not say enough to count the weights."""

    norm: str = "rms"
    """``rms``, ``layer`` (scale and shift), ``scale`` (a layer norm without shift) or ``none``."""
    norms: int = 2
    """How many norms of the hidden size each layer has."""
    final_norm: bool = True
    qkv_bias: Switch = False
    o_bias: Switch = False
    mlp_bias: Switch = False
    attn: str = "self_attn"
    fused_qkv: str = ""
    """Name of the tensor that holds queries, keys and values, where one does."""
    output: str = "o_proj"
    mlp: str = "mlp"
    gated: bool = True
    fused_gate: str = ""
    """Name of the tensor that holds gate and up, where one does."""
    names: tuple[str, str] = ("up_proj", "down_proj")
    """Names of the two matrices of an MLP without gate."""
    width: str | Callable[[Config], int] = "intermediate_size"
    qk_norm: str = ""
    """``head`` (one scale per channel of a head, for queries and keys), ``full`` (over all heads), ``head_layer`` and
    ``full_layer`` (the same with a shift), or nothing."""
    qk_norm_if: Switch = True
    gate: str = ""
    """A gate on the attention's output: ``head`` (one number per head), ``full`` (one per channel), or nothing."""
    sinks: bool = False
    """One learned number per query head."""
    experts: Experts | None = None
    positions: int | None = None
    """How many rows the table of learned positions has beyond ``max_position_embeddings``; ``None`` is no table."""
    rows: Callable[[Config], int] | None = None
    """Rows of the token embedding, where they are not the size of the vocabulary."""
    embed: str = "model.embed_tokens"
    embedded: Callable[[Config], int] | None = None
    """Width of the token embedding and the head, where it is not the hidden size."""
    head_bias: Switch = False
    head_rows: Callable[[Config], int | None] | None = None
    """Rows of the head, where the config may say that it predicts a part of the vocabulary only."""
    tied: Callable[[Config, Config], bool] = tied_head
    """Whether the head is the embedding, by the config and the whole document."""
    extra: Callable[[Config, Layer], Weighed] | None = None
    """Further tensors of a layer."""
    outer: Callable[[Config], Weighed] | None = None
    """Further tensors that the model has once."""
    attention: Callable[[Config, Decoder, Layer], Weighed] | None = None
    """Weighs the attention of a layer, without norms and ``extra``, where :func:`attention_weights` does not fit."""
    attentions: Callable[[Config, Decoder, Sequence[Layer]], list[Block]] | None = None
    """Weighs the attention of all layers, where more than the kind of a layer decides: see :func:`attention_blocks`."""
    mlps: Callable[[Config, Decoder, Sequence[Layer]], list[Block]] | None = None
    """Weighs the MLPs of all layers, where ``experts`` does not describe them: see :func:`mlp_blocks`."""
    mtp: Callable[[Config, Decoder, Layer], Weighed] | None = None
    """Weighs one of the ``num_nextn_predict_layers`` layers for multi-token prediction, by the first layer of the model."""

    def read(self, config: Config) -> Reading:
        """The layers: full, sliding or chunked attention, unless ``layers`` reads others."""
        if self.layers is not None:
            return self.layers(config)
        dims = self.dims

        def chunked(level: Config) -> Layer:
            own, chunk = dims(level), level.maybe_integer("attention_chunk_size")
            return (own.full() if chunk is None else own.chunked(chunk),)

        def alike(read: Callable[[Config], Layer]) -> LayerReader:
            """Layers without numbers of their own are read once."""
            common: list[Layer] = []

            def reader(level: Config, _: int) -> Layer:
                if level is not config:
                    return read(level)
                if not common:
                    common.append(read(level))
                return common[0]

            return reader

        readers: dict[str, LayerReader] = {
            FULL: alike(lambda level: (dims(level).full(),)),
            SLIDING: alike(lambda level: windowed(level, dims(level))),
            CHUNKED: alike(chunked),
        }
        layers = build_layers(config, layer_types(config, self.types), readers)
        if not config.has_class or config.knows("attention_chunk_size"):
            return Reading(layers=layers, config=config)
        # transformers' cache has chunks because the config object says so, in a model whose own code has none.
        whole = tuple((dims_of(layer).full(),) if isinstance(layer[0], ChunkedAttention) else layer for layer in layers)
        return Reading(layers=layers, config=config, readings={} if whole == layers else {"vllm": whole})

    def weigh(self, config: Config, top: Config, reading: Reading) -> list[Block] | None:
        """The blocks of weights of these layers, and of what stands around them."""
        spec = self if self.adapt is None else self.adapt(config, self)
        if spec is None:
            return None
        layers = reading.weighed or reading.layers
        numbers = range(len(layers)) if spec.numbers is None else spec.numbers(config, reading)
        layers = tuple(layers[number] for number in numbers)
        hidden = config.integer("hidden_size")
        embedded = hidden if spec.embedded is None else spec.embedded(config)
        rows = config.integer("vocab_size") if spec.rows is None else spec.rows(config)
        out = [Block(kind="embedding", weights=w.embedding(spec.embed, rows, embedded))]
        if spec.positions is not None:
            positions = config.integer("max_position_embeddings") + spec.positions
            out.append(Block(kind="embedding", weights=w.embedding("model.embed_positions", positions, hidden)))
        blocks = _layers(config, spec, layers)
        if spec.numbers is not None:
            places = [range(block.count) if block.layers is None else block.layers for block in blocks]
            own = zip(blocks, places, strict=True)
            blocks = [replace(block, layers=tuple(numbers[place] for place in each)) for block, each in own]
        out += blocks
        if spec.final_norm:
            out.append(Block(kind="norm", weights=norm(spec.norm, "model.norm", hidden)))
        if spec.outer is not None:
            out.append(Block(kind="extra", weights=spec.outer(config)))
        tied, bias = spec.tied(config, top), switched(config, spec.head_bias)
        predicted = None if spec.head_rows is None else spec.head_rows(config)
        out += output_head("lm_head", embedded, predicted or config.integer("vocab_size"), tied=tied, bias=bias)
        modules = 0 if spec.mtp is None else config.maybe_integer("num_nextn_predict_layers", minimum=0)
        if spec.mtp is not None and modules:
            out.append(Block(kind="mtp", weights=spec.mtp(config, spec, layers[0]), part=Part.MTP, count=modules))
        return [block for block in out if block.weights]


def _layers(config: Config, spec: Decoder, layers: Sequence[Layer]) -> list[Block]:
    """The blocks of attention, norms, ``extra`` and MLPs, in this order. MLPs with experts come before the others."""
    count, mixture, extra = len(layers), spec.experts, spec.extra
    if spec.attentions is not None:
        out = spec.attentions(config, spec, layers)
    else:
        weigh = spec.attention or attention_weights
        out = attention_blocks(layers, lambda layer: weigh(config, spec, layer))
    everywhere = tuple(range(count))
    out.append(Block(kind="norm", weights=_scales(config, spec), count=count, layers=everywhere))
    if extra is not None:
        out += repeated(layers, lambda layer: (("extra", extra(config, layer)),))
    if spec.mlps is not None:
        return out + spec.mlps(config, spec, layers)
    if mixture is None:
        return [*out, Block(kind="mlp", weights=mlp_weights(config, spec), count=count, layers=everywhere)]
    sparse = [True] * count if mixture.sparse is None else mixture.sparse(config, count)
    blocks = mlp_blocks(sparse, lambda routed: moe_weights(config, mixture) if routed else mlp_weights(config, spec))
    return out + sorted(blocks, key=lambda block: block.kind == "mlp")


def _scales(config: Config, spec: Decoder) -> Weighed:
    """The norms of one layer."""
    hidden = config.integer("hidden_size")
    return tuple(weight for i in range(spec.norms) for weight in norm(spec.norm, f"norm_{i}", hidden))


K = TypeVar("K", bound=Hashable)


def attention_blocks(layers: Iterable[K], weigh: Callable[[K], Weighed]) -> list[Block]:
    """Blocks of one attention in each layer. ``layers`` may be anything that tells layers of different weights apart."""
    return repeated(layers, lambda layer: (("attention", weigh(layer)),))


def mlp_blocks(layers: Iterable[K], weigh: Callable[[K], Weighed]) -> list[Block]:
    """Blocks of one MLP or mixture of experts in each layer. ``layers`` is as in :func:`attention_blocks`."""

    def named(layer: K) -> tuple[tuple[str, Weighed]]:
        weights = weigh(layer)
        return (("moe" if any(weight.role is WeightRole.EXPERT for weight in weights) else "mlp", weights),)

    return repeated(layers, named)


def attention_weights(config: Config, spec: Decoder, layer: Layer) -> Weighed:
    """The attention of a layer: projections, norms of queries and keys, gate and sinks."""
    hidden, dims, path = config.integer("hidden_size"), dims_of(layer), spec.attn
    heads = dims.num_attention_heads
    qkv_bias, o_bias = switched(config, spec.qkv_bias), switched(config, spec.o_bias)
    weights = attention_of(dims, hidden, qkv_bias=qkv_bias, o_bias=o_bias, path=path, fused=spec.fused_qkv, output=spec.output)
    if spec.qk_norm and switched(config, spec.qk_norm_if):
        scales = (heads, dims.num_key_value_heads) if spec.qk_norm.startswith("full") else (1, 1)
        kind = "layer" if spec.qk_norm.endswith("layer") else "rms"
        weights += norm(kind, f"{path}.q_norm", scales[0] * dims.head_dim)
        weights += norm(kind, f"{path}.k_norm", scales[1] * dims.head_dim)
    if spec.gate:
        weights += w.linear(f"{path}.gate_proj", hidden, heads * dims.head_dim if spec.gate == "full" else heads)
    if spec.sinks:
        weights += w.parameter(f"{path}.sinks", heads)
    return weights


def mlp_weights(config: Config, spec: Decoder, width: int | None = None) -> Weighed:
    """One MLP without experts."""
    if width is None:
        width = config.integer(spec.width) if isinstance(spec.width, str) else spec.width(config)
    hidden, bias = config.integer("hidden_size"), switched(config, spec.mlp_bias)
    if not spec.gated:
        return w.plain_mlp(hidden, width, bias=bias, path=spec.mlp, names=spec.names)
    return w.gated_mlp(hidden, width, bias=bias, path=spec.mlp, fused=spec.fused_gate)


def moe_weights(config: Config, spec: Experts) -> Weighed:
    """One mixture of experts with its router and shared expert."""
    hidden = config.integer("hidden_size")
    count = config.integer(spec.count)
    # Config classes without a default for the experts of a token build the model all the same: a token uses all of them.
    active = config.maybe_integer(spec.per_token) or count
    bias = switched(config, spec.expert_bias)
    expert = w.gated_mlp(hidden, config.integer(spec.width), bias=bias, path=f"{spec.path}.experts")
    weights = w.experts(expert, count, active)
    weights += w.linear(f"{spec.path}.{spec.router}", hidden, count, bias=spec.router_bias, role=WeightRole.ROUTER)
    shared = spec.shared(config) if spec.shared is not None else 0
    if shared:
        bias = switched(config, spec.shared_bias)
        weights += w.gated_mlp(hidden, shared, bias=bias, path=f"{spec.path}.{spec.shared_path}")
        if spec.shared_gate:
            weights += w.linear(f"{spec.path}.shared_expert_gate", hidden, 1, role=WeightRole.ROUTER)
    return weights if spec.extra is None else weights + spec.extra(config)


def mtp_shared(config: Config, spec: Decoder, layer: Layer) -> Weighed:
    """A layer for multi-token prediction as in DeepSeek-V3, which uses the embedding and the head of the model.

    A projection takes the token's embedding and the hidden state, one beside the other. A whole layer and a norm follow.
    """
    hidden = config.integer("hidden_size")
    return (
        *rms_norms(hidden, "enorm", "hnorm"),
        # The released fp8 and NVFP4 files keep it in 16 bits, and most do not say so.
        *w.linear("eh_proj", 2 * hidden, hidden, role=WeightRole.OTHER),
        *(spec.attention or attention_weights)(config, spec, layer),
        *_scales(config, spec),
        *(() if spec.extra is None else spec.extra(config, layer)),
        *(mlp_weights(config, spec) if spec.experts is None else moe_weights(config, spec.experts)),
        *w.rms_norm("shared_head.norm", hidden),
    )


def mtp_copies(config: Config, spec: Decoder, layer: Layer) -> Weighed:
    """The weights of a layer for multi-token prediction, where the checkpoint stores the embedding and the head again with each."""
    hidden, vocab = config.integer("hidden_size"), config.integer("vocab_size")
    copies = w.embedding("embed_tokens", vocab, hidden) + w.linear("shared_head.head", hidden, vocab, role=WeightRole.HEAD)
    return mtp_shared(config, spec, layer) + copies


def alike(dims: Callable[[Config], AttentionDims] = attention_dims, *ignored: str) -> Callable[[Config], Reading]:
    """Reads layers that are all full and alike. ``ignored`` are keys without effect on the cache."""

    def read(config: Config) -> Reading:
        config.ignore(*ignored)
        count = config.number_of_layers()
        return Reading(layers=((dims(config).full(),),) * count, config=config)

    return read


def untied(_config: Config, _top: Config) -> bool:
    """For :attr:`Decoder.tied`: the head is a tensor of its own whatever the file says."""
    return False


def sparse_layers(config: Config, count: int, default: int = 0, key: str | None = "first_k_dense_replace") -> list[bool]:
    """For each layer, True if it has experts: ``mlp_layer_types``, else all but the first ``key`` (or ``default``) layers."""
    types = config.strings("mlp_layer_types")
    if types is not None and len(types) >= count:
        return [name == "sparse" for name in types[:count]]
    dense = None if key is None else config.maybe_integer(key, minimum=0)
    return [i >= (default if dense is None else dense) for i in range(count)]


def sparse_after(key: str) -> Callable[[Config, int], list[bool]]:
    """All layers but the first ``key`` have experts."""

    def sparse(config: Config, count: int) -> list[bool]:
        prefix = config.maybe_integer(key, minimum=0) or 0
        return [i >= prefix for i in range(count)]

    return sparse


def sparse_by_types(default: int = 0, key: str | None = "first_k_dense_replace") -> Callable[[Config, int], list[bool]]:
    """The layers that :func:`sparse_layers` names."""
    return lambda config, count: sparse_layers(config, count, default, key)


def sparse_in_list(default: int) -> Callable[[Config, int], list[bool]]:
    """Step's rule: the layers in ``moe_layers_enum`` (a list, or numbers between commas) have experts.

    ``mlp_layer_types`` wins over it; without either, all layers but the first ``default`` have experts.
    """

    def sparse(config: Config, count: int) -> list[bool]:
        numbers = config.get("moe_layers_enum")
        if numbers is None or config.strings("mlp_layer_types") is not None:
            return sparse_layers(config, count, default, None)
        if isinstance(numbers, str):
            items = [item.strip() for item in numbers.split(",") if item.strip()]
            if not all(item.isdecimal() and len(item) < 8 for item in items):
                raise config.error("moe_layers_enum", numbers, "layer numbers with commas between")
            found = set(map(int, items))
        else:
            found = set(config.integers("moe_layers_enum") or [])
        return [i in found for i in range(count)]

    return sparse


def times(key: str, width: str = "moe_intermediate_size") -> Callable[[Config], int]:
    """The width of a shared expert that is as wide as ``key`` experts of ``width``."""
    return lambda config: (config.maybe_integer(key, minimum=0) or 0) * config.integer(width)


def width(key: str) -> Callable[[Config], int]:
    """The width ``key``, 0 if it is absent."""
    return lambda config: config.maybe_integer(key, minimum=0) or 0


ROUTED: Final = Experts(count="n_routed_experts", shared=times("n_shared_experts"))
"""The experts of DeepSeek-V2 and of the many models that have its keys, on every layer."""
AFTER_PREFIX: Final = replace(ROUTED, sparse=sparse_after("first_k_dense_replace"))
