"""Accelerators, and how much of their memory a program sees: a reading, or an estimate with the shares of ``hardware.yaml``.

Each is a YAML file in ``gpus/``, read compiled. The file stem is the id; ``gpu_aliases.yaml`` has other names. A file in the user's own
folder, ``$XDG_CONFIG_HOME/kvplan/profiles/gpus`` (``~/.config`` if the variable is not set), replaces the accelerator of the same id or adds
a new one. Some accelerators (Macs) have several sizes of memory. Their name may include the size: ``m4-max-64`` is ``apple-m4-max-40c`` with
64 GB and has the id ``apple-m4-max-40c-64gb``.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from functools import cached_property, lru_cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from msgspec.structs import replace

from hwcalc.formulas.record import Record
from hwcalc.profiles.catalog import ProfileError, changed_ns, own
from hwcalc.profiles.compiled import TOP, names, record, records
from hwcalc.profiles.estimate import Estimate, estimate_of
from hwcalc.profiles.hardware_file import LONGEST_ID, Gpu, gpu_of, is_id

if TYPE_CHECKING:
    from pathlib import Path

_MIB: Final = 1024**2
_VISIBLE: Final = "_visible"


class VisibleMemory(Record):
    """How many bytes of one accelerator a program sees, and how that is known. Plans use ``expected_bytes``."""

    low_bytes: int
    expected_bytes: int
    high_bytes: int
    basis: str
    source: str


class MetalReading(Record):
    """What Metal reported on a Mac with ``ram_gib`` of memory."""

    ram_gib: int
    usable_mib: int
    macos: str


class MetalStep(Record):
    """The share of the memory that Metal lets a GPU use on a Mac with at least ``from_gib``."""

    from_gib: int
    share: tuple[int, int]


class Hardware(Record):
    """The content of ``hardware.yaml``."""

    visible_share: dict[str, Estimate]
    metal: Mapping[str, Any]
    """What the file says of Macs."""

    @cached_property
    def readings(self) -> tuple[MetalReading, ...]:
        """What was read on Macs."""
        return tuple(
            MetalReading(ram_gib=entry["ram_gib"], usable_mib=int(entry["megabytes"] * 10**6) // _MIB, macos=entry["macos"])
            for entry in self.metal["readings"]
        )

    @cached_property
    def older_rule(self) -> tuple[MetalStep, ...]:
        """The steps of older systems."""
        return tuple(map(_step, self.metal["older_rule"]))

    @cached_property
    def newer_rule(self) -> tuple[MetalStep, ...]:
        """The steps of newer systems."""
        return tuple(map(_step, self.metal["newer_rule"]))


def visible_memory(gpu: Gpu) -> VisibleMemory | None:
    """How much memory a program sees of this accelerator; ``None`` if no memory figure is known.

    The first known value counts: the reading of torch, Metal's limit (for a Mac), a share of what the vendor's tool reports, a
    share of what is sold. If only nvidia-smi's 24,564 MiB are known of a card, it counts as 0.994 of that.
    """
    # Kept beside the accelerator: a plan asks for it several times.
    known = vars(gpu)
    if _VISIBLE not in known:
        known[_VISIBLE] = _visible(gpu)
    found: VisibleMemory | None = known[_VISIBLE]
    return found


def _visible(gpu: Gpu) -> VisibleMemory | None:
    if gpu.torch_total_mib is not None:
        seen = gpu.torch_total_mib_seen or (gpu.torch_total_mib, gpu.torch_total_mib)
        sizes = (min(seen[0], gpu.torch_total_mib), gpu.torch_total_mib, max(seen[1], gpu.torch_total_mib))
        return _in_bytes(sizes, f"read: {gpu.torch_total_basis or 'as torch sees it'}", gpu.source)
    if gpu.vendor == "apple":
        usable = usable_mib(gpu)
        if usable is None:
            return None
        basis = f"Metal's own limit for {gpu.memory_marketing_gb} GB of memory; {hardware().metal['raise_with']} raises it"
        return _in_bytes((int(usable.low), int(usable.expected), int(usable.high)), basis, usable.source)
    if gpu.memory_total_mib is not None:
        share = hardware().visible_share["of_tool_amd" if gpu.vendor == "amd" else "of_tool"]
        return _shared(gpu.memory_total_mib, share, "estimated from its tool's total")
    if gpu.memory_marketing_gb is not None:
        share = hardware().visible_share["of_marketing"]
        return _shared(gpu.memory_marketing_gb * 1024, share, "estimated from the number on the box")
    return None


def usable_mib(gpu: Gpu) -> Estimate | None:
    """MiB of a Mac's memory that Metal lets the GPU use; ``None`` for other accelerators and for unknown memory.

    The older rule gives the low value, the newer rule the high one, and the newest reading of that size the expected one. For a
    size without a reading, the newer rule gives the expected value by its next smaller step and the high one by its next larger
    step: 96 GiB lies between 64 and 128.
    """
    if gpu.vendor != "apple" or gpu.memory_marketing_gb is None:
        return None
    facts, ram = hardware(), gpu.memory_marketing_gb
    older = _part(ram, [step for step in facts.older_rule if step.from_gib <= ram][-1])
    newer = _part(ram, [step for step in facts.newer_rule if step.from_gib <= ram][-1])
    read = [reading for reading in facts.readings if reading.ram_gib == ram]
    if read:
        expected, source = read[-1].usable_mib, f"a reading (macOS {read[-1].macos}), {facts.metal['source']}"
        high = max(newer, expected)
    else:
        later = [step for step in facts.newer_rule if step.from_gib > ram]
        between = later and ram not in {step.from_gib for step in facts.newer_rule}
        expected, high = newer, _part(ram, later[0]) if between else newer
        source = f"no reading of {ram} GB is known, so by the steps of the sizes around it: {facts.metal['source']}"
    return Estimate(low=min(older, expected), expected=expected, high=high, source=source)


def _part(ram_gib: int, step: MetalStep) -> int:
    return ram_gib * 1024 * step.share[0] // step.share[1]


def _in_bytes(mib: tuple[int, int, int], basis: str, source: str) -> VisibleMemory:
    low, expected, high = mib
    return VisibleMemory(low_bytes=low * _MIB, expected_bytes=expected * _MIB, high_bytes=high * _MIB, basis=basis, source=source)


def _shared(mib: int, share: Estimate, basis: str) -> VisibleMemory:
    return _in_bytes((int(mib * share.low), int(mib * share.expected), int(mib * share.high)), basis, share.source)


@lru_cache(maxsize=1)
def hardware() -> Hardware:
    """The facts of ``hardware.yaml``."""
    data = record(TOP, "hardware")
    shares = {name: estimate_of(share) for name, share in data["visible_share"].items()}
    return Hardware(visible_share=shares, metal=data["metal"])


def _step(entry: Mapping[str, Any]) -> MetalStep:
    part, _, whole = entry["share"].partition("/")
    return MetalStep(from_gib=entry["from_gib"], share=(int(part), int(whole)))


_SPOKEN: Final = rf"[a-z0-9 _-]{{1,{LONGEST_ID}}}"
"""How people write ids and aliases, in small letters."""
_SIZED: Final = r"(?a)(.*[a-z0-9])[ _-]+([1-9][0-9]{0,3}) ?(?:gi?b?)?"
_CORES: Final = r"-[0-9]{1,3}c$"
_FORM: Final = r"(?:-(?:sxm[0-9]?|pcie|nvl|ws|server|maxq|3e|[0-9]+gb|[0-9]{1,3}c))+$"


_MACHINE: Final = r"(?ai)\A\s*(?:apple[ _-]+)?(?:macbook|imac|mac)(?:[ _-]+(?:pro|air|mini|studio))?[ _-]+(?=m[0-9])"
"""The Mac in front of its chip: ``Mac mini M4 24GB``."""


class UnknownGpuError(LookupError):
    """There is no accelerator of this name. ``nearest`` holds similar ids."""

    def __init__(self, wanted: str, near: tuple[str, ...]) -> None:
        super().__init__(f"{wanted!r} is not a known accelerator")
        self.wanted = wanted
        self.nearest = near


def user_folder() -> Path | None:
    """The user's own ``gpus`` folder, whether or not it exists; ``None`` without a home folder."""
    from pathlib import Path

    place = own("gpus")
    return None if place is None else Path(place)


