"""Read a config into layers and weights, and into single facts that engines need, so that no engine reads it again.

:func:`parse` finds the family of the model and checks that no key was overlooked. Weights are those of the language model, and
of the towers and projectors around it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from msgspec.structs import replace

from hwcalc.errors import ConfigError
from hwcalc.formulas import MAX_DIMENSION, Layer, Stack
from hwcalc.formulas.weights import Weights
from hwcalc.model import GGUF_ARCHITECTURE, Definition, ModelFacts, ModelSpec, Note, Parameters, RawModel, RopeScaling, qualified
from hwcalc.parsers.config import DTYPE_WORDS, LONGEST_SEQUENCE, MAX_NAME, MTP_COUNTS, Config, architecture_of, check_size
from hwcalc.parsers.reading import Family, Reading
from hwcalc.parsers.registry import find_wrapper
from hwcalc.parsers.understood import from_the_class, no_layers, understood, without_effect
from hwcalc.text import quoted

_MOST_MTP_MODULES: Final = 64
_PARTS: Final = {"text": "text_config", "vision": "vision_config", "audio": "audio_config"}


def model_facts(config: Mapping[str, Any]) -> ModelFacts:
    """The facts of a whole config file. A value that makes no sense is passed over, never an error."""
    parts = {name: inner for name, key in _PARTS.items() if isinstance(inner := config.get(key), Mapping)}
    text, vision = parts.get("text"), parts.get("vision", {})
    levels = (config,) if text is None else (config, text)
    inner = config if text is None else text
    deepstack, expert_dtype, mtp = vision.get("deepstack_visual_indexes"), config.get("expert_dtype"), config.get("mtp_config")
    mtp_levels = (*levels, mtp) if isinstance(mtp, Mapping) else levels
    counts = (_number(level, key) for level in mtp_levels for key in MTP_COUNTS)
    texts = (config.get(key) for key in ("text_config", "llm_config"))
    in_text = any(isinstance(level, Mapping) and bool(level.get("quantization_config")) for level in texts)
    return ModelFacts(
        hash_routed_layers=_first(levels, "num_hash_layers") or 0,
        experts_per_token=_first(levels, "num_experts_per_tok") or 0,
        expert_dtype=expert_dtype if expert_dtype is None or isinstance(expert_dtype, str) else quoted(expert_dtype),
        part_types={name: kind if isinstance(kind := part.get("model_type"), str) else "" for name, part in parts.items()},
        ties_text_embeddings=None if text is None else bool(text.get("tie_word_embeddings")),
        draft_vocab_size=_number(config, "draft_vocab_size"),
        mtp_modules=next((count for count in counts if count is not None and count <= _MOST_MTP_MODULES), None),
        mtp_windowed=_numbers(mtp.get("local_layer_ids"))
        if isinstance(mtp, Mapping)
        else _numbers(inner.get("mtp_local_layer_ids")),
        sliding_window=_number(config, "sliding_window"),
        state_chunk_tokens=_number(inner, "mamba_chunk_size") or _number(inner, "chunk_size"),
        ngram_size=_number(inner, "ngram_size"),
        quantizes_text_only=in_text and not config.get("quantization_config"),
        deepstack_layers=len(deepstack) if isinstance(deepstack, (list, tuple)) else 0,
        rope_scalings=tuple(_rope_scalings(tuple(reversed(levels)))),
        model_max_length=_first(tuple(reversed(levels)), "model_max_length"),
    )


def _rope_scalings(levels: tuple[Mapping[str, Any], ...]) -> Iterator[RopeScaling]:
    """The first description of a rotary embedding: flat, or one for each kind of layer."""
    given = (level.get(key) for level in levels for key in ("rope_parameters", "rope_scaling"))
    rope = next((value for value in given if isinstance(value, Mapping)), {})
    for each in (rope, *rope.values()):
        kind = (each.get("rope_type") or each.get("type")) if isinstance(each, Mapping) else None
        if isinstance(kind, str):
            factor = each.get("factor")
            real = isinstance(factor, (int, float)) and not isinstance(factor, bool) and 0 < factor <= MAX_DIMENSION
            original = _number(each, "original_max_position_embeddings")
            yield RopeScaling(kind=kind, factor=float(factor) if real else None, original_tokens=original)


def _number(config: Mapping[str, Any], key: str) -> int | None:
    value = config.get(key)
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 < value <= MAX_DIMENSION else None


def _numbers(value: Any) -> tuple[int, ...]:
    """The whole numbers of a list, from 0 on."""
    listed = value if isinstance(value, (list, tuple)) else ()
    return tuple(each for each in listed if isinstance(each, int) and not isinstance(each, bool) and 0 <= each <= MAX_DIMENSION)


def _first(levels: tuple[Mapping[str, Any], ...], key: str) -> int | None:
    return next((value for level in levels if (value := _number(level, key)) is not None), None)


_WITH_TOWERS: Final = frozenset({
    "Keye", "KeyeVL1_5", "chameleon", "dots_ocr", "keye", "kyutai_speech_to_text", "minicpmo", "minicpmv", "phi3_v",
    "phi4_multimodal", "phi4mm",
})  # fmt: skip
"""Types of documents that keep the language model's keys at the top and have towers beside them."""


