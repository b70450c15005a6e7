"""All profiles, and broken profile files as errors of the program, or as notes when many are listed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

from hwcalc.errors import ConfigError, KvplanError
from hwcalc.model import Note

if TYPE_CHECKING:
    from hwcalc.profiles.hardware_file import Gpu, Instance

T = TypeVar("T")

LEFT_OUT = "broken-profile"
"""The code of the note about a skipped file."""


class OwnProfileError(ConfigError):
    """A file of the user's own is broken. Lists skip such a file; a request for exactly this file fails. Exit 3."""


@contextmanager
def profile_errors() -> Iterator[None]:
    """Turn a :class:`~hwcalc.profiles.catalog.ProfileError` into an error of the program with path, line and key."""
    from hwcalc.profiles.catalog import ProfileError

    try:
        yield
    except ProfileError as error:
        from hwcalc.profiles.catalog import user_folder
        from hwcalc.text import printable

        folder = user_folder("gpus")
        kind = OwnProfileError if folder is not None and error.path.is_relative_to(folder.parent) else ConfigError
        raise kind(printable(str(error)), hint="Correct the file, or move it away.") from error


@contextmanager
def keeping(refused: type[KvplanError]) -> Iterator[None]:
    """Save a measurement. One whose values no such file may hold is a ``refused`` error."""
    from hwcalc.profiles.catalog import ProfileError
    from hwcalc.text import printable

    with profile_errors():
        try:
            yield
        except (KvplanError, ProfileError):
            raise
        except ValueError as error:
            message = f"what was measured is not plausible and cannot be kept: {printable(str(error))[:300]}."
            raise refused(message, hint="Compare it without keeping it.") from error


@contextmanager
def leaving_out(notes: list[Note]) -> Iterator[None]:
    """Skip a broken file of the user's own in a loop over many files, and add one note about it."""
    try:
        with profile_errors():
            yield
    except OwnProfileError as error:
        note = Note(code=LEFT_OUT, message=f"Left out: {error.message}")
        if note not in notes:
            notes.append(note)


def known_gpus(notes: list[Note]) -> Iterator[tuple[str, Gpu]]:
    """All accelerators by id, in alphabetical order. A broken file of the user's own is left out, with a note."""
    from hwcalc.profiles.gpus import built_in_gpus, find_gpu, own_gpus

    return _known(built_in_gpus(), own_gpus(), find_gpu, notes)


def known_instances(notes: list[Note]) -> Iterator[tuple[str, Instance]]:
    """All instances by ``cloud/name``, in alphabetical order. A broken file of the user's own is left out, with a note."""
    from hwcalc.profiles.instances import built_in_instances, find_instance, own_instances

    return _known(built_in_instances(), own_instances(), find_instance, notes)


def _known(
    built_in: Mapping[str, T], own: frozenset[str], find: Callable[[str], T], notes: list[Note]
) -> Iterator[tuple[str, T]]:
    for name in sorted(built_in.keys() | own) if own else built_in:
        profile = built_in.get(name)
        if name in own:
            profile = None
            with leaving_out(notes):
                profile = find(name)
        if profile is not None:
            yield name, profile
