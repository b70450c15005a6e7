"""Plans a model: :func:`plan_model` adds up weights, cache, activations and overhead, and notes options that have no effect."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from math import prod
from typing import TYPE_CHECKING, Any, Final

from msgspec.structs import replace

from hwcalc._version import __version__
from hwcalc.documents import SCHEMA_VERSION
from hwcalc.engines.deployment import Occupancy
from hwcalc.engines.memory import Section
from hwcalc.engines.models import has_cross
from hwcalc.engines.setup import UNSHARED
from hwcalc.engines.stored import StoredTensor
from hwcalc.errors import UnknownNameError, UnsupportedError, UsageError
from hwcalc.formulas import LayerKind, LayerNumbers, Role, Stack
from hwcalc.model import EXAMPLE_PARAMETERS, NO_WEIGHTS, Definition, ModelSpec, Note, Parameters
from hwcalc.planner.context import FIXED_ROLES, open_request
from hwcalc.planner.layouts import divides
from hwcalc.planner.options import OPTIONS
from hwcalc.planner.planned_weights import WeightsInfo, weights_of
from hwcalc.planner.result import (
    NO_VERDICT,
    BudgetInfo,
    BudgetPartInfo,
    CacheInfo,
    CacheShare,
    DeviceInfo,
    FitInfo,
    LayerInfo,
    MemoryInfo,
    ModelInfo,
    OverheadInfo,
    ParametersInfo,
    PerGpu,
    Plan,
    RequestInfo,
    Share,
    SpeedInfo,
    TensorInfo,
)
from hwcalc.planner.values import is_auto
from hwcalc.units import GIB

if TYPE_CHECKING:
    from hwcalc.engines.devices import DeviceShare, Placement
    from hwcalc.engines.pool import PoolInfo
    from hwcalc.planner.change import CommandLine
    from hwcalc.planner.fit import Search
    from hwcalc.planner.result import PolicyInfo, SharingInfo
    from hwcalc.profiles.hardware_file import Gpu

_CODES: Final = ("no-gpu", "kv-memory", "no-encoder", "no-policy", "no-blocks")
"""Codes of the notes on options without effect."""
_BY_PROMPT: Final = ("policy", "shared_prefix", "samples", "beams", "gpu", "instance")
"""Options for which it matters how much of a sequence is its prompt: for its memory, or for the time until the first token."""


def without_effect(keywords: Mapping[str, Any], tps: Sequence[int | None] = ()) -> list[Note]:
    """Notes on options about the memory of a GPU that have no effect without a GPU, or beside ``kv_memory``, and on a prompt where
    nothing is dropped, shared or timed.

    ``keywords`` are those of :func:`~hwcalc.planner.context.open_request`; ``None`` counts as not given. With
    ``tps``, several plans differ in ``tp``, and the notes hold for all of them; their order does not matter.
    """
    given = {name for name, value in keywords.items() if value is not None}
    engine = str(keywords.get("engine", "")).partition("@")[0].strip().lower()
    of_budget = [row.spellings[0] for row in OPTIONS if row.of_budget and row.name in given and not _has(engine, row.in_cache_if)]
    notes: list[Note] = []
    if (
        "prompt" in given
        and all(keywords.get(name) in (None, 1) for name in _BY_PROMPT)
        and not _has(engine, "stores_prompts_apart")
    ):
        message = "--prompt: no effect without --policy, --shared-prefix, --samples, --beams or --gpu."
        notes.append(Note(code="no-policy", message=message))
    if "kv_memory" in given and of_budget:
        message = f"{', '.join(of_budget)}: no effect beside --kv-memory, which gives the cache its bytes directly."
        notes.append(Note(code="kv-memory", message=message))
        of_budget = []
    if given & {"gpu", "instance"}:
        return notes
    gpus, others = keywords.get("gpus"), prod(keywords.get(name) or 1 for name in ("pp", "dp"))
    ranks = {others * (tp or 1) for tp in tps or (keywords.get("tp"),)}
    becomes_tp = gpus != 1 and 1 in ranks
    if gpus in ranks and not becomes_tp:
        of_budget.insert(0, "--gpus")
    elif gpus is not None and becomes_tp and "kv_memory" not in given:
        message = f"--gpus {gpus:,} is planned as --tp {gpus:,}; without a GPU there is no verdict. Name one with --gpu."
        notes.append(Note(code="no-gpu", message=message))
    if of_budget:
        notes.append(Note(code="no-gpu", message=f"{', '.join(of_budget)}: no effect without a GPU. Name one with --gpu."))
    return notes


def _has(engine: str, trait: str | None) -> bool:
    """Whether this engine has a trait; false for an unknown engine, whose error is raised elsewhere."""
    from hwcalc.engines import ENGINES, find_engine, spelled

    return trait is not None and spelled(engine) in ENGINES and bool(getattr(find_engine(engine)[0], trait))


def no_blocks(opened: Occupancy, policy: PolicyInfo) -> tuple[Note, ...]:
    """A note that a given ``compaction`` has no effect, since the engine's cache has no blocks to free; empty otherwise."""
    from hwcalc.policies.base import REPACK

    asked = opened.setup.policy
    if asked is None or asked.compaction == REPACK or policy.blocks is not None:
        return ()
    return (Note(code="no-blocks", message=f"--compaction: no effect, as the cache of {opened.engine.label} has no blocks."),)