def find_gpu(name: str) -> Gpu:
    """The accelerator with this id or alias. Capitals, hyphens, spaces and the vendor's name do not matter.

    A number at the end (``m4-max-64``, ``m4-max-64gb``) selects a size of memory; ``mobile`` is ``laptop``. Raises :class:`UnknownGpuError` if there is no
    such accelerator, and :class:`~hwcalc.profiles.catalog.ProfileError` with path, line and key if its file is broken.

    >>> [find_gpu(name).id for name in ("h100", "RTX 4090", "4090", "mi300x", "NVIDIA L4", "m4-max-128", "m4-max-36")]
    ['h100-sxm5-80gb', 'rtx-4090', 'rtx-4090', 'mi300x', 'l4', 'apple-m4-max-40c-128gb', 'apple-m4-max-32c-36gb']
    >>> [find_gpu(name).id for name in ("Mac mini M4 24GB", "MacBook Air M2", "RTX 3070 Mobile")]
    ['apple-m4-24gb', 'apple-m2', 'rtx-3070-laptop']
    """
    spoken = re.sub(_MACHINE, "", name) if "mac" in name.lower() else name
    place = _resolve(spoken)
    return _sized(spoken) if place is None else _load(*place)


def with_memory(gpu: Gpu, memory_gb: int) -> Gpu:
    """This accelerator with one of its sizes of memory and with that size in its id. Readings of another size are dropped."""
    other = {} if memory_gb == gpu.memory_marketing_gb else _OF_ONE_SIZE
    return replace(
        gpu,
        id=f"{gpu.id}-{memory_gb}gb",
        name=f"{gpu.name}, {memory_gb} GB",
        memory_marketing_gb=memory_gb,
        memory_options_gb=(),
        **other,
    )


