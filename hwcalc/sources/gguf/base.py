"""A GGUF file that cannot be looked at: the catalog may know the model it was made from. Its weights are then worked out by llama.cpp's rule."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from msgspec.structs import replace

from hwcalc.errors import KvplanError
from hwcalc.model import Note, RawModel
from hwcalc.profiles.catalog import list_models
from hwcalc.sources.built_in import find_in_catalog, profile_errors
from hwcalc.sources.gguf.choose import quantization_of
from hwcalc.sources.gguf.names import is_gguf
from hwcalc.sources.nearest import name_parts
from hwcalc.sources.wanted import Absent, Wanted
from hwcalc.text import shown

__all__ = ["base_models", "find_base", "other_format"]

_ENDING: Final = re.compile(r"(?:[-._](?:i1|imatrix|imat))?[-._]GGUF$", re.IGNORECASE)
"""What publishers of GGUF files add to the name of a model."""
_DEFAULT: Final = "Q4_K_M"


def find_base(wanted: Wanted) -> RawModel | Absent:
    """The catalog's model that a repository of GGUF files was made from, with the format of the file that is wanted.

    A note says that this is no look at the file.
    """
    from hwcalc.quantization.planned import format_name

    models = base_models(wanted.id)
    if len(models) != 1 or wanted.revision is not None:
        return Absent(place="")
    word = wanted.file or _DEFAULT
    word = quantization_of(word) if is_gguf(word) else word
    try:
        form = format_name(word) if word else None
    except KvplanError:
        form = None
    if form is None:
        remark = f"the catalog has {models[0]}, but {shown(wanted.file or word)} names no quantisation that kvplan can work out"
        return Absent(place="", remark=remark)
    found = find_in_catalog(Wanted(id=models[0]))
    if isinstance(found, Absent):
        return found
    message = (
        f"The header of this file was not read: planned is {models[0]} of the catalog with --weights {form}, as llama.cpp's rule for "
        "that quantisation stores it. The file itself may differ by a few percent."
    )
    return replace(
        found,
        id=f"{wanted.id}:{wanted.file or word}",
        weights=None,
        weights_format=form,
        notes=(Note(code="gguf-not-read", message=message), *found.notes),
    )


def other_format(word: str) -> tuple[str | None, bool]:
    """The format of ``--weights`` that a word names, and that it does; or the one that is meant, if it is like any."""
    from hwcalc.quantization.mix_names import MIXES
    from hwcalc.quantization.planned import format_name

    try:
        return format_name(word), True
    except KvplanError:
        bare = re.sub(r"[^a-z0-9]", "", word.lower())
        return next((name for name in MIXES if name.replace("_", "") == bare), None), False


def base_models(repository: str) -> tuple[str, ...]:
    """The models of the catalog that have the name of a repository without what makers of GGUF files add to it.

    >>> base_models("bartowski/Meta-Llama-3.1-8B-Instruct-GGUF"), base_models("bartowski/Qwen_Qwen3-8B-GGUF")
    (('NousResearch/Meta-Llama-3.1-8B-Instruct',), ('Qwen/Qwen3-8B',))
    >>> base_models("TheBloke/Llama-2-7B-Chat-GGUF"), base_models("Qwen/Qwen3-8B")
    (('meta-llama/Llama-2-7b-chat-hf',), ())
    """
    name = repository.rpartition("/")[2]
    stem = _ENDING.sub("", name)
    if stem == name:
        return ()
    with profile_errors():
        known = list_models()
    # Some write the first publisher before the name: Qwen_Qwen3-8B.
    whole = tuple(model_id for model_id in known if model_id.lower().replace("/", "_") == stem.lower())
    return whole or _equal(stem, known)


def _equal(stem: str, known: Sequence[str]) -> tuple[str, ...]:
    """The models of that name. Words of its publisher's name may be missing, and ``hf`` at its end."""
    parts = name_parts(stem)
    exact = tuple(model_id for model_id in known if name_parts(model_id.rpartition("/")[2]) == parts)
    if exact:
        return exact
    found = []
    for model_id in known:
        publisher, _, name = model_id.partition("/")
        words = {*name_parts(publisher)}
        own, theirs = (tuple(part for part in one if part not in words) for one in (name_parts(name), parts))
        if own and theirs and (own == theirs or (own[-1] == "hf" and own[:-1] == theirs)):
            found.append(model_id)
    return tuple(found)
