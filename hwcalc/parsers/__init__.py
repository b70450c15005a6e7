"""Read a config into layers and weights. :func:`parse` finds the family of the model and checks that no key was overlooked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hwcalc.errors import ConfigError, UnknownArchitectureError, UnreadKeysError, UsageError
from hwcalc.formulas import Layer, Stack
from hwcalc.formulas.frozen import replace
from hwcalc.formulas.weights import Weights
from hwcalc.model import Definition, ModelSpec, Note, Parameters, RawModel, qualified
from hwcalc.parsers.attention_words import read_attention_words
from hwcalc.parsers.class_table import defaults_version
from hwcalc.parsers.config import Config
from hwcalc.parsers.facts import model_facts
from hwcalc.parsers.limits import MAX_NAME, check_size
from hwcalc.parsers.reading import Family, Reading
from hwcalc.parsers.registry import ASSUME_HINT, find_family, known_family, model_type_of_architecture, room_of
from hwcalc.parsers.whole import whole_weights
from hwcalc.text import quoted, shown

__all__ = ["ASSUMPTIONS", "parse"]

ASSUMPTIONS = ("gqa",)
"""What ``--assume`` takes: ``gqa`` reads any config as plain grouped-query attention on every layer."""

# Keys under which models of several parts keep the config of their language model, most specific first.
_NESTED = (
    "text_config",
    "llm_config",
    "language_config",
    "thinker_config",
    "decoder",
    "generator",
    "vlm_config",
    "decoder_config",
)
_MAX_NESTING = 4

_NAMED, _SHOWN = 8, 80
"""How many keys a message names, and with how many characters each."""

_DTYPES = {
    "float32": "fp32",
    "float": "fp32",
    "fp32": "fp32",
    "float16": "fp16",
    "half": "fp16",
    "fp16": "fp16",
    "bfloat16": "bf16",
    "bf16": "bf16",
    "float8_e4m3fn": "fp8",
}


def parse(raw: RawModel, *, assume: str | None = None) -> ModelSpec:
    """Read a description into a :class:`~hwcalc.model.ModelSpec`.

    Raises :class:`~hwcalc.errors.UnknownArchitectureError` if no family reads this model,
    :class:`~hwcalc.errors.UnreadKeysError` if the config has a key that bears on the cache and that the family does not read, and
    :class:`~hwcalc.errors.ConfigError` if a value makes no sense. ``assume="gqa"`` turns the first two into notes.
    """
    if assume is not None and assume not in ASSUMPTIONS:
        raise UsageError(f"--assume {shown(assume, 40)} is not known.", hint=f"Allowed: {', '.join(ASSUMPTIONS)}.")
    top = Config(raw.config)
    architecture = _architecture(raw.config)
    for key, name in (("model_type", top.model_type), ("architectures", architecture)):
        if name is not None and len(name) > MAX_NAME:
            raise top.error(key, name, f"a name of at most {MAX_NAME} characters")
    notes = list(raw.notes)
    found = _find(top, architecture)
    if found is not None:
        family, config = found
        if config.model_type != top.model_type and config.where == "" and not top.has_class:
            declared = f"model_type {quoted(top.model_type)} is not known" if top.model_type else "The config has no model_type"
            message = f"{declared}: read as {config.model_type} by its architecture, {architecture}."
            notes.append(Note(code="by-architecture", message=message))
    elif assume is None:
        raise _unknown(raw, architecture)
    else:
        family, config = known_family("llama"), _descend(top) or top
        message = (
            "No parser knows this architecture: every layer is assumed to keep plain attention keys and values for every token."
        )
        notes.append(Note(code="assumed", message=message))
    reading = _read(family, config)
    if not reading.layers:
        raise _no_layers()
    read_attention_words(reading.config, reading.layers)
    # Only the language model's level is checked: towers and projectors have windows and heads of their own.
    unread = config.unread() if found is not None else []
    if unread:
        notes.append(_unread(raw, config, unread, assume))
    notes += (*_from_the_class(reading.config), *reading.notes)
    counted, assumed = None, found is None or bool(unread)
    variants: dict[str, Weights | None] = {}
    if not assumed:
        try:
            counted = whole_weights(family, config, top, reading)
            if reading.weighs_readings:
                variants = {
                    engine: whole_weights(family, config, top, replace(reading, layers=layers))
                    for engine, layers in reading.readings.items()
                }
        except (ConfigError, ValueError) as error:
            # A value that makes no sense for the weights does not stop the cache from being counted.
            notes.append(Note(code="weights-unknown", message=f"Parameters are not counted: {error}"))
    spec = _spec(raw, top, config, reading, counted, architecture, notes, assumed)
    if spec.weights is not None:
        from hwcalc.quantization.stored import with_whole_weights

        spec = with_whole_weights(spec)
    spec = _with_variants(spec, variants) if variants else spec
    check_size((spec, *spec.variants.values()))
    return spec


def _with_variants(spec: ModelSpec, variants: Mapping[str, Weights | None]) -> ModelSpec:
    """The model with the weights that single engines build. The parameters are those of transformers, where that is one of them."""
    built = {
        engine: replace(
            spec, stack=spec.stack_for(engine), counted=counted, parameters=_parameters(counted, spec.notes), readings={}
        )
        for engine, counted in variants.items()
    }
    parameters = built["transformers"].parameters if "transformers" in built else spec.parameters
    return replace(spec, variants=built, parameters=parameters)


def _parameters(counted: Weights | None, notes: Sequence[Note]) -> Parameters | None:
    if counted is None:
        return None
    definition = qualified(notes, Definition.EXACT)
    return Parameters(total=counted.total, active=counted.active, mtp=counted.mtp or None, definition=definition)


def _unread(raw: RawModel, config: Config, unread: list[str], assume: str | None) -> Note:
    """A note about keys that nobody has read, or an error unless something is to be assumed."""
    named = ", ".join(key if len(key) <= _SHOWN else f"{key[:_SHOWN]}..." for key in unread[:_NAMED])
    named += ", ..." if len(unread) > _NAMED else ""
    message = (
        f"{raw.id} has keys that bear on the cache and that the {room_of(config.model_type)!r} parser does not know: {named}."
    )
    message = " ".join((message, *config.contradictions()[:_NAMED]))
    if assume is None:
        hint = "A number without them would be a guess. To go on all the same, with every number marked as assumed: --assume gqa."
        raise UnreadKeysError(message, keys=tuple(unread), hint=hint)
    return Note(code="unread-keys", message=message + " They were left out of account.")


def _architecture(config: Mapping[str, Any]) -> str | None:
    names = config.get("architectures")
    if isinstance(names, (list, tuple)) and names and isinstance(names[0], str):
        return names[0]
    return None


def _find(top: Config, architecture: str | None) -> tuple[Family, Config] | None:
    """The family and the config level that it reads: by model type from the top down, then by architecture."""
    config: Config | None = top
    for _ in range(_MAX_NESTING):
        if config is None:
            break
        family = find_family(config.model_type)
        if family is not None:
            return family, config
        config = _descend(config)
    if architecture is not None:
        model_type = model_type_of_architecture(architecture)
        family = find_family(model_type)
        if family is not None and top.model_type != model_type:
            return family, top.retyped(model_type)
    return None


def _descend(config: Config) -> Config | None:
    """The nested config of the language model. Old files keep its keys at the top: they are read as the nested type."""
    for key in _NESTED:
        if isinstance(config.raw.get(key), Mapping):
            return config.sub(key)
    for key in _NESTED:
        nested = config.nested_type(key)
        if nested is not None and nested != config.model_type:
            return config.retyped(nested)
    return None


def _read(family: Family, config: Config) -> Reading:
    try:
        return family.read(config)
    except (ConfigError, UsageError):
        raise
    except ValueError as error:
        # A layer kind refused the numbers. That is still the config's fault, and the message names the field.
        raise ConfigError(f"the {config.model_type} config does not make sense: {error}.") from error


def _unknown(raw: RawModel, architecture: str | None) -> UnknownArchitectureError:
    model_type = raw.config.get("model_type")
    what = f"model_type {quoted(model_type)}" if model_type else "no model_type"
    with_architecture = f", architecture {shown(architecture, 60)}" if architecture else ""
    return UnknownArchitectureError(f"No parser knows {raw.id}: {what}{with_architecture}.", hint=ASSUME_HINT)


def _spec(
    raw: RawModel,
    top: Config,
    config: Config,
    reading: Reading,
    counted: Weights | None,
    architecture: str | None,
    notes: list[Note],
    assumed: bool,
) -> ModelSpec:
    language = reading.config
    declared = next(
        (
            value
            for level in (language.raw, top.raw)
            for key in ("dtype", "torch_dtype")
            if isinstance(value := level.get(key), str)
        ),
        None,
    )
    return ModelSpec(
        id=raw.id,
        source=raw.source,
        location=raw.location,
        revision=raw.revision,
        model_type=top.model_type or language.model_type or "unknown",
        architecture=architecture,
        stack=_stack(reading.layers),
        dtype=_DTYPES.get(declared.removeprefix("torch.")) if declared else None,
        state_dtype=reading.state_dtype,
        max_position_embeddings=_first_integer(language, top, *_LONGEST_SEQUENCE),
        hidden_size=_first_integer(language, top, "hidden_size"),
        vocab_size=_first_integer(language, top, "vocab_size"),
        encoder_tokens=reading.encoder_tokens,
        parameters=raw.parameters if counted is None else _parameters(counted, notes),
        weights=raw.weights,
        counted=counted,
        quantization=_quantization(language, top),
        bearing=top.bearing() | language.bearing() | _storage(language, top, declared),
        assumed=assumed,
        notes=tuple(notes),
        readings={engine: _stack(layers) for engine, layers in reading.readings.items()},
        facts=model_facts(raw.config),
        config=raw.config,
    )


# Class defaults that decide how much is cached. Others are not worth a note.
_WORTH_A_NOTE = {
    "num_hidden_layers",
    "decoder_layers",
    "num_attention_heads",
    "decoder_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "hidden_size",
    "d_model",
    "d_kv",
    "sliding_window",
    "kv_lora_rank",
    "qk_rope_head_dim",
    "attention_chunk_size",
    "num_kv_shared_layers",
    "global_head_dim",
    "state_size",
    "conv_kernel",
    "expand",
    "mamba_d_state",
    "mamba_d_conv",
}


def _from_the_class(language: Config) -> tuple[Note, ...]:
    """A note that lists what the file leaves out and the model's class fills in, as far as it decides how much is cached."""
    defaults = language.assumed_defaults().items()
    filled = {key: value for key, value in defaults if key in _WORTH_A_NOTE and not isinstance(value, bool)}
    if not filled:
        return ()
    listed = ", ".join(f"{key} {value}" for key, value in sorted(filled.items()))
    source = f"the {language.model_type} class of transformers {defaults_version()}"
    return (Note(code="class-defaults", message=f"The config leaves out {listed}: taken from {source}."),)


