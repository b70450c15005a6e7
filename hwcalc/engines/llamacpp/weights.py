"""The weights as llama.cpp loads them: every tensor with its bytes, its layer, and where it may lie (llama.cpp 0c1e57098).

Tensors of the input stay on the host (``LLM_TENSOR_LAYER_INPUT``, src/llama-arch.cpp), those of the output follow the last layer, all
others their block. A table that is both embedding and output is on the host as the one and a second time as the other.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Final

from hwcalc.engines.base import Opened
from hwcalc.engines.devices import TensorGroup
from hwcalc.errors import UnsupportedError, UsageError
from hwcalc.formulas.formats import FLOATS
from hwcalc.formulas.frozen import frozen, replace
from hwcalc.model import ModelSpec
from hwcalc.parsers.gguf.hparams import hparams_of
from hwcalc.quantization.ggml import GGML
from hwcalc.quantization.gguf_file import file_groups, gguf_file, mix_bytes, usual_imatrix
from hwcalc.quantization.mix_names import BY_IMATRIX, MIXES
from hwcalc.quantization.mix_places import Family
from hwcalc.quantization.patterns import compiled
from hwcalc.quantization.planned import format_name
from hwcalc.quantization.tensor_names import ROTARY, TABLES, part_of_layer, placed, whole_name
from hwcalc.text import shown

__all__ = [
    "EXPERTS",
    "HOST_BUFFER",
    "Override",
    "WeightGroup",
    "WeightTensor",
    "check_weights",
    "grouped",
    "loaded",
    "loaded_groups",
    "model_tensors",
    "other_sizes",
    "overrides",
    "weight_groups",
    "weight_tensors",
    "with_overrides",
]

EXPERTS: Final = r"\.ffn_(up|down|gate|gate_up)_(ch|)exps"
"""common/common.h ``LLM_FFN_EXPS_REGEX``: what ``--cpu-moe`` and ``--n-cpu-moe`` put on the host."""
HOST_BUFFER: Final = "CPU"
"""The name of the host's buffer type in ``-ot``."""

_FIRST: Final = ("token_embd_norm.", "per_layer_model_proj.", "per_layer_proj_norm.", *ROTARY)
"""Tensors outside the blocks that are loaded with the first."""
_LAZY_BYTES: Final = 4 << 30
"""``lazy_read::add`` of src/llama-model-loader.cpp: larger tables that are only looked up are read from the file row by row."""
_LAZY: Final = frozenset({"per_layer_token_embd.weight"})
_MOST_PATTERNS: Final = 256


@frozen
class WeightTensor:
    """One tensor. ``role`` is ``input``, ``output`` or ``layer``; ``layer`` is -1 for the first two."""

    name: str
    layer: int
    type: str
    bytes: int
    elements: int
    role: str
    expert: bool = False
    columns: int = 0
    """Numbers in a row."""
    tower: bool = False
    """Whether it belongs to a tower, which lies in a file of its own (``--mmproj``)."""
    mtp: bool = False
    """Whether it is for multi-token prediction: loaded only for that."""
    lazy: bool = False
    """Whether its rows are read from the file as they are needed, so that it takes no memory."""
    copy: bool = False
    """Whether it is the second copy of a table, which a tied output needs."""
    buffer: str | None = None
    """The buffer type that an override names; ``None`` without one."""


def check_weights(weights: str | None) -> None:
    """Raise :class:`~hwcalc.errors.UnsupportedError` for a format of ``--weights`` that no GGUF file has."""
    name = format_name(weights)
    if name is None or name in FLOATS or name in MIXES:
        return
    nearest = {"mxfp4": "mxfp4_moe", "int8": "q8_0", "fp8": "q8_0"}.get(name, "q4_k_m")
    raise UnsupportedError(
        f"llama.cpp runs GGUF files, and llama-quantize makes none in {name}.",
        hint=f"Use: --weights {nearest}, or another mix that llama-quantize makes (kvplan dtypes lists them).",
    )


