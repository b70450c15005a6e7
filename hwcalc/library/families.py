"""Models by their names alone: which family one is of, and which ids are the same model in another format or on another page."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

_SIZE: Final = re.compile(r"(?:[0-9]+x)?[ae]?[0-9]+(?:[._][0-9]+)?[bmt][0-9]?|[0-9]+e", re.IGNORECASE)
"""A word that says how large a model is: ``8B``, ``0.6B``, ``8x7B``, ``A3B``, ``E4B``, ``135M``, ``16E``."""
_FORMAT: Final = re.compile(
    r"[-_.](?:nvfp4|mxfp4|mxfp8|fp8(?:[-_](?:dynamic|static|block|pertensor))*|bf16|fp16|int[48]|[48]bit|awq(?:[-_]int4)?|"
    r"gptq(?:[-_]int[48])?|w[48]a(?:8|16)|gguf|bnb[-_]?4bit|hf)$",
    re.IGNORECASE,
)
"""The end of a name that says how the weights are kept."""
_LATER: Final = re.compile(
    r"[0-9]{4,}|v[0-9.]+|instruct|chat|base|it|pt|hf|thinking|think|reasoning|plus|small|tiny|micro|mini|medium|large|lite|nano|"
    r"preview|sft|rl|bf16|deep|ultra|super|flash|air|inst|[0-9]+[kt]",
    re.IGNORECASE,
)
"""Words at the end of a name that set members of a family apart, among them dates and versions of a release."""
_RAW: Final = re.compile(r"[-_](?:base|pt)(?:[-_.]|$)", re.IGNORECASE)
_TAUGHT: Final = re.compile(r"[-_](?:instruct|inst|chat|it|sft|think|thinking|reasoning)(?:[-_.]|$)", re.IGNORECASE)
"""Words of a model that has learnt to follow instructions."""
_PRETRAINED: Final = re.compile(r"[-_](?:base|pt|bf16)(?:[-_]|$)", re.IGNORECASE)


class Naming(NamedTuple):
    """What the name of a model says: :func:`family_of`, :func:`same_model`, :func:`is_copy` and :func:`is_pretrained`; and how families
    mark those that have not learnt to follow instructions (``raw``), or those that have (``taught``).
    """

    family: str
    same: str
    copy: bool
    pretrained: bool
    raw: bool
    taught: bool


def naming_of(model_id: str) -> Naming:
    """What a name says.

    >>> naming_of("google/gemma-2-2b-it")
    Naming(family='gemma-2', same='gemma-2-2b-it', copy=False, pretrained=False, raw=False, taught=True)
    """
    name = _plain(model_id)
    raw, taught = (words.search(name) is not None for words in (_RAW, _TAUGHT))
    return Naming(
        family=family_of(model_id),
        same=same_model(model_id),
        copy=is_copy(model_id),
        pretrained=is_pretrained(model_id),
        raw=raw,
        taught=taught,
    )


def family_of(model_id: str) -> str:
    """The name of a model without its size and what follows: what people call the series.

    >>> [family_of(name) for name in ("Qwen/Qwen3-30B-A3B-Instruct-2507", "meta-llama/Meta-Llama-3.1-8B", "google/gemma-3-4b-it")]
    ['Qwen3', 'Llama-3.1', 'gemma-3']
    >>> family_of("deepseek-ai/DeepSeek-V3.1-Terminus"), family_of("microsoft/phi-4"), family_of("openai-community/gpt2-medium")
    ('DeepSeek-V3.1-Terminus', 'phi-4', 'gpt2')
    """
    name = _plain(model_id)
    words = name.split("-")
    sized = next((place for place, word in enumerate(words) if place and _SIZE.fullmatch(word)), len(words))
    kept = words[:sized]
    while len(kept) > 1 and _LATER.fullmatch(kept[-1]) and not (len(kept) == 2 and kept[-1][:1] in "vV" and sized == len(words)):
        kept.pop()
    return "-".join(kept)


def same_model(model_id: str) -> str:
    """A key that ids of one model share: another page of it, or the same weights in another format.

    >>> same_model("nvidia/Qwen3-235B-A22B-NVFP4") == same_model("Qwen/Qwen3-235B-A22B")
    True
    >>> same_model("meta-llama/Meta-Llama-3.1-8B") == same_model("meta-llama/Llama-3.1-8B")
    True
    """
    return _plain(model_id).lower().replace("_", "-")


def is_copy(model_id: str) -> bool:
    """Whether the name says that these are a model's weights in another format."""
    return _FORMAT.search(model_id) is not None


def is_pretrained(model_id: str) -> bool:
    """Whether the name says that the model has not learnt to follow instructions."""
    return _PRETRAINED.search(model_id) is not None


def pretrained_of(family: Iterable[str], naming: Callable[[str], Naming] = naming_of) -> frozenset[str]:
    """Those of a family that have not learnt to follow instructions, by how the family marks its names.

    Where some say that they have learnt it and none says that it has not, those that say nothing have not.

    >>> sorted(pretrained_of(["Qwen/Qwen3-8B", "Qwen/Qwen3-8B-Base"])), sorted(pretrained_of(["google/gemma-2-2b", "google/gemma-2-2b-it"]))
    (['Qwen/Qwen3-8B-Base'], ['google/gemma-2-2b'])
    """
    names = frozenset(family)
    said = {name: naming(name) for name in names}
    raw, taught = (frozenset(name for name, one in said.items() if getattr(one, which)) for which in ("raw", "taught"))
    return raw if raw or not taught else names - taught


def _plain(model_id: str) -> str:
    """The name without its owner, the maker's name in front, and the format at its end."""
    name = model_id.rpartition("/")[2]
    name = re.sub(r"^(?:Meta-(?=Llama)|NVIDIA-(?=Nemotron))", "", name)
    while (shorter := _FORMAT.sub("", name)) != name:
        name = shorter
    return name
