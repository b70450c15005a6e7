"""The weights as llama.cpp loads them: every tensor with its bytes, its layer, and where it may lie (llama.cpp 0c1e57098).

Tensors of the input stay on the host (``LLM_TENSOR_LAYER_INPUT``, src/llama-arch.cpp), those of the output follow the last layer, all
others their block. A table that is both embedding and output is on the host as the one and a second time as the other.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from msgspec.structs import replace

from hwcalc.engines.llamacpp.tensors import WeightGroup, WeightTensor
from hwcalc.model import ModelSpec
from hwcalc.parsers.gguf.hparams import hparams_of
from hwcalc.quantization.ggml import BY_IMATRIX, ROTARY, TABLES, placed, whole_name
from hwcalc.quantization.gguf import file_groups, gguf_file, mix_bytes, usual_imatrix
from hwcalc.quantization.planned import format_name

if TYPE_CHECKING:
    from hwcalc.model import ModelSpec
    from hwcalc.quantization.converted import Conversion
    from hwcalc.quantization.mixes import Family

_FIRST: Final = ("token_embd_norm.", "per_layer_model_proj.", "per_layer_proj_norm.", *ROTARY)
"""Tensors outside the blocks that are loaded with the first."""
_LAZY_BYTES: Final = 4 << 30
"""``lazy_read::add`` of src/llama-model-loader.cpp: larger tables that are only looked up are read from the file row by row."""
_LAZY: Final = frozenset({"per_layer_token_embd.weight"})


def groups_of(model: ModelSpec, name: str | None) -> tuple[WeightGroup, ...] | None:
    """The tensors of a model in the format ``name``, alike ones together; ``None`` if they are not known."""
    file, groups = gguf_file(model), file_groups(model, name)
    if file is None or groups is None:
        return None
    row = hparams_of(model).architecture
    # What stands where is the same in all formats.
    places = model.once("llama.cpp places of tensors", lambda: _places(file, f"{row.output_norm}."))
    found = [
        _weight_group(family, typed.type, layers, told)
        for (family, typed), place in zip(groups, places, strict=True)
        for layers, told in place
    ]
    has_output = any(one.first.name == "output.weight" for one in found)
    table = next((one for one in found if one.first.name == "token_embd.weight"), None)
    if table is not None and not has_output and row.token_output:
        found.append(replace(table, first=replace(table.first, role="output", copy=True)))
    if row.skips_drafts:
        found = [one for one in found if not one.first.mtp]
    return tuple(
        replace(one, first=replace(one.first, mtp=False))
        if one.first.mtp and placed(one.first.name)[0].startswith(row.always_loaded)
        else one
        for one in found
    )


def _places(file: Conversion, output_norm: str) -> list[list[tuple[tuple[int, ...], dict[str, Any]]]]:
    """The layers of each group of tensors, and what is known of the first of them whatever its type."""
    return [
        [
            (layers, _told(file.families[one.family], layers, file.mtp_from, output_norm))
            for layers in _with_drafts_apart(one.layers, file.mtp_from)
        ]
        for one in file.placed
    ]


def _with_drafts_apart(layers: tuple[int, ...], mtp_from: int) -> Iterator[tuple[int, ...]]:
    """The layers of the trunk and those for multi-token prediction, where there are any."""
    if not layers or max(layers) < mtp_from:
        yield layers
        return
    yield from filter(None, (tuple(number for number in layers if (number >= mtp_from) is draft) for draft in (False, True)))


def _told(family: Family, layers: tuple[int, ...], mtp_from: int, output_norm: str) -> dict[str, Any]:
    role, layer = "layer", layers[0] if layers else -1
    name = whole_name(family.stem, layer)
    if layer < 0:
        role = "input" if name in TABLES else "output"
        if name.startswith(_FIRST) and not name.startswith(output_norm):
            role, layer = "layer", 0
    return {
        "name": name,
        "layer": layer,
        "elements": family.elements,
        "role": role,
        "expert": "exps" in name and _is_of_experts(name),
        "columns": family.shape[0],
        "tower": False,
        "mtp": layer >= mtp_from,
        "copy": False,
        "buffer": None,
    }


def _is_of_experts(name: str) -> bool:
    from hwcalc.engines.llamacpp.overrides import EXPERTS

    return re.search(EXPERTS, name) is not None


def _weight_group(family: Family, type_: str, layers: tuple[int, ...], told: dict[str, Any]) -> WeightGroup:
    size = family.bytes_as(type_)
    lazy = told["name"] in _LAZY and size > _LAZY_BYTES
    first = WeightTensor(**told, type=type_, bytes=size, lazy=lazy)
    return WeightGroup(stem=family.stem, first=first, layers=layers)


def other_sizes(model: ModelSpec, weights: str | None, *, mtp: bool = False) -> tuple[int, ...]:
    """Bytes of the same mix made with, or without, an importance matrix, where that differs."""
    name = format_name(weights)
    if name not in BY_IMATRIX:
        return ()
    row = hparams_of(model).architecture
    found = mix_bytes(model, name, imatrix=not usual_imatrix(name), mtp=mtp and not row.skips_drafts, always=row.always_loaded)
    return () if found is None else (sum(found.values()),)