def in_every_size(gpu: Gpu) -> Iterator[Gpu]:
    """The accelerator in each size of memory that it is sold in, as :func:`find_gpu` knows it by its id and the size."""
    mine = own_gpus()
    for size in gpu.memory_options_gb:
        name = f"{gpu.id}-{size}gb"
        # A file of the user's own may have the name, or that of another form of it.
        yield find_gpu(name) if mine or _of_package(name) is not None else with_memory(gpu, size)


_OF_ONE_SIZE: Final[dict[str, Any]] = dict.fromkeys(
    ("memory_total_mib", "memory_total_basis", "torch_total_mib", "torch_total_mib_seen", "torch_total_basis")
)


def _sized(name: str) -> Gpu:
    """The accelerator of a name with a size of memory, such as ``m4-max-64``."""
    text = name.strip().lower()
    parts = re.fullmatch(_SIZED, text) if _is_spoken(text) else None
    if parts is None:
        raise UnknownGpuError(name[:LONGEST_ID], nearest(name))
    whole = _resolve(f"{parts[1]}-{parts[2]}gb")
    if whole is not None:
        return _load(*whole)
    base = _resolve(parts[1])
    memory_gb = int(parts[2])
    # If the name has a number of cores, it is exact. Otherwise any accelerator of the family may have this size.
    family = [] if base is None else [base] if re.search(_CORES, parts[1]) else [base, *_family(base[0])]
    gpus = [_load(*one) for one in family]
    for gpu in gpus:
        if memory_gb in gpu.memory_options_gb:
            return with_memory(gpu, memory_gb)
    sizes = sorted({(abs(size - memory_gb), f"{gpu.id}-{size}gb") for gpu in gpus for size in gpu.memory_options_gb})
    raise UnknownGpuError(name[:LONGEST_ID], tuple(gpu_id for _, gpu_id in sizes[:3]) or nearest(name))


def _family(gpu_id: str) -> list[_Place]:
    """The accelerators that differ only in their cores: ``apple-m4-max-32c`` for ``apple-m4-max-40c``."""
    stem = re.sub(_CORES, "", gpu_id)
    return [
        (name, file)
        for name, file in _places().items()
        if name.startswith(stem) and name != gpu_id and re.sub(_CORES, "", name) == stem
    ]


def other_forms(name: str, gpu_id: str) -> tuple[str, ...]:
    """The other accelerators that ``name`` could mean besides ``gpu_id``: the same one with other memory, on another socket, with other cores.

    An id, or a name that says all of this, has none.

    >>> other_forms("h100", "h100-sxm5-80gb"), other_forms("a100-80gb", "a100-sxm4-80gb"), other_forms("4090", "rtx-4090")
    (('h100-nvl-94gb', 'h100-pcie-80gb'), ('a100-pcie-80gb',), ())
    """
    if name.strip().lower() == gpu_id:
        return ()
    query, family = _squashed(name), re.sub(_FORM, "", gpu_id)
    start, said, form = query.partition(_squashed(family).removeprefix("rtx"))
    if not said or start not in ("", "rtx"):
        return ()
    alike = (one for one in list_gpus() if one.startswith(family) and re.sub(_FORM, "", one) == family)
    return tuple(one for one in alike if one != gpu_id and form in _squashed(one))


def list_gpus() -> tuple[str, ...]:
    """All ids in alphabetical order, with the user's own."""
    return tuple(sorted(_places()))


def own_gpus() -> frozenset[str]:
    """The ids in the user's own folder."""
    return frozenset(_own_files())


