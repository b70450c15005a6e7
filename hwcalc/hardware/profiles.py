"""Turn broken profile files into errors of the program, or into notes when many files are listed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from hwcalc.errors import ConfigError, KvplanError
from hwcalc.model import Note

__all__ = ["LEFT_OUT", "OwnProfileError", "keeping", "leaving_out", "profile_errors"]

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
        from hwcalc.profiles.gpus import user_folder
        from hwcalc.text import printable

        folder = user_folder()
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
