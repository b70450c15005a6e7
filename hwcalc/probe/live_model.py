"""Build a small model with random weights from the library's own class, run it, and measure its cache.

Nothing is downloaded and no code of a repository is run: the installed transformers has the class of the model type.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from hwcalc.formulas.record import Record
from hwcalc.model import ModelSpec
from hwcalc.probe.live_config import clean
from hwcalc.text import brief, shown

__all__ = [
    "NotRun",
    "RunOutput",
    "cache_layers",
    "feed",
    "full_config",
    "library",
    "make",
    "own_class",
    "size_of",
    "tensor_bytes",
]

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


def own_class(model_type: str, *, encoder_decoder: bool) -> Any:
    """The library's class that generates text with this model type, or its bare decoder if that is only part of another model.

    Raises :class:`NotRun` if there is none.
    """
    import transformers
    from transformers.models.auto import modeling_auto as auto

    causal: Mapping[str, str] = auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    pairs: Mapping[str, str] = auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES
    name = pairs.get(model_type) if encoder_decoder else causal.get(model_type) or auto.MODEL_MAPPING_NAMES.get(model_type)
    if not isinstance(name, str):
        raise NotRun(f"transformers has no class that generates text with {shown(model_type)}")
    try:
        return getattr(transformers, name)
    except (AttributeError, ImportError) as error:
        raise NotRun(f"transformers cannot load {name}: {_first(error)}") from error


def make(config: Mapping[str, Any], *, dtype: Any, device: str, attention: str, seed: int) -> Any:
    """A model with random weights, ready to run. On the device ``meta`` it takes no memory, but its size can be counted.

    Raises :class:`NotRun` if the library does not build it.
    """
    import torch
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    state = torch.random.get_rng_state()
    # Only the generator of the CPU is seeded and restored; that of the device is not used.
    torch.default_generator.manual_seed(seed)
    with _sealed():
        try:
            made = CONFIG_MAPPING[config["model_type"]](**{key: value for key, value in config.items() if key != "model_type"})
            kind = own_class(config["model_type"], encoder_decoder=bool(config.get("is_encoder_decoder")))
            with torch.device("meta" if device == "meta" else "cpu"):
                model = kind._from_config(made, dtype=dtype, attn_implementation=attention)  # noqa: SLF001 - the library's own way
        except NotRun:
            raise
        except Exception as error:
            raise NotRun(f"transformers does not build it: {_first(error)}") from error
        finally:
            torch.random.set_rng_state(state)
        return model.eval() if device == "meta" else model.eval().to(device)


def size_of(model: Any) -> int:
    """The bytes of all weights and buffers."""
    return sum(item.numel() * item.element_size() for part in (model.parameters(), model.buffers()) for item in part)


def feed(model: Any, *, batch: int, prompt: int, decode: int, encoder: int, seed: int, static: bool = False) -> RunOutput:
    """Run ``prompt`` tokens at once and ``decode`` tokens one by one with the cache, then all tokens without it."""
    import torch

    device = model.device
    chooser = torch.Generator().manual_seed(seed)
    vocabulary = model.config.vocab_size

    def tokens(count: int) -> Any:
        return torch.randint(3, vocabulary, (batch, count), generator=chooser).to(device)

    ids, pair = tokens(prompt + decode), bool(model.config.is_encoder_decoder)
    given = {"input_ids": tokens(encoder)} if pair else {}
    name = "decoder_input_ids" if pair else "input_ids"
    placed = not pair and "position_ids" in inspect.signature(model.forward).parameters

    def part(start: int, end: int) -> dict[str, Any]:
        """Tokens and their positions. Without positions, some classes would count from zero in each call."""
        positions = torch.arange(start, end, device=device).expand(batch, -1)
        return {name: ids[:, start:end], **({"position_ids": positions} if placed else {})}

    with _sealed(), _exact(), torch.no_grad():
        started = {}
        if static:
            from transformers import StaticCache

            started = {"past_key_values": StaticCache(config=model.config, max_cache_len=prompt + decode)}
        step = model(**given, **part(0, prompt), use_cache=True, **started)
        key, cache = _cache_of(step)
        if pair:
            given = {"encoder_outputs": (step.encoder_last_hidden_state,)}
        logits = [_scores(step)[:, -1:]]
        for at in range(prompt, prompt + decode):
            step = model(**given, **part(at, at + 1), **{key: cache}, use_cache=True)
            key, cache = _cache_of(step)
            logits.append(_scores(step)[:, -1:])
        anew = _scores(model(**given, **part(0, prompt + decode), use_cache=False))[:, -decode - 1 :]
        alone = _scores(model(**given, **part(prompt + decode - 1, prompt + decode), use_cache=False))
    return RunOutput(cache=cache, cached=torch.cat(logits, 1), anew=anew, alone=alone)


def _cache_of(output: Any) -> tuple[str, Any]:
    for key in ("past_key_values", "cache_params", "state"):
        cache = getattr(output, key, None)
        if cache is not None:
            return key, cache
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
