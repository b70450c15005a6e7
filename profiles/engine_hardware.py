"""The accelerators on which engines run, and the formats that need more: ``engines/<engine>/hardware.yaml``, read compiled.

A row names accelerators, and says ``runs``, ``never``, or ``open`` where its source leaves that open: a plug-in, a source build, a check
that is passed without anybody having tried. Several rows may name one accelerator, such as one for ROCm and one for Vulkan: the best
answer holds. An accelerator is named by its compute capability (``'7.5'``, and ``'7.5+'`` for that and later), its architecture (``gfx942``,
``metal``, ``xe2``; ``gfx*`` is every one that begins so), or its id. A machine without one is ``cpu``.

The rows of ``runs`` say where the engine itself runs: an accelerator without a row is none. Those of ``weights``, ``cache`` and
``attention`` say which formats of weights and cache, and kinds of attention, need more than the engine. A format is named by its beginning
(``fp8`` is ``fp8_e4m3`` too, the longest name counts), and after its quantiser where that matters (``modelopt fp8``). One without a row needs
no more.
"""

import enum
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Annotated, ClassVar, Final, TypeAlias

from msgspec import Meta, convert

from hwcalc.formulas.record import Record
from hwcalc.profiles.compiled import names, record
from hwcalc.profiles.engines import EngineFile, Names, VersionText, planned_version, since
from hwcalc.profiles.form import Facts, Words

if TYPE_CHECKING:
    from hwcalc.profiles.hardware_file import Gpu

SECTIONS: Final = ("runs", "weights", "cache", "attention")
_ACCELERATOR: Final = r"^(?:[0-9]{1,2}\.[0-9]\+?|[a-z][a-z0-9-]*\*?)$"
_ACCELERATOR_WORDS: Final = "a compute capability in quotes ('7.5', '7.5+'), an architecture (gfx942, 'gfx*') or an id"


class Answer(enum.StrEnum):
    """Whether something runs, the best first."""

    RUNS = "runs"
    OPEN = "open"
    NEVER = "never"


class HardwareRow(Facts):
    """What one source says of some accelerators. It holds from version ``since`` until before ``until``.

    ``backend`` is the part of the engine that it is about, empty for all of it. ``note`` says why, in words that follow a colon.
    """

    formats: Names = ()
    accelerators: Annotated[
        tuple[Annotated[str, Meta(pattern=_ACCELERATOR, description=_ACCELERATOR_WORDS)], ...],
        Meta(min_length=1, description="a list of accelerators"),
    ]
    answer: Annotated[Answer, Meta(description=f"one of {', '.join(Answer)}")]
    backend: Words = ""
    since: VersionText = "0.0"
    until: VersionText | None = None
    source: Words
    note: Words = ""

    def holds(self, version: str, backend: str = "") -> bool:
        """True if the row is about this version, and this part of the engine; an empty part is any."""
        release = planned_version(version)
        ended = self.until is not None and release >= since(self.until)
        return since(self.since) <= release and not ended and (not backend or self.backend in ("", backend))


Rows: TypeAlias = tuple[HardwareRow, ...]


class EngineHardwareFile(EngineFile):
    """``engines/<id>/hardware.yaml``: on which accelerators an engine runs, and which formats need more."""

    place: ClassVar[str] = "{0.id}/hardware.yaml"
    runs: Annotated[Rows, Meta(min_length=1, description="a list of rows")]
    weights: Annotated[Rows, Meta(description="a list of rows")] = ()
    cache: Annotated[Rows, Meta(description="a list of rows")] = ()
    attention: Annotated[Rows, Meta(description="a list of rows")] = ()

    def contradiction(self) -> tuple[str, str] | None:
        for section in SECTIONS:
            for number, row in enumerate(getattr(self, section)):
                if bool(row.formats) == (section == "runs"):
                    wrong = "has formats, which only weights, cache and attention have" if row.formats else "has no formats"
                    return f"{section}.{number}", wrong
        return None


class Found(Record):
    """What is known of one question: the answer, and the row that says it; ``None`` where no row does.

    ``accelerators`` are those on which a format runs.
    """

    answer: Answer
    row: HardwareRow | None = None
    accelerators: tuple[str, ...] = ()


def has_hardware(engine: str) -> bool:
    """True if the engine has a file of accelerators. The formulas alone run nowhere, and so have none."""
    return f"{engine}/hardware" in names("engines")


@lru_cache(maxsize=32)
def hardware_rows(engine: str) -> Mapping[str, tuple[HardwareRow, ...]]:
    """The rows of an engine by section.

    >>> [row.accelerators for row in hardware_rows("tensorrt-llm")["runs"] if row.answer is Answer.OPEN]
    [('12.1',)]
    """
    file = convert(record("engines", f"{engine}/hardware"), EngineHardwareFile)
    return {section: getattr(file, section) for section in SECTIONS}


