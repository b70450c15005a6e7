"""Read a config into layers and weights. :func:`parse` finds the family of the model and checks that no key was overlooked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from msgspec.structs import replace

from hwcalc.errors import ConfigError
from hwcalc.formulas import Layer, Stack
from hwcalc.formulas.weights import Weights
from hwcalc.model import GGUF_ARCHITECTURE, Definition, ModelSpec, Note, Parameters, RawModel, qualified
from hwcalc.parsers.config import Config
from hwcalc.parsers.facts import model_facts
from hwcalc.parsers.find import architecture_of
from hwcalc.parsers.limits import MAX_NAME, check_size
from hwcalc.parsers.noted import from_the_class
from hwcalc.parsers.reading import Reading
from hwcalc.parsers.understood import no_layers, understood
from hwcalc.parsers.whole import whole_weights

__all__ = ["parse"]


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
    :class:`~hwcalc.errors.ConfigError` if a value makes no sense. ``assume`` turns the first two into notes: the type or the kinds
    of layers that such a config is read as.
    """
    if GGUF_ARCHITECTURE in raw.config:
        from hwcalc.parsers.gguf.parse import parse_gguf

        return parse_gguf(raw)
    top = Config(raw.config)
    architecture = architecture_of(raw.config)
    for key, name in (("model_type", top.model_type), ("architectures", architecture)):
        if name is not None and len(name) > MAX_NAME:
            raise top.error(key, name, f"a name of at most {MAX_NAME} characters")
    read, unread = understood(raw, top, architecture, assume)
    config, reading = read.config, read.reading
    filled = () if read.assumed else from_the_class(reading.config, complete=_is_published(raw))
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
    spec = _spec(raw, top, config, reading, counted, architecture, notes, read.assumed or bool(unread))
    if assume is not None and spec.assumed:
        spec = replace(spec, assumption=assume, read_with=("--assume", assume))
    if spec.weights is not None:
        from hwcalc.quantization.stored import with_whole_weights

        spec = with_whole_weights(spec)
    spec = _with_variants(spec, variants) if variants else spec
    check_size((spec, *spec.variants.values()))
    return spec


def _is_published(raw: RawModel) -> bool:
    """Whether a config is one that somebody has published: it leaves out what its class fills in on purpose."""
    return raw.source not in _BY_HAND or raw.weights is not None


_BY_HAND: Final = frozenset({"local", "stdin", "python"})
"""The sources whose configs people write and cut themselves."""


def _with_variants(spec: ModelSpec, variants: Mapping[str, Weights | None]) -> ModelSpec:
    """The model with the weights that single engines build. The parameters are those of transformers, where that is one of them."""
    built = {
        engine: replace(
            spec,
            stack=spec.stack_for(engine),
            counted=counted,
            parameters=_parameters(counted, spec.notes, assumed=spec.assumed),
            readings={},
        )
        for engine, counted in variants.items()
    }
    parameters = built["transformers"].parameters if "transformers" in built else spec.parameters
    return replace(spec, variants=built, parameters=parameters)


def _parameters(counted: Weights | None, notes: Sequence[Note], *, assumed: bool = False) -> Parameters | None:
    if counted is None:
        return None
    definition = Definition.ASSUMED if assumed else qualified(notes, Definition.EXACT)
    return Parameters(total=counted.total, active=counted.active, mtp=counted.mtp or None, definition=definition)


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
        # The class of an assumed type says nothing about how far this model was trained.
        max_position_embeddings=_first_integer(language, top, *_LONGEST_SEQUENCE, given=assumed),
        hidden_size=_first_integer(language, top, "hidden_size"),
        vocab_size=_first_integer(language, top, "vocab_size"),
        encoder_tokens=reading.encoder_tokens,
        parameters=raw.parameters if counted is None else _parameters(counted, notes, assumed=assumed),
        weights=raw.weights,
        weights_format=raw.weights_format,
        counted=counted,
        quantization=_quantization(language, top),
        bearing=top.bearing() | language.bearing() | _storage(language, top, declared),
        assumed=assumed,
        notes=tuple(notes),
        readings={engine: _stack(layers) for engine, layers in reading.readings.items()},
        facts=model_facts(raw.config),
        config=raw.config,
    )


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
        raise no_layers()
    return Stack(layers)


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


def _first_integer(language: Config, top: Config, *keys: str, given: bool = False) -> int | None:
    """The first of these keys that holds a number, with ``given`` in the file itself.

    It only describes the model, so that a strange value is passed over.
    """
    for config, key in ((config, key) for config in (language, top) for key in keys):
        value = config.get(key) if not given or config.has(key) else None
        if isinstance(value, int) and not isinstance(value, bool) and 0 < value < 2**40:
            return value
    return None
