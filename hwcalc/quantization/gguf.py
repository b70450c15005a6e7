"""The weights of a model as a GGUF file has them: of the file itself, or of a mix of llama.cpp such as Q4_K_M.

:mod:`hwcalc.quantization.converted` says which tensors the file has, and :mod:`hwcalc.quantization.mixes` which type each gets.
Towers lie in a file of their own, in 16 bits. With an importance matrix, a few mixes choose otherwise: both are counted.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, Final

from msgspec import field
from msgspec.structs import replace

from hwcalc.errors import UnsupportedError
from hwcalc.formulas.formats import FLOATS, FP16, FP32, WeightFormat
from hwcalc.formulas.record import Record
from hwcalc.formulas.weights import Block, Part, Weight, WeightRole, Weights
from hwcalc.model import GgufTensor, ModelSpec
from hwcalc.quantization.converted import FOUR_BITS, Conversion, Piece, converted
from hwcalc.quantization.ggml import BLOCKS, BY_IMATRIX, FLOAT_TYPES, GGML, MIXES, placed, whole_name
from hwcalc.quantization.ggml import placed as placed_tensor
from hwcalc.quantization.mixes import Family, MixFacts, Typed, typed
from hwcalc.quantization.scheme import Portion, Rule, Scheme


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


def mix(name: str, model: ModelSpec) -> Mix:
    """The mix of this name for a model. Its ``others`` are the same mix made with an importance matrix, where that differs.

    Raises :class:`~hwcalc.errors.UnsupportedError` if llama.cpp refuses the rows of some tensor.
    """
    usual, file = usual_imatrix(name), gguf_file(model) or converted(model)
    check_rows(file, name)
    made = Mix(name=name, rules=(Rule(format=GGML[MIXES[name]]),), conversion=file, imatrix=usual)
    return made if name not in BY_IMATRIX else replace(made, others=(replace(made, imatrix=not usual),))


_MATRICES: Final = (WeightRole.LINEAR, WeightRole.EXPERT, WeightRole.HEAD, WeightRole.EMBEDDING)


class Mix(Scheme):
    """One mix of llama.cpp for one model."""

    conversion: Conversion
    imatrix: bool = False

    def portions(self, block: Block, weight: Weight, unquantised: WeightFormat) -> Iterator[Portion]:
        """The types of a tensor, each with its numbers and bytes. A cut weight has its share of both."""
        if block.part not in (Part.LANGUAGE, Part.ENCODER, Part.MTP):
            form = FP16 if len(weight.shape) > 1 else FP32
            yield Portion(format=form, elements=block.count * weight.elements, bytes=block.count * form.bytes(weight))
            return
        places = self.conversion.pieces.get((block.kind, block.part, weight.path))
        if places is None:
            yield from self._added(block, weight)
            return
        numbers = range(block.count) if block.layers is None else block.layers
        sums: dict[str, list[int]] = {}
        for number in numbers:
            pieces = places.get(number, ())
            whole = sum(piece.elements for piece in pieces)
            for piece in pieces:
                elements, size, name = self._stored(piece)
                found = sums.setdefault(name, [0, 0])
                found[0] += elements * weight.elements // whole
                found[1] += -(-size * weight.elements // whole)
        for name, (elements, size) in sums.items():
            yield Portion(format=GGML[name], elements=elements, bytes=size)

    def bytes(self, block: Block, weight: Weight, unquantised: WeightFormat) -> int:
        return sum(portion.bytes for portion in self.portions(block, weight, unquantised))

    def _added(self, block: Block, weight: Weight) -> Iterator[Portion]:
        """A weight that the file does not have: prediction layers that the converter leaves out, or a table that an engine copies."""
        if block.part is Part.MTP:
            return
        form = self.main if len(weight.shape) == 2 and weight.role in _MATRICES else FP32
        if weight.role is WeightRole.HEAD:
            form = next((GGML[self._types[place][-1]] for place in self._tables), form)
        form = form if not weight.shape[-1] % (form.group or 1) else FP16
        yield Portion(format=form, elements=block.count * weight.elements, bytes=block.count * form.bytes(weight))

    @property
    def _tables(self) -> Iterator[int]:
        """The families of the output table, or else of the embedding that stands for it."""
        stems = {family.stem: place for place, family in enumerate(self.conversion.families) if not family.layers}
        return (stems[name] for name in ("output.weight", "token_embd.weight") if name in stems)

    @property
    def main(self) -> WeightFormat:
        """The type that the mix is named after."""
        return GGML[MIXES[self.name]]

    def _stored(self, piece: Piece) -> tuple[int, int, str]:
        """Numbers, bytes and type of a piece in one layer."""
        family = self.conversion.families[piece.family]
        name = self._types[piece.family][piece.layer]
        return piece.elements, family.bytes_as(name, piece.elements), name

    @cached_property
    def _types(self) -> Mapping[int, Mapping[int, str]]:
        """Family -> layer -> type."""
        found: dict[int, dict[int, str]] = {}
        for one in self.typed:
            found.setdefault(one.family, {}).update(dict.fromkeys(one.layers or (-1,), one.type))
        return found

    @cached_property
    def typed(self) -> tuple[Typed, ...]:
        """All tensors of the file with their types."""
        return typed(self.conversion.families, self.conversion.placed, self.conversion.facts, self.name, imatrix=self.imatrix)


PUBLISHED_MIXES: Final = (
    "q8_0", "q6_k", "q5_k_m", "q5_k_s", "q4_k_m", "q4_k_s", "iq4_xs", "q3_k_l", "q3_k_m", "iq3_m", "q3_k_s", "iq3_xxs",
)  # fmt: skip
"""What a model's page on the Hub usually has (bartowski's and unsloth's, 2025 and 2026). Files of fewer bits are there too, for who asks
for them by name: their answers suffer. More than eight bits gain nothing."""

_FOUR_BITS: Final = "mxfp4"
_REPACKED: Final = "mxfp4_moe"
"""The file type whose experts are MXFP4 (``LLAMA_FTYPE_MOSTLY_MXFP4_MOE``): the converter repacks those of a checkpoint as they are."""


def own_format(model: ModelSpec) -> tuple[str | None] | None:
    """The format in which the weights of a model are: that of its GGUF file (``None``, as it is), or of a checkpoint whose experts are MXFP4.

    No format at all for weights of 16 or 8 bits, which every mix makes smaller, nor for NVFP4: such checkpoints are copies of models in
    16 bits, of which the published files are made.
    """
    from hwcalc.quantization.converted import converted

    if model.gguf is not None:
        return (None,) if model.gguf.tensors else None
    kept = set(() if model.counted is None else converted(model).kept.values())
    return (_REPACKED,) if kept == {_FOUR_BITS} else None


def published_formats(model: ModelSpec) -> tuple[str | None, ...]:
    """The formats in which people publish a model for llama.cpp: its own, if it has one, and the mixes that make that smaller."""
    own = own_format(model)
    return PUBLISHED_MIXES if own is None else model.once("published formats", lambda: (*own, *_smaller(model, own[0])))


def _smaller(model: ModelSpec, own: str | None) -> Iterator[str]:
    """The mixes in which the weights that have four bits already take less: to quantise them again for more loses and gains nothing."""
    from hwcalc.errors import UnsupportedError

    stored = [one for one in file_tensors(model, own) or () if model.gguf is not None or one.type == _FOUR_BITS]
    names = {one.name for one in stored}
    for name in PUBLISHED_MIXES:
        try:
            made = file_tensors(model, name) or ()
        except UnsupportedError:
            continue
        if sum(one.bytes for one in made if one.name in names) < sum(one.bytes for one in stored):
            yield name


def mix_sizes(model: ModelSpec, names: Iterable[str | None], always: tuple[str, ...] = ()) -> dict[str | None, int]:
    """The bytes of a model in each of these mixes, without those that llama.cpp refuses or that are none; nothing is laid out for it.

    ``always`` is as in :func:`~hwcalc.quantization.gguf.mix_bytes`.
    """
    from hwcalc.errors import UnsupportedError

    sizes: dict[str | None, int] = {}
    for name in names:
        try:
            found = None if name is None else mix_bytes(model, name, always=always)
        except UnsupportedError:
            continue
        if found is None:
            return {}
        sizes[name] = sum(found.values())
    return sizes


class AsStored(Scheme):
    """Each tensor of each layer in its own type."""

    types: Mapping[tuple[str, int], WeightFormat] = field(default_factory=dict)

    def formats(self, block: Block, weight: Weight, unquantised: WeightFormat) -> list[tuple[int, WeightFormat]]:
        """The types of a tensor, each with its number of layers."""
        layers: Sequence[int] = (-1,) if block.layers is None else block.layers
        counts: dict[WeightFormat, int] = {}
        for number in layers:
            form = self.types.get((weight.path, number), unquantised)
            counts[form] = counts.get(form, 0) + 1
        return [(count, form) for form, count in counts.items()]


def stored_scheme(model: ModelSpec) -> Scheme | None:
    """The scheme of a model that was read from a file with tensors; ``None`` if a type is not known."""
    types: dict[tuple[str, int], WeightFormat] = {}
    for tensor in () if model.gguf is None else model.gguf.tensors:
        form = GGML.get(tensor.type)
        if form is None:
            return None
        types[placed(tensor.name)] = form
    return AsStored(name="as stored", rules=(), types=types) if types else None
