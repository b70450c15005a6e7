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
from hwcalc.quantization.ggml import BLOCKS, BY_IMATRIX, FLOAT_TYPES, GGML, KEPT_EXPERTS, MIXES, placed, whole_name
from hwcalc.quantization.mixes import Family, MixFacts, Typed, refused, typed
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
    """True if files of this name are made with an importance matrix as a rule: published ones of three bits and fewer are."""
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
    found = [
        FileTensor(
            name=whole_name(family.stem, number),
            layer=number,
            type=group.type,
            shape=family.shape,
            elements=family.elements,
            bytes=family.bytes_as(group.type),
        )
        for family, group in groups
        for number in group.layers or (-1,)
    ]
    return tuple(sorted(found, key=lambda one: (one.layer, one.name)))


def file_groups(model: ModelSpec, name: str | None, *, imatrix: bool | None = None) -> tuple[tuple[Family, Typed], ...] | None:
    """The tensors of :func:`file_tensors`, grouped by family and type; ``None`` if unknown."""
    file = gguf_file(model)
    types = None if file is None else _types(file, name, imatrix=imatrix)
    return None if file is None or types is None else tuple((file.families[group.family], group) for group in types)


def _types(file: Conversion, name: str | None, *, imatrix: bool | None) -> tuple[Typed, ...] | None:
    """The types of a mix, but for what the checkpoint has in four bits already: it stays so where the mix would take more.

    llama-quantize refuses to quantise such tensors again, and everybody who publishes GPT-OSS in other mixes leaves its experts alone.
    """
    if name is not None and name in MIXES:
        check_rows(file, name)
        matrix = usual_imatrix(name) if imatrix is None else imatrix
        types = typed(file.families, file.placed, file.facts, name, imatrix=matrix)
    elif name is not None and name not in FLOATS:
        return None
    else:
        # Only what may be quantised changes its type.
        form = None if name is None else FLOAT_TYPES[name]
        types = tuple(
            Typed(
                family=one.family,
                type=file.families[one.family].type if form is None or one.place is None else form,
                layers=one.layers,
            )
            for one in file.placed
        )
    found = []
    for one in types:
        family = file.families[one.family]
        own = file.kept.get(one.family, family.type)
        stays = own in FOUR_BITS and family.bytes_as(own) < family.bytes_as(one.type)
        found.append(replace(one, type=own) if stays else one)
    return tuple(found)


def mix_bytes(
    model: ModelSpec, name: str, *, imatrix: bool | None = None, mtp: bool = False, always: tuple[str, ...] = ()
) -> dict[str, int] | None:
    """Bytes by type of the file in one mix, without the layers for multi-token prediction unless ``mtp``.

    Their tensors whose names begin as in ``always`` count nevertheless.
    """
    file = gguf_file(model)
    types = None if file is None else _types(file, name, imatrix=imatrix)
    if file is None or types is None:
        return None
    totals: dict[str, int] = {}
    # Types come in the order of these tensors, and of the others behind them.
    for one in types if mtp else sorted(types, key=lambda one: not file.families[one.family].stem.startswith(always)):
        family = file.families[one.family]
        whole = mtp or not one.layers or family.stem.startswith(always)
        count = len(one.layers) or 1 if whole else sum(number < file.mtp_from for number in one.layers)
        if count:
            totals[one.type] = totals.get(one.type, 0) + count * family.bytes_as(one.type)
    return totals


