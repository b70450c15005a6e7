"""Plans a model: :func:`plan_model` adds up weights, cache, activations and overhead, and notes options that have no effect."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from math import prod
from typing import TYPE_CHECKING, Any, Final

from msgspec.structs import asdict, replace

from hwcalc._version import __version__
from hwcalc.documents import SCHEMA_VERSION
from hwcalc.engines.deployment import Occupancy, of_one, without_sharing
from hwcalc.engines.memory import Section
from hwcalc.engines.models import has_cross
from hwcalc.engines.setup import UNSHARED
from hwcalc.engines.stored import StoredTensor
from hwcalc.errors import UnknownNameError, UnsupportedError, UsageError
from hwcalc.formulas import LayerKind, LayerNumbers, Role, Stack
from hwcalc.model import EXAMPLE_PARAMETERS, NO_WEIGHTS, WRITTEN, Definition, ModelSpec, Note, Parameters
from hwcalc.planner import result
from hwcalc.planner.context import FIXED_ROLES, open_request
from hwcalc.planner.layouts import divides
from hwcalc.planner.options import OPTIONS, PRICED, ROWS, WITHIN
from hwcalc.planner.planned_weights import WeightsInfo, weights_of
from hwcalc.planner.values import is_auto
from hwcalc.units import GIB

if TYPE_CHECKING:
    from hwcalc.engines.devices import Placement
    from hwcalc.planner.command_line import CommandLine
    from hwcalc.planner.fit import Search
    from hwcalc.planner.result import PolicyInfo

_CODES: Final = ("no-gpu", "kv-memory", "no-encoder", "no-policy", "no-blocks")
"""Codes of the notes on options without effect."""
_BY_PROMPT: Final = ("policy", "shared_prefix", "samples", "beams", "gpu", "instance")
"""Options for which it matters how much of a sequence is its prompt: for its memory, or for the time until the first token."""
_ENDS: Final = ("expected", "low", "high")
_SELECTED_ROLES: Final = (Role.LATENT, Role.ROPE)


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
    if "avg_seq" in given and "kv_memory" not in given:
        notes.append(Note(code="no-gpu", message="--avg-seq: no effect without a GPU or --kv-memory, of which the pool is made."))
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
    """True if this engine has a trait; false for an unknown engine, whose error is raised elsewhere."""
    from hwcalc.engines import ENGINES, find_engine, spelled

    return trait is not None and spelled(engine) in ENGINES and bool(getattr(find_engine(engine)[0].facts, trait))


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
    opened: Occupancy, *, cache_bytes: int, rank_bytes: int, definition: Definition, budget: result.BudgetInfo | None
) -> result.MemoryInfo:
    """The bytes of weights and cache, with a GPU those of activations and overhead, and their sum. An unknown value is ``None``.

    Raises :class:`~hwcalc.errors.UsageError` if ``--weights`` names no weight format.
    """
    weights, cache = opened.told(weights_of(opened)), result.CacheShare(bytes=cache_bytes, definition=definition)
    if budget is None:
        parallel, size, loaded = opened.setup.parallel, weights.bytes, weights.bytes
        if size is not None and parallel.gpus * parallel.ep > 1:
            parts = opened.weights.value
            size = None if parts is None else sum(part.expected for part in parts)
            loaded = loaded if size is None else on_all_ranks(opened, size)
        total = None if size is None else size + rank_bytes
        return result.MemoryInfo(
            weights=weights,
            cache=cache,
            activations=None,
            overhead=None,
            total_bytes=None if loaded is None else loaded + cache_bytes,
            per_gpu=result.PerGpu(weights=size, cache=rank_bytes, activations=None, overhead=None, total=total),
            loaded_bytes=loaded,
        )
    placement = opened.devices.placement()
    if placement is not None:
        return _placed(placement, weights, cache, budget)
    activations, overhead = _beside(budget, opened.setup.gpus)
    sizes = {section.value: sum(part.expected for part in _of(budget, section)) for section in Section}
    loaded = on_all_ranks(opened, sizes[Section.WEIGHTS.value])
    return result.MemoryInfo(
        weights=weights,
        cache=cache,
        activations=activations,
        overhead=overhead,
        total_bytes=loaded + cache_bytes + activations.bytes + overhead.bytes,
        per_gpu=result.PerGpu(**sizes, cache=rank_bytes, total=sum(sizes.values()) + rank_bytes),
        loaded_bytes=loaded,
    )


def on_all_ranks(opened: Occupancy, fullest: int) -> int:
    """Bytes of weights on all GPUs together, of which the fullest holds ``fullest``.

    Ranks of a pipeline stage hold the same. Stages are in the proportion of their tensors: with 3 GiB and 1 GiB of tensors on two stages
    of one GPU, and 3.3 GiB on the fullest, all hold 4.4 GiB.
    """
    from hwcalc.engines.rank_weights import rank_weight_bytes
    from hwcalc.quantization.planned import format_name, planned_scheme

    parallel, model, deployment = opened.setup.parallel, opened.model, opened.deployment
    if parallel.pp == 1:
        return fullest * opened.setup.gpus
    scheme, _ = planned_scheme(model, format_name(opened.setup.weights))
    stages = rank_weight_bytes(
        model, deployment.parallel, weight_dtype=deployment.weight_dtype(), scheme=scheme, rules=deployment.weight_rules()
    )
    if stages is None or not max(stages):
        return fullest * opened.setup.gpus
    each = opened.setup.gpus // parallel.pp
    return each * sum(-(-fullest * stage // max(stages)) for stage in stages)


def _placed(placement: Placement, weights: WeightsInfo, cache: result.CacheShare, budget: result.BudgetInfo) -> result.MemoryInfo:
    """The memory of each device, and the sums over them."""
    beside = Section.ACTIVATIONS, Section.OVERHEAD
    devices = []
    for share in placement.devices:
        loaded, activations, overhead = (
            sum(part.expected for part in share.parts if part.section is section) for section in (Section.WEIGHTS, *beside)
        )
        is_host = share is placement.host
        devices.append(
            result.DeviceInfo(
                device=share.device,
                layers=share.layers,
                experts=placement.experts_on_host if is_host else LayerNumbers(),
                moved=placement.moved_bytes if is_host else 0,
                output=share.output,
                weights=share.weights_bytes + loaded,
                cache=share.cache_bytes,
                activations=activations,
                overhead=overhead,
                total=share.needed(),
                total_low=share.needed("low"),
                total_high=share.needed("high"),
            )
        )
    used, others = (
        [
            sum(getattr(part, end) for share in placement.devices for part in share.parts if part.section is section)
            for end in _ENDS
        ]
        for section in beside
    )
    fullest = devices[placement.fullest]
    parts = _of(budget, Section.OVERHEAD)
    return result.MemoryInfo(
        weights=weights,
        cache=cache,
        activations=result.Share(bytes=used[0], low=used[1], high=used[2], definition=Definition.ESTIMATE),
        overhead=result.OverheadInfo(bytes=others[0], low=others[1], high=others[2], definition=Definition.ESTIMATE, parts=parts),
        total_bytes=sum(device.total for device in devices),
        per_gpu=result.PerGpu(**{name: getattr(fullest, name) for name in result.PerGpu.__struct_fields__}),
        devices=tuple(devices),
        loaded_bytes=sum(device.weights for device in devices),
    )


def _of(budget: result.BudgetInfo, section: Section) -> tuple[result.BudgetPartInfo, ...]:
    return tuple(part for part in budget.parts if part.section == section)


def _beside(budget: result.BudgetInfo, gpus: int) -> tuple[result.Share, result.OverheadInfo]:
    """Activations and overhead of so many GPUs."""
    sums = []
    for section in (Section.ACTIVATIONS, Section.OVERHEAD):
        parts = _of(budget, section)
        expected, low, high = (gpus * sum(getattr(part, end) for part in parts) for end in _ENDS)
        measured = bool(parts) and all(part.definition is Definition.MEASURED for part in parts)
        definition = Definition.MEASURED if measured else Definition.ESTIMATE
        sums.append(result.Share(bytes=expected, low=low, high=high, definition=definition))
    activations, overhead = sums
    return activations, result.OverheadInfo(**asdict(overhead), parts=_of(budget, Section.OVERHEAD))


def plan_model(
    model: ModelSpec, *, line: CommandLine | None = None, advise: bool = True, search: Search | None = None, **options: Any
) -> result.Plan:
    """The plan of a request. Other keywords and errors are those of :func:`~hwcalc.planner.context.open_request`.

    ``line`` is the command line of the plan, where more was asked for than ``options`` say. Without ``advise`` the plan offers no
    changes, which take as long as the plan itself. ``search`` finds its limits, if not as every plan does.
    """
    if not advise:
        line = None
    elif line is None:
        from hwcalc.planner.command_line import command_line

        line = command_line(model, options)
    try:
        opened = open_request(model, **options)
        _ = opened.evicted  # raises what a policy refuses
    except (UnsupportedError, UsageError) as error:
        if line is not None and not isinstance(error, UnknownNameError):
            from hwcalc.planner.nearest_plan import working

            accepted = working(model, options, line)
            error.hint = f"{error.hint.rstrip('. ')}. {accepted}" if accepted else error.hint
        raise
    if line is not None and is_auto(line.given.get("weights")):
        # What is offered as a change keeps the format that was chosen.
        line = line.changed(weights=opened.setup.weights)
    return plan_opened(opened, without_effect(options), line, search)


def plan_opened(
    opened: Occupancy,
    remarks: Iterable[Note] = (),
    line: CommandLine | None = None,
    search: Search | None = None,
    *,
    limits: bool = True,
) -> result.Plan:
    """The plan of an occupancy. ``remarks`` are further notes about the request; without a ``line`` the plan offers no changes.

    ``search`` finds the limits of the verdict, if not as every plan does. Without ``limits`` the limits are 0 and the speed is ``None``:
    neither is computed.
    """
    model, load, hardware = opened.model, opened.load, opened.setup.hardware
    stored = stored_layers(opened)
    policy = _policy_info(opened)
    definition = model.definition(opened.engine.definition) if policy is None else policy.definition
    opened.tell(*remarks, *_other_states(opened, stored))
    pool, fit, speed, sharing, overrun, within, cost = None, None, None, None, None, None, None
    if hardware.gpu is not None or hardware.kv_memory is not None:
        from hwcalc.planner.fit import Search, plan_fit

        pool, fit = plan_fit(opened, line, (search or Search()) if limits else None)
        pool = None if pool is None else replace(pool, definition=model.definition(pool.definition))
    memory = plan_memory(
        opened,
        cache_bytes=opened.stored_bytes,
        rank_bytes=opened.needed_bytes,
        definition=definition,
        budget=None if fit is None else fit.budget,
    )
    if opened.setup.lora is not None and fit is not None and fit.budget is not None:
        memory = replace(memory, adapters=opened.deployment.adapter_rules.info())
        opened.tell(*opened.deployment.adapter_rules.notes())
    request, cache = _request_info(opened, stored), _cache_info(opened, stored, definition)
    if limits and hardware.gpu is not None:
        from hwcalc.planner.expected import not_measured, speed_of

        speed = speed_of(opened, 0 if fit is None or fit.max_batch is None else fit.max_batch)
        opened.tell(*not_measured(opened, speed))
        if line is not None and opened.setup.weights is not None:
            from hwcalc.planner.published import published_notes

            opened.tell(*published_notes(opened, memory.weights, speed))
    if load.sharing != UNSHARED or load.lengths:
        from hwcalc.planner.sharing import sharing_info

        sharing = sharing_info(opened)
    if limits and opened.setup.others.get("avg_seq") is not None:
        from hwcalc.planner.overrun import overrun_info

        overrun = overrun_info(opened, opened.setup.others["avg_seq"], fit)
    if limits and fit is not None and hardware.gpu is not None and not opened.setup.others.keys().isdisjoint(WITHIN):
        from hwcalc.planner.within import within_limits

        within = within_limits(opened, fit, overrun)
    if limits and ("instance" in opened.setup.others or not opened.setup.others.keys().isdisjoint(PRICED)):
        from hwcalc.planner.cost import cost_of

        cost = cost_of(opened, fit, speed, within)
    return result.Plan(
        schema_version=SCHEMA_VERSION,
        kvplan_version=__version__,
        model=_model_info(model, opened.stack),
        request=request,
        cache=cache,
        memory=memory,
        pool=pool,
        fit=fit,
        speed=speed,
        policy=policy,
        sharing=sharing,
        overrun=overrun,
        within=within,
        cost=cost,
        notes=tuple(note for note in dict.fromkeys((*model.notes, *opened.notes)) if note not in model.warnings),
        warnings=tuple(_warnings(opened, fit, policy, known_weights=memory.weights.bytes is not None)),
    )


def _other_states(opened: Occupancy, stored: list[Stored]) -> Iterator[Note]:
    """A note if written layers name a format of states in which the engine does not keep them, with the option that does."""
    model, option = opened.model, opened.engine.facts.states_option
    wanted, kept = model.state_dtype, opened.dtypes.state
    if wanted in (None, kept) or option in opened.setup.options or all(note.code != WRITTEN for note in model.notes):
        return
    if any(tensor.role is Role.STATE for _, _, _, tensor in stored):
        word = model.config["state_dtype"]
        how = f"; with --engine-option {option}={word} in {wanted}" if option and word in _STATE_WORDS else ""
        message = f"state_dtype {wanted} has no effect: {opened.engine.label} keeps the states of such layers in {kept}{how}."
        yield Note(code="states-kept", message=message)


_STATE_WORDS: Final = ("float32", "float16", "bfloat16")


def _policy_info(opened: Occupancy) -> PolicyInfo | None:
    """The section of a plan on its policy, whose notes are told; ``None`` without a policy."""
    evicted, asked = opened.evicted, opened.setup.policy
    if evicted is None or asked is None:
        return None
    from hwcalc.planner.policy import policy_info, policy_notes
    from hwcalc.policies.base import REPACK

    info = policy_info(opened, evicted)
    opened.tell(*policy_notes(evicted.chosen, evicted.setting.attention, acted=len(evicted.ends), layers=len(evicted.plain)))
    if asked.compaction != REPACK and info.blocks is None:
        message = f"--compaction: no effect, as the cache of {opened.engine.label} has no blocks."
        opened.tell(Note(code="no-blocks", message=message))
    return info


def _request_info(opened: Occupancy, stored: list[Stored]) -> result.RequestInfo:
    """The request with its defaults filled in: its values by their names, but for those that a document shows otherwise."""
    setup, values = opened.setup, opened.request.flat()
    margin, has_states = setup.hardware.margin, any(tensor.role is Role.STATE for _, _, _, tensor in stored)
    shown = {
        **{name: values[name] for name in result.RequestInfo.__struct_fields__ if name in values},
        "engine": opened.engine.name,
        "engine_version": opened.deployment.version or None,
        "encoder_seq": opened.encoder_tokens if has_cross(opened.model) else None,
        "kv_dtype": opened.dtypes.kv,
        "state_dtype": opened.dtypes.state if has_states else None,
        "margin": None if margin is None else float(margin),
        "lora": None if setup.lora is None else str(setup.lora),
        "draft": None if setup.draft is None else setup.draft.id,
        "options": dict(setup.options),
        "lengths": opened.load.lengths,
        "environment": opened.reported().environment + opened.reported().chosen,
        "settings": dict(opened.reported().settings),
    }
    return result.RequestInfo(**shown)


def _cache_info(opened: Occupancy, stored: list[Stored], definition: Definition) -> result.CacheInfo:
    """The section of the plan on the cache: bytes of a token, of a sequence, of all, on a GPU, and what a step reads."""
    single, apart, evicted = of_one(opened), without_sharing(opened), opened.evicted
    has_states = any(tensor.role in FIXED_ROLES for _, _, _, tensor in stored)
    of_single = stored if single is opened or not has_states else stored_layers(single)
    if evicted is None or evicted.read is evicted.most:
        # Each sequence reads what it has in common with others for itself.
        read = _read_bytes(stored if apart is opened else stored_layers(apart))
    else:
        from hwcalc.engines.policies import page_keys_bytes

        # The policy selects what is read, by the keys of its pages.
        setting = replace(evicted.setting, batch=opened.load.sequences)
        read = _read_bytes(stored_layers(opened.policies.holding(evicted.read))) + page_keys_bytes(opened, setting)
    return result.CacheInfo(
        definition=definition,
        bytes_per_token=_growth(opened),
        state_bytes_per_sequence=sum(count * one.bytes for _, _, count, one in of_single if one.role in FIXED_ROLES),
        bytes_per_sequence=single.stored_bytes,
        total_bytes=opened.stored_bytes,
        copied_bytes=_copied_bytes(opened, stored),
        per_gpu_bytes=opened.needed_bytes,
        tensors=tuple(
            result.TensorInfo(
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
            for kind, layers, count, tensor in stored
        ),
        groups=opened.groups,
        read_bytes_per_step=read,
    )


def _copied_bytes(opened: Occupancy, stored: list[Stored]) -> int:
    """Bytes of ``stored`` that are copies of what another tensor-parallel rank keeps, all ranks together."""
    parallel = opened.setup.parallel
    if parallel.tp == 1 or not opened.engine.facts.counts_copies:
        return 0
    roles, tokens, encoder = opened.dtypes.roles, opened.tokens, opened.encoder_tokens

    def kept_bytes(kind: LayerKind) -> int:
        """Bytes that one layer of this kind caches for one sequence, by the formulas."""
        return sum(tensor.bytes(roles[tensor.role], tokens, encoder) for tensor in kind.tensors())

    rules, copied = opened.deployment.weight_rules(), 0
    for kind, _, count, tensor in stored:
        if kind is not None:
            ranks = parallel.tp * kept_bytes(rules.shard(opened.model, kind, parallel.tp)) // parallel.dcp
            copied += count * (tensor.bytes * max(0, ranks - kept_bytes(kind)) // ranks if ranks else 0)
    return copied


Stored = tuple[LayerKind | None, LayerNumbers, int, StoredTensor]
"""The kind of a group of layers (``None`` for tensors outside the layers), its layer numbers, their count, and a tensor of one layer."""


def stored_layers(opened: Occupancy) -> list[Stored]:
    """All tensors that the engine stores, with equal layers listed once."""
    out: list[Stored] = []
    for group in opened.stack.groups:
        out += [(group.kind, group.layers, group.count, tensor) for tensor in opened.kind_tensors[group.kind]]
    out += [(None, LayerNumbers(), 1, tensor) for tensor in opened.extras]
    return out


def _growth(opened: Occupancy) -> int:
    """Bytes by which one sequence grows from ``seq`` to ``seq`` + 1 tokens, by the formulas with the dtypes of the engine."""
    roles, tokens, encoder = opened.dtypes.roles, opened.tokens, opened.encoder_tokens
    evicted, growth = opened.evicted, 0
    # The number of layers by their kind at the planned length, and with one token more.
    if evicted is None:
        layers = {(group.kind, group.kind): group.count for group in opened.model.stack.groups}
    else:
        layers = Counter(zip(chain(*evicted.stack), chain(*evicted.grown.stack), strict=True))
    for (before, after), count in layers.items():
        for shorter, longer in zip(before.tensors(), after.tensors(), strict=True):
            added = longer.span.positions(tokens + 1, encoder) - shorter.span.positions(tokens, encoder)
            if added:
                growth += count * added * longer.bytes_per_position(roles[longer.role])
    return growth


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


def beyond_maximum(opened: Occupancy) -> Iterator[Note]:
    """A warning if the sequences are longer than the model's positions, or if those are that an engine allows and refuses to start with."""
    longest, variables = opened.model.max_position_embeddings, " ".join(opened.reported().environment)
    length = max(opened.load.seq, opened.deployment.max_length or 0) if variables else opened.load.seq
    if longest is not None and length > longest:
        message = f"{length:,} tokens is more than the model's maximum of {longest:,}."
        message += f" {opened.engine.label} refuses that without {variables}." if variables else ""
        yield Note(code=result.BEYOND, message=message)


