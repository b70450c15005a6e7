"""Look up accelerators and instances by the names that users type, with the program's errors and notes."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from contextlib import suppress
from functools import lru_cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from hwcalc.errors import ConfigError, UsageError
from hwcalc.hardware.profiles import OwnProfileError, profile_errors
from hwcalc.model import Note
from hwcalc.profiles.catalog import own
from hwcalc.text import TIMES, shell_word, shown
from hwcalc.units import human_bytes

if TYPE_CHECKING:
    from hwcalc.profiles.hardware_file import Gpu, Instance

LOCAL = "local"
"""The name that means the accelerator of this machine."""
MEMORY_OPTION: Final = "memory-option"
"""The code of the note that a size of memory was assumed. Every command says it."""
_HOST_NAME: Final = r"(?a)(?:cpu|none|no-gpu)(?:[ _-]*([1-9][0-9]{0,5}) ?(?:gi?b?)?)?"

_COUNTED: Final = r"(?ai)([1-9][0-9]{0,2}) ?[x*\N{MULTIPLICATION SIGN}] ?(\S.*)|(\S.*?(?:(?<=[0-9 ])|(?<=[0-9]s)|(?<=gb))) ?[x*\N{MULTIPLICATION SIGN}] ?([1-9][0-9]?)"
"""A number of accelerators before the name, or behind it: ``8xb200``, ``b200x8``, ``L40S x 4``. The x of ``RX 580`` and ``M4 Max 64`` is none."""


def load_gpu(name: str, notes: list[Note], what: str = "--gpu") -> Gpu:
    """The accelerator with this id or alias, or the one of this machine for ``local``. Assumptions are added to ``notes``.

    Raises :class:`~hwcalc.errors.UsageError` for an unknown name and :class:`~hwcalc.errors.ConfigError` for a broken file.
    """
    if name.strip().lower() == LOCAL:
        from hwcalc.hardware.local import local_gpu

        with profile_errors():
            gpu = local_gpu(notes)
    elif (host := host_named(name)) is not None:
        gpu = host
    else:
        folder = own("gpus")
        # Files of the user's own may change between two calls; those of kvplan do not.
        gpu, assumed = _built_in(name, what) if folder is None or not os.path.isdir(folder) else _in_profiles(name, what)  # noqa: PTH112
        notes += assumed
    _remarks(gpu, notes)
    return gpu


def _in_profiles(name: str, what: str) -> tuple[Gpu, tuple[Note, ...]]:
    """The accelerator of this name, and what is assumed of it where the name leaves something open."""
    from hwcalc.profiles.gpus import other_forms, with_memory
    from hwcalc.profiles.hardware_file import is_id

    found = gpu_named(name, what)
    gpu, others, notes = found, other_forms(name, found.id), []
    if len(found.memory_options_gb) > 1 and found.memory_marketing_gb is not None:
        # A name with its size and one without are the same accelerator in every table.
        gpu = with_memory(found, found.memory_marketing_gb)
    if others:
        # Names without their size of memory.
        stems = [re.sub(r"(?a)-\d+gb$", "", known) for known in (gpu.id, *others)]
        message = f"{shown(name, 40)} is taken as {gpu.id}; also known: {', '.join(others)}."
        notes.append(Note(code=MEMORY_OPTION if stems[0] in stems[1:] else "gpu-name", message=message))
    sizes = [size for size in found.memory_options_gb if size != found.memory_marketing_gb]
    if sizes and found.memory_marketing_gb is not None:
        spoken = name.strip().lower()
        spoken = spoken if is_id(spoken) else found.id
        also = ", ".join(f"{spoken}-{size}gb" for size in sizes)
        message = f"{spoken}: planned {found.memory_marketing_gb:,} GB of memory; also {also}."
        notes.append(Note(code=MEMORY_OPTION, message=message))
    return gpu, tuple(notes)


_built_in: Final = lru_cache(maxsize=512)(_in_profiles)


def gpu_ids(names: Iterable[str], notes: list[Note]) -> tuple[str, ...]:
    """The ids of these accelerators, each once. Sizes of memory that were assumed are added to ``notes``."""
    said: list[Note] = []
    ids = tuple(dict.fromkeys(load_gpu(name, said).id for name in names))
    notes += dict.fromkeys(note for note in said if note.code == MEMORY_OPTION)
    return ids


def gpu_named(name: str, what: str = "accelerator") -> Gpu:
    """The profile of this name. Raises :class:`~hwcalc.errors.UsageError` and :class:`~hwcalc.errors.ConfigError`."""
    from hwcalc.profiles.gpus import UnknownGpuError, find_gpu

    try:
        with profile_errors():
            return find_gpu(name)
    except UnknownGpuError as error:
        one, count = counted(name)
        if count is not None:
            # As kvplan writes it: 2x3090.
            with suppress(UnknownGpuError):
                find_gpu(one or "")
                hint = f"Write: --gpu {shell_word(one or '')} --gpus {count}"
                if what == "--gpu":
                    # Where a list is taken, nodes of unlike size may be meant.
                    hint += "; compare takes nodes of unlike size: kvplan compare MODEL --gpu 4xh100,8xh200"
                raise UsageError(f"{what} {shown(name, 40)} names more than one accelerator.", hint=hint) from error
        if size := re.fullmatch(r"(?ai)([1-9]\d{0,3}) ?gi?b?", name.strip()):
            hint = f"Name the accelerator. Those of {size[1]} GB: kvplan gpus {size[1]}gb"
            raise UsageError(f"{what} {shown(name, 40)} is a size of memory.", hint=hint) from error
        instance = None
        with suppress(UsageError):
            instance = instance_named(name)
        if instance is not None:
            hint = f"Write: --instance {shell_word(name)}"
            raise UsageError(f"{what} {shown(name, 40)} is an instance and no accelerator.", hint=hint) from error
        perhaps = f"Perhaps {', '.join(error.nearest)}? " if error.nearest else ""
        more = " apple" if error.nearest and all(near.startswith("apple-") for near in error.nearest) else ""
        more = " mig" if "a slice" in error.why else more
        raise UsageError(f"{what} {shown(name, 60)} {error.why}.", hint=f"{perhaps}See: kvplan gpus{more}") from error


def load_instance(name: str, notes: list[Note]) -> tuple[Gpu, int]:
    """One accelerator of this instance, and how many the instance has.

    A share of an accelerator (1/8 of an L4) has that share of the memory; its speed is unknown.

    Raises :class:`~hwcalc.errors.UsageError` for an unknown or ambiguous name, and :class:`~hwcalc.errors.ConfigError` for a
    broken file.
    """
    from hwcalc.text import printable

    instance = instance_named(name, "--instance")
    whole, gpu = _whole(instance), instance_device(instance)
    has = f"{instance.count:,} x {whole.id}" + (f", joined by {instance.fabric}" if instance.fabric else "")
    if instance.fraction is not None:
        size = "" if gpu.memory_total_mib is None else f", {gpu.memory_total_mib:,} MiB of memory"
        has = f"{instance.fraction[0]}/{instance.fraction[1]} of {whole.id}{size}; how fast a share is, is not known"
    details = (instance.note or "", (whole.devices_per_package and whole.note) or "")
    told = "; ".join(filter(None, (f"{instance.name} has {has}", *(text.removesuffix(".") for text in details))))
    notes.append(Note(code="instance", message=printable(f"{told}.")))
    if instance.user:
        notes.append(Note(code="user-profile", message=f"The instance is your own: {printable(str(instance.path))}."))
    _remarks(gpu, notes)
    return gpu, instance.count


def instance_device(instance: Instance) -> Gpu:
    """One accelerator of the instance as a program sees it. Raises :class:`~hwcalc.errors.ConfigError`.

    A virtual GPU has its share of the memory, or the memory that the cloud reports. Its speed is unknown, because other users share
    the same device.
    """
    gpu = _whole(instance)
    if instance.fraction is None:
        return gpu
    part, whole = instance.fraction
    sold = gpu.memory_marketing_gb
    tool = instance.memory_mib or (None if gpu.memory_total_mib is None else gpu.memory_total_mib * part // whole)
    return replace(
        gpu,
        part=True,
        gpus_per_node=None,
        id=f"{gpu.id}-{part}-of-{whole}",
        name=f"{gpu.name}, {part}/{whole}",
        memory_marketing_gb=sold * part // whole if sold is not None and sold * part % whole == 0 else None,
        memory_total_mib=tool,
        memory_total_basis="the cloud's own interface" if instance.memory_mib else f"{part}/{whole} of the whole, not read",
        torch_total_mib=None,
        torch_total_mib_seen=None,
        torch_total_basis=None,
        memory_bandwidth_gbps=None,
        tflops_dense=MappingProxyType(dict.fromkeys(gpu.tflops_dense)),
        source=f"{instance.source}; {gpu.source}",
    )


def _whole(instance: Instance) -> Gpu:
    """The accelerator that the instance's file names."""
    from hwcalc.profiles.gpus import UnknownGpuError, find_gpu
    from hwcalc.text import printable

    try:
        with profile_errors():
            return find_gpu(instance.accelerator)
    except UnknownGpuError as error:
        path, near = printable(str(instance.path)), ", ".join(error.nearest) or "see kvplan gpus"
        message = f"{path}: accelerator: {shown(error.wanted)} is not a known accelerator."
        kind = OwnProfileError if instance.user else ConfigError
        raise kind(message, hint=f"Correct the file: {near}.") from error


