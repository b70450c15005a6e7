"""What every report of a plan shows: its lines and its figures, where it puts the layers, the cache by kind of layer, and what would help.

Below a table of several models stands whose numbers follow from a config that is not as published, or is not understood.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final

from hwcalc.engines import DEFAULT, find_engine
from hwcalc.engines.engine import Engine
from hwcalc.engines.pool import PoolInfo, Try
from hwcalc.engines.steps import Step
from hwcalc.formulas import Full, Kept, LayerNumbers, Role, Span, Strided
from hwcalc.formulas.record import Record
from hwcalc.library.layer_bytes import beside_title, kind_title, stored
from hwcalc.planner.result import DeviceInfo, FitInfo, LayerInfo, OverheadInfo, Plan, RequestInfo, SpeedInfo, TensorInfo
from hwcalc.planner.result import Share as ActivationShare
from hwcalc.planner.verdict import UNLIMITED, Layout
from hwcalc.report.drawing import PIPED_WIDTH
from hwcalc.report.text import abbreviated, both, escaped, exact, filled, parameters, plural
from hwcalc.text import LONGEST_WORD, TIMES, clean, cut, printable
from hwcalc.units import human_bytes

DEVICE_HEADER = ("device", "layers", "weights", "cache", "activations", "overhead", "total")


def places(plan: Plan) -> str:
    """How much lies where: ``25 of 33 layers on the GPU, 4.10 GiB in host memory``; empty if the engine places nothing."""
    fit, host = plan.fit, _host(plan)
    if fit is None or fit.gpu_layers is None or fit.all_layers is None or host is None:
        return ""
    where = "the GPU" if fit.gpus == 1 else f"{fit.gpus:,} GPUs"
    if fit.gpu_layers == fit.all_layers:
        words = f"all {fit.all_layers:,} layers on {where}"
        if not host.experts:
            return f"{words}, {human_bytes(host.moved)} of their weights in host memory" if host.moved else words
        return f"{words}, the experts of {len(host.experts):,} in host memory ({human_bytes(host.total)})"
    words = f"{fit.gpu_layers:,} of {fit.all_layers:,} layers on {where}"
    experts = f" and the experts of {len(host.experts):,} more" if host.experts else ""
    return f"{words}, the others{experts} in host memory ({human_bytes(host.total)})"


def _host(plan: Plan) -> DeviceInfo | None:
    return plan.memory.devices[-1] if plan.memory.devices else None


def per_gpu(plan: Plan) -> str:
    """What a figure of the fullest device is counted by; empty for a machine without a GPU."""
    return "" if len(plan.memory.devices) == 1 else " per GPU"


def host_line(plan: Plan) -> str:
    """What is needed of the host's memory, largest part first; empty if it holds no more than the input, or all."""
    host = _host(plan)
    if host is None or not per_gpu(plan) or not (host.layers or host.experts or host.output or host.cache or host.moved):
        return ""
    parts = {"weights": host.weights, "cache": host.cache, "activations": host.activations, "overhead": host.overhead}
    known = sorted(((size, name) for name, size in parts.items() if size), reverse=True)
    return f"{human_bytes(host.total)} of host memory: {', '.join(f'{name} {human_bytes(size)}' for size, name in known)}"


def start_line(plan: Plan) -> tuple[str, str] | None:
    """What starts a plan that fits, for engines that run a file on this machine, and a remark; ``None`` if there is nothing to type."""
    if not plan.memory.devices or plan.fit is None or not plan.fit.fits:
        return None
    from hwcalc.report.emit import start_pair

    return start_pair(plan)


def device_rows(plan: Plan, *, full: bool = False) -> list[tuple[str, ...]]:
    """A row for each device: its layers, and its bytes; in full all digits."""
    size = exact if full else human_bytes
    return [
        (
            one.device,
            _layers(one, full=full),
            *(size(number) if number else "-" for number in (one.weights, one.cache, one.activations, one.overhead)),
            size(one.total),
        )
        for one in plan.memory.devices
    ]


def _layers(one: DeviceInfo, *, full: bool) -> str:
    def text(numbers: str) -> str:
        return numbers if full else abbreviated(numbers)

    parts = [text(one.layers.text) if one.layers else "", "output" if one.output else ""]
    parts += [f"experts of {text(one.experts.text)}"] if one.experts else []
    parts += ["input"] if one.device == "host" else []
    return ", ".join(filter(None, parts)) or "-"


