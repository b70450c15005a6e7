"""Several plans side by side: :func:`compare`.

What stands in the row of an engine beside others: what it stores, what its numbers are, and why they are not the formulas'.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cache
from itertools import chain, islice, product
from math import prod
from typing import Any, Final, Unpack

from msgspec.structs import asdict, replace

from hwcalc._version import __version__
from hwcalc.documents import SCHEMA_VERSION, Answer, document_of
from hwcalc.engines import every_engine, find_engine, usual_engine
from hwcalc.engines.causes import Cause, causes, growth_bytes, request_bytes, stored_words
from hwcalc.engines.deployment import Occupancy
from hwcalc.engines.pool import Try
from hwcalc.errors import KvplanError, UnknownNameError, UsageError
from hwcalc.formulas.record import Record
from hwcalc.library.lists import Numbers, Words, models_or_equation, numbers, policies_of, words
from hwcalc.library.load import Missing, load, load_each
from hwcalc.library.plan import engine_of, open_loaded, option_draft
from hwcalc.model import DEFAULT_GPU, MODEL_WARNINGS, ModelLike, ModelSpec, Note
from hwcalc.planner.asked import Asked, by_name, counted_once, read_options, take_options, uses_ram
from hwcalc.planner.command_line import command_line
from hwcalc.planner.context import open_request
from hwcalc.planner.options import CompareOptions, takes, with_policy
from hwcalc.planner.plan import common_notes, plan_opened, without_effect
from hwcalc.planner.policy import DROPS_NOTHING
from hwcalc.planner.result import Plan
from hwcalc.planner.speed_result import NO_PRICE, CostInfo, cost_row
from hwcalc.planner.verdict import Verdict, layout_text

_WARNED: Final = (*MODEL_WARNINGS, DROPS_NOTHING, NO_PRICE)
"""Codes of the warnings and notes of a plan that are said beside others, too."""


class EngineRow(Record):
    """One engine's numbers of a workload that others plan too.

    ``stores`` is what it keeps, by format; ``cache_is`` and ``pool_is`` are what its numbers are. ``growth_bytes`` are those that a token
    more takes of one sequence in the long run, with blocks spread over their tokens, on the GPUs that hold it together. ``pool_tokens`` are
    those of the pool that it makes of the GPU or the budget, as its own log counts them; null without a pool, or without a GPU and budget.
    ``all_gpus_bytes`` is the cache with each GPU counted as the fullest. ``reasons`` say why that is not what the formulas keep once: their
    bytes add up to the difference. They are null where sequences differ in length.
    """

    stores: str
    cache_is: str
    pool_is: str | None
    growth_bytes: int
    pool_tokens: int | None
    all_gpus_bytes: int
    reasons: tuple[Cause, ...] | None


MOST_VARIANTS: Final = 60
AXES: Final = ("model", "engine", "dtype", "weights", "gpu", "tp", "policy", "seq", "batch")
"""The fields that may differ between variants. The last one changes fastest."""


class Node(Record):
    """Hardware of a variant: accelerators, with their number where it was given beside the name, or an instance."""

    gpu: str | None = None
    gpus: int | None = None
    instance: str | None = None

    @property
    def keywords(self) -> dict[str, Any]:
        """The keywords of a plan on it."""
        return {name: value for name, value in asdict(self).items() if value is not None}


class Variant(Record):
    """One plan's headline figures; null is unknown or not planned, and ``error`` says why nothing was planned.

    ``cache_ratio`` is the cache in times of the first variant that was planned. What is said of the accelerator is per GPU; ``low`` and
    ``high`` are the ends of its estimate. ``max_seq`` and ``max_batch`` hold for sure, those with ``expected`` by the expected value.
    Of an engine that splits models ``gpu_layers`` of ``all_layers`` lie on the GPUs; ``host_bytes`` is what layers or experts, if any,
    and all else take in host memory. Of a ``policy``, ``kept_tokens`` and ``kept_tokens_low`` are those of the layers that keep most and
    least behind the prompt, ``blocks_freed`` those of the ``blocks_held`` by one sequence, and ``loses`` says that the prefill takes more
    than the policy saves. ``gpus`` are those of the node, ``layout`` is how the model lies on several: ``dp 8, ep 8``. ``policy_offered`` is false where the engine lacks it: then all is as if it had it. Beside other engines, ``row``
    says what this one stores, what its numbers are, and why they are not those of the formulas. Within limits of time ``users_within`` are
    served by the expected times and ``users_within_low`` by the slow end of their range, and ``limited_by`` binds; the times are the expected
    ones of the planned sequences, and ``within`` says whether these are ``within`` the limits, ``not within`` or ``not known to be within`` them. ``cost`` is what the hardware costs. ``command`` is the line that plans it alone, and ``suggestions`` are the changes that make it fit, as that plan has them.
    """

    model: str
    engine: str
    engine_version: str | None
    dtype: str | None
    weights: str | None
    gpu: str | None
    tp: int
    policy: str | None
    seq: int | None
    batch: int
    bytes_per_token: int | None = None
    cache_total_bytes: int | None = None
    cache_per_gpu_bytes: int | None = None
    cache_ratio: float | None = None
    definition: str | None = None
    weights_bytes: int | None = None
    total_bytes: int | None = None
    total_per_gpu_bytes: int | None = None
    total_per_gpu_low_bytes: int | None = None
    total_per_gpu_high_bytes: int | None = None
    usable_bytes: int | None = None
    fits: bool | None = None
    verdict: Verdict | None = None
    max_seq: int | None = None
    expected_max_seq: int | None = None
    max_batch: int | None = None
    expected_max_batch: int | None = None
    gpu_layers: int | None = None
    all_layers: int | None = None
    host_bytes: int | None = None
    decode_tokens_per_s: float | None = None
    decode_tokens_per_s_low: float | None = None
    decode_tokens_per_s_high: float | None = None
    decode_tokens_per_s_bound: float | None = None
    policy_offered: bool | None = None
    kept_tokens: int | None = None
    kept_tokens_low: int | None = None
    policy_saved_bytes: int | None = None
    prefill_peak_bytes: int | None = None
    blocks_held: int | None = None
    blocks_freed: int | None = None
    loses: bool | None = None
    row: EngineRow | None = None
    error: str | None = None
    gpus: int | None = None
    instance: str | None = None
    layout: str | None = None
    users_within: int | None = None
    users_within_low: int | None = None
    limited_by: str | None = None
    ttft_s: float | None = None
    itl_s: float | None = None
    e2e_s: float | None = None
    within: str | None = None
    cost: CostInfo | None = None
    command: str | None = None
    suggestions: Sequence[Try] = ()

    @property
    def passes(self) -> bool | None:
        """Whether it is known to fit, within the limits of time if there are any, as the plan of it alone is judged; ``None`` without a verdict."""
        return self.fits if self.within is None else self.fits and self.within == "within"


class Comparison(Answer, Record):
    """Variants in the order of the lists; ``varying`` names the fields that tell them apart."""

    schema_version: str
    kvplan_version: str
    varying: tuple[str, ...]
    variants: tuple[Variant, ...]

    def headline(self) -> str:
        by = f" by {', '.join(self.varying)}" if self.varying else ""
        return f"{len(self.variants):,} plans{by}"

    def records(self) -> list[dict[str, Any]]:
        """One row for each variant, without lists: the reasons are one text.

        As in all rows, ``fits`` is the verdict's word; in the document it is true or false.
        """
        rows = []
        for variant in self.variants:
            row = {name: value for name, value in document_of(variant).items() if name not in ("row", "cost", "suggestions")}
            row |= cost_row(variant.cost)
            row["fits"] = document_of(variant.verdict)
            own = variant.row
            row |= {name: None if own is None else getattr(own, name) for name in EngineRow.__struct_fields__}
            if own is not None and own.reasons is not None:
                row["reasons"] = "; ".join(f"{cause.words}: {cause.bytes:+,} B" for cause in own.reasons)
            rows.append(row)
        return rows

    __repr__ = Answer.__repr__


@takes(CompareOptions)
def compare(
    models: ModelLike | Sequence[ModelLike],
    *,
    seq: Numbers = None,
    batch: Numbers = 1,
    dtype: Words = None,
    weights: Words = None,
    engine: Words = None,
    gpu: Words = None,
    instance: Words = None,
    tp: Numbers = None,
    policy: object = None,
    **options: Unpack[CompareOptions],
) -> Comparison:
    """Plan every combination of the models and of the lists; ``options`` are further keywords of :func:`hwcalc.plan`.

    A list may be a Python list, or text with commas: ``["bf16", "fp8"]`` or ``"bf16,fp8"``, ``"1k,4k"``, ``"1k..128k"``. A model
    may be a pattern of catalog ids. A list of policies may hold ``None`` (``"none"`` in text), and a policy as a name with a dict
    of options. The engine ``"all"`` is every one. Without ``seq``, all are planned at the smallest maximum of the models, so that their bytes can be compared. A
    variant that cannot be planned has an ``error``, and so has a model that cannot be read.

    Raises the first error, a :class:`~hwcalc.errors.KvplanError`, if no variant can be planned, and
    :class:`~hwcalc.errors.UsageError` for too many variants, or for a name that is unknown to all models and engines.
    """
    lists = {
        "seq": seq, "batch": batch, "dtype": dtype, "weights": weights, "engine": engine, "gpu": gpu, "instance": instance, "tp": tp,
        "policy": policy,
    }  # fmt: skip
    return compared(models, {**lists, **options})[0]


def compared(models: ModelLike | Sequence[ModelLike], given: Mapping[str, Any]) -> tuple[Comparison, tuple[Note, ...]]:
    """As :func:`compare`, from a dict of all keywords. Also returns notes on assumed hardware and options without effect, which
    are not in the document.
    """
    given = by_name(given)
    said: list[Note] = []
    lists = {*AXES, "instance"}
    one_for_all, asked = take_options("compare", {name: value for name, value in given.items() if name not in lists})
    axes: dict[str, tuple[Any, ...]] = {
        "engine": every_engine(words(given.get("engine"), "engine")) or (None,),
        **{name: words(given.get(name), name) or (None,) for name in ("dtype", "weights")},
    }
    axes |= {"gpu": nodes_of(given, asked.values.get("gpus"), said) or (None,), "policy": policies_of(given.get("policy"))}
    axes |= {name: numbers(given.get(name), name) for name in ("seq", "batch", "tp")}
    axes["batch"], axes["tp"] = axes["batch"] or (1,), axes["tp"] or (None,)
    # Dimensions alone are a model, too.
    named = models_or_equation(models, asked.dimensions)
    # Two names may mean one model of the catalog.
    specs = _told_apart(
        {
            model.id if isinstance(name, str) and isinstance(model, ModelSpec) and model.source == "catalog" else number: model
            for number, (name, model) in enumerate(zip(named, load_each(named, asked), strict=True))
        }.values()
    )
    if not axes["seq"]:
        longest = [model.max_position_embeddings for model in specs if isinstance(model, ModelSpec)]
        known = [length for length in longest if length is not None]
        if not known:
            raise UsageError("no model states its longest sequence.", hint="Give one: --seq 32k")
        axes["seq"] = (min(known),)
    if asked.draft is not None:
        one_for_all = {**one_for_all, "draft": load(asked.draft, asked.access, assume=asked.assume)}

    @cache
    def draft_of(engine: str | None) -> ModelSpec | None:
        return option_draft(engine or asked.engine, asked.engine_options, asked.access, asked.assume)

    comparison, notes = _planned(specs, axes, one_for_all, draft_of, asked)
    return comparison, (*said, *notes)


def _told_apart(models: Iterable[ModelSpec | Missing]) -> tuple[ModelSpec | Missing, ...]:
    """The models, each with a name of its own: where files share one, the file stands beside it, with its folder if files are named alike."""
    every = tuple(models)
    places: dict[str, set[str]] = {}
    for model in every:
        if isinstance(model, ModelSpec) and model.location:
            places.setdefault(model.id, set()).add(model.location)
    return tuple(
        replace(model, id=f"{model.id} ({_distinct(model.location, places[model.id])})")
        if isinstance(model, ModelSpec) and model.source == "local" and len(places.get(model.id, ())) > 1
        else model
        for model in every
    )


def _distinct(location: str, others: Collection[str]) -> str:
    """The name of a file, or its path where files of these places have the same name."""
    from pathlib import PurePath

    name = PurePath(location).name
    return name if [PurePath(other).name for other in others].count(name) == 1 else location


def nodes_of(given: Mapping[str, Any], number: int | None, said: list[Note]) -> tuple[Node, ...]:
    """The accelerators and instances of a comparison, each once. Sizes of memory that were assumed are added to ``said``.

    Raises :class:`~hwcalc.errors.UsageError` if an accelerator's own number is not the ``number`` of all.
    """
    gpus, instances = words(given.get("gpu"), "gpu"), words(given.get("instance"), "instance")
    if gpus and instances:
        raise UsageError("--instance and --gpu both name the accelerator.", hint="Give one of them.")
    nodes = [Node(instance=name) for name in instances]
    if gpus:
        from hwcalc.hardware.named import gpu_ids

        for name, count in (counted_once(gpu, number) for gpu in gpus):
            (gpu,) = gpu_ids([name or ""], said)
            nodes.append(Node(gpu=gpu, gpus=count))
    said[:] = dict.fromkeys(said)
    return tuple(dict.fromkeys(nodes))


def _planned(
    models: Sequence[ModelSpec | Missing],
    axes: Mapping[str, tuple[Any, ...]],
    options: Mapping[str, Any],
    draft_of: Callable[[str | None], ModelSpec | None],
    given: Asked,
) -> tuple[Comparison, tuple[Note, ...]]:
    """Plan every combination of the models and the other :data:`AXES`. An entry of ``None`` leaves the keyword out.

    ``draft_of`` gives the draft that the options of an engine name; ``given`` are all options of the caller's that take one value.
    """
    lists = [tuple(models), *(axes[name] for name in AXES[1:])]
    # A model that could not be read is one variant.
    first = tuple(values[0] for values in lists[1:])
    each = (((model, *first),) if isinstance(model, Missing) else product((model,), *lists[1:]) for model in models)
    every = list(islice(chain.from_iterable(each), MOST_VARIANTS + 1))
    if len(every) > MOST_VARIANTS:
        raise UsageError(
            f"those are {prod(map(len, lists)):,} variants, and a comparison has at most {MOST_VARIANTS}.",
            hint="Leave some out, or write them all as rows: kvplan sweep",
        )
    variants: list[Variant] = []
    notes: list[tuple[Note, ...]] = []
    warned: list[Note] = []
    errors: list[tuple[dict[str, Any], KvplanError]] = []
    assumed: dict[str, str] = {}
    base: int | None = None
    formulas: dict[tuple[object, ...], tuple[ModelSpec, Occupancy | None]] = {}
    # The memory of the host is said once for all, and some engines or accelerators have a use for it.
    ram = options.get("ram") is not None and any(_uses_ram(dict(zip(AXES, values, strict=True))) for values in every)
    for values in every:
        asked = dict(zip(AXES, values, strict=True))
        model = asked["model"]
        node: Node = asked["gpu"] or Node()
        keywords = {name: value for name, value in asked.items() if name not in {"model", "policy", "gpu"} and value is not None}
        keywords = with_policy({**options, **keywords, **node.keywords}, asked["policy"], axes["policy"])
        without = {"ram": None} if ram and not _uses_ram(asked) else {}
        keywords |= without
        try:
            if isinstance(model, Missing):
                raise model.error
            opened, request = open_loaded(model, keywords, draft_of(asked["engine"]))
            line = command_line(model, read_options(keywords).values, asked=given.changed(**without))
            planned = plan_opened(opened, without_effect(request), line)
        except KvplanError as error:
            errors.append((asked, error))
            variants.append(_failed(asked, error))
            continue
        notes.append(planned.notes)
        warned.extend(note for note in (*planned.warnings, *planned.notes) if note.code in _WARNED)
        if any(note.code == DEFAULT_GPU for note in planned.notes):
            assumed[opened.engine.label] = opened.engine.facts.assumed_gpu or ""
        base = planned.cache.total_bytes if base is None else base
        row = _row(model, opened, planned, formulas) if len(axes["engine"]) > 1 else None
        variants.append(_variant(planned, node, base, row, line.text))
    for gpu in dict.fromkeys(assumed.values()):
        engines = ", ".join(label for label, other in assumed.items() if other == gpu)
        message = f"No GPU given: what {engines} would set by it is that of {gpu}. Set it with --gpu."
        warned.append(Note(code=DEFAULT_GPU, message=message))
    unknown = _unknown(errors, axes["engine"])
    if unknown is not None:
        raise unknown
    if len(errors) == len(variants):
        raise errors[0][1]
    accepted = [variant for variant in variants if variant.error is None]
    # A default may differ by model; that of the weights is left out, as their size shows it. The row of an engine says what it stores.
    # A layout that was chosen stands beside the number of GPUs.
    shown = {"weights", *(["dtype"] if any(variant.row is not None for variant in accepted) else [])}
    shown |= {"tp"} if axes["tp"] == (None,) else set()
    varying = tuple(
        name
        for name, given in zip(AXES, lists, strict=True)
        if len(given) > 1 or (name not in shown and len({getattr(variant, name) for variant in accepted}) > 1)
    )
    comparison = Comparison(schema_version=SCHEMA_VERSION, kvplan_version=__version__, varying=varying, variants=tuple(variants))
    return comparison, (*common_notes(notes), *dict.fromkeys(warned))


def _uses_ram(asked: Mapping[str, Any]) -> bool:
    """True if the engine and the accelerator of a variant have a use for memory of the host, or are not known."""
    if isinstance(asked["model"], Missing):
        return False
    with suppress(KvplanError):
        engine, gpu = find_engine(asked["engine"] or usual_engine(asked["model"]))[0], None
        if asked["gpu"] is not None and asked["gpu"].gpu is not None:
            from hwcalc.hardware.named import gpu_named

            gpu = gpu_named(asked["gpu"].gpu)
        return uses_ram(engine, gpu)
    return True


def _row(
    model: ModelSpec, opened: Occupancy, plan: Plan, known: dict[tuple[object, ...], tuple[ModelSpec, Occupancy | None]]
) -> EngineRow:
    """The row of an opened request about ``model`` and its plan.

    The formulas of each workload, whatever its hardware, are planned once: ``known`` are those that were, each with its model, which lives on, so
    that no other one gets its ``id``. A format that no formula has, such as one of a single engine, is left out: the cache is then that of the
    model's own dtype. Where the formulas refuse the workload, or sequences differ in length, there are no reasons.
    """
    engine, load, dtype = opened.engine, opened.load, opened.setup.dtype
    formulas: Occupancy | None = None
    if not load.lengths:
        workload: dict[str, Any] = {
            **{name: getattr(load, name) for name in ("seq", "batch", "encoder_seq", "prompt")},
            "shared_prefix": load.sharing.prefix or None,
            "samples": load.sharing.samples,
            "beams": load.sharing.beams,
        }
        key = (id(model), dtype, *workload.values())
        if key not in known:
            for each in dict.fromkeys((dtype, None)):
                with suppress(KvplanError):
                    formulas = open_request(model, engine="reference", dtype=each, **workload)
                    break
            known[key] = model, formulas
        formulas = known[key][1]
    return EngineRow(
        stores=stored_words(opened),
        cache_is=engine.facts.cache_is,
        pool_is=engine.facts.pool_is or None,
        growth_bytes=growth_bytes(opened) if opened.evicted is None else plan.cache.bytes_per_token,
        pool_tokens=None if plan.pool is None else plan.pool.tokens,
        all_gpus_bytes=request_bytes(opened),
        reasons=None if formulas is None else causes(opened, formulas),
    )


def _unknown(errors: Iterable[tuple[Mapping[str, Any], KvplanError]], engines: tuple[Any, ...]) -> UnknownNameError | None:
    """The first name that no model and engine knows. A dtype is unknown only if none of the engines knows it."""
    refusals: dict[str, set[Any]] = {}
    for asked, error in errors:
        if not isinstance(error, UnknownNameError):
            continue
        if error.option != "dtype":
            return error
        refusing = refusals.setdefault(asked["dtype"], set())
        refusing.add(asked["engine"])
        if refusing >= set(engines):
            return error
    return None


def _variant(plan: Plan, node: Node, base: int, row: EngineRow | None, command: str) -> Variant:
    """The row of a comparison for one plan; ``base`` are the cache bytes with which it is compared."""
    request, cache, memory, fit = plan.request, plan.cache, plan.memory, plan.fit
    known: dict[str, Any] = {}
    if fit is not None:
        same = (
            "usable_bytes",
            "fits",
            "verdict",
            "max_seq",
            "expected_max_seq",
            "max_batch",
            "expected_max_batch",
            "gpu_layers",
            "all_layers",
            "suggestions",
        )
        known = {name: getattr(fit, name) for name in same}
        known |= {"total_per_gpu_low_bytes": fit.needed_low_bytes, "total_per_gpu_high_bytes": fit.needed_high_bytes}
    if plan.policy is not None:
        from hwcalc.policies.base import NO_COMPACTION

        policy, blocks = plan.policy, plan.policy.blocks
        known |= {name: getattr(policy, name) for name in ("prefill_peak_bytes", "loses")}
        known |= {"policy_offered": policy.offered, "policy_saved_bytes": policy.saved_bytes}
        known["kept_tokens"] = max((layers.kept for layers in policy.layers), default=None)
        known["kept_tokens_low"] = min((layers.kept_low for layers in policy.layers), default=None)
        if blocks is not None:
            known["blocks_held"] = blocks.held
            known["blocks_freed"] = blocks.free if request.compaction == NO_COMPACTION else blocks.free_compacted
    known |= plan.rates
    if plan.within is not None:
        known |= {name: value for name, value in plan.within.row().items() if name in Variant.__struct_fields__}
        known["within"] = plan.within.standing
    known["cost"] = plan.cost
    if memory.devices:
        # What lies in host memory, 0 if that is no more than the input.
        host = memory.devices[-1]
        known["host_bytes"] = host.total if host.layers or host.experts or host.output or host.cache else 0
    known |= {name: getattr(request, name) for name in ("engine", "engine_version", "tp", "policy", "seq", "batch")}
    return Variant(
        model=plan.model.id,
        dtype=request.kv_dtype,
        weights=memory.weights.format or None,
        gpu=node.gpu if fit is None else fit.gpu,
        gpus=node.gpus if fit is None else fit.gpus,
        instance=node.instance,
        layout=layout_text(request) or None,
        bytes_per_token=cache.bytes_per_token,
        cache_total_bytes=cache.total_bytes,
        cache_per_gpu_bytes=cache.per_gpu_bytes,
        definition=cache.definition,
        cache_ratio=round(cache.total_bytes / base, 6) if base else None,
        weights_bytes=memory.weights.bytes,
        total_bytes=memory.total_bytes,
        total_per_gpu_bytes=memory.per_gpu.total,
        row=row,
        command=command,
        **known,
    )


def _failed(asked: Mapping[str, Any], error: KvplanError) -> Variant:
    engine, _, version = engine_of(asked["model"], asked["engine"]).partition("@")
    return Variant(
        model=asked["model"].id,
        engine=engine,
        engine_version=version or None,
        dtype=asked["dtype"],
        weights=asked["weights"],
        gpu=None if asked["gpu"] is None else asked["gpu"].gpu,
        gpus=None if asked["gpu"] is None else asked["gpu"].gpus,
        instance=None if asked["gpu"] is None else asked["gpu"].instance,
        tp=asked["tp"] or 1,
        policy=None if asked["policy"] is None else asked["policy"].text,
        seq=asked["seq"],
        batch=asked["batch"],
        error=error.message,
    )
