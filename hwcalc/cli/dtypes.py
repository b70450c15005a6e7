"""``kvplan dtypes``: the storage formats and what an element takes in each."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from hwcalc.cli.options import OUTPUT, Example, Option, view_of
from hwcalc.cli.output import Answer, answer
from hwcalc.documents import document_of
from hwcalc.errors import UsageError
from hwcalc.text import shown

if TYPE_CHECKING:
    from hwcalc.report.records import DTypeInfo

__all__ = ["EXAMPLES", "OPTIONS", "run"]

OPTIONS = (Option("name", (), "[NAME]", "One dtype, by name or alias.", complete="dtypes"), *OUTPUT)
EXAMPLES: Final = (
    Example("All of them", "kvplan dtypes"),
    Example("One", "kvplan dtypes q8_0"),
    Example("For a script", "kvplan dtypes --json"),
)

_WEIGHTS: Final = "Weights (--weights) take others, from q1_0 to tq2_0 as llama-quantize names them: "
_HEADER = ("dtype", "bits", "stored as", "aliases", "source")


def run(*, name: str | None, **output: Any) -> Answer:
    """List what --dtype takes, with bits per element and source.

    Bits per element with scales, the block that is stored, aliases, source.
    """
    from textwrap import fill

    from hwcalc.quantization.planned import weight_formats

    view = view_of(**output)
    infos = dtype_infos(name)
    if view.format == "json":
        from hwcalc.documents import SCHEMA_VERSION

        dtypes = [document_of(dtype) for dtype in infos]
        return answer({"schema_version": SCHEMA_VERSION, "dtypes": dtypes, "weights": () if name else weight_formats()})
    from hwcalc.report.listing import listing

    rows = [(dtype.name, _bits(dtype), _stored(dtype), ", ".join(dtype.aliases), dtype.source) for dtype in infos]
    text = listing(_HEADER, rows, format_=view.format, right=(1,), color=view.color, width=view.width)
    if name is None and view.format == "table":
        text += f"\n{fill(_WEIGHTS + ', '.join(weight_formats()) + '.', width=view.width or 100, subsequent_indent='  ')}\n"
    return Answer(text=text)


def dtype_infos(name: str | None) -> list[DTypeInfo]:
    """All formats, or the one with this name or alias. Raises :class:`~hwcalc.errors.UsageError` if it is unknown."""
    from hwcalc.profiles.dtypes import dtype_aliases, dtype_names, dtype_sources, find_dtype, find_packed, packed_names
    from hwcalc.report.records import DTypeInfo

    sources, aliases = dtype_sources(), dtype_aliases()
    out = []
    for known in dtype_names():
        dtype = find_dtype(known)
        assert dtype is not None
        out.append(
            DTypeInfo(
                name=known,
                aliases=aliases[known],
                block_elements=dtype.block_elements,
                block_bytes=dtype.block_bytes,
                parts={},
                source=sources[known],
            )
        )
    for known in packed_names():
        packed = find_packed(known)
        assert packed is not None
        parts = {role.value: dtype.name for role, dtype in packed.roles.items()}
        out.append(DTypeInfo(name=known, aliases=(), block_elements=None, block_bytes=None, parts=parts, source=sources[known]))
    if name is None:
        return out
    lowered = name.strip().lower()
    chosen = [dtype for dtype in out if lowered == dtype.name or lowered in dtype.aliases]
    if not chosen:
        raise UsageError(f"dtype {shown(name, 40)} is not known.", hint=f"Known: {', '.join(dtype.name for dtype in out)}.")
    return chosen


def _bits(dtype: DTypeInfo) -> str:
    """Bits per element including scales, such as ``8.5`` for q8_0."""
    if dtype.block_bytes is None or dtype.block_elements is None:
        return ""
    return f"{8 * dtype.block_bytes / dtype.block_elements:g}"


def _stored(dtype: DTypeInfo) -> str:
    if dtype.block_elements is None:
        return ", ".join(f"{role} in {name}" for role, name in dtype.parts.items())
    if dtype.block_elements == 1:
        return f"{dtype.block_bytes} B per element"
    return f"{dtype.block_bytes} B per {dtype.block_elements} elements"