def common_notes(plans: Iterable[Iterable[Note]]) -> tuple[Note, ...]:
    """The notes on options that have no effect in any of several plans."""
    per_plan = [[note for note in notes if note.code in _CODES] for notes in plans]
    return tuple(note for note in per_plan[0] if all(note in notes for notes in per_plan)) if per_plan else ()


def no_encoder(models: Iterable[ModelSpec], encoder_seq: int | None) -> tuple[Note, ...]:
    """A note on ``encoder_seq`` if none of the models has cross attention."""
    if encoder_seq is None or any(has_cross(model) for model in models):
        return ()
    return (Note(code="no-encoder", message="No model has cross attention: --encoder-seq has no effect."),)


def plan_memory(
    opened: Occupancy, *, cache_bytes: int, rank_bytes: int, definition: Definition, budget: BudgetInfo | None
) -> MemoryInfo:
    """The bytes of weights and cache, with a GPU those of activations and overhead, and their sum. An unknown value is ``None``.

    Raises :class:`~hwcalc.errors.UsageError` if ``--weights`` names no weight format.
    """
    request = opened.request
    weights = opened.told(weights_of(opened))
    placement = None if budget is None else opened.placement()
    if placement is not None and budget is not None:
        return _placed(placement, weights, CacheShare(bytes=cache_bytes, definition=definition), budget)
    activations, overhead = (None, None) if budget is None else _beside(budget, request.setup.gpus)
    total = None if weights.bytes is None else weights.bytes + cache_bytes
    if total is not None and activations is not None and overhead is not None:
        total += activations.bytes + overhead.bytes
    return MemoryInfo(
        weights=weights,
        cache=CacheShare(bytes=cache_bytes, definition=definition),
        activations=activations,
        overhead=overhead,
        total_bytes=total,
        per_gpu=_per_gpu(opened, weights, rank_bytes, budget),
    )