@lru_cache(maxsize=1)
def built_in_gpus() -> Mapping[str, Gpu]:
    """All built-in accelerators by id, which are read together."""
    return MappingProxyType({gpu_id: gpu_of(content) for gpu_id, content in records("gpus").items()})


def gpu_aliases() -> Mapping[str, str]:
    """The other names: alias -> id."""
    return record(TOP, "gpu_aliases")


def nearest(text: str, count: int = 3) -> tuple[str, ...]:
    """Up to ``count`` ids that are similar to ``text``, best first: those of which it has a whole word, then those that are spelled alike.

    >>> nearest("h10")[0], nearest("macbook-m4")[0], nearest("M4 with 24 GB")
    ('h100-sxm5-80gb', 'apple-m4', ('apple-m4-24gb', 'apple-m4-pro-24gb'))
    """
    from difflib import SequenceMatcher

    query = _squashed(text[:LONGEST_ID])
    if not query:
        return ()
    named = _named(text[:LONGEST_ID].lower())
    if named and re.search(_SIZE, text.lower()):
        # Chip and size say which one is meant: what is only spelled alike is another.
        return named[:count]
    spoken = {**{gpu_id: gpu_id for gpu_id in _places()}, **gpu_aliases()}
    best: dict[str, float] = {}
    for name, gpu_id in spoken.items():
        squashed = _squashed(name)
        score = SequenceMatcher(a=squashed, b=query, autojunk=False).ratio() + (0.5 if squashed.startswith(query) else 0)
        if score > max(0.6, best.get(gpu_id, 0)):
            best[gpu_id] = score
    spelled = sorted(best, key=lambda gpu_id: (-best[gpu_id], gpu_id))
    return tuple(dict.fromkeys((*named, *spelled)))[:count]


_MAC: Final = r"(?a)i?mac[a-z]*|apple|metal"
_CHIP: Final = r"(?a)apple-m[0-9]{1,2}"
_SIZE: Final = r"(?a)\b([1-9][0-9]{0,3}) ?gi?b\b"


def _named(text: str) -> tuple[str, ...]:
    """The accelerators that a word of ``text`` names, the longest names first, and their larger forms; a Mac without its chip is any.

    If some are sold with the size of memory that the text has, only these.
    """
    words = [word for word in re.split(r"[^a-z0-9]+", re.sub(_SIZE, " ", text)) if word]
    runs = ["-".join(words[first:last]) for first in range(len(words)) for last in range(len(words), first, -1)]
    found = {place[0]: len(run) for run in runs if (place := _resolve(run)) is not None}
    ids = sorted(found, key=lambda gpu_id: -found[gpu_id])
    if ids:
        ids += [gpu_id for gpu_id in list_gpus() if gpu_id.startswith(f"{ids[0]}-") and gpu_id not in ids]
    elif words and re.fullmatch(_MAC, words[0]):
        ids = sorted((gpu_id for gpu_id in _places() if re.fullmatch(_CHIP, gpu_id)), reverse=True)
    size = re.search(_SIZE, text)
    sized = (
        [f"{gpu_id}-{size[1]}gb" for gpu_id in ids if int(size[1]) in _load(gpu_id, _places()[gpu_id]).memory_options_gb]
        if size
        else []
    )
    return tuple(sized or ids)


_BETWEEN: Final = {place: None for place in range(128) if not chr(place).isalnum()}
"""Takes all of ASCII but letters and digits out of a text."""


@lru_cache(maxsize=4096)
def _squashed(text: str) -> str:
    """The name in small letters and digits, without the vendor: equal for ``NVIDIA RTX 4090`` and ``rtx-4090``."""
    low = text.lower()
    if not low.isascii():
        low = "".join(filter(str.isascii, low))
    low = low.translate(_BETWEEN)
    for vendor in ("nvidia", "amd", "intel", "apple", "geforce", "instinct", "radeon", "tesla"):
        low = low.removeprefix(vendor)
    return low.replace("mobile", "laptop")


_Place = tuple[str, str | None]
"""The id of an accelerator, and the path of the user's own file of it."""


def _places() -> dict[str, str | None]:
    """All accelerators: id -> the user's own file."""
    return {**dict.fromkeys(names("gpus")), **_own_files()}


def _own_files() -> dict[str, str]:
    folder = own("gpus")
    if folder is None or not os.path.isdir(folder):
        return {}
    try:
        files = sorted(os.listdir(folder))
    except OSError as error:
        raise ProfileError(folder, f"cannot be read ({error.strerror})") from error
    return {stem: os.path.join(folder, name) for name in files if (stem := name.removesuffix(".yaml")) != name and is_id(stem)}