def _warnings(opened: Occupancy, fit: result.FitInfo | None, policy: PolicyInfo | None, *, known_weights: bool) -> list[Note]:
    out = [*beyond_maximum(opened)]
    timed = [ROWS[name].spellings[0] for name in WITHIN if opened.setup.others.get(name) is not None]
    if timed and opened.setup.hardware.gpu is None:
        message = f"{', '.join(timed)}: how fast requests are served depends on the accelerator. Name one with --gpu."
        out.append(Note(code=result.NO_VERDICT, message=message))
    if policy is not None:
        from hwcalc.planner.policy import policy_warnings

        out += policy_warnings(opened, policy)
    return [*out, *lasting_warnings(opened, known_weights=known_weights, verdict=fit is not None)]


def lasting_warnings(opened: Occupancy, *, known_weights: bool, verdict: bool) -> list[Note]:
    """The warnings that are the same at every length and number of sequences."""
    model, setup = opened.model, opened.setup
    gpu, gpus, tp, out = setup.hardware.gpu, setup.gpus, setup.parallel.tp, [*model.warnings_with(setup.weights)]
    if not divides(model, tp):
        message = f"tp {tp:,} does not divide the attention heads evenly: the fullest rank is planned, and few engines do it."
        out.append(Note(code="uneven-heads", message=message))
    out += opened.hardware_warnings
    if gpu is not None and gpu.whole_machine and gpus > gpu.node:
        what = "a part of an accelerator" if gpu.part else "a machine by itself"
        linked = f"; up to {gpu.node:,} can be linked" if gpu.node > 1 else ", which nothing links to others"
        out.append(Note(code="not-joined", message=f"{gpu.id} is {what}{linked}: the plan of {gpus:,} is arithmetic alone."))
    if gpu is not None and gpu.fp8_kv == "no" and "fp8" in (setup.dtype or "").lower():
        message = f"No common engine keeps a cache in fp8 on {gpu.id}: its profile says so (kvplan gpus {gpu.id})."
        out.append(Note(code="no-fp8-cache", message=message))
    if gpu is not None and not verdict:
        if any(note.code == NO_WEIGHTS for note in model.notes):
            hint = f"Give the number of parameters: {EXAMPLE_PARAMETERS}"
        else:
            from hwcalc.profiles.gpus import visible_memory

            visible = visible_memory(gpu)
            whole = 0 if visible is None else visible.expected_bytes // GIB
            of = f" of the {whole:,} GiB that a {gpu.id} has" if whole else ""
            hint = f"Give what the weights and all else leave for the cache{of}: --kv-memory SIZE"
        message = f"No verdict on {gpus:,} x {gpu.id}: what {model.id} needs beside its cache is not known. {hint}"
        out.append(Note(code=result.NO_VERDICT, message=message))
    if setup.hardware.kv_memory is not None and not known_weights:
        message = f"Weights are not counted, since those of {model.id} are not known: --kv-memory must be what they leave free."
        out.append(Note(code="weights-not-counted", message=message))
    return out


def _model_info(model: ModelSpec, stack: Stack) -> result.ModelInfo:
    layers = tuple(
        result.LayerInfo(kind=group.kind.name, count=group.count, layers=group.layers, dims=group.kind.dims())
        for group in stack.groups
    )
    parameters = result.ParametersInfo(**asdict(model.parameters or Parameters(definition=Definition.UNKNOWN)))
    others = {name: getattr(model, name) for name in result.ModelInfo.__struct_fields__ if name not in {"layers", "parameters"}}
    return result.ModelInfo(layers=layers, parameters=parameters, **others)