def _placed(placement: Placement, weights: WeightsInfo, cache: CacheShare, budget: BudgetInfo) -> MemoryInfo:
    """The memory of each device, and the sums over them."""
    devices = tuple(_device(share, placement) for share in placement.devices)
    fullest = devices[placement.fullest]
    sums = {
        section: [
            sum(getattr(part, end) for share in placement.devices for part in share.parts if part.section is section)
            for end in ("expected", "low", "high")
        ]
        for section in (Section.ACTIVATIONS, Section.OVERHEAD)
    }
    (used, used_low, used_high), (beside, beside_low, beside_high) = sums.values()
    return MemoryInfo(
        weights=weights,
        cache=cache,
        activations=Share(bytes=used, low=used_low, high=used_high, definition=Definition.ESTIMATE),
        overhead=OverheadInfo(
            bytes=beside,
            low=beside_low,
            high=beside_high,
            definition=Definition.ESTIMATE,
            parts=_of(budget, Section.OVERHEAD),
        ),
        total_bytes=sum(device.total for device in devices),
        per_gpu=PerGpu(
            weights=fullest.weights,
            cache=fullest.cache,
            activations=fullest.activations,
            overhead=fullest.overhead,
            total=fullest.total,
        ),
        devices=devices,
    )


def _device(share: DeviceShare, placement: Placement) -> DeviceInfo:
    activations, overhead = (
        sum(part.expected for part in share.parts if part.section is section)
        for section in (Section.ACTIVATIONS, Section.OVERHEAD)
    )
    return DeviceInfo(
        device=share.device,
        layers=share.layers,
        experts=placement.experts_on_host if share is placement.host else LayerNumbers(),
        moved=placement.moved_bytes if share is placement.host else 0,
        output=share.output,
        weights=share.weights_bytes,
        cache=share.cache_bytes,
        activations=activations,
        overhead=overhead,
        total=share.needed(),
        total_low=share.needed("low"),
        total_high=share.needed("high"),
    )


def _of(budget: BudgetInfo, section: Section) -> tuple[BudgetPartInfo, ...]:
    return tuple(part for part in budget.parts if part.section == section)


def _beside(budget: BudgetInfo, gpus: int) -> tuple[Share, OverheadInfo]:
    """Activations and overhead of so many GPUs. They are kept with the budget, which all plans of a deployment share."""
    known: dict[int, tuple[Share, OverheadInfo]] = vars(budget).setdefault("_beside", {})
    if gpus not in known:
        known[gpus] = _activations(budget, gpus), _overhead(budget, gpus)
    return known[gpus]


def _activations(budget: BudgetInfo, gpus: int) -> Share:
    parts = _of(budget, Section.ACTIVATIONS)
    low, expected, high = (gpus * sum(getattr(part, end) for part in parts) for end in ("low", "expected", "high"))
    return Share(bytes=expected, low=low, high=high, definition=_definition(parts))


def _overhead(budget: BudgetInfo, gpus: int) -> OverheadInfo:
    parts = _of(budget, Section.OVERHEAD)
    low, expected, high = (gpus * sum(getattr(part, end) for part in parts) for end in ("low", "expected", "high"))
    return OverheadInfo(bytes=expected, low=low, high=high, definition=_definition(parts), parts=parts)


def _definition(parts: tuple[BudgetPartInfo, ...]) -> Definition:
    measured = bool(parts) and all(part.definition is Definition.MEASURED for part in parts)
    return Definition.MEASURED if measured else Definition.ESTIMATE


def _per_gpu(opened: Occupancy, weights: WeightsInfo, rank_bytes: int, budget: BudgetInfo | None) -> PerGpu:
    """The fullest GPU: all parts of the budget if there is one, or else only weights and cache, as the engine divides them."""
    if budget is None:
        parallel, size = opened.setup.parallel, weights.bytes
        if size is not None and parallel.gpus * parallel.ep > 1:
            parts = opened.weights.value
            size = None if parts is None else sum(part.expected for part in parts)
        total = None if size is None else size + rank_bytes
        return PerGpu(weights=size, cache=rank_bytes, activations=None, overhead=None, total=total)
    sizes = {section: sum(part.expected for part in _of(budget, section)) for section in Section}
    return PerGpu(
        weights=sizes[Section.WEIGHTS],
        cache=rank_bytes,
        activations=sizes[Section.ACTIVATIONS],
        overhead=sizes[Section.OVERHEAD],
        total=sum(sizes.values()) + rank_bytes,
    )


_SELECTED_ROLES = (Role.LATENT, Role.ROPE)


