"""A small model with random weights, built from the library's own class, and what its cache takes when it runs.

A config is shrunk: fewer layers, a small vocabulary, short windows, few experts, and, where the planned widths are not affordable, fewer
heads and channels in the same ratios. What a cache keeps for each token stays the same unless ``factor`` divides it. Nothing is downloaded
and no code of a repository is run: the installed transformers has the class of the model type.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final, TypeGuard

from hwcalc.errors import KvplanError
from hwcalc.formulas import Layer, Stack
from hwcalc.formulas.record import Record
from hwcalc.model import ModelSpec, RawModel
from hwcalc.text import brief, shown

WINDOW: Final = 16
"""Positions of every window and chunk: so few that a short sequence exceeds them."""
MOST_LAYERS: Final = 12
_VOCABULARY: Final = 256
_FEED_FORWARD: Final = 64
_EXPERTS: Final = 4

_DROPPED: Final = frozenset({
    "architectures", "attn_implementation", "auto_map", "compression_config", "custom_pipelines", "dtype",
    "experts_implementation", "id2label", "kernel_config", "label2id", "num_labels", "quantization_config", "torch_dtype",
    "transformers_version", "use_kernels",
})  # fmt: skip
"""Keys that do not describe layers, or that name code, kernels, or formats of weights."""

_LAYER_COUNTS: Final = ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "decoder_layers", "num_decoder_layers")
_ENCODER_COUNTS: Final = ("encoder_layers", "num_encoder_layers")
_VOCABULARIES: Final = ("vocab_size", "vocab_size_per_layer_input", "decoder_vocab_size", "ngram_vocab_size")
_IDS: Final = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1, "forced_eos_token_id": None}
_WINDOWS: Final = ("sliding_window", "attention_chunk_size", "window_size", "attention_window_size", "sliding_window_size")
_FEED_FORWARDS: Final = (
    "moe_intermediate_size", "shared_expert_intermediate_size", "shared_intermediate_size", "moe_shared_expert_intermediate_size",
    "intermediate_size_mlp", "dense_intermediate_size", "expert_ffn_hidden_size", "ffn_hidden_size", "intermediate_size",
    "encoder_ffn_dim", "decoder_ffn_dim", "ffn_dim", "d_ff", "n_inner",
)  # fmt: skip
_EXPERT_COUNTS: Final = {
    "num_experts": _EXPERTS, "num_local_experts": _EXPERTS, "n_routed_experts": _EXPERTS, "moe_num_experts": _EXPERTS,
    "zero_expert_num": 1, "num_experts_per_tok": 2, "num_experts_per_token": 2, "moe_top_k": 2, "moe_topk": 2, "moe_k": 2,
    "top_k_experts": 2, "n_shared_experts": 1, "num_shared_experts": 1, "n_group": 1, "topk_group": 1, "num_expert_group": 1,
    "num_nextn_predict_layers": 0, "mtp_num_layers": 0,
}  # fmt: skip
_DIVIDED: Final = (
    "hidden_size", "n_embd", "d_model", "word_embed_proj_dim", "num_attention_heads", "num_key_value_heads",
    "num_global_key_value_heads", "swa_num_attention_heads", "swa_num_key_value_heads", "multi_query_group_num", "num_kv_heads",
    "n_head", "n_heads", "num_heads", "encoder_attention_heads", "decoder_attention_heads", "mamba_n_heads", "mamba_num_heads",
    "n_mamba_heads", "mamba_d_ssm", "mamba_intermediate_size", "linear_num_key_heads", "linear_num_value_heads", "lru_width",
    "attention_hidden_size", "embedding_size", "conv_dim", "conv_dim_out", "time_step_rank", "mamba_dt_rank", "block_dim",
    "block_ff_dim", "block_multiple_of",
)  # fmt: skip
"""Numbers of heads and channels. They are all divided by the same factor, which keeps their ratios. Widths of heads and latents stay."""
_SINGLE: Final = frozenset({"num_key_value_heads", "num_global_key_value_heads", "num_kv_heads", "multi_query_group_num"})
"""Keys that are not divided if they are 1: a single key/value head."""


class Change(Record):
    """A number of the config that was made smaller."""

    key: str
    was: str
    now: str


class Small(Record):
    """The small config, and the changes that lead to it."""

    config: Mapping[str, Any]
    layers: tuple[int, ...]
    """The numbers of the model's layers that it keeps."""
    changes: tuple[Change, ...]