def _read(keys: Mapping[str, Any], tensors: Sequence[GgufTensor], counted: Weights | None) -> Conversion:
    """The families of a file's tensors, and where the counted weights, which have their names, lie in them."""
    grouped: dict[tuple[str, tuple[int, ...], str], list[int]] = {}
    for tensor in tensors:
        stem, number = placed(tensor.name)
        grouped.setdefault((stem, tensor.shape or (1,), tensor.type.lower()), []).append(number)
    families = tuple(
        Family(stem=stem, shape=shape, type=form, layers=tuple(sorted(number for number in numbers if number >= 0)))
        for (stem, shape, form), numbers in grouped.items()
    )
    arch = str(keys.get("general.architecture", ""))
    heads, shared = (_first(keys.get(f"{arch}.attention.{name}")) for name in ("head_count", "head_count_kv"))
    shared = heads if shared is None else shared
    layers = 1 + max((number for family in families for number in family.layers), default=-1)
    facts = MixFacts(
        arch=arch,
        n_layer_all=_whole(keys.get(f"{arch}.block_count")) or layers,
        n_expert=_whole(keys.get(f"{arch}.expert_count")),
        n_gqa=(heads or 0) // shared if shared else 0,
    )
    nextn = _whole(keys.get(f"{arch}.nextn_predict_layers"))
    pieces = {} if counted is None else _pieces(counted, families)
    mtp_from = facts.n_layer_all - min(nextn, facts.n_layer_all)
    return Conversion(families=families, facts=facts, read_pieces=lambda: pieces, mtp_from=mtp_from)


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
                name = self._types[piece.family][piece.layer]
                size = self.conversion.families[piece.family].bytes_as(name, piece.elements)
                found = sums.setdefault(name, [0, 0])
                found[0] += piece.elements * weight.elements // whole
                found[1] += -(-size * weight.elements // whole)
        for name, (elements, size) in sums.items():
            yield Portion(format=GGML[name], elements=elements, bytes=size)

    def bytes(self, block: Block, weight: Weight, unquantised: WeightFormat) -> int:
        return sum(portion.bytes for portion in self.portions(block, weight, unquantised))

    def _added(self, block: Block, weight: Weight) -> Iterator[Portion]:
        """A weight that the file does not have: prediction layers that the converter leaves out, or a table that an engine copies."""
        if block.part is Part.MTP:
            return
        form = GGML[MIXES[self.name]] if len(weight.shape) == 2 and weight.role in _MATRICES else FP32
        if weight.role is WeightRole.HEAD:
            # As the output table, or else the embedding that stands for it.
            stems = {family.stem: place for place, family in enumerate(self.conversion.families) if not family.layers}
            tables = (stems[name] for name in ("output.weight", "token_embd.weight") if name in stems)
            form = next((GGML[self._types[place][-1]] for place in tables), form)
        form = form if not weight.shape[-1] % (form.group or 1) else FP16
        yield Portion(format=form, elements=block.count * weight.elements, bytes=block.count * form.bytes(weight))

    @cached_property
    def _types(self) -> Mapping[int, Mapping[int, str]]:
        """Family -> layer -> type."""
        file = self.conversion
        found: dict[int, dict[int, str]] = {}
        for one in typed(file.families, file.placed, file.facts, self.name, imatrix=self.imatrix):
            found.setdefault(one.family, {}).update(dict.fromkeys(one.layers or (-1,), one.type))
        return found


PUBLISHED_MIXES: Final = (
    "q8_0", "q6_k", "q5_k_m", "q5_k_s", "q4_k_m", "q4_k_s", "iq4_xs", "q3_k_l", "q3_k_m", "iq3_m", "q3_k_s", "iq3_xxs",
)  # fmt: skip
"""What a model's page on the Hub usually has (bartowski's and unsloth's, 2025 and 2026). Files of fewer bits are there too, for who asks
for them by name: their answers suffer. More than eight bits gain nothing."""

AT_LEAST_FOUR_BITS: Final = (*PUBLISHED_MIXES[: PUBLISHED_MIXES.index("iq4_xs") + 1], *KEPT_EXPERTS.values())
"""Those of four bits and more to a weight."""
_USUAL: Final = "q4_k_m"


def usual_beside_host(names: Sequence[str | None]) -> str | None:
    """The format that people take of these where experts lie in the memory of the host: Q4_K_M, else the smallest of four bits and more.

    It is ``None`` if there is none. Fewer bits would leave less of the model there, and cost more than that gains: of the experts, a
    token reads a few.
    """
    return _USUAL if _USUAL in names else next((name for name in reversed(names) if name in AT_LEAST_FOUR_BITS), None)


def kept_experts(model: ModelSpec) -> str | None:
    """The type of the file of a checkpoint whose experts the converter keeps; ``None`` for other models."""
    if model.gguf is not None or model.counted is None:
        return None
    kept = set(converted(model).kept.values())
    return KEPT_EXPERTS.get(kept.pop()) if len(kept) == 1 else None


def published_formats(model: ModelSpec) -> tuple[str | None, ...]:
    """The formats in which people publish a model for llama.cpp: its own, if it has one, and the mixes that make that smaller.

    Its own is that of its GGUF file (``None``, as it is), or of a checkpoint whose experts are MXFP4. It is none for weights of 16 or 8
    bits, which every mix makes smaller, nor for NVFP4: such checkpoints are copies of models in 16 bits, of which the published files are
    made.
    """
    own = kept_experts(model)
    if own is None and (model.gguf is None or not model.gguf.tensors):
        return PUBLISHED_MIXES
    return model.once("published formats", lambda: (own, *_smaller(model, own)))


def _smaller(model: ModelSpec, own: str | None) -> Iterator[str]:
    """The mixes in which the weights that have four bits already take less: to quantise them again for more loses and gains nothing."""
    stored = [one for one in file_tensors(model, own) or () if model.gguf is not None or one.type in KEPT_EXPERTS]
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

    ``always`` is as in :func:`mix_bytes`.
    """
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
