"""Dimensions given by hand: the bare equation without a model, and "what if" beside one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, Final

from msgspec.structs import replace

from hwcalc.errors import ConfigError, KvplanError, UnknownArchitectureError, UnreadKeysError, UsageError
from hwcalc.model import EXAMPLE_PARAMETERS, LEFT_OUT, NO_WEIGHTS, Definition, ModelSpec, Note, RawModel
from hwcalc.parsers.config import MAX_LAYERS, Config
from hwcalc.parsers.parse import parse
from hwcalc.parsers.unknown import HOW_TO_CHANGE, language_config, language_level
from hwcalc.parsers.written import KEYS, by_number, is_written, parse_written
from hwcalc.text import brief

EQUATION: Final = "bare-equation"
"""The id of the model that has no name."""
EXAMPLE: Final = "kvplan --layers 80 --heads 64 --kv-heads 8 --head-dim 128 --seq 32k"

LAYERS_OF: Final = "layers_of"
"""The option that writes layers down, kind by kind."""
_FACTS: Final[Mapping[str, str]] = {
    "layers": "num_hidden_layers", "heads": "num_attention_heads", "kv_heads": "num_key_value_heads", "head_dim": "head_dim",
    "hidden_size": "hidden_size", "intermediate_size": "intermediate_size", "vocab_size": "vocab_size",
}  # fmt: skip
"""Option -> the fact of a config that it gives."""


def equation_model(given: Mapping[str, Any]) -> ModelSpec:
    """The model of the bare equation: plain attention of these dimensions on every layer, or the layers of ``layers_of``.

    With the sizes of its hidden states, MLP and vocabulary the weights are those of a Llama, and with ``parameters`` so many numbers.
    Raises :class:`~hwcalc.errors.UsageError` for dimensions that are missing or make no sense.
    """
    if LAYERS_OF in given:
        return _written(given)
    for name in ("layers", "heads"):
        if name not in given:
            raise UsageError(f"the bare equation needs --{name}.", hint=f"Write: {EXAMPLE}")
    config: dict[str, Any] = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "tie_word_embeddings": False}
    config |= {_FACTS[name]: value for name, value in given.items() if name in _FACTS}
    config.setdefault("num_key_value_heads", given["heads"])
    # What a config would be blamed for by another name.
    heads, kv_heads, hidden = given["heads"], config["num_key_value_heads"], given.get("hidden_size")
    if given["layers"] > MAX_LAYERS:
        raise UsageError(f"--layers is {given['layers']:,}.", hint=f"Allowed: a whole number from 1 to {MAX_LAYERS:,}.")
    if heads % kv_heads:
        message = f"--kv-heads {kv_heads:,} does not divide --heads {heads:,}."
        raise UsageError(message, hint="Each key/value head serves as many query heads.")
    if "head_dim" not in given:
        if hidden is None:
            raise UsageError("the bare equation needs --head-dim.", hint=f"Write: {EXAMPLE}")
        if hidden % heads:
            raise UsageError(f"--heads {heads:,} do not divide --hidden-size {hidden:,}.", hint=f"Write: {EXAMPLE}")
        config["head_dim"] = hidden // heads
    config.setdefault("hidden_size", heads * config["head_dim"])
    spec = _parsed(RawModel(id=EQUATION, config=config, source="options"))
    whole = all(name in given for name in ("hidden_size", "intermediate_size", "vocab_size"))
    of_a_llama = ", and the weights of a Llama with the given sizes." if whole and "parameters" not in given else "."
    message = f"No model is named: plain attention with the given dimensions on every layer{of_a_llama}"
    notes = tuple(each for each in spec.notes if each.code not in ("class-defaults", LEFT_OUT))
    notes = (*notes, Note(code="bare-equation", message=message))
    spec = replace(spec, read_with=_words(given), notes=notes, max_position_embeddings=None)
    if "parameters" in given:
        named = replace(spec, vocab_size=given.get("vocab_size"))
        return by_number(
            named, given["parameters"], "--hidden-size, --intermediate-size and --vocab-size in place of --parameters"
        )
    if whole:
        return spec
    message = f"The weights are not known: give {EXAMPLE_PARAMETERS}, or --hidden-size, --intermediate-size and --vocab-size."
    notes = (*notes, Note(code=NO_WEIGHTS, message=message))
    return replace(spec, counted=None, parameters=None, vocab_size=None, notes=notes)


def _written(given: Mapping[str, Any]) -> ModelSpec:
    """The model whose layers are written down. Raises :class:`~hwcalc.errors.UsageError`."""
    if "layers" in given:
        message = f"{_flag(LAYERS_OF)} writes the layers already, and so their number."
        raise UsageError(message, hint="Leave out --layers; a number stands before a kind: 4*gqa(heads=32, head_dim=128)")
    twice = next((name for name in _FACTS if name in given and name not in KEYS), None)
    if twice is not None:
        message = f"{_flag(LAYERS_OF)} and {_flag(twice)} both say what layers keep."
        raise UsageError(message, hint=f"Change the number in the text of {_flag(LAYERS_OF)}. {HOW_TO_CHANGE}")
    config = {"layers": given[LAYERS_OF], **{name: value for name, value in given.items() if name in KEYS}}
    try:
        spec = parse_written(RawModel(id="written-layers", config=config, source="options"))
    except ConfigError as error:
        raise UsageError(f"{_flag(LAYERS_OF)}: {error.message}", hint=error.hint) from error
    return replace(spec, read_with=_words(given))


class Changes:
    """The models that a description has with other dimensions than its own; every number of them is assumed, and a note names what was changed."""

    def __init__(self, raw: RawModel, assume: str | None) -> None:
        self._raw, self._assume = raw, assume
        self._followed: set[str] = set()
        """Dimensions that the model was seen to follow."""

    @cached_property
    def _own(self) -> tuple[ModelSpec, Config]:
        """The model as it is, and the level of its description that has the dimensions."""
        return parse(self._raw, assume=self._assume), language_config(self._raw, self._assume)

    def model(self, given: Mapping[str, Any]) -> ModelSpec:
        """The model with these dimensions.

        Raises :class:`~hwcalc.errors.UsageError` for a dimension that the model cannot have, or that changes nothing.
        """
        raw, assume = self._raw, self._assume
        if LAYERS_OF in given:
            message = f"{_flag(LAYERS_OF)} describes all layers of a model, and {raw.id} has its own."
            raise UsageError(message, hint="Leave out the MODEL, or the layers.")
        if is_written(raw.config):
            hint = f"Change its layers, in a copy of the file to keep both. {HOW_TO_CHANGE}"
            raise UsageError(f"{raw.id} is written down: it has no dimensions to change.", hint=hint)
        if "parameters" in given:
            message = "--parameters counts the weights of the bare equation; those of a MODEL follow from its config."
            raise UsageError(message, hint="Leave it out, or leave out the MODEL.")
        try:
            own, level = self._own
        except (UnknownArchitectureError, UnreadKeysError) as error:
            raise self._changed(error, given) from error
        spec = _parsed(_with(raw, level, given), assume)
        values = {name: level.get(_FACTS[name]) for name in given}
        for name in given:
            if given[name] == values[name] or name in self._followed:
                continue
            others = {key: value for key, value in given.items() if key != name}
            try:
                without = parse(_with(raw, level, others), assume=assume)
            except KvplanError:
                continue
            if _same(without, spec) and not _follows(raw, level, given, name, assume):
                kinds = ", ".join(dict.fromkeys(group.kind.title for group in own.stack.groups))
                message = f"{_flag(name)} changes nothing: a {own.model_type} model with {kinds} does not follow it."
                raise UsageError(message, hint="Leave it out.")
            self._followed.add(name)
        changes = ", ".join(
            f"{_FACTS[name]} {given[name]:,}" + ("" if values[name] is None else f" instead of {brief(str(values[name]), 40)}")
            for name in given
        )
        message = f"What if: {changes}. The numbers are those of the changed config, not of the model's files."
        note = Note(code="what-if", message=message)
        spec = replace(spec, variants={engine: _assumed(variant, note, given) for engine, variant in spec.variants.items()})
        return _assumed(spec, note, given)

    def _changed(self, error: ConfigError, given: Mapping[str, Any]) -> ConfigError:
        """The error about a model that is not known, whose hint has these dimensions where its commands can have them."""
        try:
            parse(_with(self._raw, language_level(Config(self._raw.config), None), given), assume=self._assume)
        except (UnknownArchitectureError, UnreadKeysError) as changed:
            error = changed if changed.written else error
        except KvplanError:
            pass
        if error.command is not None:
            try:
                Changes(self._raw, error.command[1]["assume"]).model(given)
            except KvplanError:
                error.left_out = tuple(given)
        return error


def _same(one: ModelSpec, other: ModelSpec) -> bool:
    return one.stack == other.stack and one.counted == other.counted


def _follows(raw: RawModel, level: Config, given: Mapping[str, int], name: str, assume: str | None) -> bool:
    """True if another value of a dimension would change the model: a config may leave out what it derives and have it."""
    here = _parsed(_with(raw, level, given), assume)
    for value in (2 * given[name], 1):
        try:
            return not _same(here, parse(_with(raw, level, {**given, name: value}), assume=assume))
        except KvplanError:
            continue
    return False


def _assumed(spec: ModelSpec, note: Note, given: Mapping[str, int]) -> ModelSpec:
    """The model with every number marked as assumed, and with the options that it was read with."""
    parameters = spec.parameters and replace(spec.parameters, definition=Definition.ASSUMED)
    words = (*spec.read_with, *_words(given))
    return replace(spec, assumed=True, notes=(*spec.notes, note), parameters=parameters, read_with=words)


def _with(raw: RawModel, level: Config, given: Mapping[str, int]) -> RawModel:
    """The description with these dimensions, under the names that the file has for them; without facts about its files."""
    changed = dict(level.raw)
    for name, value in given.items():
        names: Sequence[str] = level.names(_FACTS[name])
        place = next((key for key in names if key in changed), names[-1] if level.has_class else _FACTS[name])
        changed = {key: kept for key, kept in changed.items() if key not in names} | {place: value}
    path = level.where.split(".") if level.where else []
    return replace(raw, config=_placed(raw.config, path, changed), parameters=None, weights=None)


def _placed(document: Mapping[str, Any], path: list[str], inner: Mapping[str, Any]) -> Mapping[str, Any]:
    """The document with another level at this path."""
    if not path:
        return inner
    below = document.get(path[0])
    return {**document, path[0]: _placed(below if isinstance(below, Mapping) else {}, path[1:], inner)}


def _parsed(raw: RawModel, assume: str | None = None) -> ModelSpec:
    """Read a changed config. What is wrong with it is wrong with the options, and the message names them."""
    try:
        return parse(raw, assume=assume)
    except ConfigError as error:
        message = error.message
        for name, fact in _FACTS.items():
            message = message.replace(fact, f"{_flag(name)} ({fact})")
        raise UsageError(f"these dimensions do not go together: {message}", hint=error.hint) from error


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _words(given: Mapping[str, int]) -> tuple[str, ...]:
    return tuple(word for name, value in given.items() for word in (_flag(name), str(value)))