def whole_weights(family: Family, config: Config, top: Config, reading: Reading) -> Weights | None:
    """All weights of a model, or ``None`` where a part of it is of a type that nobody weighs.

    ``config`` is the level that describes the language model, ``reading`` what ``family`` read there. Raises
    :class:`~hwcalc.errors.ConfigError` if a value makes no sense.
    """
    blocks = family.weigh(config, top, reading)
    if blocks is None:
        return None
    # A file without a model type is the language model itself, where its architecture says so.
    nameless = top.model_type is None and config.raw is top.raw
    if (top.model_type != config.model_type and not nameless) or config.model_type in _WITH_TOWERS:
        around = find_wrapper(top.model_type)
        beside = None if around is None else around(top, config)
        if beside is None:
            return None
        blocks = (*blocks, *beside)
    return Weights(blocks=tuple(blocks))


_DTYPES: Final = {word: name for name, words in DTYPE_WORDS.items() for word in words}


def parse(raw: RawModel, *, assume: str | None = None) -> ModelSpec:
    """Read a description into a :class:`~hwcalc.model.ModelSpec`.

    Raises :class:`~hwcalc.errors.UnknownArchitectureError` if no family reads this model,
    :class:`~hwcalc.errors.UnreadKeysError` if the config has a key that bears on the cache and that the family does not read, and
    :class:`~hwcalc.errors.ConfigError` if a value makes no sense. ``assume`` turns the first two into notes: the type or the kinds
    of layers that such a config is read as.
    """
    if GGUF_ARCHITECTURE in raw.config:
        from hwcalc.parsers.gguf.parse import parse_gguf

        return parse_gguf(raw)
    if isinstance(raw.config.get("layers"), (str, list, tuple)):
        from hwcalc.parsers.written import is_written, parse_written

        if is_written(raw.config):
            return parse_written(raw)
    top = Config(raw.config)
    architecture = architecture_of(raw.config)
    for key, name in (("model_type", top.model_type), ("architectures", architecture)):
        if name is not None and len(name) > MAX_NAME:
            raise top.error(key, name, f"a name of at most {MAX_NAME} characters")
    _quantization(top, top)
    own = understood(top, architecture)
    read, unread = own.read, own.unread
    if read is None or unread or assume is not None:
        from hwcalc.parsers.unknown import resolved

        read, unread = resolved(raw, top, own, assume)
    config, reading, language = read.config, read.reading, read.reading.config
    # A config that somebody has published leaves out on purpose what its class fills in.
    published = raw.source not in _BY_HAND or raw.weights is not None
    filled = () if read.assumed else from_the_class(language, complete=published)
    notes = [*raw.notes, *read.notes, *filled, *reading.notes]
    counted: Weights | None = None
    variants: dict[str, Weights | None] = {}
    if read.weighed and not unread:
        try:
            counted = whole_weights(read.family, config, read.top, reading)
            if reading.weighs_readings:
                variants = {
                    engine: whole_weights(read.family, config, read.top, replace(reading, layers=layers))
                    for engine, layers in reading.readings.items()
                }
        except (ConfigError, ValueError) as error:
            # A value that makes no sense for the weights does not stop the cache from being counted.
            notes.append(Note(code="weights-unknown", message=f"Parameters are not counted: {error}"))
    if not (published or read.assumed or read.is_foreign or unread):
        notes[:0] = without_effect(read)
    assumed = read.assumed or bool(unread)
    quantization = _quantization(language, top)
    dtypes = (level.get(key) for level in (language.raw, top.raw) for key in ("dtype", "torch_dtype"))
    declared = next((value for value in dtypes if isinstance(value, str)), None)
    spec = ModelSpec(
        id=raw.id,
        source=raw.source,
        location=raw.location,
        revision=raw.revision,
        model_type=top.model_type or language.model_type or "unknown",
        architecture=architecture,
        stack=_stack(reading.layers),
        dtype=_DTYPES.get(declared.removeprefix("torch.")) if declared else None,
        state_dtype=reading.state_dtype,
        # The class of an assumed type says nothing about how far this model was trained.
        max_position_embeddings=_first_integer(language, top, *LONGEST_SEQUENCE, given=assumed),
        hidden_size=_first_integer(language, top, "hidden_size"),
        vocab_size=_first_integer(language, top, "vocab_size"),
        encoder_tokens=reading.encoder_tokens,
        parameters=raw.parameters if counted is None else _parameters(counted, notes, assumed=assumed),
        weights=raw.weights,
        weights_format=raw.weights_format,
        counted=counted,
        quantization=quantization,
        bearing=top.bearing() | language.bearing() | _storage(quantization, declared),
        assumed=assumed,
        notes=tuple(notes),
        readings={engine: _stack(layers) for engine, layers in reading.readings.items()},
        facts=model_facts(raw.config),
        config=raw.config,
    )
    if assume is not None and assumed:
        spec = replace(spec, assumption=assume, read_with=("--assume", assume))
    if spec.weights is not None:
        from hwcalc.quantization.planned import with_whole_weights

        spec = with_whole_weights(spec)
    spec = _with_variants(spec, variants) if variants else spec
    check_size((spec, *spec.variants.values()))
    return spec