def clean(config: Mapping[str, Any]) -> dict[str, Any]:
    """The config without private keys, remote code and formats of weights; the same for nested configs."""
    return {
        key: clean(value) if isinstance(value, Mapping) else value
        for key, value in config.items()
        if isinstance(key, str) and not key.startswith("_") and key not in _DROPPED
    }


def pick_layers(stack: Stack) -> tuple[int, ...]:
    """The fewest first layers that include every kind; if those are too many, the first layer of each combination of kinds.

    >>> from hwcalc.formulas import FullAttention, Mamba2, Stack
    >>> a = FullAttention(num_attention_heads=4, num_key_value_heads=2, head_dim=16, v_head_dim=16)
    >>> b = FullAttention(num_attention_heads=4, num_key_value_heads=1, head_dim=16, v_head_dim=16)
    >>> pick_layers(Stack(((a,), (a,), (b,), (a,))))
    (0, 1, 2)
    """
    layers = stack.layers
    for same in (lambda kind: kind, type):
        every = {same(kind) for layer in layers for kind in layer}
        seen: set[object] = set()
        for number, layer in enumerate(layers[:MOST_LAYERS]):
            seen |= {same(kind) for kind in layer}
            if seen == every:
                return tuple(range(number + 1))
    first: dict[object, int] = {}
    for number, layer in enumerate(layers):
        first.setdefault(tuple(type(kind) for kind in layer), number)
    return tuple(sorted(first.values()))


def shrink(config: Mapping[str, Any], layers: Sequence[int], count: int, *, factor: int = 1, narrow: bool = True) -> Small | None:
    """The config with only these of its ``count`` layers, and with heads and channels divided by ``factor``.

    ``None`` if ``factor`` does not divide them all. ``narrow`` makes feed-forward networks small, which does not work for the few models
    whose states are as wide as these.
    """
    out, changes = dict(config), []

    def change(key: str, value: Any) -> None:
        if key in out and out[key] != value:
            changes.append(Change(key=key, was=_text(out[key]), now=_text(value)))
            out[key] = value

    for key, value in config.items():
        if isinstance(value, (list, str)) and len(value) == count and not isinstance(value[:1], dict):
            part = [value[number] for number in layers]
            if isinstance(value, list) or key == "hybrid_override_pattern":
                change(key, part if isinstance(value, list) else "".join(part))
        elif key.endswith(("_indices", "_ids", "_idxs", "_idx")) and _whole_list(value):
            change(key, [layers.index(number) for number in value if number in layers])
    for key in _LAYER_COUNTS:
        if _whole(config.get(key)) and config[key] == count:
            change(key, len(layers))
    for key in (*_ENCODER_COUNTS, *(("num_layers",) if "num_decoder_layers" in config else ())):
        if config.get("is_encoder_decoder"):
            change(key, 1)
    for key, value in _limited(dict(out), narrow=narrow):
        change(key, value)
    # Numbers that count the first or last layers with some property.
    for key in ("first_k_dense_replace", "max_window_layers", "num_dense_layers"):
        if _whole(config.get(key)):
            change(key, sum(number < config[key] for number in layers))
    shared = config.get("num_kv_shared_layers")
    if _whole(shared) and shared:
        change("num_kv_shared_layers", sum(number >= count - shared for number in layers))
    for key, part in config.items():
        if isinstance(part, Mapping) and key == "per_layer_config":
            change(key, {str(layers.index(int(number))): value for number, value in part.items() if int(number) in layers})
        elif isinstance(part, Mapping):
            inner = {**part, **dict(_limited(part, narrow=narrow))}
            for name, value in part.items():
                if name.endswith("_layers") and _whole_list(value):
                    # Such lists of layer numbers start from one.
                    inner[name] = [layers.index(number - 1) + 1 for number in value if number - 1 in layers]
            change(key, inner)
    for key in (*_DIVIDED, *(() if narrow else _FEED_FORWARDS)) if factor > 1 else ():
        value = out.get(key)
        if _whole(value) and value > 0 and not (value == 1 and key in _SINGLE):
            if value % factor:
                return None
            change(key, value // factor)
    return Small(config=out, layers=tuple(layers), changes=tuple(changes))


def _limited(config: Mapping[str, Any], *, narrow: bool) -> Iterator[tuple[str, Any]]:
    """The keys of a config that do not change a layer's cache, and their small values."""
    for key in _VOCABULARIES:
        if _whole(config.get(key)):
            yield key, min(config[key], _VOCABULARY)
    for key, number in _IDS.items():
        if config.get(key) is not None:
            yield key, number
    for key in _WINDOWS:
        if _whole(config.get(key)) and config[key] > 0:
            yield key, min(config[key], WINDOW)
    for key, most in _EXPERT_COUNTS.items():
        if _whole(config.get(key)):
            yield key, min(config[key], most)
    for key in _FEED_FORWARDS if narrow else ():
        value = config.get(key)
        if _whole(value):
            yield key, min(value, _FEED_FORWARD)
        elif _whole_list(value):
            yield key, [min(width, _FEED_FORWARD) for width in value]


def _whole(value: Any) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)