DEFINITIONS = {
    "exact": "exact: the formulas, nothing that an engine adds",
    "reconstructed": "RECONSTRUCTED: the catalog's config is not a copy of the published file",
    "published": "published: by the rules of a paper, whose code was not run",
    "assumed": "ASSUMED: rests on what the notes say was assumed",
}
"""What a definition of a number means."""
_TOLD = ("reconstructed", "assumed")
_MOST = 5
"""Models that are named; JSON and CSV have the definition of each."""


def footnotes(named: Iterable[tuple[str, str | None]], *, format_: str, width: int = PIPED_WIDTH) -> str:
    """A line for each such definition with the models that have it, from pairs of model and definition; empty if all are as published.

    >>> print(footnotes([("a/b", "reconstructed"), ("a/c", "exact"), ("a/b", "reconstructed")], format_="table"), end="")
    RECONSTRUCTED: the catalog's config is not a copy of the published file (a/b)
    """
    models: dict[str, dict[str, None]] = {definition: {} for definition in _TOLD}
    for model, definition in named:
        if definition in models:
            models[definition][model] = None
    return "".join(_line(DEFINITIONS[definition], list(those), format_, width) for definition, those in models.items() if those)


def _line(meaning: str, models: list[str], format_: str, width: int) -> str:
    more = f" and {len(models) - _MOST:,} more" if len(models) > _MOST else ""
    text = clean(f"{meaning} ({', '.join(models[:_MOST])}{more})")
    if format_ == "markdown":
        return f"{escaped(text)}\n"
    return f"{filled(text, width, subsequent_indent='  ', break_on_hyphens=False, break_long_words=False)}\n"


# The dimensions by which people compare models, and how they are printed; ``explain`` has the others.
_SPOKEN = {
    "num_attention_heads": "{} heads",
    "num_key_value_heads": "{} KV heads",
    "head_dim": "head_dim {}",
    "v_head_dim": "v_head_dim {}",
    "kv_lora_rank": "kv_lora_rank {}",
    "qk_rope_head_dim": "rope {}",
    "window": "window {}",
    "chunk": "chunk {}",
    "sink": "sink {}",
    "compress_ratio": "compress_ratio {}",
    "index_head_dim": "index_head_dim {}",
}
_UNDER_POLICY = {
    "engine": "engine: what the code of the policy leaves",
    "estimate": "estimate: at the most; the text decides",
}
_OF_ONE_MODEL = {**DEFINITIONS, "reconstructed": "reconstructed: see the note"}
"""The same beside the numbers of one plan, whose notes say the rest."""
_SOURCES = {
    "catalog": "built-in catalog",
    "user": "the user's own profiles",
    "hub": "Hugging Face Hub",
    "hf-cache": "Hugging Face cache",
    "local": "local file",
    "gguf": "GGUF file",
    "stdin": "standard input",
    "python": "Python",
    "options": "the dimensions that were given",
}

_HOST_COUNTS = 0.05
"""A part of the time that is said."""


class Figure(Record):
    """One headline number and its meaning."""

    name: str
    bytes: int
    meaning: str


def definition(plan: Plan) -> str:
    """What the numbers are (exact, an engine's, assumed), in words."""
    engine = " ".join(filter(None, (plan.request.engine, plan.request.engine_version)))
    if plan.policy is not None and plan.policy.layers and not plan.policy.offered:
        return f"ASSUMED: {engine} lacks the policy; this is if it had it"
    if plan.policy is not None and plan.policy.layers and plan.cache.definition in _UNDER_POLICY:
        return _UNDER_POLICY[plan.cache.definition]
    return _OF_ONE_MODEL.get(plan.cache.definition, f"{plan.cache.definition}: what {engine} stores")


