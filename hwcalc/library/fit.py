"""What can I run? :func:`fit`: the models that run on one GPU, each in the best format that fits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Unpack

from hwcalc._version import __version__
from hwcalc.documents import SCHEMA_VERSION
from hwcalc.engines import AT_HOME
from hwcalc.errors import UsageError
from hwcalc.library.candidates import candidates, sources
from hwcalc.library.fit_search import Search, Wishes, alike, best_of_families, ordered
from hwcalc.library.lists import texts
from hwcalc.model import Note
from hwcalc.planner.fitting import hosting
from hwcalc.planner.options import FitOptions, take_options, takes
from hwcalc.planner.runnables import Runnables
from hwcalc.planner.values import AUTO, read_flag
from hwcalc.profiles.hardware_file import Gpu
from hwcalc.units import parse_tokens

LOCAL: Final = "local"
DEFAULT_SEQ: Final = 8192
"""Tokens of a conversation, where nobody says how many."""


@takes(FitOptions)
def fit(
    models: str | Sequence[str] = (),
    *,
    family: str | Sequence[str] = (),
    min_params: int | str | None = None,
    max_params: int | str | None = None,
    modality: str | None = None,
    installed: bool = False,
    folder: str | Sequence[str] = (),
    only_fits: bool = False,
    min_speed: float | str | None = None,
    limit: int | str = 30,
    every: bool = False,
    **options: Unpack[FitOptions],
) -> Runnables:
    """List the models that run on a GPU with ``seq`` tokens (8,192 by default), each in the best format that fits.

    They are those of the catalog, or with ``installed`` those on this machine, and with ``folder`` the GGUF files there. ``models`` are
    words of the id; ``family``, ``min_params``, ``max_params`` (``"70B"``), ``modality`` (text, vision, audio) and ``min_speed``
    (tokens per second) narrow the choice, and ``only_fits`` leaves out models of which a part stays in the memory of the host. Without
    ``every``, the best three of a family are listed, and variants with the same figures are one row; ``limit`` is the number of rows (0: all).
    ``options`` are keywords of :func:`hwcalc.plan`; without ``gpu`` it is this machine's. ``weights`` names one format for all. Raises a
    subclass of :class:`~hwcalc.errors.KvplanError`.
    """
    _, asked = take_options("fit", options)
    asked = asked.changed(
        weights=asked.weights or AUTO,
        engine=asked.engine or AT_HOME,
        gpu=asked.gpu or LOCAL,
    )
    most, each = parse_tokens(limit, "limit", minimum=0), read_flag(every, "every")
    here, folders = read_flag(installed, "installed"), tuple(texts(folder, "folder", hint='Write folder="models".'))
    wishes = Wishes.of(models, family, min_params, max_params, modality, only_fits, min_speed)
    notes: list[Note] = []
    host = hosting(asked, _gpu(str(asked.gpu), notes), DEFAULT_SEQ)
    search = Search(host=host, wishes=wishes)
    found = ordered(search.rows(candidates(installed=here, folders=folders)), wishes.words)
    apart = found if each else alike(found)
    kept = apart if each else best_of_families(apart)
    listed = tuple(map(search.finished, kept[:most] if most else kept))
    return Runnables(
        schema_version=SCHEMA_VERSION,
        kvplan_version=__version__,
        engine=host.engine.name,
        engine_version=host.engine_version,
        gpu=host.gpu.id,
        gpus=asked.gpus or 1,
        usable_bytes=listed[0].usable_bytes if listed else None,
        seq=host.seq,
        batch=asked.batch,
        sources=sources(installed=here, folders=folders),
        **search.counts,
        models=listed,
        more=len(apart) - len(listed),
        unread=tuple(search.unread),
        notes=tuple(notes),
    )


def _gpu(name: str, notes: list[Note]) -> Gpu:
    """The accelerator of this name. Raises :class:`~hwcalc.errors.UsageError` where this machine's is meant and it has none."""
    from hwcalc.hardware.named import load_gpu

    try:
        return load_gpu(name, notes)
    except UsageError as error:
        if name.strip().lower() == LOCAL:
            from hwcalc.hardware.host import EXAMPLE, this_machine

            error.hint = f"Without one: kvplan fit --gpu {this_machine() or EXAMPLE}. With one: kvplan fit --gpu rtx-4060-ti; a Mac: --gpu m4-24gb."
        raise