def _whole_list(value: Any) -> TypeGuard[list[int]]:
    return isinstance(value, list) and bool(value) and all(_whole(item) for item in value)


def _text(value: Any) -> str:
    """A short text for a value."""
    if isinstance(value, Iterable) and not isinstance(value, str):
        return f"{len(list(value)):,} entries"
    return f"{value:,}" if _whole(value) else f"{value!s:.40}"


_COUNTERS: Final = frozenset({"cumulative_length", "indexer_cumulative_length", "_sliding_window_tensor"})
"""Tensors of a cache layer that count positions; they do not belong to the cache's bytes."""


class NotRun(Exception):  # noqa: N818 - a reason, not an error
    """A model cannot be run here; the message says why."""


class RunOutput(Record):
    """The results of a run: the cache object, and logits of the last tokens, ``[batch, tokens, vocabulary]``.

    ``cached`` are logits of decoding with the cache; ``anew`` are those of the whole sequence, computed without a cache.
    """

    cache: Any
    cached: Any
    anew: Any
    alone: Any
    """Logits of the last token without the tokens before it, as with an empty cache."""


def library() -> tuple[str, str]:
    """The versions of torch and transformers. Raises :class:`NotRun` if one of them is missing."""
    try:
        import torch
        import transformers
    except ModuleNotFoundError as error:
        raise NotRun(f"{error.name} is not installed; type: pip install torch transformers") from None
    except (ImportError, OSError) as error:
        raise NotRun(f"torch or transformers does not start: {brief(str(error).strip().partition(chr(10))[0], 200)}") from None
    return str(torch.__version__), str(transformers.__version__)


@contextmanager
def _sealed() -> Iterator[None]:
    """Keep transformers from fetching kernels, and from printing warnings about missing kernels and default values."""
    import warnings

    from transformers.integrations import hub_kernels

    logger = logging.getLogger("transformers")
    level, enabled = logger.level, getattr(hub_kernels, "_kernels_enabled", None)
    logger.setLevel(logging.CRITICAL)
    hub_kernels._kernels_enabled = False  # noqa: SLF001 - the library reads the environment variable only once
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
        hub_kernels._kernels_enabled = enabled  # noqa: SLF001 - as above


@contextmanager
def _exact() -> Iterator[None]:
    """Switch TF32 off, the default of convolutions on a GPU: with it, runs with and without a cache round differently."""
    import torch

    parts: list[Any] = [torch.backends.cuda.matmul, torch.backends.cudnn]
    try:
        before = [part.allow_tf32 for part in parts]
    except RuntimeError:
        # The caller uses torch's newer settings, which cannot be mixed with these.
        parts, before = [], []
    for part in parts:
        part.allow_tf32 = False
    try:
        yield
    finally:
        for part, value in zip(parts, before, strict=True):
            part.allow_tf32 = value