def weight_tensors(opened: Opened) -> tuple[WeightTensor, ...] | None:
    """The tensors of the planned request; ``None`` if they are not known."""
    return model_tensors(opened.model, format_name(opened.request.weights))


def model_tensors(model: ModelSpec, name: str | None = None) -> tuple[WeightTensor, ...] | None:
    """The tensors of a model in the format ``name``; ``None`` is the file as it is, or as the converter makes it.

    The copy of a tied table is listed as the output. ``None`` if the tensors are not known.
    """
    return model.once(("llama.cpp tensors", name), lambda: _model_tensors(model, name))


def _model_tensors(model: ModelSpec, name: str | None) -> tuple[WeightTensor, ...] | None:
    groups = weight_groups(model, name)
    if groups is None:
        return None
    found = [one for group in groups if not group.first.copy for one in group.tensors]
    found.sort(key=lambda placed: (placed[0], placed[1].name))
    return (*(one for _, one in found), *(group.first for group in groups if group.first.copy))


@frozen
class WeightGroup:
    """Tensors that differ in their layer alone. ``layers`` is empty for a tensor outside the layers of the file."""

    stem: str
    first: WeightTensor
    layers: tuple[int, ...]

    @property
    def blocks(self) -> tuple[int, ...]:
        """The layers that they are loaded with."""
        return self.layers or (self.first.layer,)

    @property
    def tensors(self) -> Iterator[tuple[int, WeightTensor]]:
        """Each tensor after its number in the file, which is -1 outside the layers."""
        if not self.layers:
            yield -1, self.first
        for number in self.layers:
            yield number, replace(self.first, name=whole_name(self.stem, number), layer=number)


def weight_groups(model: ModelSpec, name: str | None = None) -> tuple[WeightGroup, ...] | None:
    """The tensors of :func:`model_tensors`, alike ones together, in no order: for sums, which ask for many formats."""
    return model.once(("llama.cpp groups of tensors", name), lambda: _weight_groups(model, name))


