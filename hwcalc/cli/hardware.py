"""``kvplan gpus`` and ``kvplan instances``: known accelerators, and the machines that have them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from hwcalc.cli.options import OUTPUT, Option, command
from hwcalc.cli.output import Answer, answer_lists, view_of
from hwcalc.errors import UsageError
from hwcalc.model import Note
from hwcalc.report.view import View
from hwcalc.text import shell_word, shown
from hwcalc.units import human_bytes

if TYPE_CHECKING:
    from hwcalc.profiles.hardware_file import Gpu
    from hwcalc.report.records import GpuInfo, InstanceInfo, InstancePrice


_MIB = 1024**2
_TABLE = ("accelerator", "vendor", "GB", "tool MiB", "seen MiB", "GB/s", "bf16", "fp8", "FP8 KV")
_LEGEND = ": GB as sold, MiB as the maker's tool reports and as a program sees (~ estimated), dense TFLOPS"
_MARKDOWN = ("accelerator", "name", *_TABLE[1:])
_CSV = (
    "id", "name", "vendor", "category", "memory_marketing_gb", "memory_total_mib", "visible_low_mib", "visible_mib",
    "visible_high_mib", "visible_basis", "memory_bandwidth_gbps", "bf16_tflops", "fp8_tflops", "fp8_kv",
)  # fmt: skip


@command(
    (
        Option(
            "search",
            (),
            "[SEARCH]...",
            "An id or another name shows that one; else words that must all occur in the id, name, vendor or kind, or its memory: 24gb. mig: slices. local: this machine's.",
            "list",
            complete="gpus",
        ),
        *OUTPUT,
    ),
    {
        "All of them": "kvplan gpus",
        "One with its sources": "kvplan gpus h100",
        "Those with a word in the name": "kvplan gpus rtx",
    },
)
def gpus(*, search: Sequence[str] | None, **output: Any) -> Answer:
    """List the accelerators, or show one with its sources.

    With their memory and speed, and the instances that have them.
    """
    from hwcalc.hardware.profiles import LEFT_OUT, known_instances, profile_errors
    from hwcalc.report.records import gpu_info

    view = view_of(**output)
    words = " ".join(search or ()).strip()
    notes: list[Note] = []
    with profile_errors():
        gpus, exact, also = _chosen(words, notes)
        by_gpu: dict[str, list[str]] = {}
        for name, instance in known_instances(notes):
            by_gpu.setdefault(instance.accelerator, []).append(name)
        aliases = _aliases()
        infos = [gpu_info(gpu, aliases.get(gpu.id, []), by_gpu.get(gpu.id, [])) for gpu in gpus]
    remarks = tuple(note.message for note in notes if note.code == LEFT_OUT or not view.quiet)
    if view.format == "json":
        left_out = tuple(note.message for note in notes if note.code == LEFT_OUT)
        return answer_lists(left_out, gpus=infos)
    if exact and view.format != "csv":
        more = () if view.quiet or not also else (f"also with {shown(words)} in the name: {', '.join(also)}",)
        return Answer(text=_one(infos[0], view), remarks=(*remarks, *more))
    from hwcalc.report.text import plural

    legend = "" if view.format == "csv" else _LEGEND
    text, left_out = _listed(infos, view)
    count = f"{plural(len(infos), 'accelerator')}{legend}."
    said = () if view.quiet else (count, "one in full: kvplan gpus ID", *left_out)
    return Answer(text=text, remarks=(*remarks, *said))


def _chosen(words: str, notes: list[Note]) -> tuple[list[Gpu], bool, list[str]]:
    """The chosen accelerators, whether the words name exactly one, and the ids of others that contain the words."""
    from hwcalc.hardware.named import LOCAL, gpu_named, load_gpu
    from hwcalc.hardware.profiles import known_gpus
    from hwcalc.profiles.gpus import UnknownGpuError, find_gpu
    from hwcalc.profiles.mig import cuts, sliced

    if words.lower() == LOCAL:
        return [load_gpu(words, notes)], True, []
    everything = [gpu for _, gpu in known_gpus(notes)]
    if not words:
        return everything, False, []
    if "mig" in words.lower().split():
        everything = [sliced(gpu, name) for gpu in everything if gpu.id in cuts() for name in cuts()[gpu.id].slices]
    wanted, aliases, texts = words.lower().split(), _aliases(), {}
    for gpu in everything:
        names = (gpu.id, gpu.name, gpu.vendor, gpu.category, gpu.architecture, *aliases.get(gpu.id, []))
        sizes = (f"{size:g}gb" for size in (gpu.memory_marketing_gb, *gpu.memory_options_gb) if size)
        texts[gpu.id] = " ".join(filter(None, (*names, *sizes))).lower()
    # A size of memory is a whole word: 4gb is no part of 24gb.
    found = [
        gpu
        for gpu in everything
        if all(word in (texts[gpu.id].split() if re.fullmatch(_SIZE, word) else texts[gpu.id]) for word in wanted)
    ]
    # Whole words come first: m4 is a chip, and a part of sxm4.
    found.sort(key=lambda gpu: not set(wanted) <= set(re.findall(r"[a-z0-9]+", texts[gpu.id])))
    try:
        one = find_gpu(words)
    except UnknownGpuError:
        if found:
            return found, False, []
        # Raises an error that suggests similar names.
        return [gpu_named(words)], True, []
    return [one], True, [gpu.id for gpu in found if not one.id.startswith(gpu.id)]


_SIZE = "[0-9]+gb"


def _aliases() -> dict[str, list[str]]:
    """Other names by accelerator."""
    from hwcalc.profiles.gpus import gpu_aliases

    aliases: dict[str, list[str]] = {}
    for alias, gpu_id in gpu_aliases().items():
        aliases.setdefault(gpu_id, []).append(alias)
    return aliases


def _listed(infos: Sequence[GpuInfo], view: View) -> tuple[str, tuple[str, ...]]:
    """A row for each accelerator. Markdown has their names too, CSV more columns, and no units."""
    rows: list[list[str]] = []
    for info in infos:
        visible, bf16, fp8 = info.visible, info.tflops_dense.get("bf16"), info.tflops_dense.get("fp8")
        if view.format == "csv":
            sizes = [None] * 3 if visible is None else [visible.low_bytes, visible.expected_bytes, visible.high_bytes]
            cells = (
                info.id, info.name, info.vendor, info.category, info.memory_marketing_gb, info.memory_total_mib,
                *(None if size is None else size // _MIB for size in sizes), None if visible is None else visible.basis,
                info.memory_bandwidth_gbps, bf16, fp8, info.fp8_kv,
            )  # fmt: skip
            rows.append(["" if cell is None else str(cell) for cell in cells])
            continue
        seen = ""
        if visible is not None:
            seen = f"{'' if info.torch_total_mib is not None else '~'}{visible.expected_bytes // _MIB:,}"
        names = [info.id, info.name] if view.format == "markdown" else [info.id]
        sold, tool = _number(info.memory_marketing_gb), _number(info.memory_total_mib)
        speeds = (_number(speed) for speed in (info.memory_bandwidth_gbps, bf16, fp8))
        rows.append([*names, info.vendor, sold, tool, seen, *speeds, info.fp8_kv or ""])
    if view.format == "csv":
        return view.table(_CSV, rows), ()
    from hwcalc.report.columns import listed

    header, first = (_MARKDOWN, 3) if view.format == "markdown" else (_TABLE, 2)
    return listed(view, header, rows, ("FP8 KV", "tool MiB", "fp8", "vendor"), right=range(first, len(header) - 1))


def _one(info: GpuInfo, view: View) -> str:
    """All known facts about one accelerator, one on each line."""
    seen, link = info.torch_total_mib_seen, info.interconnect
    rates = [f"{name} {_number(rate)}" for name, rate in info.tflops_dense.items() if rate is not None]
    joined = [
        str(link["kind"]) if link.get("kind") else "",
        f"{_number(link['gbps_bidirectional'])} GB/s both ways" if link.get("gbps_bidirectional") else "",
        str(link["host"]) if link.get("host") else "",
    ]
    readings = f"; readings from {seen[0]:,} to {seen[1]:,}" if seen and seen[0] != seen[1] else ""
    first = info.aliases[0] if info.aliases else info.id
    # Each size of memory has a name too.
    sizes = info.memory_options_gb if len(info.memory_options_gb) > 1 else ()
    visible = ""
    if info.visible is not None and info.torch_total_mib is not None:
        visible = f"{info.torch_total_mib:,} MiB, as torch sees it"
    elif info.visible is not None:
        of = info.visible
        low, expected, high = (size // _MIB for size in (of.low_bytes, of.expected_bytes, of.high_bytes))
        visible = f"about {expected:,} MiB, {low:,} to {high:,}: {of.basis}"
    facts = [
        ("accelerator", info.id),
        ("name", info.name),
        ("other names", ", ".join([*info.aliases, *(f"{first}-{size}gb" for size in sizes)])),
        ("kind", ", ".join(filter(None, (info.vendor, info.category, str(info.released or ""))))),
        ("architecture", info.architecture or ""),
        ("compute capability", info.compute_capability or ""),
        ("memory sold", _sized(info.memory_marketing_gb, "GB") + (f" of {info.memory_type}" if info.memory_type else "")),
        ("sold with", ", ".join(f"{size}" for size in info.memory_options_gb) + " GB" if info.memory_options_gb else ""),
        ("tool reports", _sized(info.memory_total_mib, "MiB", info.memory_total_basis)),
        ("torch sees", _sized(info.torch_total_mib, "MiB", f"{info.torch_total_basis}{readings}")),
        ("visible", visible),
        ("bandwidth", _sized(info.memory_bandwidth_gbps, "GB/s")),
        ("dense TFLOPS", ", ".join(rates)),
        ("MIG slices", ", ".join(f"{most} x {name}" for name, most in info.mig_slices.items())),
        ("interconnect", ", ".join(filter(None, joined))),
        ("power", _sized(info.tdp_w, "W")),
        ("devices", "" if info.devices_per_package is None else f"{info.devices_per_package} in one package"),
        ("FP8 KV cache", info.fp8_kv or ""),
        ("instances", ", ".join(info.instances)),
        ("confidence", info.confidence or ""),
        ("note", info.note or ""),
        ("source", info.source),
    ]
    return view.table(("", ""), [fact for fact in facts if fact[1]])


def _number(value: float | str | None) -> str:
    """A number with up to two decimals and without trailing zeros: ``989.4``, ``3,350``."""
    return "" if value is None else value if isinstance(value, str) else f"{value:,.2f}".rstrip("0").rstrip(".")


def _sized(value: float | None, unit: str, basis: str | None = None) -> str:
    """A number in its unit, and what it is based on; empty if it is unknown."""
    return "" if value is None else f"{_number(value)} {unit}" + (f" ({basis})" if basis else "")


_HEADER = ("instance", "accelerator", "count", "visible each", "$/h", "day", "fabric")
_INSTANCES_CSV = ("name", "id", "cloud", "accelerator", "count", "fraction", "visible_bytes_each", "fabric", "note")
_PRICE_CSV = {"usd_per_hour": "usd_per_hour", "price_region": "region", "price_date": "date", "price_source": "source"}
"""Columns of the price on demand, and what each is called there."""


@command(
    (
        Option(
            "search",
            (),
            "[SEARCH]...",
            "A name shows that one; else words that must all occur in the name, the cloud, the accelerator or what joins them.",
            "list",
            complete="instances",
        ),
        *OUTPUT,
    ),
    {
        "All of them": "kvplan instances",
        "Those with an accelerator": "kvplan instances h100",
        "One with its source": "kvplan instances p5.48xlarge",
    },
)
def instances(*, search: Sequence[str] | None, **output: Any) -> Answer:
    """List cloud instances and boxes with their accelerators.

    All, those that have an accelerator (h100), or one with its source.
    """
    from hwcalc.hardware.profiles import profile_errors

    view = view_of(**output)
    notes: list[Note] = []
    with profile_errors():
        found, exact = _instances_chosen(" ".join(search or ()).strip(), notes)
    left_out = tuple(note.message for note in notes)
    if view.format == "json":
        return answer_lists(left_out, instances=found)
    if exact and view.format != "csv":
        return Answer(text=_instances_one(found[0], view))
    from hwcalc.report.columns import listed
    from hwcalc.report.text import plural

    if view.format == "csv":
        count = () if view.quiet else (plural(len(found), "instance"),)
        cells = (
            [
                getattr(of, name, None)
                for of, names in ((info, _INSTANCES_CSV), (_on_demand(info), _PRICE_CSV.values()))
                for name in names
            ]
            for info in found
        )
        rows = [["" if cell is None else str(cell) for cell in row] for row in cells]
        return Answer(text=view.table((*_INSTANCES_CSV, *_PRICE_CSV), rows), remarks=(*left_out, *count))
    rows = [
        [info.name, info.accelerator, info.fraction or f"{info.count:,}", _each(info), *_price(info), info.fabric or ""]
        for info in found
    ]
    text, dropped = listed(view, _HEADER, rows, ("fabric", "visible each", "day"), right=(2, 3, 4))
    more = (
        ()
        if view.quiet
        else (
            *dropped,
            f"{plural(len(found), 'instance')}. One in full: kvplan instances NAME",
        )
    )
    return Answer(text=text, remarks=(*left_out, *more))


def _instances_chosen(words: str, notes: list[Note]) -> tuple[list[InstanceInfo], bool]:
    """The chosen instances, and whether the words name exactly one."""
    from hwcalc.hardware.named import gpu_named, instance_device, instance_named
    from hwcalc.hardware.prices import prices
    from hwcalc.hardware.profiles import known_instances, leaving_out
    from hwcalc.profiles.gpus import UnknownGpuError, find_gpu
    from hwcalc.profiles.instances import AmbiguousInstanceError, UnknownInstanceError, find_instance
    from hwcalc.report.records import instance_info

    table = prices()
    if words:
        try:
            one = find_instance(words)
        except (UnknownInstanceError, AmbiguousInstanceError):
            pass
        else:
            return [instance_info(one, instance_device(one), table)], True
    terms = words.lower().split()
    infos = []
    for name, instance in known_instances(notes):
        haystack = f"{name} {instance.id} {instance.accelerator} {instance.fabric or ''} {instance.note or ''}".lower()
        if all(term in haystack for term in terms):
            with leaving_out(notes):
                infos.append(instance_info(instance, instance_device(instance), table))
    if infos or not words:
        return infos, False
    # The words may be an alias of an accelerator: "4090", "trillium".
    try:
        gpu = find_gpu(words)
    except UnknownGpuError:
        # Raises an error that suggests similar names.
        instance_named(words)
        return [], False
    gpu_id = gpu_named(gpu.id).id
    for _, instance in known_instances(notes):
        if instance.accelerator == gpu_id:
            with leaving_out(notes):
                infos.append(instance_info(instance, instance_device(instance), table))
    if not infos:
        raise UsageError(f"no instance with {gpu_id} is known.", hint="All of them: kvplan instances")
    return infos, False


def _on_demand(info: InstanceInfo) -> InstancePrice | None:
    from hwcalc.hardware.prices import Kind

    return next((price for price in info.prices if price.kind == Kind.ON_DEMAND), None)


def _price(info: InstanceInfo) -> tuple[str, str]:
    """Dollars an hour on demand, and the day of that price; empty where none is known."""
    from hwcalc.hardware.prices import money

    found = _on_demand(info)
    return ("", "") if found is None else (money(found.usd_per_hour), found.date or "your price")


def _priced(price: InstancePrice) -> str:
    from hwcalc.hardware.prices import KINDS, money

    where, when = ("" if price.region == "any" else f" in {price.region}"), f" on {price.date}" if price.date else ""
    return f"{money(price.usd_per_hour)} an hour, {KINDS[price.kind]}{where}{when}: {price.source}"


def _instances_one(info: InstanceInfo, view: View) -> str:
    facts = [
        ("instance", info.name),
        ("its cloud's name", info.id),
        ("accelerators", f"{info.fraction or f'{info.count:,} x'} {'of ' if info.fraction else ''}{info.accelerator}"),
        ("visible each", _each(info)),
        ("fabric", info.fabric or ""),
        ("note", info.note or ""),
        ("source", info.source),
        *(("price", _priced(price)) for price in info.prices),
        ("plan with it", f"kvplan MODEL --instance {shell_word(info.name)}"),
    ]
    return view.table(("", ""), [fact for fact in facts if fact[1]])


def _each(info: InstanceInfo) -> str:
    return "" if info.visible_bytes_each is None else human_bytes(info.visible_bytes_each)
