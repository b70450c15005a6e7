"""The request to a source, its answers, and reports of progress, which only a command on a terminal shows."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final

from hwcalc.errors import KvplanError, UsageError
from hwcalc.formulas.record import Record, repr_without
from hwcalc.text import shown

# The characters that git allows in a branch or tag name. Names that could leave the cache folder are refused below.
_REVISION: Final = r"[A-Za-z0-9_][A-Za-z0-9_./+@#=,-]{0,199}"


class Wanted(Record):
    """A request for a model by its id.

    ``revision`` is a branch, a tag, a commit or the start of a commit; ``None`` means the main branch. ``token`` and ``endpoint``
    are for the Hub and override the environment. ``weights`` also asks for the headers of the weight files. ``file`` is what stands
    behind the colon of a GGUF model, a file or a quantisation (empty: llama.cpp's choice); ``None`` without a colon.
    """

    id: str
    revision: str | None = None
    offline: bool = True
    token: str | None = None
    endpoint: str | None = None
    weights: bool = False
    file: str | None = None

    def __repr__(self) -> str:
        return repr_without(self, "token")

    @property
    def name(self) -> str:
        """The model's name on a command line."""
        return f"{self.id}:{self.file}" if self.file else self.id


class Absent(Record):
    """The answer of a source that does not have the model.

    ``place`` is where it looked, and ``remark`` is what the user should know about this place. If the source could not look at
    all, ``error`` is the reason; it is raised if no other source has the model.
    """

    place: str
    remark: str = ""
    error: KvplanError | None = None


def split_revision(text: str, revision: str | None) -> tuple[str, str | None]:
    """Split ``"org/name@revision"`` into id and revision.

    Raises :class:`UsageError` if the option ``revision`` names another revision, or if the revision is malformed.
    """
    model_id, sign, named = text.partition("@")
    if sign and revision is not None and revision != named:
        raise UsageError(f"two revisions: {shown(named)} in the id and {shown(revision)} as an option.", hint="Give one.")
    asked = named if sign else revision
    if asked is not None and not (re.fullmatch(_REVISION, asked) and ".." not in asked and "//" not in asked):
        raise UsageError(
            f"the revision {shown(asked)} is not one.", hint="Allowed: a branch, a tag, or a commit such as 1a2b3c4d."
        )
    return model_id, asked


_LISTENER: ContextVar[Callable[[str], None] | None] = ContextVar("listener", default=None)


def tell(what: str) -> None:
    """Report in a few words what is being done. A new report replaces the last one."""
    listener = _LISTENER.get()
    if listener is not None:
        listener(what)


@contextmanager
def listening(listener: Callable[[str], None]) -> Iterator[None]:
    """Send all reports inside the block to ``listener``."""
    token = _LISTENER.set(listener)
    try:
        yield
    finally:
        _LISTENER.reset(token)