def _weight_groups(model: ModelSpec, name: str | None) -> tuple[WeightGroup, ...] | None:
    file, groups = gguf_file(model), file_groups(model, name)
    if file is None or groups is None:
        return None
    row = hparams_of(model).architecture
    found = [
        _weight_group(family, typed.type, layers, file.mtp_from, f"{row.output_norm}.")
        for family, typed in groups
        for layers in _with_drafts_apart(typed.layers, file.mtp_from)
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


def _with_drafts_apart(layers: tuple[int, ...], mtp_from: int) -> Iterator[tuple[int, ...]]:
    """The layers of the trunk and those for multi-token prediction, where there are any."""
    if not layers or max(layers) < mtp_from:
        yield layers
        return
    yield from filter(None, (tuple(number for number in layers if (number >= mtp_from) is draft) for draft in (False, True)))


def _weight_group(family: Family, type_: str, layers: tuple[int, ...], mtp_from: int, output_norm: str) -> WeightGroup:
    role, layer = "layer", layers[0] if layers else -1
    name, size = whole_name(family.stem, layer), family.bytes_as(type_)
    if layer < 0:
        role = "input" if name in TABLES else "output"
        if name.startswith(_FIRST) and not name.startswith(output_norm):
            role, layer = "layer", 0
    first = WeightTensor(
        name=name,
        layer=layer,
        type=type_,
        bytes=size,
        elements=family.elements,
        role=role,
        expert=re.search(EXPERTS, name) is not None,
        columns=family.shape[0],
        mtp=layer >= mtp_from,
        lazy=name in _LAZY and size > _LAZY_BYTES,
    )
    return WeightGroup(stem=family.stem, first=first, layers=layers)


def loaded(tensors: Iterable[WeightTensor], *, mtp: bool = False) -> tuple[WeightTensor, ...]:
    """What takes memory: without prediction layers unless ``mtp`` (``load_mtp``), and without tables that are read row by row."""
    return tuple(one for one in tensors if (mtp or not one.mtp) and not one.lazy)


def loaded_groups(groups: Iterable[WeightGroup], *, mtp: bool = False) -> tuple[WeightGroup, ...]:
    """The same of groups."""
    return tuple(one for one in groups if (mtp or not one.first.mtp) and not one.first.lazy)


def other_sizes(model: ModelSpec, weights: str | None, *, mtp: bool = False) -> tuple[int, ...]:
    """Bytes of the same mix made with, or without, an importance matrix, where that differs."""
    name = format_name(weights)
    if name not in BY_IMATRIX:
        return ()
    row = hparams_of(model).architecture
    found = mix_bytes(model, name, imatrix=not usual_imatrix(name), mtp=mtp and not row.skips_drafts, always=row.always_loaded)
    return () if found is None else (sum(found.values()),)


def grouped(tensors: Iterable[WeightTensor], *, mtp: bool = False) -> tuple[TensorGroup, ...]:
    """The tensors by kind, each once. Those for prediction are apart unless they are loaded (``mtp``)."""
    layers: dict[tuple[str, bool], set[int]] = {}
    types: dict[tuple[str, bool], dict[str, tuple[int, int]]] = {}
    for one in tensors:
        if one.copy:
            continue
        key = (_kind(one), one.mtp and not mtp)
        layers.setdefault(key, set()).add(one.layer)
        stored = types.setdefault(key, {})
        elements, size = stored.get(one.type, (0, 0))
        stored[one.type] = (elements + one.elements, size + one.bytes)
    return tuple(
        TensorGroup(
            kind=kind,
            layers=len(layers[kind, apart]),
            types=tuple((name, GGML[name].bits, *sums) for name, sums in stored.items()),
            mtp=apart,
        )
        for (kind, apart), stored in types.items()
    )


def _kind(one: WeightTensor) -> str:
    if one.role == "input":
        return "embedding"
    stem = placed(one.name)[0]
    if "norm" in stem:
        return "norm"
    if one.role == "output":
        return "head"
    return "experts" if one.expert else part_of_layer(stem)


@frozen
class Override:
    """A pattern of ``-ot`` and the buffer type for the tensors that it finds."""

    pattern: str
    buffer: str


def overrides(override_tensor: str | None = None, *, cpu_moe: bool = False, n_cpu_moe: int | None = None) -> tuple[Override, ...]:
    """The overrides of ``-ot``, ``--cpu-moe`` and ``--n-cpu-moe`` in this order (common/arg.cpp, common/common.h).

    Raises :class:`~hwcalc.errors.UsageError` for a text that llama.cpp would refuse, or that kvplan will not compile.
    """
    found = []
    for part in (override_tensor or "").split(",") if override_tensor else ():
        pattern, equals, buffer = part.partition("=")
        if not equals or not buffer:
            raise UsageError(
                f"override_tensor takes PATTERN=BUFFER, and {shown(part, 60)} has no buffer.",
                hint=r'For example: --engine-option "override_tensor=\.ffn_.*_exps\.=CPU"',
            )
        found.append(Override(pattern=pattern, buffer=buffer))
    if len(found) > _MOST_PATTERNS:
        raise UsageError(f"override_tensor has {len(found)} patterns; kvplan reads up to {_MOST_PATTERNS}.")
    if cpu_moe:
        found.append(Override(pattern=EXPERTS, buffer=HOST_BUFFER))
    if n_cpu_moe:
        # llama.cpp makes a pattern for each layer, which find the same as this one.
        numbers = "|".join(map(str, range(n_cpu_moe)))
        found.append(Override(pattern=rf"blk\.({numbers}){EXPERTS}", buffer=HOST_BUFFER))
    return tuple(found)


def with_overrides(tensors: Iterable[WeightTensor], given: Iterable[Override]) -> tuple[WeightTensor, ...]:
    """The tensors with the buffers that overrides name. The first pattern that is found in a name decides."""
    patterns = [(compiled(one.pattern), one.buffer) for one in given]
    if not patterns:
        return tuple(tensors)
    return tuple(
        replace(one, buffer=next((buffer for pattern, buffer in patterns if pattern.found_in(one.name)), None)) for one in tensors
    )