def instance_named(name: str, what: str = "instance") -> Instance:
    """The instance of this name. Raises :class:`~hwcalc.errors.UsageError` and :class:`~hwcalc.errors.ConfigError`."""
    from hwcalc.profiles.instances import AmbiguousInstanceError, UnknownInstanceError, find_instance

    try:
        with profile_errors():
            return find_instance(name)
    except UnknownInstanceError as error:
        perhaps = f"Perhaps {', '.join(error.nearest)}? " if error.nearest else ""
        raise UsageError(f"{what} {shown(name, 60)} is not known.", hint=f"{perhaps}See: kvplan instances") from error
    except AmbiguousInstanceError as error:
        message = f"{what} {shown(name, 60)} is the name of {len(error.names)} instances."
        raise UsageError(message, hint=f"Write {' or '.join(error.names)}.") from error


def _remarks(gpu: Gpu, notes: list[Note]) -> None:
    """Add notes about the user's own profile, a slice and the limit of a Mac."""
    from hwcalc.profiles.gpus import visible_memory
    from hwcalc.text import printable

    if gpu.user:
        notes.append(Note(code="user-profile", message=f"The accelerator is your own: {printable(str(gpu.path))}."))
    if gpu.slice_of is not None:
        notes.append(Note(code="mig-slice", message=f"{gpu.id}: {gpu.note}"))
    if gpu.vendor == "apple" and gpu.torch_total_mib is None:
        visible = visible_memory(gpu)
        if visible is not None:
            size = human_bytes(visible.expected_bytes)
            message = f"The GPU of {gpu.id} may use about {size} ({visible.basis})."
            notes.append(Note(code="metal-limit", message=message))


