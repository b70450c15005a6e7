"""The tensors of a file as llama.cpp loads them, alike ones together: each with its bytes, its layers, and where it may lie (0c1e57098).

Tensors of the input stay on the host (``LLM_TENSOR_LAYER_INPUT``, src/llama-arch.cpp), those of the output follow the last layer, all
others their block. A table that is both embedding and output is on the host as the one and a second time as the other. Patterns of the user
put some elsewhere (``-ot``, ``--cpu-moe``, ``--n-cpu-moe``), and where no GPU is used, some are laid out anew for the processor
(ggml/src/ggml-cpu/repack.cpp, its ``CPU_REPACK`` buffers). Beside a GPU, what stays on the host lies in a buffer of the GPU's driver
(``make_cpu_buft_list`` of src/llama-model.cpp). Each tensor is needed once: the pages of the file that it came from are not read again, and
the system drops them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final

from msgspec.structs import replace

from hwcalc.engines.devices import TensorGroup
from hwcalc.engines.memory import BudgetPart, Section
from hwcalc.errors import UsageError
from hwcalc.formulas.record import Record
from hwcalc.model import ModelSpec, Note
from hwcalc.parsers.gguf.hparams import hparams_of
from hwcalc.quantization.ggml import BY_IMATRIX, GGML, ROTARY, TABLES, part_of_layer, placed, whole_name
from hwcalc.quantization.gguf import file_groups, gguf_file, mix_bytes, usual_imatrix
from hwcalc.quantization.planned import format_name
from hwcalc.text import shown
from hwcalc.units import human_bytes

if TYPE_CHECKING:
    from hwcalc.engines.llamacpp.engine import LlamacppDeployment
    from hwcalc.quantization.converted import Conversion


class WeightTensor(Record):
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
    """True if it belongs to a tower, which lies in a file of its own (``--mmproj``)."""
    mtp: bool = False
    """True if it is for multi-token prediction: loaded only for that."""
    lazy: bool = False
    """True if its rows are read from the file as they are needed, so that it takes no memory."""
    copy: bool = False
    """True if it is the second copy of a table, which a tied output needs."""
    buffer: str | None = None
    """The buffer type that an override names; ``None`` without one."""


class WeightGroup(Record):
    """Tensors that differ in their layer alone. ``layers`` is empty for a tensor outside the layers of the file."""

    stem: str
    first: WeightTensor
    layers: tuple[int, ...]

    @property
    def blocks(self) -> tuple[int, ...]:
        """The layers that they are loaded with."""
        return self.layers or (self.first.layer,)


def in_file_order(groups: Iterable[WeightGroup]) -> Iterator[tuple[int, WeightGroup]]:
    """Each tensor of a file by its number, which is -1 outside the layers, and its group; copies of tables stand last."""
    given = tuple(groups)
    outside = sorted((one for one in given if not one.layers and not one.first.copy), key=lambda one: one.first.name)
    yield from ((-1, one) for one in outside)
    layers: dict[int, list[WeightGroup]] = {}
    # In every layer the names follow each other as they do in the first.
    for one in sorted((one for one in given if one.layers and not one.first.copy), key=lambda one: whole_name(one.stem, 0)):
        for number in one.layers:
            layers.setdefault(number, []).append(one)
    for number in sorted(layers):
        yield from ((number, layer) for layer in layers[number])
    yield from ((-1, one) for one in given if one.first.copy)


def loaded(tensors: Iterable[WeightTensor], *, mtp: bool = False) -> tuple[WeightTensor, ...]:
    """The tensors that take memory: without prediction layers unless ``mtp`` (``load_mtp``), and without tables that are read row by row."""
    return tuple(tensor for tensor in tensors if (mtp or not tensor.mtp) and not tensor.lazy)


def loaded_groups(groups: Iterable[WeightGroup], *, mtp: bool = False) -> tuple[WeightGroup, ...]:
    """The groups of tensors that take memory, as :func:`loaded`."""
    return tuple(group for group in groups if (mtp or not group.first.mtp) and not group.first.lazy)


def grouped(groups: Iterable[WeightGroup], *, mtp: bool = False) -> tuple[TensorGroup, ...]:
    """The tensors by kind, each once. Those for prediction are apart unless they are loaded (``mtp``)."""
    layers: dict[tuple[str, bool], set[int]] = {}
    types: dict[tuple[str, bool], dict[str, tuple[int, int]]] = {}
    given = [one for one in groups if not one.first.copy]
    outside = sorted((one for one in given if not one.layers), key=lambda one: one.first.name)
    # By their first tensor, as in `in_file_order`.
    inside = sorted((one for one in given if one.layers), key=lambda one: (min(one.layers), whole_name(one.stem, 0)))
    for group in (*outside, *inside):
        one, count = group.first, len(group.blocks)
        layer = "experts" if one.expert else part_of_layer(group.stem)
        other = "norm" if "norm" in group.stem else "head" if one.role == "output" else layer
        kind = "embedding" if one.role == "input" else other
        key = (kind, one.mtp and not mtp)
        layers.setdefault(key, set()).update(group.blocks)
        stored = types.setdefault(key, {})
        elements, size = stored.get(one.type, (0, 0))
        stored[one.type] = (elements + count * one.elements, size + count * one.bytes)
    return tuple(
        TensorGroup(
            kind=kind,
            layers=len(layers[kind, apart]),
            types=tuple((name, GGML[name].bits, *sums) for name, sums in stored.items()),
            mtp=apart,
        )
        for (kind, apart), stored in types.items()
    )


EXPERTS: Final = r"\.ffn_(up|down|gate|gate_up)_(ch|)exps"
"""common/common.h ``LLM_FFN_EXPS_REGEX``: what ``--cpu-moe`` and ``--n-cpu-moe`` put on the host."""
_MOST_PATTERNS: Final = 256


class Override(Record):
    """A pattern of ``-ot`` and the buffer type of the tensors whose names it matches."""

    pattern: str
    buffer: str


def overrides(override_tensor: str) -> tuple[Override, ...]:
    """The overrides of ``-ot``, in their order (common/arg.cpp, common/common.h).

    Raises :class:`~hwcalc.errors.UsageError` for a text that llama.cpp would refuse, or that kvplan will not compile.
    """
    parsed = []
    for part in override_tensor.split(",") if override_tensor else ():
        pattern, equals, buffer = part.partition("=")
        if not equals or not buffer:
            message = f"override_tensor takes PATTERN=BUFFER, and {shown(part, 60)} has no buffer."
            raise UsageError(message, hint=r'For example: --engine-option "override_tensor=\.ffn_.*_exps\.=CPU"')
        parsed.append(Override(pattern=pattern, buffer=buffer))
    if len(parsed) > _MOST_PATTERNS:
        raise UsageError(f"override_tensor has {len(parsed)} patterns; kvplan reads up to {_MOST_PATTERNS}.")
    return tuple(parsed)


def with_overrides(tensors: Iterable[WeightTensor], given: Iterable[Override]) -> tuple[WeightTensor, ...]:
    """The tensors with the buffers that overrides name. The first pattern that is found in a name decides."""
    named = tuple(given)
    if not named:
        return tuple(tensors)
    from hwcalc.quantization.patterns import compiled

    patterns = [(compiled(one.pattern), one.buffer) for one in named]
    return tuple(
        replace(tensor, buffer=next((buffer for pattern, buffer in patterns if pattern.found_in(tensor.name)), None))
        for tensor in tensors
    )


PROCESSORS: Final = {
    "x86 with AVX2": {"Q4_0": 8, "Q4_K": 8, "IQ4_NL": 8, "MXFP4": 8},
    "x86 with AVX-512": {"Q4_0": 8, "Q4_K": 8, "IQ4_NL": 8, "MXFP4": 8, "Q2_K": 8},
    "ARM": {"Q4_0": 4, "Q4_K": 8, "Q5_K": 8, "Q6_K": 8, "IQ4_NL": 4, "MXFP4": 4, "Q8_0": 4, "Q1_0": 4},
}
"""The formats that ``ggml_repack_get_optimal_repack_type`` has a layout for, and what the rows of a matrix must be a multiple of."""


_BY_HEAD: Final = (".attn_k_b.", ".attn_v_b.")
"""A matrix for each head in one tensor, which is none of experts: ``extra_buffer_type::supports_op`` has no layout for it."""


def repacked_bytes(deployment: LlamacppDeployment, *, copies: bool = False) -> dict[str, int]:
    """Bytes of the matrices that are laid out anew, by kind of processor; ``copies``: of second copies of a table alone.

    Tables of rows are not among them.
    """
    sizes = dict.fromkeys(PROCESSORS, 0)
    if deployment.options.no_repack:
        return sizes
    for tensor in loaded(deployment.weight_tensors or (), mtp=deployment.context.load_mtp):
        apart = tensor.role == "input" or tensor.tower or tensor.buffer is not None or (copies and not tensor.copy)
        if apart or not tensor.columns or any(name in tensor.name for name in _BY_HEAD):
            continue
        rows = tensor.elements // tensor.columns // (max(1, deployment.hparams.n_expert) if tensor.expert else 1)
        for processor, multiples in PROCESSORS.items():
            sizes[processor] += 0 if rows % multiples.get(tensor.type.upper(), rows + 1) else tensor.bytes
    return sizes


def repacked_output(deployment: LlamacppDeployment) -> tuple[BudgetPart, ...]:
    """The memory of the second copy of the embedding, where it is the output too and is laid out anew; else empty."""
    sizes = tuple(repacked_bytes(deployment, copies=True).values())
    if not any(sizes):
        return ()
    low, high = min(sizes), max(sizes)
    source = "ggml/src/ggml-cpu/repack.cpp: a tied output in a layout for the processor, if that has one for its format"
    return (BudgetPart(name="repacked output", section=Section.OVERHEAD, low=low, expected=sizes[0], high=high, source=source),)


def repacked_note(deployment: LlamacppDeployment) -> tuple[Note, ...]:
    """A note on the pages of the file that a process seems to take in addition; empty if nothing is laid out anew."""
    sizes = repacked_bytes(deployment)
    if not any(sizes.values()):
        return ()
    most = human_bytes(max(sizes.values()))
    each = ", ".join(f"{human_bytes(size)} on {processor}" for processor, size in sizes.items())
    message = (
        f"llama.cpp lays weights out anew for the processor (CPU_REPACK in its log: {each}), so the process can seem to take up to {most} "
        "more: pages of the file, which the system drops when memory is short. Not with --engine-option no_extra_bufts=true."
    )
    return (Note(code="cpu-repack", message=message),)


def groups_key(name: str | None) -> tuple[str, str | None]:
    """The key under which a model keeps the result of :func:`weight_groups`."""
    return "llama.cpp groups of tensors", name


def model_tensors(model: ModelSpec, name: str | None = None) -> tuple[WeightTensor, ...] | None:
    """The tensors of a model in the format ``name``; ``None`` is the file as it is, or as the converter makes it.

    The copy of a tied table is listed as the output. ``None`` if the tensors are not known.
    """

    def make() -> tuple[WeightTensor, ...] | None:
        groups = weight_groups(model, name)
        if groups is None:
            return None
        return tuple(
            group.first if number < 0 else replace(group.first, name=whole_name(group.stem, number), layer=number)
            for number, group in in_file_order(groups)
        )

    return model.once(("llama.cpp tensors", name), make)


_FIRST: Final = ("token_embd_norm.", "per_layer_model_proj.", "per_layer_proj_norm.", *ROTARY)
"""Tensors outside the blocks that are loaded with the first."""
_LAZY_BYTES: Final = 4 << 30
"""``lazy_read::add`` of src/llama-model-loader.cpp: larger tables that are only looked up are read from the file row by row."""
_LAZY: Final = frozenset({"per_layer_token_embd.weight"})


def weight_groups(model: ModelSpec, name: str | None = None) -> tuple[WeightGroup, ...] | None:
    """The tensors of :func:`model_tensors` in groups that differ in their layer alone, in no order; ``None`` if they are not known."""

    def make() -> tuple[WeightGroup, ...] | None:
        file, groups = gguf_file(model), file_groups(model, name)
        if file is None or groups is None:
            return None
        row = hparams_of(model).architecture
        # What stands where is the same in all formats.
        places = model.once("llama.cpp places of tensors", lambda: _places(file, f"{row.output_norm}."))
        found: list[WeightGroup] = []
        for (family, typed), place in zip(groups, places, strict=True):
            size = family.bytes_as(typed.type)
            for layers, told in place:
                lazy = told["name"] in _LAZY and size > _LAZY_BYTES
                first = WeightTensor(**told, type=typed.type, bytes=size, lazy=lazy)
                found.append(WeightGroup(stem=family.stem, first=first, layers=layers))
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

    return model.once(groups_key(name), make)


def _places(file: Conversion, output_norm: str) -> list[list[tuple[tuple[int, ...], dict[str, Any]]]]:
    """The layers of each group of tensors, and what is known of the first of them whatever its type."""
    places = []
    for one in file.placed:
        family, apart = file.families[one.family], [one.layers]
        if one.layers and max(one.layers) >= file.mtp_from:
            # The layers of the trunk, and those for multi-token prediction.
            both = (tuple(number for number in one.layers if (number >= file.mtp_from) is draft) for draft in (False, True))
            apart = list(filter(None, both))
        place = []
        for layers in apart:
            role, layer = "layer", layers[0] if layers else -1
            name = whole_name(family.stem, layer)
            if layer < 0:
                role = "input" if name in TABLES else "output"
                if name.startswith(_FIRST) and not name.startswith(output_norm):
                    role, layer = "layer", 0
            told = {
                "name": name,
                "layer": layer,
                "elements": family.elements,
                "role": role,
                "expert": "exps" in name and re.search(EXPERTS, name) is not None,
                "columns": family.shape[0],
                "mtp": layer >= file.mtp_from,
            }
            place.append((layers, told))
        places.append(place)
    return places


def other_sizes(model: ModelSpec, weights: str | None, *, mtp: bool = False) -> tuple[int, ...]:
    """Bytes of the same mix made with, or without, an importance matrix, where that differs."""
    name = format_name(weights)
    if name not in BY_IMATRIX:
        return ()
    row = hparams_of(model).architecture
    found = mix_bytes(model, name, imatrix=not usual_imatrix(name), mtp=mtp and not row.skips_drafts, always=row.always_loaded)
    return () if found is None else (sum(found.values()),)
