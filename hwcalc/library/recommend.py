"""Recommend hardware for a model: :func:`recommend`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Unpack

from hwcalc.errors import UsageError
from hwcalc.library.lists import texts, words
from hwcalc.model import ModelLike, Note
from hwcalc.planner.options import RecommendOptions, takes
from hwcalc.planner.recommend_result import Recommendation
from hwcalc.text import quoted
from hwcalc.units import parse_money, parse_tokens


@takes(RecommendOptions)
def recommend(
    model: ModelLike | None = None,
    *,
    gpu: str | Sequence[str] = (),
    vendor: str | Sequence[str] = (),
    category: str | Sequence[str] = (),
    instances: str | None = None,
    max_gpus: int | str | None = None,
    sort: str = "common",
    strict: bool = False,
    limit: int | str = 20,
    every: bool = False,
    any_layout: bool = False,
    budget: str | None = None,
    **options: Unpack[RecommendOptions],
) -> Recommendation:
    """List hardware that holds ``batch`` sequences of ``seq`` tokens: of each kind as little as does, what people can get first.

    These are accelerators, or with ``instances`` those of a cloud, or of all clouds (``"all"``). ``gpu``, ``vendor`` and ``category``
    narrow the choice; ``max_gpus`` is the most GPUs that may work together: without it 8, and 32 in several nodes of an engine that joins them where the cheapest are wanted or 8 are not enough, but not within limits of time. What is sure to fit comes first, by ``sort``: ``common``
    (what clouds rent, what is sold, what few can get; of each the newest), ``memory`` (least), ``gpus`` (fewest), ``speed`` (fastest by the
    bound), ``cost`` (least dollars an hour) or ``headroom`` (most of a GPU free); ``strict`` leaves out the rest. With ``weights="auto"`` each kind of hardware has the best
    format with which its fewest GPUs hold them.
    ``budget`` is the most that it may cost: ``"5000/month"``, ``"7/h"``. ``limit`` is the number of entries (0: all). Instances of a cloud with the same accelerator are one entry, which names the others in
    ``also``, unless ``every`` is true. ``any_layout`` tries odd numbers of GPUs and any tp x pp x dp as well. ``options`` are the keywords of :func:`hwcalc.plan` that do not name hardware.
    Raises a subclass of :class:`~hwcalc.errors.KvplanError`.
    """
    from msgspec.structs import replace

    from hwcalc.hardware.candidates import gpu_candidates, instance_candidates
    from hwcalc.library.plan import load_request
    from hwcalc.planner.asked import take_options
    from hwcalc.planner.command_line import command_line
    from hwcalc.planner.recommend import Wishes, recommend_model
    from hwcalc.planner.values import read_flag

    _, asked = take_options("recommend", options)
    names, makers, kinds = (
        words(texts(given, name), name) for given, name in ((gpu, "gpu"), (vendor, "vendor"), (category, "category"))
    )
    most, rows = None if max_gpus is None else parse_tokens(max_gpus, "max_gpus"), parse_tokens(limit, "limit", minimum=0)
    if not isinstance(sort, str):
        raise UsageError(f"sort must be a string (got {quoted(sort)}).", hint='Write sort="speed".')
    wishes = Wishes(max_gpus=most, limit=rows, sort=sort.strip().lower())
    if instances is not None and not isinstance(instances, str):
        raise UsageError(f"instances must be a string (got {quoted(instances)}).", hint='Write instances="aws", or "all".')
    notes: list[Note] = []
    if instances is None:
        candidates = gpu_candidates(names, vendors=makers, categories=kinds, notes=notes)
    else:
        candidates = instance_candidates(instances, names, vendors=makers, categories=kinds, notes=notes)
    spec, request = load_request(model, asked)
    flags = {name: read_flag(value, name) for name, value in {"strict": strict, "every": every, "any_layout": any_layout}.items()}
    line = command_line(spec, request, model=model, asked=asked)
    most_usd = None if budget is None else parse_money(budget, "budget")
    result = recommend_model(spec, candidates, replace(wishes, budget=most_usd, **flags), line=line, **request)
    return replace(result, notes=(*result.notes, *notes)) if notes else result