_BY_HAND: Final = frozenset({"local", "stdin", "python"})
"""The sources whose configs people write and cut themselves."""


def _with_variants(spec: ModelSpec, variants: Mapping[str, Weights | None]) -> ModelSpec:
    """The model with the weights that single engines build. The parameters are those of transformers, where that is one of them."""
    built = {}
    for engine, own in variants.items():
        parameters = _parameters(own, spec.notes, assumed=spec.assumed)
        built[engine] = replace(spec, stack=spec.stack_for(engine), counted=own, parameters=parameters, readings={})
    return replace(spec, variants=built, parameters=built.get("transformers", spec).parameters)


def _parameters(counted: Weights | None, notes: Sequence[Note], *, assumed: bool) -> Parameters | None:
    if counted is None:
        return None
    definition = Definition.ASSUMED if assumed else qualified(notes, Definition.EXACT)
    return Parameters(total=counted.total, active=counted.active, mtp=counted.mtp or None, definition=definition)


def _quantization(language: Config, top: Config) -> Mapping[str, Any] | None:
    """The config of quantised weights: ``compression_config`` is an early name, which vLLM still reads for want of the other."""
    for level, key in ((level, key) for key in ("quantization_config", "compression_config") for level in (top, language)):
        value = level.raw.get(key)
        if value is not None and not isinstance(value, Mapping):
            raise level.error(key, value, "an object that says how the weights are quantised, or null")
        if value:
            return value
    return None


def _storage(quantization: Mapping[str, Any] | None, dtype: str | None) -> dict[str, Any]:
    """The values that say how the weights are stored, by dotted path: dtype, always under that key, and quantisation."""
    out: dict[str, Any] = {} if dtype is None else {"dtype": dtype.removeprefix("torch.")}
    waiting: list[tuple[str, Any]] = [("quantization_config", quantization or {})]
    while waiting:
        path, value = waiting.pop()
        # What lies deeper counts as one value: each path repeats all keys on its way.
        if isinstance(value, Mapping) and len(path) <= _LONGEST_PATH:
            waiting += ((f"{path}.{key}", item) for key, item in value.items())
        else:
            out[path] = value
    return out


_LONGEST_PATH = 200
"""Characters of a dotted path in the quantisation; published ones have about 100."""


def _stack(layers: tuple[Layer, ...]) -> Stack:
    if not layers:
        raise no_layers()
    return Stack(layers)


def _first_integer(language: Config, top: Config, *keys: str, given: bool = False) -> int | None:
    """The first of these keys that holds a number, with ``given`` in the file itself.

    It only describes the model, so that a strange value is passed over.
    """
    for config, key in ((config, key) for config in (language, top) for key in keys):
        value = config.get(key) if not given or config.has(key) else None
        if isinstance(value, int) and not isinstance(value, bool) and 0 < value < 2**40:
            return value
    return None