def host_named(name: str) -> Gpu | None:
    """The machine without a GPU that this name means, of which only the size is known, if the name has it; ``None`` for other names.

    >>> host_named("cpu-32gb").id, host_named("CPU 64").memory_marketing_gb, host_named("none").torch_total_mib, host_named("l4")
    ('cpu-32gb', 64, None, None)
    """
    spoken = name.strip().lower()
    found = re.fullmatch(_HOST_NAME, spoken) if spoken.startswith(("cpu", "no")) else None
    if found is None:
        return None
    from hwcalc.profiles.hardware_file import HOST, Gpu

    size = None if found[1] is None else int(found[1])
    mib = None if size is None else size * 1024
    return Gpu(
        id="cpu" if size is None else f"cpu-{size}gb",
        name="No GPU" if size is None else f"No GPU, {size:,} GB of memory",
        vendor="host",
        category=HOST,
        memory_marketing_gb=size,
        # What is said is what programs may use: the verdict is strict.
        torch_total_mib=mib,
        torch_total_basis=None if mib is None else "as its name says",
        source="as its name says",
    )


def counted(gpu: str | None) -> tuple[str | None, int | None]:
    """The accelerator that a word names, and how many where it says so: ``4xh100``.

    >>> counted("4xh100"), counted("2 x RTX 3090"), counted("7900xtx"), counted("l4"), counted(None)
    (('h100', 4), ('RTX 3090', 2), ('7900xtx', None), ('l4', None), (None, None))
    >>> counted("b200x8"), counted("l40sx4"), counted("A100 80GB x 2"), counted("RX 580"), counted("m4 max 64")
    (('b200', 8), ('l40s', 4), ('A100 80GB', 2), ('RX 580', None), ('m4 max 64', None))
    """
    match = None if gpu is None or {*"xX*", TIMES}.isdisjoint(gpu) else re.fullmatch(_COUNTED, gpu.strip())
    if match is None:
        return gpu, None
    return (match[2], int(match[1])) if match[1] else (match[3].strip(), int(match[4]))