def _is_spoken(text: str) -> bool:
    return re.fullmatch(_SPOKEN, text) is not None


def _resolve(name: str) -> _Place | None:
    """The accelerator of this id or alias."""
    text, known = name.strip().lower(), names("gpus")
    if text not in known and not _is_spoken(text):
        return None
    for gpu_id in (text, *(() if text in known else (gpu_aliases().get(text, ""),))):
        if gpu_id not in known and not is_id(gpu_id):
            continue
        file = own("gpus", f"{gpu_id}.yaml")
        if file is not None and os.path.lexists(file):
            return gpu_id, file
        if gpu_id in known:
            return gpu_id, None
    return _spelled(text, _own_files())


def _of_package(name: str) -> _Place | None:
    """The same among those of the package alone."""
    text = name.strip().lower()
    if not _is_spoken(text):
        return None
    known = names("gpus")
    found = next((gpu_id for gpu_id in (text, gpu_aliases().get(text)) if gpu_id in known), None)
    return _spelled(text, {}) if found is None else (found, None)


def _spelled(text: str, mine: Mapping[str, str]) -> _Place | None:
    """The accelerator of a name that is spelled like an id or alias, in small letters; ``mine`` are files of the user's own."""
    query = _squashed(text)
    if not query:
        return None
    spoken = (
        _spoken_ids().get(query)
        or next((name for name in mine if _squashed(name) == query), None)
        or _spoken_aliases().get(query)
    )
    gpu_id = "" if spoken is None else gpu_aliases().get(spoken, spoken)
    return (gpu_id, mine.get(gpu_id)) if gpu_id in mine or gpu_id in names("gpus") else None


@lru_cache(maxsize=1)
def _spoken_ids() -> dict[str, str]:
    """The built-in accelerators as they are spoken of, the first of those that are spoken of alike."""
    return {_squashed(name): name for name in reversed(tuple(names("gpus")))}


@lru_cache(maxsize=1)
def _spoken_aliases() -> dict[str, str]:
    return {_squashed(name): name for name in reversed(tuple(gpu_aliases()))}


def _load(gpu_id: str, file: str | None) -> Gpu:
    """Load one accelerator. A file of the user's own that has changed is read again."""
    if file is None:
        return _built_in(gpu_id)
    return _own(file, changed_ns(file))


@lru_cache(maxsize=512)
def _built_in(gpu_id: str) -> Gpu:
    # Where all have been read, it is one of them.
    return built_in_gpus()[gpu_id] if built_in_gpus.cache_info().currsize else gpu_of(record("gpus", gpu_id))


@lru_cache(maxsize=512)
def _own(file: str, changed: int) -> Gpu:
    from pathlib import Path

    from hwcalc.profiles.hardware_schema import parse_gpu
    from hwcalc.profiles.schema import read_yaml

    return parse_gpu(read_yaml(Path(file)), user=True)


EXAMPLES: Final = (("l4", 24), ("l40s", 48), ("h100-sxm5-80gb", 80), ("h200-sxm-141gb", 141))
"""Id and GB as sold. A test compares them with their files, which take too long to read for an example."""
UNCOMMON: Final = frozenset(
    {
        *("a800-sxm4-80gb", "h20-3e-141gb", "h20-96gb", "h800-sxm5-80gb", "l20", "mi308x"),
        *("rtx-4090-d", "rtx-5090-d", "rtx-5090-d-v2", "rtx-5880-ada"),
        *("gb200-186gb", "gb300-288gb", "gh200-144gb", "gh200-96gb", "mi300a"),
        *("b100-192gb", "mi455x", "rubin-288gb"),
    }
)
"""Accelerators that are no advice to somebody who has another: made for one country, sold with a processor of their own, or hardly sold."""
_COUNTS: Final = (1, 2, 4, 8)
"""How many of one kind a node has."""
_USABLE: Final = 85
"""Per cent of the memory as sold that an example fills. It need not fit: the example is how to ask."""


def example_gpu(needed_bytes: int, gpus: int = 1) -> tuple[str, int] | None:
    """The fewest and smallest of these that may hold so many bytes, at least ``gpus`` of them; ``None`` if not even a node does.

    >>> example_gpu(20 * 10**9), example_gpu(20 * 10**9, gpus=3), example_gpu(220 * 10**9), example_gpu(10**13)
    (('l4', 1), ('l4', 3), ('h200-sxm-141gb', 2), None)
    """
    for count in (gpus, *(count for count in _COUNTS if count > gpus)):
        for name, size_gb in EXAMPLES:
            if needed_bytes * 100 <= count * size_gb * 10**9 * _USABLE:
                return name, count
    return None