def model_lines(plan: Plan) -> tuple[str, str, str]:
    """The model's id; its type and parameters; its layers and heads."""
    model = plan.model
    counts: dict[str, int] = {}
    for layer in model.layers:
        counts[layer.kind] = counts.get(layer.kind, 0) + layer.count
    everything = {number for layer in model.layers for number in layer.layers}
    kinds = ", ".join(f"{count:,} {kind_title(kind)}" for kind, count in counts.items())
    about = clean(cut(model.model_type, LONGEST_WORD))
    if model.parameters.total is not None:
        counted, used = model.parameters.total, model.parameters.active
        active = "" if used is None or used == counted else f", {parameters(used)} active"
        about += f" · {parameters(model.parameters.total)} parameters{active} ({model.parameters.definition})"
        if model.parameters.mtp:
            about += f" + {parameters(model.parameters.mtp)} for multi-token prediction"
    shape = " · ".join(filter(None, (f"{plural(len(everything), 'layer')}: {kinds}", _dimensions(model.layers))))
    return clean(cut(model.id, LONGEST_WORD)), about, shape


def _dimensions(layers: tuple[LayerInfo, ...]) -> str:
    """The dimensions of the attention layers; a range if layers differ."""
    attention = [layer.dims for layer in layers if "num_attention_heads" in layer.dims or "index_head_dim" in layer.dims]
    out = []
    for name, words in _SPOKEN.items():
        values = sorted({int(dims[name]) for dims in attention if name in dims})
        if name == "v_head_dim" and all(dims.get("head_dim", dims.get(name)) == dims.get(name) for dims in attention):
            continue
        if values:
            low, high = f"{values[0]:,}", f"{values[-1]:,}"
            text = low if low == high else f"{low} or {high}" if len(values) == 2 else f"{low} to {high}"
            out.append(words.format(text).replace("1 heads", "1 head") if text == "1" else words.format(text))
    return ", ".join(out)


def request_line(plan: Plan) -> str:
    """Engine, length, batch, dtypes and the other options of the request."""
    request = plan.request
    engine = " ".join(filter(None, (request.engine, request.engine_version)))
    parts = [
        f"engine {engine}",
        f"{_tokens(request)} {TIMES} {plural(request.batch, _each(request))}",
        f"KV dtype {request.kv_dtype}",
    ]
    parts += [f"{name} {size:,}" for name in ("tp", "pp", "dp", "dcp", "ep") if (size := getattr(request, name)) > 1]
    if request.state_dtype is not None:
        parts.append(f"state dtype {request.state_dtype}")
    if request.encoder_seq is not None:
        parts.append(plural(request.encoder_seq, "encoder token"))
    parts += _of_sequences(request)
    parts += [f"{name}={clean(cut(value, LONGEST_WORD))}" for name, value in request.options.items()]
    return " · ".join(parts)


def _each(request: RequestInfo) -> str:
    """What ``batch`` counts: sequences, or requests of several."""
    return "sequence" if request.samples == request.beams == 1 else "request"


def _tokens(request: RequestInfo) -> str:
    """The tokens of a sequence; of unlike ones the lengths, of which each has its share of them."""
    return plural(request.seq, "token") if not request.lengths else f"{' or '.join(f'{one:,}' for one in request.lengths)} tokens"


def _of_sequences(request: RequestInfo) -> list[str]:
    """The prompt, what is dropped of the cache, and what sequences have in common."""
    parts = [] if request.prompt is None else [f"prompt of {plural(request.prompt, 'token')}"]
    if request.policy is not None:
        parts.append(f"policy {clean(cut(request.policy, LONGEST_WORD))}")
        parts += [] if request.policy_rules in (None, "kvpress") else [f"rules of the {request.policy_rules}"]
        parts += [] if request.compaction in (None, "repack") else [f"compaction {request.compaction}"]
    parts += [] if request.shared_prefix is None else [f"{plural(request.shared_prefix, 'token')} shared by all"]
    parts += [
        f"{number:,} {name} of each" for name, number in (("samples", request.samples), ("beams", request.beams)) if number > 1
    ]
    return parts


def source_line(plan: Plan) -> str:
    """Where the config comes from, and its revision."""
    model = plan.model
    words = _SOURCES.get(model.source, model.source)
    location = clean(cut(model.location, LONGEST_WORD))
    where = location if words.lower() in location.lower() else f"{words}, {location}" if location else words
    return f"config from {where}" + (f", revision {clean(model.revision)}" if model.revision else "")