def plan_model(
    model: ModelSpec, *, line: CommandLine | None = None, advise: bool = True, search: Search | None = None, **options: Any
) -> Plan:
    """The plan of a request. Other keywords and errors are those of :func:`~hwcalc.planner.context.open_request`.

    ``line`` is the command line of the plan, where more was asked for than ``options`` say. Without ``advise`` the plan offers no
    changes, which take as long as the plan itself. ``search`` finds its limits, if not as every plan does.
    """
    line = (line or _line_of(model, options)) if advise else None
    try:
        opened = open_request(model, **options)
        _ = opened.evicted  # raises what a policy refuses
    except (UnsupportedError, UsageError) as error:
        if line is not None and not isinstance(error, UnknownNameError):
            error.hint = _with_working(error.hint, model, options, line)
        raise
    if line is not None and is_auto(line.given.get("weights")):
        # What is offered as a change keeps the format that was chosen.
        line = line.changed(weights=opened.setup.weights)
    return plan_opened(opened, without_effect(options), line, search)


def _line_of(model: ModelSpec, options: Mapping[str, Any]) -> CommandLine:
    from hwcalc.planner.change import command_line

    return command_line(model, options)


def _with_working(hint: str, model: ModelSpec, options: Mapping[str, Any], line: CommandLine) -> str:
    from hwcalc.planner.advice import working

    found = working(model, options, line)
    return f"{hint.rstrip('. ')}. {found}" if found else hint


def plan_opened(
    opened: Occupancy,
    remarks: Iterable[Note] = (),
    line: CommandLine | None = None,
    search: Search | None = None,
    *,
    limits: bool = True,
) -> Plan:
    """The plan of an occupancy. ``remarks`` are further notes about the request; without a ``line`` the plan offers no changes.

    ``search`` finds the limits of the verdict, if not as every plan does. Without ``limits`` the limits are 0 and the speed is ``None``:
    neither is computed.
    """
    model = opened.model
    stored = stored_layers(opened)
    policy = _policy_info(opened)
    definition = model.definition(opened.engine.definition) if policy is None else policy.definition
    opened.tell(*remarks)
    pool, fit = _pool_and_fit(opened, line, search, limits=limits)
    memory = plan_memory(
        opened,
        cache_bytes=opened.stored_bytes,
        rank_bytes=opened.needed_bytes,
        definition=definition,
        budget=None if fit is None else fit.budget,
    )
    return Plan(
        schema_version=SCHEMA_VERSION,
        kvplan_version=__version__,
        model=_model_info(model, opened.stack),
        request=_request_info(opened, has_states=any(tensor.role is Role.STATE for _, _, _, tensor in stored)),
        cache=_cache_info(opened, stored, definition),
        memory=memory,
        pool=None if pool is None else _defined(pool, model.definition(pool.definition)),
        fit=fit,
        speed=_bound(opened) if limits else None,
        policy=policy,
        sharing=_sharing_info(opened),
        notes=tuple(note for note in dict.fromkeys((*model.notes, *opened.notes)) if note not in model.warnings),
        warnings=tuple(_warnings(opened, fit, policy, known_weights=memory.weights.bytes is not None)),
    )


def _pool_and_fit(
    opened: Occupancy, line: CommandLine | None, search: Search | None, *, limits: bool
) -> tuple[PoolInfo | None, FitInfo | None]:
    """The pool and the verdict, where the request has a GPU or a budget."""
    hardware = opened.setup.hardware
    if hardware.gpu is None and hardware.kv_memory is None:
        return None, None
    from hwcalc.planner.fit import NO_SEARCH, SEARCH, plan_fit

    return plan_fit(opened, opened.needed_bytes, line, (search or SEARCH) if limits else NO_SEARCH)


def _defined(pool: PoolInfo, definition: Definition) -> PoolInfo:
    return pool if definition is pool.definition else replace(pool, definition=definition)


