"""The tensors of a model as a GGUF file has them: of the file that the model was read from, or of the one that would be made of it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from hwcalc.errors import UnsupportedError
from hwcalc.formulas.formats import FLOATS
from hwcalc.formulas.record import Record
from hwcalc.formulas.weights import Part, Weights
from hwcalc.model import GgufTensor, ModelSpec
from hwcalc.quantization.converted import FOUR_BITS, Conversion, Piece, converted
from hwcalc.quantization.ggml import BLOCKS, FLOAT_TYPES
from hwcalc.quantization.mix_names import MIXES
from hwcalc.quantization.mix_places import Family, MixFacts, Typed
from hwcalc.quantization.tensor_names import placed as placed_tensor
from hwcalc.quantization.tensor_names import whole_name

__all__ = ["FileTensor", "file_groups", "file_tensors", "gguf_file", "mix_bytes", "usual_imatrix"]


class FileTensor(Record):
    """One tensor of a file. ``layer`` is -1 outside the layers; ``shape`` has the row length first."""

    name: str
    layer: int
    type: str
    shape: tuple[int, ...]
    elements: int
    bytes: int


def usual_imatrix(name: str) -> bool:
    """Whether files of this name are made with an importance matrix as a rule: published ones of three bits and fewer are."""
    return name == "iq3_xxs"


def gguf_file(model: ModelSpec) -> Conversion | None:
    """The file; ``None`` if nothing says which tensors it has."""
    if model.gguf is not None:
        gguf = model.gguf
        return (
            model.once("tensors of a GGUF file", lambda: _read(gguf.keys, gguf.tensors, model.counted)) if gguf.tensors else None
        )
    return None if model.counted is None else converted(model)


def check_rows(file: Conversion, name: str) -> None:
    """Raise :class:`~hwcalc.errors.UnsupportedError` if llama.cpp refuses to quantise some tensor in the mix ``name``."""
    from hwcalc.quantization.mixes import refused

    family = refused(file.families, file.placed, file.facts, name)
    if family is not None:
        raise UnsupportedError(
            f"llama.cpp cannot make {name.upper()} of this model: the rows of {family.stem} have {family.shape[0]:,} numbers, "
            f"which are no whole blocks of {BLOCKS[MIXES[name]][0]}.",
            hint="Name another format, such as --weights q2_k.",
        )


def file_tensors(model: ModelSpec, name: str | None, *, imatrix: bool | None = None) -> tuple[FileTensor, ...] | None:
    """All tensors of the file in the format ``name`` of ``--weights``: a mix or a float; ``None`` leaves it as it is, or as converted.

    ``None`` if the tensors are not known, or the format is none that a GGUF file has.
    """
    groups = file_groups(model, name, imatrix=imatrix)
    if groups is None:
        return None
    found = [one for family, group in groups for one in _tensors(family, group)]
    return tuple(sorted(found, key=lambda one: (one.layer, one.name)))


def file_groups(model: ModelSpec, name: str | None, *, imatrix: bool | None = None) -> tuple[tuple[Family, Typed], ...] | None:
    """The same tensors, those of a family and type together."""
    file = gguf_file(model)
    types = None if file is None else _types(file, name, imatrix=imatrix)
    return None if file is None or types is None else tuple((file.families[group.family], group) for group in types)


def _types(file: Conversion, name: str | None, *, imatrix: bool | None) -> tuple[Typed, ...] | None:
    if name is not None and name in MIXES:
        from hwcalc.quantization.mixes import typed

        check_rows(file, name)
        matrix = usual_imatrix(name) if imatrix is None else imatrix
        return _with_kept(file, typed(file.families, file.placed, file.facts, name, imatrix=matrix))
    if name is not None and name not in FLOATS:
        return None
    form = None if name is None else FLOAT_TYPES[name]
    # Only what may be quantised changes its type.
    types = tuple(
        Typed(
            family=one.family,
            type=file.families[one.family].type if form is None or one.place is None else form,
            layers=one.layers,
        )
        for one in file.placed
    )
    return _with_kept(file, types)


def _with_kept(file: Conversion, types: tuple[Typed, ...]) -> tuple[Typed, ...]:
    """The types of a mix, but for what the checkpoint has in four bits already: it stays so where the mix would take more.

    llama-quantize refuses to quantise such tensors again, and everybody who publishes GPT-OSS in other mixes leaves its experts alone.
    """
    return tuple(
        replace(one, type=own)
        if own and file.families[one.family].bytes_as(own) < file.families[one.family].bytes_as(one.type)
        else one
        for one in types
        for own in (_four_bits(file, one.family),)
    )


def _four_bits(file: Conversion, family: int) -> str | None:
    own = file.kept.get(family, file.families[family].type)
    return own if own in FOUR_BITS else None


def _tensors(family: Family, group: Typed) -> Iterator[FileTensor]:
    size = family.bytes_as(group.type)
    for number in group.layers or (-1,):
        name = whole_name(family.stem, number)
        yield FileTensor(name=name, layer=number, type=group.type, shape=family.shape, elements=family.elements, bytes=size)


def mix_bytes(
    model: ModelSpec, name: str, *, imatrix: bool | None = None, mtp: bool = False, always: tuple[str, ...] = ()
) -> dict[str, int] | None:
    """Bytes by type of the file in one mix, without the layers for multi-token prediction unless ``mtp``.

    Their tensors whose names begin as in ``always`` count nevertheless.
    """
    file = gguf_file(model)
    if file is None:
        return None
    types = _types(file, name, imatrix=imatrix)
    if types is None:
        return None
    if not mtp:
        kept = tuple(one for one in types if file.families[one.family].stem.startswith(always))
        others = (one for one in types if not file.families[one.family].stem.startswith(always))
        types = (*kept, *_without_mtp(others, file.mtp_from))
    from hwcalc.quantization.mixes import bytes_by_type

    return bytes_by_type(file.families, types)


def _without_mtp(types: Iterable[Typed], first: int) -> Iterator[Typed]:
    for one in types:
        if not one.layers:
            yield one
        elif rest := tuple(number for number in one.layers if number < first):
            yield one if len(rest) == len(one.layers) else replace(one, layers=rest)


def _read(keys: Mapping[str, Any], tensors: Sequence[GgufTensor], counted: Weights | None = None) -> Conversion:
    """The families of a file's tensors, and where the counted weights, which have their names, lie in them."""
    grouped: dict[tuple[str, tuple[int, ...], str], list[int]] = {}
    for tensor in tensors:
        stem, number = placed_tensor(tensor.name)
        form = tensor.type.lower()
        grouped.setdefault((stem, tensor.shape or (1,), form), []).append(number)
    families = tuple(
        Family(stem=stem, shape=shape, type=form, layers=tuple(sorted(number for number in numbers if number >= 0)))
        for (stem, shape, form), numbers in grouped.items()
    )
    layers = 1 + max((number for family in families for number in family.layers), default=-1)
    facts = _facts(keys, layers)
    prefix = f"{facts.arch}."
    nextn = _whole(keys.get(f"{prefix}nextn_predict_layers"))
    pieces = {} if counted is None else _pieces(counted, families)
    return Conversion(
        families=families, facts=facts, read_pieces=lambda: pieces, mtp_from=facts.n_layer_all - min(nextn, facts.n_layer_all)
    )


