"""Broken profile files: errors of the program, or notes where many are listed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from hwcalc.errors import ConfigError
from hwcalc.model import Note

__all__ = ["LEFT_OUT", "OwnProfileError", "leaving_out", "profile_errors"]

LEFT_OUT = "broken-profile"
"""The code of the note about a file that is left out."""


class OwnProfileError(ConfigError):
    """A broken file of the user's own: what lists many goes on without it, what needs this one does not. Exit 3."""


@contextmanager
def profile_errors() -> Iterator[None]:
    """A :class:`~hwcalc.profiles.catalog.ProfileError` as an error of the program, which names path, line and key."""
    from hwcalc.profiles.catalog import ProfileError

    try:
        yield
    except ProfileError as error:
        from hwcalc.profiles.gpus import user_folder
        from hwcalc.text import printable

        own = user_folder()
        kind = OwnProfileError if own is not None and error.path.is_relative_to(own.parent) else ConfigError
        raise kind(printable(str(error)), hint="Correct the file, or move it away.") from error


@contextmanager
def leaving_out(notes: list[Note]) -> Iterator[None]:
    """Around what is read of one of many: a broken file of the user's own becomes a note, once, and the rest goes on."""
    try:
        with profile_errors():
            yield
    except OwnProfileError as error:
        note = Note(code=LEFT_OUT, message=f"Left out: {error.message}")
        if note not in notes:
            notes.append(note)