def _quantization(language: Config, top: Config) -> Mapping[str, Any] | None:
    """How the weights are quantised: ``compression_config`` is an early name, which vLLM still reads where the other is not there."""
    for level, key in ((level, key) for key in ("quantization_config", "compression_config") for level in (top, language)):
        value = level.raw.get(key)
        if value is not None and not isinstance(value, Mapping):
            raise level.error(key, value, "an object that says how the weights are quantised, or null")
        if value:
            return value
    return None


def _storage(language: Config, top: Config, dtype: str | None) -> dict[str, Any]:
    """The values that say how the weights are stored, by dotted path: dtype, always under that key, and quantisation."""
    out: dict[str, Any] = {} if dtype is None else {"dtype": dtype.removeprefix("torch.")}
    waiting: list[tuple[str, Any]] = [("quantization_config", _quantization(language, top) or {})]
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
        raise _no_layers()
    return Stack(layers)


def _no_layers() -> ConfigError:
    return ConfigError("the config describes a model without layers.")


# Keys of the longest sequence. Encoder-decoder classes have two lengths: the one that counts here is the decoder's.
_LONGEST_SEQUENCE = (
    "max_position_embeddings",
    "max_target_positions",
    "max_decoder_position_embeddings",
    "max_text_positions",
    "n_positions",
    "max_seq_len",
    "seq_length",
    "max_sequence_length",
)


def _first_integer(language: Config, top: Config, *keys: str) -> int | None:
    """The first of these keys that holds a number. It only describes the model, so that a strange value is passed over."""
    for config, key in ((config, key) for config in (language, top) for key in keys):
        value = config.get(key)
        if isinstance(value, int) and not isinstance(value, bool) and 0 < value < 2**40:
            return value
    return None