def full_config(model: ModelSpec) -> dict[str, Any]:
    """The config of the language model with all defaults filled in, as the installed library reads it.

    Raises :class:`NotRun` if the library does not know the model type or does not accept the config.
    """
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    if model.model_type not in CONFIG_MAPPING:
        raise NotRun(f"transformers has no model type {shown(model.model_type)}, and code of a repository is never run")
    with _sealed():
        try:
            config = CONFIG_MAPPING[model.model_type](**clean(model.config))
            text = config if config.is_encoder_decoder else config.get_text_config(decoder=True)
            document = text.to_dict()
        except Exception as error:
            raise NotRun(f"transformers does not take this config: {_first(error)}") from error
    if text.model_type not in CONFIG_MAPPING:
        raise NotRun(f"transformers cannot build {shown(text.model_type)} by itself")
    return {**clean(document), "model_type": text.model_type}


def make(config: Mapping[str, Any], *, dtype: Any, device: str, attention: str, seed: int) -> Any:
    """A model with random weights, ready to run: of the library's class that generates text with its type, or of its bare decoder if that
    is only part of another model. On the device ``meta`` it takes no memory, but its size can be counted.

    Raises :class:`NotRun` if the library has no such class, or does not build it.
    """
    import torch
    import transformers
    from transformers.models.auto import modeling_auto as auto
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    model_type = config["model_type"]
    causal: Mapping[str, str] = auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    pairs: Mapping[str, str] = auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES
    name = causal.get(model_type) or auto.MODEL_MAPPING_NAMES.get(model_type)
    name = pairs.get(model_type) if config.get("is_encoder_decoder") else name
    if not isinstance(name, str):
        raise NotRun(f"transformers has no class that generates text with {shown(model_type)}")
    with _sealed():
        try:
            kind = getattr(transformers, name)
        except (AttributeError, ImportError) as error:
            raise NotRun(f"transformers cannot load {name}: {_first(error)}") from error
        state = torch.random.get_rng_state()
        # Only the generator of the CPU is seeded and restored; that of the device is not used.
        torch.default_generator.manual_seed(seed)
        try:
            made = CONFIG_MAPPING[model_type](**{key: value for key, value in config.items() if key != "model_type"})
            with torch.device("meta" if device == "meta" else "cpu"):
                model = kind._from_config(made, dtype=dtype, attn_implementation=attention)  # noqa: SLF001 - the library's own way
        except Exception as error:
            raise NotRun(f"transformers does not build it: {_first(error)}") from error
        finally:
            torch.random.set_rng_state(state)
        return model.eval() if device == "meta" else model.eval().to(device)


class Reader:
    """A model with a batch of random sequences, which it reads part by part."""

    def __init__(self, model: Any, *, batch: int, tokens: int, encoder: int, seed: int) -> None:
        import torch

        chooser = torch.Generator().manual_seed(seed)

        def drawn(count: int) -> Any:
            return torch.randint(3, model.config.vocab_size, (batch, count), generator=chooser).to(model.device)

        self.model, self._batch = model, batch
        self._ids, self._pair = drawn(tokens), bool(model.config.is_encoder_decoder)
        self._given = {"input_ids": drawn(encoder)} if self._pair else {}
        self._placed = not self._pair and "position_ids" in inspect.signature(model.forward).parameters

    def read(self, start: int, end: int, *, use_cache: bool = True, **cache: Any) -> Any:
        """The model's output for these tokens. Without positions, some classes would count from zero in each call."""
        import torch

        given = {**self._given, "decoder_input_ids" if self._pair else "input_ids": self._ids[:, start:end]}
        if self._placed:
            given["position_ids"] = torch.arange(start, end, device=self.model.device).expand(self._batch, -1)
        return self.model(**given, **cache, use_cache=use_cache)

    def begin(self, tokens: int, **cache: Any) -> Any:
        """The output for the first tokens. What an encoder made of its own is kept for the later ones."""
        output = self.read(0, tokens, **cache)
        if self._pair:
            self._given = {"encoder_outputs": (output.encoder_last_hidden_state,)}
        return output


@contextmanager
def running() -> Iterator[None]:
    """Run a model: without gradients, and without what the library would fetch or print."""
    import torch

    with _sealed(), torch.no_grad():
        yield


