"""What the sources are asked for and how they answer."""

from __future__ import annotations

import re
from collections.abc import Callable

from hwcalc.errors import KvplanError, UsageError
from hwcalc.formulas.frozen import field, frozen
from hwcalc.model import RawModel
from hwcalc.text import shown

__all__ = ["Absent", "Source", "Wanted", "split_revision"]

# What git allows in a branch or tag name, less what could leave the folder of a cache.
_REVISION = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_./+@#=,-]{0,199}")


@frozen
class Wanted:
    """A model by id. ``revision`` is a branch, a tag, a commit or the start of one; ``None`` is the main branch.

    ``token`` and ``endpoint`` are for the Hub and stand before what the environment says; ``weights`` asks for the headers of the
    weight files too.
    """

    id: str
    revision: str | None = None
    offline: bool = True
    token: str | None = field(default=None, repr=False)
    endpoint: str | None = None
    weights: bool = False


@frozen
class Absent:
    """A source does not have it: ``place`` is where it looked, ``remark`` what it found instead that a reader should know.

    ``error`` is why it could not look at all; it is raised if nobody else has the model.
    """

    place: str
    remark: str = ""
    error: KvplanError | None = None


Source = Callable[[Wanted], RawModel | Absent]


def split_revision(text: str, revision: str | None) -> tuple[str, str | None]:
    """``"org/name@revision"`` as id and revision; the option ``revision`` may say the same again, but nothing else."""
    model_id, sign, named = text.partition("@")
    if sign and revision is not None and revision != named:
        raise UsageError(f"two revisions: {shown(named)} in the id and {shown(revision)} as an option.", hint="Give one.")
    asked = named if sign else revision
    if asked is not None and not (_REVISION.fullmatch(asked) and ".." not in asked and "//" not in asked):
        raise UsageError(
            f"the revision {shown(asked)} is not one.", hint="Allowed: a branch, a tag, or a commit such as 1a2b3c4d."
        )
    return model_id, asked