def figures(plan: Plan) -> list[Figure]:
    """The headline numbers, smallest scope first."""
    cache, request = plan.cache, plan.request
    out = [Figure(name="per token", bytes=cache.bytes_per_token, meaning=_growth(plan))]
    if cache.state_bytes_per_sequence:
        meaning = "per sequence, whatever its length"
        out.append(Figure(name="fixed state", bytes=cache.state_bytes_per_sequence, meaning=meaning))
    copies = ""
    if cache.copied_bytes:
        copied = human_bytes(cache.copied_bytes * cache.bytes_per_sequence // cache.total_bytes)
        copies = f"; {copied} are copies on {request.tp:,} ranks"
    out.append(
        Figure(
            name="per sequence",
            bytes=cache.bytes_per_sequence,
            meaning=f"{'the longest, ' if request.lengths else ''}{plural(request.seq, 'token')}{copies}",
        )
    )
    out.append(
        Figure(name="total", bytes=cache.total_bytes, meaning=plural(request.batch * request.samples * request.beams, "sequence"))
    )
    if plan.policy is not None:
        out.append(Figure(name="no policy", bytes=plan.policy.full_bytes, meaning="the same with every token kept"))
    if plan.sharing is not None and plan.sharing.saved_bytes:
        out.append(Figure(name="not shared", bytes=plan.sharing.unshared_bytes, meaning="the same with every sequence by itself"))
    weights, together = plan.memory.weights, plan.memory.total_bytes
    if weights.bytes is not None and together is not None:
        out.append(Figure(name="weights", bytes=weights.bytes, meaning=f"{weights.definition}: {clean(weights.source)}"))
        out += _beside(plan, together)
    return out


def _beside(plan: Plan, together: int) -> list[Figure]:
    """The sum of weights and cache; with hardware, activations, overhead and the total of a GPU instead."""
    memory, fit = plan.memory, plan.fit
    if memory.activations is None or memory.overhead is None or fit is None:
        return [Figure(name="weights + cache", bytes=together, meaning="without activations and overhead")]
    divided = len(memory.devices) > 1
    everywhere = "GPU and host" if divided else f"on all {fit.gpus:,} GPUs" if fit.gpus > 1 else ""
    out = [
        Figure(name=name, bytes=part.bytes, meaning=f"{everywhere}; {_meaning(part)}" if everywhere else _meaning(part))
        for name, part in (("activations", memory.activations), ("overhead", memory.overhead))
    ]
    if memory.per_gpu.total is not None and (divided or not memory.devices):
        fullest = f"the fullest of {fit.gpus:,} GPUs" if fit.gpus > 1 else "of the one GPU"
        meaning = f"{fullest}: {human_bytes(fit.needed_low_bytes)} to {human_bytes(fit.needed_high_bytes)}"
        out.append(Figure(name="per GPU", bytes=memory.per_gpu.total, meaning=meaning))
    if memory.devices:
        host = memory.devices[-1]
        meaning = f"{human_bytes(host.total_low)} to {human_bytes(host.total_high)}"
        out.append(Figure(name="host memory", bytes=host.total, meaning=meaning))
    return out


def _meaning(part: ActivationShare | OverheadInfo) -> str:
    """The range of an estimate; measured parts have none."""
    if part.definition == "measured":
        return "measured on this machine"
    if part.low == part.high == part.bytes:
        return "what the engine sets aside" if part.bytes else "nothing is set aside"
    return f"{part.definition}: {human_bytes(part.low)} to {human_bytes(part.high)}"


def _growth(plan: Plan) -> str:
    """What the bytes per token mean: the growth of the cache by the very next token, by the formulas."""
    strides = sorted({tensor.span.numbers[0] for tensor in plan.cache.tensors if isinstance(tensor.span, Strided)})
    every = " and ".join(f"{stride:,}" for stride in strides)
    if strides:
        return f"the next token of a sequence; some layers add an entry only every {every} tokens"
    if not plan.cache.bytes_per_token:
        return "no layer grows at this length" if plan.policy is None else "the next token adds nothing: the policy drops as many"
    by = "" if plan.request.engine == DEFAULT else ", by the formulas"
    which = "each further token of a sequence" if plan.policy is None else "the next token of a sequence, under the policy"
    return f"{which}{by}"


def verdict(plan: Plan) -> str:
    """Whether the plan fits, and how sure that is, in the verdict's own words first; then what the engine would do."""
    fit = plan.fit
    assert fit is not None
    engine = find_engine(plan.request.engine)[0].label
    where = f" on {fit.gpus} x {fit.gpu}" if fit.gpu is not None else ""
    flags = " ".join(one.flag for one in plan.pool.requires) if plan.pool is not None and fit.fits else ""
    variables = " ".join(plan.request.environment)
    required = f" with {flags}" if flags else ""
    required += f"{' and' if flags else ''} only with {variables}" if variables else ""
    words = f"{fit.verdict.text}{where}"
    if fit.gpu_layers is not None and (fit.verdict.certain or fit.needed_high_bytes <= fit.usable_bytes):
        return f"{words}: {places(plan)}" if fit.fits else f"{words} with {places(plan)}"
    if not fit.verdict.certain:
        return (
            f"{words}{required}, needs {human_bytes(fit.needed_low_bytes)} to {human_bytes(fit.needed_high_bytes)} "
            f"of {human_bytes(fit.usable_bytes)}{per_gpu(plan)}"
        )
    if plan.pool is None:
        return words
    if plan.policy is not None and not plan.policy.offered and plan.pool.message is None:
        # What the engine itself would do, which lacks the policy, was not asked.
        return f"{words}, if {engine} had the policy"
    if fit.fits:
        return f"{words}: {engine} will start{required}"
    if plan.pool.fits:
        held = fit.max_batch or fit.expected_max_batch or 0
        start = "will start" if fit.max_batch else "will probably start"
        return f"{words}: {engine} {start}{required}, but holds {held:,} of {plan.request.batch:,} {_each(plan.request)}s at once"
    return f"{words}: {engine} will not start"


def fit_lines(plan: Plan) -> list[tuple[str, str]]:
    """Labelled lines with the reasons of the verdict, the pool, and how much more would fit."""
    fit = plan.fit
    assert fit is not None
    out = [("error", clean(plan.reason))] if plan.reason else []
    out += _equation(plan) if plan.pool is None or plan.memory.devices else _pool(plan, plan.pool)
    if fit.max_batch is not None and fit.gpu is not None:
        expected = _expected(fit.max_batch, fit.expected_max_batch)
        many = f"{_up_to(fit.max_batch, _each(plan.request))} of {plan.request.seq:,} tokens{expected}"
        out.append(("at once", f"{many}{_because(fit.limiting)}"))
    if fit.max_seq is not None and (fit.gpu is not None or plan.pool is None):
        each = "" if plan.request.batch == 1 else f" for each of {plan.request.batch:,} {_each(plan.request)}s"
        expected = _expected(fit.max_seq, fit.expected_max_seq)
        out.append(("longest", f"{_up_to(fit.max_seq, 'token')}{each}{expected}{_because(fit.limiting_seq)}"))
    if (fewest := _fewest(fit)) and (fit.min_gpus != fit.gpus or not fit.verdict.certain or not fit.fits):
        out.append(("fewest", fewest))
    speed = plan.speed
    # What does not fit does not run: a bound on its speed would say that it does.
    if fit.fits and speed is not None and speed.decode_tokens_per_s_bound is not None:
        tokens = plan.request.seq if plan.request.prompt is None else min(plan.request.prompt, plan.request.seq)
        prompt = (
            ""
            if speed.prefill_s_bound is None or not tokens
            else f"; a prompt of {tokens:,} takes {speed.prefill_s_bound:.3g} s or more"
        )
        out.append(("speed", f"at most {speed.decode_tokens_per_s_bound:,.0f} tokens/s, {_bound(speed)}{prompt}"))
    return out


def _bound(speed: SpeedInfo) -> str:
    """What bounds the speed; how much of it the host takes, where it holds a part that counts."""
    reads = {one.name.removesuffix("_reading"): one for one in speed.steps if one.name.endswith("_reading")}
    host, gpu = reads.get("host"), reads.get("gpu0")
    share = 0.0 if host is None or not speed.decode_step_s_bound else float(host.expected) / speed.decode_step_s_bound
    if share < _HOST_COUNTS or host is None or gpu is None or _rate(host) == _rate(gpu):
        return f"bound by {speed.bound_by}"
    return f"{100 * share:.0f} % of the time for what is in host memory"


def _rate(step: Step) -> float:
    """The bandwidth of a device: that of the host is the GPU's own where they share one memory."""
    return next((float(term.expected) for term in step.terms if term.name.endswith("_bandwidth")), 0.0)


def _fewest(fit: FitInfo) -> str:
    """The fewest GPUs that do for certain, and what is expected where that is fewer; empty if none is known."""
    sure, likely = fit.sure_min_layout, fit.min_layout
    if sure is None or likely is None or sure == likely:
        one = sure or likely
        return "" if one is None else f"{_gpus(one, fit)}{'' if sure else ', probably'}"
    return f"{_gpus(sure, fit)}; probably {_gpus(likely, fit)}"


def _gpus(layout: Layout, fit: FitInfo) -> str:
    # Where layers are placed, each GPU has a run of them: there is no other layout.
    sizes = layout.text if fit.all_layers is None else ""
    return f"{layout.gpus:,} x {fit.gpu}" + (f" ({sizes})" if sizes else "")


def _up_to(count: int, what: str) -> str:
    return f"any number of {what}s" if count >= UNLIMITED else plural(count, what)


def _expected(sure: int, expected: int | None) -> str:
    """What is expected beside what is sure, where that is not the same."""
    if expected is None or expected == sure:
        return ""
    certain = "" if sure else " for certain"
    return f"{certain}, {'any number' if expected >= UNLIMITED else f'{expected:,}'} expected"


def _because(limiting: str | None) -> str:
    return "" if limiting is None else f" (limit: {limiting})"


def _equation(plan: Plan) -> list[tuple[str, str]]:
    """The terms of what the fullest GPU needs."""
    fit = plan.fit
    assert fit is not None
    budget = fit.budget
    if budget is None:
        return [("budget", f"{both(fit.usable_bytes)} per GPU for the cache")]
    margin = f", {human_bytes(budget.margin_bytes)} left alone" if budget.margin_bytes else ""
    whole = f"{human_bytes(budget.total_bytes)} visible{margin}"
    terms = [("cache", plan.cache.per_gpu_bytes), *((part.name, part.expected) for part in budget.parts)]
    return [
        ("needs", f"{human_bytes(fit.needed_bytes)} of {human_bytes(fit.usable_bytes)}{per_gpu(plan)} ({whole})"),
        ("from", ", ".join(f"{name} {human_bytes(size)}" for name, size in terms)),
    ]


def _pool(plan: Plan, pool: PoolInfo) -> list[tuple[str, str]]:
    assert plan.fit is not None
    budget, out = plan.fit.budget, []
    estimate = "" if budget is None else f" (estimate: {human_bytes(max(0, budget.low))} to {human_bytes(max(0, budget.high))})"
    out.append(("pool", f"{both(pool.budget_bytes)} per GPU for the cache{estimate}"))
    if budget is not None:
        parts = ", ".join(f"{part.name} {human_bytes(part.expected)}" for part in budget.parts)
        out.append(
            ("from", f"{human_bytes(budget.requested_bytes)} requested of {human_bytes(budget.total_bytes)}, less {parts}")
        )
    if pool.blocks is not None and pool.bytes_per_block is not None:
        size = "" if pool.block_size is None else f" of {plural(pool.block_size, 'token')}"
        out.append(("blocks", f"{pool.blocks:,}{size}, {both(pool.bytes_per_block)} each"))
    if pool.tokens is not None:
        concurrency = "" if pool.max_concurrency is None else f", {pool.max_concurrency:.2f} x {plan.request.seq:,}"
        out.append(("holds", f"{pool.tokens:,} tokens{concurrency} (as its log says)"))
    if pool.max_seq is not None and plan.fit.gpu is None:
        out.append(("longest", f"{pool.max_seq:,} tokens for one request"))
    return out


_ALIKE: Final = 3
"""Lengths that a policy leaves in layers are told apart up to so many."""


class LayerShare(Record):
    """The bytes of all layers of one kind with one length rule, for the whole batch."""

    title: str
    count: int
    layers: LayerNumbers
    rule: str
    dtypes: str
    bytes: int


def shares(plan: Plan) -> list[LayerShare]:
    """Layers grouped by kind and by how many positions they keep."""
    groups: dict[tuple[str, str], list[tuple[LayerInfo | None, tuple[TensorInfo, ...]]]] = {}
    found = stored(plan)
    cut = _kept_numbers(found)
    for layer, tensors in found:
        kind = layer.kind if layer is not None else "model"
        groups.setdefault((kind, _rule(tensors, cut)), []).append((layer, tensors))
    return [
        LayerShare(
            title=kind_title(kind) if kind != "model" else beside_title(tensor for _, tensors in members for tensor in tensors),
            count=sum(layer.count for layer, _ in members if layer is not None),
            layers=LayerNumbers(sorted({number for layer, _ in members if layer is not None for number in layer.layers})),
            rule=rule,
            dtypes=", ".join(dict.fromkeys(tensor.dtype for _, tensors in members for tensor in tensors if not is_room(tensor))),
            bytes=sum(tensor.bytes for _, tensors in members for tensor in tensors),
        )
        for (kind, rule), members in groups.items()
    ]


def _kept_numbers(found: Iterable[tuple[LayerInfo | None, tuple[TensorInfo, ...]]]) -> tuple[int, ...]:
    """The numbers of tokens that a policy leaves in layers, from the least to the most."""
    spans = {tensor.span for _, tensors in found for tensor in tensors if isinstance(tensor.span, Kept)}
    return tuple(sorted(span.numbers[0] for span in spans))


def _rule(tensors: tuple[TensorInfo, ...], cut: Sequence[int] = ()) -> str:
    """How many positions the tensors keep: growing tensors first, then fixed state. ``cut`` are the numbers that a policy leaves."""
    if not tensors:
        return "nothing kept"
    growing = dict.fromkeys(
        tensor.span for tensor in tensors if tensor.role not in {Role.STATE, Role.CONV} and not is_room(tensor)
    )
    words = list(dict.fromkeys(_words_of(span, cut) for span in growing))
    if any(tensor.role in {Role.STATE, Role.CONV} for tensor in tensors):
        words.append("fixed state")
    return " + ".join(words)


def is_room(tensor: TensorInfo) -> bool:
    """Whether it is bytes of blocks and of nothing in particular: neither a number of positions nor a dtype says anything of them."""
    return tensor.axes == ("bytes",)


def _words_of(span: Span, cut: Sequence[int]) -> str:
    if isinstance(span, Kept) and len(cut) > _ALIKE:
        return f"{cut[0]:,} to {cut[-1]:,} kept of n"
    return "every token" if isinstance(span, Full) or span.text == "n" else span.text


def advice_pairs(suggestions: Iterable[Try], engine: str) -> list[tuple[str, str]]:
    """The command of each change, which is one line however long, so that it can be pasted; and a line about it."""
    return [advice_pair(one, engine) for one in suggestions]


def advice_pair(one: Try, engine: str) -> tuple[str, str]:
    """The same of one change."""
    return advice_command(one), _about(one, engine)


def advice_command(one: Try) -> str:
    """The command of a change, or the engine's own flags where only the engine is told."""
    return one.command or clean(one.flag)


def advice_items(suggestions: Iterable[Try], engine: str, escaped: Callable[[str], str]) -> list[str]:
    """The same as items of a list in Markdown, whose special characters ``escaped`` takes care of."""
    return [f"- try: {code(command)}\\\n  {escaped(about)}\n" for command, about in advice_pairs(suggestions, engine)]


def advice_block(suggestions: Iterable[Try], engine: str) -> str:
    """The same as plain text; empty without a change."""
    return "".join(f"try {command}\n    {about}\n" for command, about in advice_pairs(suggestions, engine))


def _about(one: Try, engine: str) -> str:
    """What the change gives, and the engine's own flags where they are not the words of the command."""
    rules = find_engine(engine)[0]
    own = one.flag if one.command and type(rules).flag is not Engine.flag else ""
    again = "give the config again: < FILE" if one.command.startswith("kvplan - ") else ""
    return clean(" · ".join(filter(None, (one.effect, own and f"{rules.label}: {own}", again))))


def code(text: str) -> str:
    """``text`` as code in Markdown, whatever quotes it has."""
    fence = "`" * (1 + max((len(run) for run in "".join(c if c == "`" else " " for c in text).split()), default=0))
    pad = " " if "`" in text else ""
    return f"{fence}{pad}{printable(text)}{pad}{fence}"