def feed(model: Any, *, batch: int, prompt: int, decode: int, encoder: int, seed: int, static: bool = False) -> RunOutput:
    """Run ``prompt`` tokens at once and ``decode`` tokens one by one with the cache, then all tokens without it."""
    import torch

    reader = Reader(model, batch=batch, tokens=prompt + decode, encoder=encoder, seed=seed)
    with running(), _exact():
        started = {}
        if static:
            from transformers import StaticCache

            taken = inspect.signature(model.forward).parameters
            name = "cache" if "cache" in taken else "past_key_values"
            started = {name: StaticCache(config=model.config, max_cache_len=prompt + decode)}
        step = reader.begin(prompt, **started)
        cache = cache_of(step)
        logits = [_scores(step)[:, -1:]]
        for at in range(prompt, prompt + decode):
            step = reader.read(at, at + 1, **cache)
            cache = cache_of(step)
            logits.append(_scores(step)[:, -1:])
        anew = _scores(reader.read(0, prompt + decode, use_cache=False))[:, -decode - 1 :]
        alone = _scores(reader.read(prompt + decode - 1, prompt + decode, use_cache=False))
    (held,) = cache.values()
    return RunOutput(cache=held, cached=torch.cat(logits, 1), anew=anew, alone=alone)


def cache_of(output: Any) -> dict[str, Any]:
    """The cache of an output, by the name under which the model takes it again."""
    # Since transformers 5.24 it has one name everywhere.
    for key in ("cache", "past_key_values", "cache_params", "state"):
        cache = getattr(output, key, None)
        if cache is not None:
            return {key: cache}
    raise NotRun("transformers gives back no cache for it")


def _scores(output: Any) -> Any:
    """The logits, or the last hidden state if the class has no output layer."""
    logits = getattr(output, "logits", None)
    return output.last_hidden_state if logits is None else logits


def cache_layers(cache: Any) -> list[int] | None:
    """The bytes of each layer of a cache object, both halves of an encoder-decoder cache together; ``None`` if it has no layers."""
    halves = [
        half for name in ("self_attention_cache", "cross_attention_cache") if (half := getattr(cache, name, None)) is not None
    ]
    parts = [getattr(half, "layers", None) for half in halves or [cache]]
    if not all(isinstance(layers, list) for layers in parts):
        return None
    lists = [[tensor_bytes(layer, set()) for layer in layers or ()] for layers in parts]
    return [sum(column) for column in zip(*lists, strict=True)] if len({len(each) for each in lists}) == 1 else None


def tensor_bytes(thing: Any, seen: set[int], *, storage: bool = False) -> int:
    """The bytes of all tensors that an object of the library holds, each counted once, without counters.

    With ``storage``, the memory behind the tensors is counted instead: a view of a longer tensor keeps all of it alive.
    """
    import torch

    if isinstance(thing, torch.Tensor):
        mark = thing.untyped_storage().data_ptr() if storage else id(thing)
        if mark in seen:
            return 0
        seen.add(mark)
        return int(thing.untyped_storage().nbytes() if storage else thing.numel() * thing.element_size())
    if id(thing) in seen:
        return 0
    seen.add(id(thing))
    if isinstance(thing, dict):
        return sum(tensor_bytes(value, seen, storage=storage) for key, value in thing.items() if key not in _COUNTERS)
    if isinstance(thing, (list, tuple)):
        return sum(tensor_bytes(value, seen, storage=storage) for value in thing)
    if type(thing).__module__.startswith("transformers."):
        return tensor_bytes(vars(thing), seen, storage=storage)
    return 0


def _first(error: BaseException) -> str:
    """The class of an error and the first line of its message, cut short."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0][:160] if lines else ''}"


ENGINE: Final = "transformers"
_FACTORS: Final = range(1, 65)


def _spec(config: Any) -> ModelSpec:
    """Parse the library's form of a config. Raises :class:`NotRun` if kvplan does not understand it."""
    from hwcalc.parsers.parse import parse

    try:
        return parse(RawModel(id="small", config=config, source="python"))
    except KvplanError as error:
        raise NotRun(f"kvplan does not read the library's form of its config: {error.message}") from error