def architecture_of(gpu: "Gpu") -> str | None:
    """The name by which rows know an accelerator: its compute capability, or else its architecture; ``None`` if neither is known."""
    return "cpu" if gpu.is_host else gpu.compute_capability or gpu.architecture


_Names: TypeAlias = tuple[str, str | None, str | None]
"""By what rows know an accelerator: its id, its architecture, and its compute capability."""


def _names_of(gpu: "Gpu") -> _Names:
    return gpu.slice_of or gpu.id, architecture_of(gpu), gpu.compute_capability


def names_gpu(pattern: str, gpu: "Gpu") -> bool:
    """True if a name in a row is one of this accelerator."""
    return _is_named(pattern, _names_of(gpu))


@lru_cache(maxsize=16_384)
def _is_named(pattern: str, names: _Names) -> bool:
    known, architecture, capability = names
    if pattern == known or architecture is None:
        return pattern == known
    if pattern.endswith("+"):
        return capability is not None and since(capability) >= since(pattern.removesuffix("+"))
    return architecture.startswith(pattern[:-1]) if pattern.endswith("*") else pattern == architecture


def family(architecture: str) -> str:
    """The part of the name that architectures of one maker and kind share.

    >>> family("gfx942"), family("tpu-v6e"), family("9.0"), family("7.5+")
    ('gfx', 'tpu', 'cuda', 'cuda')
    """
    letters = re.match(r"[a-z]*", architecture)
    return (letters[0] if letters else "") or "cuda"


def runs_on(engine: str, version: str, gpu: "Gpu", backend: str = "") -> Found:
    """The answer to whether a version of an engine runs on an accelerator, with its row.

    An accelerator of the user's own whose file does not say its architecture is open.
    """
    found = _runs_on(engine, version, backend, _names_of(gpu))
    if found is not None:
        return found
    unknown = architecture_of(gpu) is None and (gpu.user or gpu.id == "local")
    return Found(answer=Answer.OPEN if unknown else Answer.NEVER)


@lru_cache(maxsize=4096)
def _runs_on(engine: str, version: str, backend: str, names: _Names) -> Found | None:
    """The best row that names an accelerator. A page, a sweep and a search ask it once for each plan."""
    rows = _of_version(engine, "runs", version, backend)
    return _best([row for row in rows if any(_is_named(pattern, names) for pattern in row.accelerators)])


def format_runs_on(
    engine: str, version: str, section: str, spelled: Sequence[str], gpu: "Gpu", backend: str = ""
) -> Found | None:
    """The answer to whether a format runs on an accelerator; ``None`` if nothing says that it needs more than the engine.

    ``spelled`` are its names, the most exact first. The first of which any row speaks counts, of those with a row for this maker's
    accelerators if there are any. Where there is none for this maker, the answer is open.
    """
    return _format_runs_on(engine, version, section, tuple(spelled), backend, _names_of(gpu))


@lru_cache(maxsize=4096)
def _format_runs_on(
    engine: str, version: str, section: str, spelled: tuple[str, ...], backend: str, names: _Names
) -> Found | None:
    """The answer for an accelerator of these names. A page, a sweep and a search ask it once for each plan."""
    architecture, spoken = names[1], False
    for name in spelled:
        rows = _about(_of_version(engine, section, version, backend), name)
        named = _best([row for row in rows if any(_is_named(accelerator, names) for accelerator in row.accelerators)])
        where = tuple(accelerator for row in rows if row.answer is Answer.RUNS for accelerator in row.accelerators)
        if named is not None:
            return Found(answer=named.answer, row=named.row, accelerators=where)
        makers = {family(accelerator) for row in rows for accelerator in row.accelerators}
        if architecture is not None and family(architecture) in makers:
            return Found(answer=Answer.NEVER, row=rows[0], accelerators=where)
        spoken = spoken or bool(rows)
    return Found(answer=Answer.OPEN) if spoken else None


def _best(rows: Sequence[HardwareRow]) -> Found | None:
    """The best answer of rows that all name the accelerator; ``None`` without a row."""
    if not rows:
        return None
    best = min(rows, key=lambda row: tuple(Answer).index(row.answer))
    return Found(answer=best.answer, row=best)


@lru_cache(maxsize=512)
def _of_version(engine: str, section: str, version: str, backend: str) -> tuple[HardwareRow, ...]:
    """The rows that are about a version and a part of the engine: a search asks them of hundreds of accelerators."""
    return tuple(row for row in hardware_rows(engine)[section] if row.holds(version, backend))


def _about(rows: Sequence[HardwareRow], name: str) -> list[HardwareRow]:
    """The rows of the longest beginning of ``name`` that any row has."""
    known = {one for row in rows for one in row.formats if name.startswith(one)}
    return [row for row in rows if known and max(known, key=len) in row.formats]
