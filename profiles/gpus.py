"""Accelerators, and how much of their memory a program sees: a reading, or an estimate with the shares of ``hardware.yaml``.

Each is a YAML file in ``gpus/``, read compiled. The file stem is the id; ``gpu_aliases.yaml`` has other names. A file in the user's own
folder, ``$XDG_CONFIG_HOME/kvplan/profiles/gpus`` (``~/.config`` if the variable is not set), replaces the accelerator of the same id or adds
a new one. Some accelerators (Macs) have several sizes of memory. Their name may include the size: ``m4-max-64`` is ``apple-m4-max-40c`` with
64 GB and has the id ``apple-m4-max-40c-64gb``.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from types import MappingProxyType
from typing import Any, Final

from msgspec.structs import replace

from hwcalc.formulas.record import Record
from hwcalc.profiles.catalog import ProfileError, changed, own
from hwcalc.profiles.compiled import TOP, names, record, records
from hwcalc.profiles.form import LONGEST_ID, Estimate
from hwcalc.profiles.hardware_file import Gpu, gpu_of, is_id
from hwcalc.profiles.mig import cuts, slice_id, slice_named, sliced

_MIB: Final = 1024**2


class VisibleMemory(Record):
    """How many bytes of one accelerator a program sees, and how that is known. Plans use ``expected_bytes``."""

    low_bytes: int
    expected_bytes: int
    high_bytes: int
    basis: str
    source: str


def visible_memory(gpu: Gpu) -> VisibleMemory | None:
    """The memory of this accelerator that a program sees; ``None`` if no memory figure is known.

    The first known value counts: the reading of torch, Metal's limit (for a Mac), a share of what the vendor's tool reports, a
    share of what is sold. If only nvidia-smi's 24,564 MiB are known of a card, it counts as 0.994 of that.
    """
    # Kept beside the accelerator: a plan asks for it several times.
    known = vars(gpu)
    if "_visible" not in known:
        known["_visible"] = _visible(gpu)
    found: VisibleMemory | None = known["_visible"]
    return found


def _visible(gpu: Gpu) -> VisibleMemory | None:
    tool, torch = gpu.memory_total_mib, gpu.torch_total_mib
    if torch is not None:
        low, high = gpu.torch_total_mib_seen or (torch, torch)
        sizes = (min(low, torch), torch, max(high, torch))
        basis, source = f"read: {gpu.torch_total_basis or 'as torch sees it'}", gpu.source
    elif gpu.vendor == "apple":
        usable = usable_mib(gpu)
        if usable is None:
            return None
        sizes, source = (int(usable.low), int(usable.expected), int(usable.high)), usable.source
        raised = record(TOP, "hardware")["metal"]["raise_with"]
        basis = f"Metal's own limit for {gpu.memory_marketing_gb} GB of memory; {raised} raises it"
    else:
        if tool is not None:
            known, kind, basis = tool, "of_tool_amd" if gpu.vendor == "amd" else "of_tool", "estimated from its tool's total"
        elif gpu.memory_marketing_gb is not None:
            known, kind, basis = gpu.memory_marketing_gb * 1024, "of_marketing", "estimated from the number on the box"
        else:
            return None
        share = record(TOP, "hardware")["visible_share"][kind]
        sizes, source = (int(known * share["low"]), int(known * share["expected"]), int(known * share["high"])), share["source"]
    low, expected, high = (mib * _MIB for mib in sizes)
    return VisibleMemory(low_bytes=low, expected_bytes=expected, high_bytes=high, basis=basis, source=source)


def usable_mib(gpu: Gpu) -> Estimate | None:
    """MiB of a Mac's memory that Metal lets the GPU use; ``None`` for other accelerators and for unknown memory.

    The older rule gives the low value, the newer rule the high one, and the newest reading of that size the expected one. For a
    size without a reading, the newer rule gives the expected value by its next smaller step and the high one by its next larger
    step: 96 GiB lies between 64 and 128.
    """
    if gpu.vendor != "apple" or gpu.memory_marketing_gb is None:
        return None
    metal, ram = record(TOP, "hardware")["metal"], gpu.memory_marketing_gb
    steps = _usable_from(metal["newer_rule"], ram)
    older = [mib for start, mib in _usable_from(metal["older_rule"], ram).items() if start <= ram][-1]
    newer = [mib for start, mib in steps.items() if start <= ram][-1]
    read = [reading for reading in metal["readings"] if reading["ram_gib"] == ram]
    if read:
        expected, source = int(read[-1]["megabytes"] * 10**6) // _MIB, f"a reading (macOS {read[-1]['macos']}), {metal['source']}"
        high = max(newer, expected)
    else:
        later = [mib for start, mib in steps.items() if start > ram]
        expected, high = newer, later[0] if later and ram not in steps else newer
        source = f"no reading of {ram} GB is known, so by the steps of the sizes around it: {metal['source']}"
    return Estimate(low=min(older, expected), expected=expected, high=high, source=source)


def _usable_from(rule: Sequence[Mapping[str, Any]], ram_gib: int) -> dict[int, int]:
    """The GiB from which each step of a rule holds, and MiB of a memory of ``ram_gib`` by the step's share."""
    shares = {step["from_gib"]: step["share"].partition("/") for step in rule}
    return {start: ram_gib * 1024 * int(part) // int(whole) for start, (part, _, whole) in shares.items()}


_SPOKEN: Final = rf"[a-z0-9 _-]{{1,{LONGEST_ID}}}"
"""How people write ids and aliases, in small letters."""
_SIZED: Final = r"(?a)(.*[a-z0-9])[ _-]+([1-9][0-9]{0,3}) ?(?:gi?b?)?"
_CORES: Final = r"-[0-9]{1,3}c$"
_FORM: Final = r"(?:-(?:sxm[0-9]?|pcie|nvl|ws|server|maxq|3e|[0-9]+gb|[0-9]{1,3}c))+$"


_MACHINE: Final = r"(?ai)\A\s*(?:apple[ _-]+)?(?:macbook|imac|mac)(?:[ _-]+(?:pro|air|mini|studio))?[ _-]+(?=m[0-9])"
"""The Mac in front of its chip: ``Mac mini M4 24GB``."""


class UnknownGpuError(LookupError):
    """There is no accelerator of this name. ``nearest`` holds similar ids, ``why`` says what is wrong with a slice."""

    def __init__(self, wanted: str, near: tuple[str, ...], why: str = "is not known") -> None:
        super().__init__(f"{wanted!r} is not a known accelerator")
        self.wanted = wanted
        self.nearest = near
        self.why = why


def find_gpu(name: str) -> Gpu:
    """The accelerator with this id or alias. Capitals, hyphens, spaces and the vendor's name do not matter.

    A number at the end (``m4-max-64``, ``m4-max-64gb``) selects a size of memory, ``mig-1g.10gb`` a slice; ``mobile`` is ``laptop``. Raises :class:`UnknownGpuError` if there is no
    such accelerator, and :class:`~hwcalc.profiles.catalog.ProfileError` with path, line and key if its file is broken.

    >>> [find_gpu(name).id for name in ("h100", "RTX 4090", "4090", "mi300x", "NVIDIA L4", "m4-max-128", "m4-max-36")]
    ['h100-sxm5-80gb', 'rtx-4090', 'rtx-4090', 'mi300x', 'l4', 'apple-m4-max-40c-128gb', 'apple-m4-max-32c-36gb']
    >>> [find_gpu(name).id for name in ("h100:1g.10gb", "H100 MIG 1g.12gb", "NVIDIA A100 80GB PCIe MIG 1g.10gb")]
    ['h100-sxm5-80gb-mig-1g.10gb', 'h100-nvl-94gb-mig-1g.12gb', 'a100-pcie-80gb-mig-1g.10gb']
    >>> [find_gpu(name).id for name in ("Mac mini M4 24GB", "MacBook Air M2", "RTX 3070 Mobile", "RTX 4070 12 GB", "rtx-4070-12gb")]
    ['apple-m4-24gb', 'apple-m2', 'rtx-3070-laptop', 'rtx-4070', 'rtx-4070']
    """
    cut = slice_named(name)
    if cut is not None:
        return _slice(name, *cut)
    spoken = re.sub(_MACHINE, "", name) if "mac" in name.lower() else name
    text = spoken.strip().lower()
    place, sized = _resolve(text), None
    if place is None and re.fullmatch(_SPOKEN, text):
        sized = re.fullmatch(_SIZED, text)
        place = None if sized is None else _resolve(f"{sized[1]}-{sized[2]}gb")
    if place is not None:
        return _load(*place)
    if sized is None:
        raise UnknownGpuError(spoken[:LONGEST_ID], nearest(spoken))
    base, memory_gb = _resolve(sized[1]), int(sized[2])
    family = [] if base is None else [base]
    if base is not None and not re.search(_CORES, sized[1]):
        # A name with a number of cores is exact. Otherwise any accelerator that differs only in its cores may have this size.
        stem = re.sub(_CORES, "", base[0])
        family += (other for other in _places().items() if other[0] != base[0] and re.sub(_CORES, "", other[0]) == stem)
    gpus = [_load(*member) for member in family]
    for gpu in gpus:
        if memory_gb in gpu.memory_options_gb:
            return with_memory(gpu, memory_gb)
        if memory_gb == gpu.memory_marketing_gb and not gpu.memory_options_gb:
            # The size that it has is part of the name that shops print.
            return gpu
    sizes = sorted({(abs(size - memory_gb), f"{gpu.id}-{size}gb") for gpu in gpus for size in gpu.memory_options_gb})
    raise UnknownGpuError(spoken[:LONGEST_ID], tuple(gpu_id for _, gpu_id in sizes[:3]) or nearest(spoken))


def _slice(name: str, whole: str, part: str) -> Gpu:
    """A slice of the accelerator, or of the first of its other forms that has such a one."""
    wanted = name[:LONGEST_ID]
    if not whole:
        with_it = tuple(slice_id(gpu_id, part) for gpu_id, cut in cuts().items() if part in cut.slices)
        raise UnknownGpuError(wanted, with_it[:3], "is a slice, and does not say of which accelerator")
    gpu = find_gpu(whole)
    # A form on the same socket comes first.
    socket = re.sub(r"-[0-9]+gb$", "", gpu.id)
    forms = (gpu.id, *sorted(other_forms(whole, gpu.id), key=lambda form: not form.startswith(socket)))
    chosen = next((form for form in forms if form in cuts() and part in cuts()[form].slices), None)
    if chosen is not None:
        return sliced(gpu if chosen == gpu.id else find_gpu(chosen), part)
    known = cuts()[gpu.id].slices if gpu.id in cuts() else {}
    why = "is a slice of whose memory no reading is known" if known else f"is a slice, and none of {gpu.id} is known"
    raise UnknownGpuError(wanted, tuple(slice_id(gpu.id, each) for each in known), why)


def with_memory(gpu: Gpu, memory_gb: int) -> Gpu:
    """This accelerator with one of its sizes of memory and with that size in its id. Readings of another size are dropped."""
    readings = ("memory_total_mib", "memory_total_basis", "torch_total_mib", "torch_total_mib_seen", "torch_total_basis")
    changed: dict[str, Any] = {} if memory_gb == gpu.memory_marketing_gb else dict.fromkeys(readings)
    changed |= {"id": f"{gpu.id}-{memory_gb}gb", "name": f"{gpu.name}, {memory_gb} GB"}
    return replace(gpu, memory_marketing_gb=memory_gb, memory_options_gb=(), **changed)


def other_sizes(gpu: Gpu) -> tuple[str, ...]:
    """The ids of this accelerator with the other sizes of memory that it is sold in; none if there is one size.

    >>> other_sizes(find_gpu("m3-pro-18gb")), other_sizes(find_gpu("l4"))
    (('apple-m3-pro-36gb',), ())
    """
    with suppress(UnknownGpuError):
        machine = find_gpu(re.sub(r"(?a)-\d+gb$", "", gpu.id))
        return tuple(one.id for one in in_every_size(machine) if one.memory_marketing_gb != gpu.memory_marketing_gb)
    return ()


def in_every_size(gpu: Gpu) -> Iterator[Gpu]:
    """The accelerator in each size of memory that it is sold in, as :func:`find_gpu` knows it by its id and the size."""
    for size in gpu.memory_options_gb:
        # A file, of the user's own too, may have the name.
        place = _resolve(f"{gpu.id}-{size}gb")
        yield with_memory(gpu, size) if place is None else _load(*place)


def other_forms(name: str, gpu_id: str) -> tuple[str, ...]:
    """The other accelerators that ``name`` could mean besides ``gpu_id``: the same one with other memory, on another socket, with other cores.

    An id, or a name that says all of this, has none.

    >>> other_forms("h100:1g.10gb", "h100-sxm5-80gb-mig-1g.10gb")
    ('h100-pcie-80gb-mig-1g.10gb',)
    >>> other_forms("h100", "h100-sxm5-80gb"), other_forms("a100-80gb", "a100-sxm4-80gb"), other_forms("4090", "rtx-4090")
    (('h100-nvl-94gb', 'h100-pcie-80gb'), ('a100-pcie-80gb',), ())
    """
    cut = slice_named(name)
    if cut is not None:
        whole = slice_named(gpu_id) or (gpu_id, "")
        return tuple(
            slice_id(form, cut[1]) for form in other_forms(cut[0], whole[0]) if form in cuts() and cut[1] in cuts()[form].slices
        )
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
    if size is None:
        return tuple(ids)
    sold = [gpu_id for gpu_id in ids if int(size[1]) in _load(gpu_id, _places()[gpu_id]).memory_options_gb]
    return tuple(f"{gpu_id}-{size[1]}gb" for gpu_id in sold) or tuple(ids)


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


@lru_cache(maxsize=1)
def _products() -> dict[str, str]:
    """The names that drivers print, and that labels of nodes have with hyphens -> id; the first of those with several sizes of memory."""
    return {_squashed(product_name(gpu)): gpu.id for gpu in reversed([*built_in_gpus().values()])}


def product_name(gpu: Gpu) -> str:
    """The name as the driver prints it: ``NVIDIA GB200`` for ``NVIDIA GB200 (per GPU)``."""
    return gpu.name.partition(" (")[0]


def node_label(gpu: Gpu) -> str:
    """The label of nodes that have the accelerator, as the vendor's discovery writes it.

    >>> node_label(find_gpu("l40s"))
    'NVIDIA-L40S'
    """
    return product_name(gpu).replace(" ", "-")


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


def _resolve(name: str) -> _Place | None:
    """The accelerator of this id or alias, or of a name that is spelled like one."""
    text, known = name.strip().lower(), names("gpus")
    if text not in known and re.fullmatch(_SPOKEN, text) is None:
        return None
    for gpu_id in (text, *(() if text in known else (gpu_aliases().get(text, ""),))):
        if gpu_id not in known and not is_id(gpu_id):
            continue
        file = own("gpus", f"{gpu_id}.yaml")
        if file is not None and os.path.lexists(file):
            return gpu_id, file
        if gpu_id in known:
            return gpu_id, None
    query, mine, (ids, aliases) = _squashed(text), _own_files(), _spoken_names()
    if not query:
        return None
    spoken = ids.get(query) or next((name for name in mine if _squashed(name) == query), None) or aliases.get(query)
    spoken = spoken or _products().get(query)
    gpu_id = "" if spoken is None else gpu_aliases().get(spoken, spoken)
    return (gpu_id, mine.get(gpu_id)) if gpu_id in mine or gpu_id in known else None


@lru_cache(maxsize=1)
def _spoken_names() -> tuple[dict[str, str], dict[str, str]]:
    """The built-in accelerators and the aliases as they are spoken of, the first of those that are spoken of alike."""
    ids, aliases = tuple(names("gpus")), tuple(gpu_aliases())
    return {_squashed(name): name for name in reversed(ids)}, {_squashed(name): name for name in reversed(aliases)}


def _load(gpu_id: str, file: str | None) -> Gpu:
    """Load one accelerator. A file of the user's own that has changed is read again."""
    return _read(gpu_id, file, None if file is None else changed(file))


@lru_cache(maxsize=1024)
def _read(gpu_id: str, file: str | None, state: tuple[int, int] | None) -> Gpu:
    if file is None:
        return gpu_of(record("gpus", gpu_id))
    from pathlib import Path

    from hwcalc.profiles.schema import parse_gpu, read_yaml

    return parse_gpu(read_yaml(Path(file)))


EXAMPLES: Final = (("l4", 24), ("l40s", 48), ("h100-sxm5-80gb", 80), ("h200-sxm-141gb", 141))
"""Id and GB as sold. A test compares them with their files, which take too long to read for an example."""
UNCOMMON: Final = frozenset(
    [
        "a800-sxm4-80gb",
        "h20-3e-141gb",
        "h20-96gb",
        "h800-sxm5-80gb",
        "l20",
        "mi308x",
        "rtx-4090-d",
        "rtx-5090-d",
        "rtx-5090-d-v2",
        "rtx-5880-ada",
        "gb200-186gb",
        "gb300-288gb",
        "gh200-144gb",
        "gh200-96gb",
        "mi300a",
        "b100-192gb",
        "mi455x",
        "rubin-288gb",
    ]
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


def usual_host_gb() -> tuple[int, ...]:
    """The memory that desktop machines are sold with, in GB of 2^30 bytes, the least first."""
    return tuple(record(TOP, "hardware")["host_memory"]["usual_gb"])


def much_host_gb() -> int:
    """The memory of a well equipped machine at home, in GB of 2^30 bytes."""
    much: int = record(TOP, "hardware")["host_memory"]["much_gb"]
    return much