def _policy_info(opened: Occupancy) -> PolicyInfo | None:
    evicted = opened.evicted
    if evicted is None:
        return None
    from hwcalc.planner.policy import policy_info, policy_notes

    info = policy_info(opened, evicted)
    notes = policy_notes(evicted.chosen, evicted.setting.attention, acted=len(evicted.ends), layers=len(evicted.plain))
    opened.tell(*notes, *no_blocks(opened, info))
    return info


def _sharing_info(opened: Occupancy) -> SharingInfo | None:
    if opened.load.sharing == UNSHARED and not opened.load.lengths:
        return None
    from hwcalc.planner.sharing import sharing_info

    return sharing_info(opened)


def _request_info(opened: Occupancy, *, has_states: bool) -> RequestInfo:
    """The request with its defaults filled in: its values by their names, but for those that a document shows otherwise."""
    request, margin, values = opened.request, opened.setup.hardware.margin, opened.request.flat()
    shown = {
        **{name: values[name] for name in RequestInfo.__struct_fields__ if name in values},
        "engine": opened.engine.name,
        "engine_version": opened.version or None,
        "encoder_seq": opened.encoder_tokens if has_cross(opened.model) else None,
        "kv_dtype": opened.dtypes.kv,
        "state_dtype": opened.dtypes.state if has_states else None,
        "margin": None if margin is None else float(margin),
        "lora": None if request.setup.lora is None else str(request.setup.lora),
        "draft": None if request.setup.draft is None else request.setup.draft.id,
        "options": dict(request.setup.options),
        "lengths": request.load.lengths,
        "environment": opened.environment(),
        "settings": dict(opened.reported_settings()),
    }
    return RequestInfo(**shown)


def _cache_info(opened: Occupancy, stored: list[Stored], definition: Definition) -> CacheInfo:
    each, fixed = _of_one(opened, stored)
    chosen = _chosen_bytes(opened)
    # Each sequence reads what it has in common with others for itself.
    read = _read_bytes(stored if opened.unshared is opened else stored_layers(opened.unshared)) if chosen is None else chosen
    return CacheInfo(
        definition=definition,
        bytes_per_token=_growth(opened),
        state_bytes_per_sequence=fixed,
        bytes_per_sequence=each,
        total_bytes=opened.stored_bytes,
        copied_bytes=_copied_bytes(opened, stored),
        per_gpu_bytes=opened.needed_bytes,
        tensors=tuple(_tensor_info(*item) for item in stored),
        groups=opened.groups,
        read_bytes_per_step=read,
    )


def _of_one(opened: Occupancy, stored: list[Stored]) -> tuple[int, int]:
    """The cached bytes of one sequence, and the part of them that does not grow with its length."""
    single = opened.single
    stored = stored if single is opened else stored_layers(single)
    fixed = sum(count * tensor.bytes for _, _, count, tensor in stored if tensor.role in FIXED_ROLES)
    return single.stored_bytes, fixed


