"""What an unknown config says of its layers, in the words of ``--layers-of``: a start for somebody who knows the model.

Which layers are which is read from a list of types, and the parameters of each kind from keys that have its fields' names. A question mark
stands for what the file does not say. Nothing is planned from it.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from hwcalc import formulas
from hwcalc.formulas import LayerKind, NoCache, SharedCache
from hwcalc.formulas.states import StateKind
from hwcalc.parsers.config import ALIASES, MAX_LAYERS, bears_on_memory
from hwcalc.parsers.known_types import SHORT_NAMES
from hwcalc.parsers.written import Parameter, kind_names, parameters_of, pattern_text
from hwcalc.text import by_word

_LONGEST: Final = 700
"""Most characters of a description that a message offers."""
_WORDS: Final[Mapping[str, str]] = by_word(
    {
        "full_attention": "attention full global global_attention softmax self_attention attn f a *",
        "sliding_attention": "sliding sliding_window swa local local_attention window windowed s w",
        "chunked_attention": "chunked chunk chunked_attention", "short_convolution": "conv short_conv convolution",
        "real_gated_lru": "recurrent rglru rg_lru", "gated_delta_net": "gdn deltanet delta_net gated_deltanet gated_delta",
        "lightning_attention": "lightning lightning-attn lightning_attn", "no_cache": "mlp moe ffn - dense sparse",
        "mamba": "mamba ssm m state_space", "linear": "linear linear_attention",
    }
)  # fmt: skip
"""What files call their types of layers. Two words are settled by the keys of the file."""
_PREFIXES: Final = ("mamba_", "ssm_", "linear_", "conv_", "lightning_", "lru_", "attention_", "index_", "")
_OF_ATTENTION: Final = ("num_heads", "head_dim")
"""Fields of states that keys without a prefix give for attention."""
_SIZES: Final = ("hidden_size", "intermediate_size", "vocab_size")


def sketched(raw: Mapping[str, Any]) -> str | None:
    """The words of a command line that describe this config's layers; ``None`` where it says too little, or too much for a message."""
    count = _fact(raw, "num_hidden_layers")
    if count is None or count > MAX_LAYERS:
        return None
    types = _types(raw, count)
    if types is None:
        return None
    words = {name: _kind(raw, name) for name in dict.fromkeys(types)}
    text = pattern_text([words[name] for name in types])
    if len(text) > _LONGEST or set(words.values()) == {"?"}:
        return None
    # Of a model with experts three sizes are not all.
    dense = not any("expert" in str(key) and value for key, value in raw.items())
    sizes = {name: _fact(raw, name) for name in _SIZES}
    flags = [f"--{name.replace('_', '-')} {value}" for name, value in sizes.items()]
    return " ".join((f"--layers-of {shlex.quote(text)}", *(flags if dense and None not in sizes.values() else ())))


def _fact(raw: Mapping[str, Any], name: str) -> int | None:
    """A whole number by one of its names."""
    found = next((raw[key] for key in (name, *ALIASES.get(name, ())) if key in raw), None)
    return found if isinstance(found, int) and not isinstance(found, bool) and found > 0 else None


def _types(raw: Mapping[str, Any], count: int) -> Sequence[str] | None:
    """The type of each layer: by a list of so many words, or one type where no key speaks of several."""
    for key, value in raw.items():
        listed = isinstance(value, (list, tuple)) and len(value) == count and all(isinstance(word, str) for word in value)
        if listed and re.search(r"type|pattern|layer|block|mixer", str(key)) and len(set(value)) <= 8:
            return tuple(value)
    many = any(isinstance(value, (list, tuple, Mapping)) and bears_on_memory(key, value) for key, value in raw.items())
    states = any(
        re.search(r"mamba|ssm|linear_|delta|lru|recurrent|conv|pattern|period|interval|every_n", str(key)) for key in raw
    )
    return None if many or states or not _fact(raw, "num_attention_heads") else ("full_attention",) * count


def _kind(raw: Mapping[str, Any], word: str) -> str:
    """A kind of layer with its parameters, or a question mark for a word that names none."""
    name = _WORDS.get(word.strip().lower()) or kind_names().get(word.strip().lower().replace("-", "_"))
    if name == "mamba":
        name = "mamba2" if any(re.search(r"mamba_(n|num|d)_?head|ngroups|n_groups", str(key)) for key in raw) else "mamba1"
    elif name == "linear":
        name = "gated_delta_net" if "linear_num_value_heads" in raw else None
    elif name == "full_attention" and _fact(raw, "kv_lora_rank"):
        name = "latent_attention"
    if name is None:
        return "?"
    kind = formulas.KINDS[name]
    given = ", ".join(f"{parameter.short}={value}" for parameter, value in _values(raw, kind))
    return f"{SHORT_NAMES.get(name, name)}({given})"


def _values(raw: Mapping[str, Any], kind: type[LayerKind]) -> Iterator[tuple[Parameter, int | str]]:
    """The parameters that the file gives, and those that must be given."""
    hidden, heads = _fact(raw, "hidden_size"), _fact(raw, "num_attention_heads")
    for parameter in parameters_of(kind):
        value: int | None = None
        if kind not in (NoCache, SharedCache):
            value = _value(raw, kind, parameter)
        if value is None and parameter.field == "head_dim" and not issubclass(kind, StateKind) and hidden and heads:
            value = hidden // heads
        if value is None and parameter.field == "d_inner" and hidden:
            factor = raw.get("mamba_expand", raw.get("expand"))
            value = hidden * factor if isinstance(factor, int) else None
        if value is not None:
            yield parameter, value
        elif parameter.required or parameter.field == "num_attention_heads":
            yield parameter, "?"


def _value(raw: Mapping[str, Any], kind: type[LayerKind], parameter: Parameter) -> int | None:
    state = issubclass(kind, StateKind)
    for prefix in _PREFIXES if state else ("",):
        if state and not prefix and parameter.field in _OF_ATTENTION:
            continue
        for name in (parameter.field, *parameter.names):
            for key in (f"{prefix}{name}", f"{prefix}n_{name}", f"{prefix}num_{name}"):
                found = raw.get(key)
                if isinstance(found, int) and not isinstance(found, bool) and found > 0:
                    return found
    return None