def _pieces(counted: Weights, families: Sequence[Family]) -> dict[tuple[str, Part, str], dict[int, tuple[Piece, ...]]]:
    places = {
        (family.stem, number): Piece(family=index, layer=number, elements=family.elements)
        for index, family in enumerate(families)
        for number in family.layers or (-1,)
    }
    found: dict[tuple[str, Part, str], dict[int, tuple[Piece, ...]]] = {}
    for block in counted.blocks:
        for weight in block.weights:
            own = found.setdefault((block.kind, block.part, weight.path), {})
            for number in block.layers or range(block.count):
                piece = places.get((weight.path, number if block.layers else -1))
                own[number] = () if piece is None else (piece,)
    return found


def _facts(keys: Mapping[str, Any], layers: int) -> MixFacts:
    arch = str(keys.get("general.architecture", ""))
    heads, shared = (_first(keys.get(f"{arch}.attention.{name}")) for name in ("head_count", "head_count_kv"))
    shared = heads if shared is None else shared
    count = _whole(keys.get(f"{arch}.block_count")) or layers
    experts = _whole(keys.get(f"{arch}.expert_count"))
    gqa = (heads or 0) // shared if shared else 0
    return MixFacts(arch=arch, n_layer_all=count, n_expert=experts, n_gqa=gqa)


def _whole(value: Any) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0


def _first(value: Any) -> int | None:
    if isinstance(value, (list, tuple)):
        value = value[0] if value else None
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None