def _copied_bytes(opened: Occupancy, stored: list[Stored]) -> int:
    """Bytes of ``stored`` that are copies of what another tensor-parallel rank keeps, all ranks together."""
    parallel = opened.setup.parallel
    if parallel.tp == 1 or not opened.engine.counts_copies:
        return 0
    rules, copied = opened.deployment.weight_rules(), 0
    for kind, _, count, tensor in stored:
        if kind is not None:
            once = _kept_bytes(opened, kind)
            ranks = parallel.tp * _kept_bytes(opened, rules.shard(opened.model, kind, parallel.tp)) // parallel.dcp
            copied += count * (tensor.bytes * max(0, ranks - once) // ranks if ranks else 0)
    return copied


def _kept_bytes(opened: Occupancy, kind: LayerKind) -> int:
    """Bytes that one layer of this kind caches for one sequence, by the formulas."""
    roles, tokens, encoder = opened.dtypes.roles, opened.tokens, opened.encoder_tokens
    return sum(tensor.bytes(roles[tensor.role], tokens, encoder) for tensor in kind.tensors())


Stored = tuple[LayerKind | None, LayerNumbers, int, StoredTensor]
"""The kind of a group of layers (``None`` for tensors outside the layers), its layer numbers, their count, and a tensor of one layer."""


def stored_layers(opened: Occupancy) -> list[Stored]:
    """All tensors that the engine stores, with equal layers listed once."""
    out: list[Stored] = []
    for group in opened.stack.groups:
        out += [(group.kind, group.layers, group.count, tensor) for tensor in opened.kind_tensors[group.kind]]
    out += [(None, LayerNumbers(), 1, tensor) for tensor in opened.extras]
    return out


def _tensor_info(kind: LayerKind | None, layers: LayerNumbers, count: int, tensor: StoredTensor) -> TensorInfo:
    return TensorInfo(
        name=tensor.name,
        role=tensor.role.value,
        kind="model" if kind is None else kind.name,
        layers=layers,
        count=count,
        axes=tensor.axes,
        shape=tensor.shape,
        dtype=tensor.dtype,
        span=tensor.span,
        positions=tensor.positions,
        rule=tensor.rule,
        bytes=count * tensor.bytes,
    )


def _growth(opened: Occupancy) -> int:
    """Bytes by which one sequence grows from ``seq`` to ``seq`` + 1 tokens, by the formulas with the dtypes of the engine."""
    roles, tokens, encoder = opened.dtypes.roles, opened.tokens, opened.encoder_tokens
    growth = 0
    for (before, after), count in _pairs(opened).items():
        for shorter, longer in zip(before.tensors(), after.tensors(), strict=True):
            added = longer.span.positions(tokens + 1, encoder) - shorter.span.positions(tokens, encoder)
            if added:
                growth += count * added * longer.bytes_per_position(roles[longer.role])
    return growth


def _pairs(opened: Occupancy) -> dict[tuple[LayerKind, LayerKind], int]:
    """The number of layers of each pair of kinds: the kind at the planned length, and the kind with one token more."""
    evicted = opened.evicted
    if evicted is None:
        return {(group.kind, group.kind): group.count for group in opened.model.stack.groups}
    found: dict[tuple[LayerKind, LayerKind], int] = {}
    for pair in zip(chain(*evicted.stack), chain(*evicted.grown.stack), strict=True):
        found[pair] = found.get(pair, 0) + 1
    return found


def _read_bytes(stored: list[Stored]) -> int:
    """Bytes that one decode step reads: everything except the latents that an indexer does not select.

    Layers that reuse the selection of an earlier layer read as few, so the limit holds for all latents of the model.
    """
    limits = {kind.dims().get("index_topk") for kind, *_ in stored if kind is not None} - {None}
    limit = limits.pop() if len(limits) == 1 else None
    total = 0
    for _, _, count, tensor in stored:
        selected = limit is not None and tensor.role in _SELECTED_ROLES and tensor.positions > limit
        total += count * (tensor.bytes // tensor.positions * limit if selected and limit else tensor.bytes)
    return total


def _chosen_bytes(opened: Occupancy) -> int | None:
    """Bytes that a decode step reads under a policy that selects what is read, with the keys of its pages.

    It is ``None`` without such a policy.
    """
    evicted = opened.evicted
    if evicted is None or evicted.read is evicted.most:
        return None
    from hwcalc.engines.policies import page_keys_bytes

    return _read_bytes(stored_layers(opened.holding(evicted.read))) + page_keys_bytes(opened, evicted.setting)


def _bound(opened: Occupancy) -> SpeedInfo | None:
    """The bound on speed for the planned GPU; ``None`` without a GPU."""
    if opened.setup.hardware.gpu is None:
        return None
    from hwcalc.planner.speed import bound_of

    return bound_of(opened)


def _warnings(opened: Occupancy, fit: FitInfo | None, policy: PolicyInfo | None, *, known_weights: bool) -> list[Note]:
    model, request = opened.model, opened.request
    longest, out = model.max_position_embeddings, []
    if longest is not None and request.load.seq > longest:
        message = f"{request.load.seq:,} tokens is more than the model's maximum of {longest:,}."
        variables = " ".join(opened.environment())
        message += f" {opened.engine.label} refuses that without {variables}." if variables else ""
        out.append(Note(code="beyond-maximum", message=message))
    if policy is not None:
        from hwcalc.planner.policy import policy_warnings

        out += policy_warnings(opened, policy)
    return [*out, *lasting_warnings(opened, known_weights=known_weights, verdict=fit is not None)]


def lasting_warnings(opened: Occupancy, *, known_weights: bool, verdict: bool) -> list[Note]:
    """The warnings that are the same at every length and number of sequences."""
    model, request = opened.model, opened.request
    gpu, out = request.setup.hardware.gpu, [*model.warnings_with(request.setup.weights)]
    if not divides(model, request.setup.parallel.tp):
        message = f"tp {request.setup.parallel.tp:,} does not divide the attention heads evenly: the fullest rank is planned, and few engines do it."
        out.append(Note(code="uneven-heads", message=message))
    if gpu is not None and gpu.whole_machine and request.setup.gpus > gpu.node:
        what = "a part of an accelerator" if gpu.part else "a machine by itself"
        linked = f"; up to {gpu.node:,} can be linked" if gpu.node > 1 else ", which nothing links to others"
        out.append(
            Note(
                code="not-joined", message=f"{gpu.id} is {what}{linked}: the plan of {request.setup.gpus:,} is arithmetic alone."
            )
        )
    if gpu is not None and gpu.fp8_kv == "no" and "fp8" in (request.setup.dtype or "").lower():
        message = f"No common engine keeps a cache in fp8 on {gpu.id}: its profile says so (kvplan gpus {gpu.id})."
        out.append(Note(code="no-fp8-cache", message=message))
    if gpu is not None and not verdict:
        message = f"No verdict on {request.setup.gpus:,} x {gpu.id}: what {model.id} needs beside its cache is not known."
        out.append(Note(code=NO_VERDICT, message=f"{message} {_budget_hint(gpu, model)}"))
    if request.setup.hardware.kv_memory is not None and not known_weights:
        message = f"Weights are not counted, since those of {model.id} are not known: --kv-memory must be what they leave free."
        out.append(Note(code="weights-not-counted", message=message))
    return out


def _budget_hint(gpu: Gpu, model: ModelSpec) -> str:
    """The hint with the option that leads to a verdict: the number of parameters if it is unknown, else ``--kv-memory``."""
    if any(note.code == NO_WEIGHTS for note in model.notes):
        return f"Give the number of parameters: {EXAMPLE_PARAMETERS}"
    from hwcalc.profiles.gpus import visible_memory

    visible = visible_memory(gpu)
    whole = 0 if visible is None else visible.expected_bytes // GIB
    of = f" of the {whole:,} GiB that a {gpu.id} has" if whole else ""
    return f"Give what the weights and all else leave for the cache{of}: --kv-memory SIZE"


def _model_info(model: ModelSpec, stack: Stack) -> ModelInfo:
    parameters = model.parameters or Parameters(definition=Definition.UNKNOWN)
    return ModelInfo(
        id=model.id,
        source=model.source,
        location=model.location,
        revision=model.revision,
        model_type=model.model_type,
        architecture=model.architecture,
        layers=tuple(
            LayerInfo(kind=group.kind.name, count=group.count, layers=group.layers, dims=group.kind.dims())
            for group in stack.groups
        ),
        parameters=ParametersInfo(
            total=parameters.total, active=parameters.active, mtp=parameters.mtp, definition=parameters.definition
        ),
        max_position_embeddings=model.max_position_embeddings,
        hidden_size=model.hidden_size,
        vocab_size=model.vocab_size,
        dtype=model.dtype,
    )