def smaller(
    full: Mapping[str, Any], model: ModelSpec, build: Callable[[Any, str], Any], most_bytes: int, *, wide: bool = False
) -> tuple[Small, int, ModelSpec, int]:
    """The widest config with at most ``most_bytes`` of weights that has every kind of layer of ``model``.

    ``full`` is the library's form of the model's config; ``build`` builds a model from a config on a device. With ``wide``, feed-forward
    networks keep their ratio to the rest, and as many of the first layers are kept as ``most_bytes`` hold. Returns the small config,
    its factor, its :class:`~hwcalc.model.ModelSpec` and its weight bytes. Raises :class:`~hwcalc.probe.live_model.NotRun` if there is
    none.
    """
    stack, planned = _spec(full).stack_for(ENGINE), model.stack_for(ENGINE)
    if not _alike([_shape(layer) for layer in stack.layers], [_shape(layer) for layer in planned.layers], 1):
        raise NotRun("transformers reads other layers from this config than were planned")
    layers = pick_layers(stack)
    expected = [_shape(stack.layers[number]) for number in layers]
    why, least = "no smaller config keeps every kind of layer", None
    # The few models whose states are as wide as their feed-forward networks keep these at full width.
    try:
        narrow = not wide and _reads_alike(shrink(full, layers, len(stack)), expected, 1) is not None
    except NotRun:
        narrow = False
    for factor in _FACTORS:
        small = shrink(full, layers, len(stack), factor=factor, narrow=narrow)
        try:
            spec = _reads_alike(small, expected, factor)
            if small is None or spec is None:
                continue
            built = build(small.config, "meta")
        except NotRun as reason:
            why = str(reason)
            continue
        size = _built_bytes(built)
        if size <= most_bytes:
            return _deeper(full, stack, (small, factor, spec, size), build, most_bytes) if wide else (small, factor, spec, size)
        least = size if least is None else min(least, size)
    if least is not None:
        why = f"the smallest form of it has {least:,} bytes of weights, more than the {most_bytes:,} that are allowed"
    raise NotRun(why)


def _deeper(
    full: Mapping[str, Any],
    stack: Stack,
    least: tuple[Small, int, ModelSpec, int],
    build: Callable[[Any, str], Any],
    most_bytes: int,
) -> tuple[Small, int, ModelSpec, int]:
    """The same with more of the first layers, if so many bytes hold them; else ``least``."""
    kept, factor, _, size = least
    layers = range(min(len(stack.layers), len(kept.layers) * most_bytes // size))
    small = shrink(full, layers, len(stack), factor=factor, narrow=False)
    spec = _reads_alike(small, [_shape(stack.layers[number]) for number in layers], factor)
    if small is None or spec is None or len(layers) == len(kept.layers):
        return least
    size = _built_bytes(build(small.config, "meta"))
    return (small, factor, spec, size) if size <= most_bytes else least


def _built_bytes(built: Any) -> int:
    """The bytes of a model's weights."""
    return sum(item.numel() * item.element_size() for part in (built.parameters(), built.buffers()) for item in part)


_Shape = tuple[tuple[str, dict[str, int]], ...]
_SHORT: Final = ("window", "chunk")
"""Dimensions that the small config shortens: how far back a layer looks."""


def _shape(layer: Layer) -> _Shape:
    """The kinds and dimensions of a layer, without windows and chunks."""
    return tuple((kind.name, {name: size for name, size in kind.dims().items() if name not in _SHORT}) for kind in layer)


def _reads_alike(small: Small | None, expected: list[_Shape], factor: int) -> ModelSpec | None:
    """The parsed small config if it has the expected layers, else ``None``."""
    if small is None:
        return None
    spec = _spec(small.config)
    return spec if _alike([_shape(layer) for layer in spec.stack_for(ENGINE).layers], expected, factor) else None


def _alike(layers: list[_Shape], expected: list[_Shape], factor: int) -> bool:
    """True if the layers have the expected kinds, with each dimension unchanged or divided by ``factor``."""
    if len(layers) != len(expected):
        return False
    for mine, theirs in zip(layers, expected, strict=True):
        if [name for name, _ in mine] != [name for name, _ in theirs]:
            return False
        for (_, now), (_, was) in zip(mine, theirs, strict=True):
            if now.keys() != was.keys() or any(was[name] not in (size, size * factor) for name, size in now.items()):
                return False
    return True
