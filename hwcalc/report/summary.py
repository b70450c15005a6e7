"""Words of every report of a plan: model and request, figures, verdict and its reasons, devices, layers, notes, what would help.

Below a table of several models stands whose numbers follow from a config that is not as published, or is not understood.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from typing import Final

from hwcalc.engines import DEFAULT, find_engine
from hwcalc.engines.facts import Command
from hwcalc.engines.pool import Try
from hwcalc.engines.runs_on import OPEN, runs_today
from hwcalc.errors import KvplanError
from hwcalc.formulas import LayerNumbers, Role
from hwcalc.formulas.record import Record
from hwcalc.formulas.tensor import Full, Kept, Strided
from hwcalc.library.layer_bytes import beside_title, kind_title, stored
from hwcalc.model import NO_WEIGHTS, WRITTEN, Note
from hwcalc.planner.result import (
    NO_PRICE,
    NO_VERDICT,
    DeviceInfo,
    Expected,
    FitInfo,
    LayerInfo,
    PerGpu,
    Plan,
    RequestInfo,
    SpeedInfo,
    TensorInfo,
)
from hwcalc.planner.verdict import UNLIMITED, layout_text
from hwcalc.report.text import abbreviated, both, escaped, exact, filled, parameters, plural
from hwcalc.report.view import View
from hwcalc.text import LONGEST_WORD, TIMES, clean, cut, printable
from hwcalc.units import human_bytes, human_chance

# The dimensions by which people compare models, and how they are printed; ``explain`` has the others.
_SPOKEN: Final = {
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
_SOURCES: Final = {
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
_DEFINITIONS: Final = {
    "exact": "exact: the formulas, nothing that an engine adds",
    "reconstructed": "RECONSTRUCTED: the catalog's config is not a copy of the published file",
    "published": "published: by the rules of a paper, whose code was not run",
    "assumed": "ASSUMED: depends on the assumptions in the notes",
}
"""Meanings of a number's definition."""
_OF_ONE_MODEL: Final = {**_DEFINITIONS, "reconstructed": "reconstructed: see the note"}
"""The same beside the numbers of one plan, whose notes say the rest."""
_UNDER_POLICY: Final = {
    "engine": "engine: what the code of the policy leaves",
    "estimate": "estimate: at the most; the text decides",
}


def model_lines(plan: Plan) -> tuple[str, str, str]:
    """The model's id; its type and parameters; its layers and heads."""
    model = plan.model
    about = clean(cut(model.model_type, LONGEST_WORD))
    if model.parameters.total is not None:
        counted, used = model.parameters.total, model.parameters.active
        active = "" if used is None or used == counted else f", {parameters(used)} active"
        about += f" · {parameters(counted)} parameters{active} ({model.parameters.definition})"
        if model.parameters.mtp:
            about += f" + {parameters(model.parameters.mtp)} for multi-token prediction"
    counts: dict[str, int] = {}
    for layer in model.layers:
        counts[layer.kind] = counts.get(layer.kind, 0) + layer.count
    everything = {number for layer in model.layers for number in layer.layers}
    kinds = ", ".join(f"{count:,} {kind_title(kind)}" for kind, count in counts.items())
    # The dimensions of the attention layers; a range if layers differ.
    attention = [layer.dims for layer in model.layers if "num_attention_heads" in layer.dims or "index_head_dim" in layer.dims]
    spoken = []
    for name, words in _SPOKEN.items():
        values = sorted({int(dims[name]) for dims in attention if name in dims})
        if name == "v_head_dim" and all(dims.get("head_dim", dims.get(name)) == dims.get(name) for dims in attention):
            continue
        if values:
            low, high = f"{values[0]:,}", f"{values[-1]:,}"
            said = words.format(low if low == high else f"{low} or {high}" if len(values) == 2 else f"{low} to {high}")
            spoken.append(said.removesuffix("s") if said in ("1 heads", "1 KV heads") else said)
    shape = " · ".join(filter(None, (f"{plural(len(everything), 'layer')}: {kinds}", ", ".join(spoken))))
    return clean(cut(model.id, LONGEST_WORD)), about, shape


def request_line(plan: Plan) -> str:
    """Engine, length, batch, dtypes, the prompt, what is dropped of the cache, what sequences have in common, and other options."""
    request = plan.request
    # Of unlike sequences the lengths, of which each has its share of them.
    tokens = f"{' or '.join(f'{one:,}' for one in request.lengths)} tokens" if request.lengths else plural(request.seq, "token")
    parts = [f"engine {' '.join(filter(None, (request.engine, request.engine_version)))}"]
    parts += [f"{tokens} {TIMES} {plural(request.batch, _each(request))}", f"KV dtype {request.kv_dtype}"]
    parts += filter(None, [layout_text(request)])
    parts += [] if request.state_dtype is None else [f"state dtype {request.state_dtype}"]
    parts += [] if request.encoder_seq is None else [plural(request.encoder_seq, "encoder token")]
    parts += [] if request.prompt is None else [f"prompt of {plural(request.prompt, 'token')}"]
    if request.policy is not None:
        parts.append(f"policy {clean(cut(request.policy, LONGEST_WORD))}")
        parts += [] if request.policy_rules in (None, "kvpress") else [f"rules of the {request.policy_rules}"]
        parts += [] if request.compaction in (None, "repack") else [f"compaction {request.compaction}"]
    parts += [] if request.shared_prefix is None else [f"{plural(request.shared_prefix, 'token')} shared by all"]
    several = (("samples", request.samples), ("beams", request.beams))
    parts += [f"{number:,} {name} of each" for name, number in several if number > 1]
    parts += [f"{name}={clean(cut(value, LONGEST_WORD))}" for name, value in request.options.items()]
    return " · ".join(parts)


def _each(request: RequestInfo) -> str:
    """Word for what ``batch`` counts: sequences, or requests."""
    return "sequence" if request.samples == request.beams == 1 else "request"


def source_line(plan: Plan) -> str:
    """The config's origin and its revision."""
    model = plan.model
    words = _SOURCES.get(model.source, model.source)
    location = clean(cut(model.location, LONGEST_WORD))
    where = location if words.lower() in location.lower() else f"{words}, {location}" if location else words
    return f"config from {where}" + (f", revision {clean(model.revision)}" if model.revision else "")


def definition(plan: Plan) -> str:
    """Words for what the numbers are: exact, an engine's, assumed."""
    engine = " ".join(filter(None, (plan.request.engine, plan.request.engine_version)))
    if plan.policy is not None and plan.policy.layers and not plan.policy.offered:
        return f"ASSUMED: {engine} lacks the policy; this is if it had it"
    if plan.policy is not None and plan.policy.layers and plan.cache.definition in _UNDER_POLICY:
        return _UNDER_POLICY[plan.cache.definition]
    return _OF_ONE_MODEL.get(plan.cache.definition, f"{plan.cache.definition}: what {engine} stores")


def figures(plan: Plan) -> list[tuple[str, int, str]]:
    """The headline numbers, smallest scope first: name, bytes and meaning of each."""
    cache, request, memory = plan.cache, plan.request, plan.memory
    out = [("per token", cache.bytes_per_token, _growth(plan))]
    if cache.state_bytes_per_sequence:
        out.append(("fixed state", cache.state_bytes_per_sequence, "per sequence, whatever its length"))
    copies = ""
    if cache.copied_bytes:
        copied = human_bytes(cache.copied_bytes * cache.bytes_per_sequence // cache.total_bytes)
        copies = f"; {copied} are copies on {request.tp:,} ranks"
    longest = "the longest, " if request.lengths else ""
    out.append(("per sequence", cache.bytes_per_sequence, f"{longest}{plural(request.seq, 'token')}{copies}"))
    out.append(("total", cache.total_bytes, plural(request.batch * request.samples * request.beams, "sequence")))
    if plan.policy is not None:
        out.append(("no policy", plan.policy.full_bytes, "the same with every token kept"))
    if plan.sharing is not None and plan.sharing.saved_bytes:
        out.append(("not shared", plan.sharing.unshared_bytes, "the same with every sequence by itself"))
    weights = memory.weights
    if weights.bytes is not None and memory.total_bytes is not None:
        out.append(("weights", weights.bytes, f"{weights.definition}: {clean(weights.source)}"))
        if memory.loaded_bytes is not None and memory.loaded_bytes != weights.bytes and not memory.devices:
            out.append(("loaded", memory.loaded_bytes, _loaded(plan)))
        of_gpu = _gpu_figures(plan)
        out += of_gpu or [("weights + cache", memory.total_bytes, "without activations and overhead")]
    return out


def _loaded(plan: Plan) -> str:
    """Words for what the engine makes of the weights: the parts on the fullest GPU, where a GPU is planned."""
    fit, gpus = plan.fit, plan.request.tp * plan.request.pp * plan.request.dp
    budget = None if fit is None else fit.budget
    parts = () if budget is None else tuple(part for part in budget.parts if part.section == "weights")
    where = f"on all {gpus:,} GPUs" if gpus > 1 else "on the GPU"
    named = ", ".join(f"{part.name} {human_bytes(part.expected)}" for part in parts)
    if not named:
        return f"the weights {where}"
    return f"{where}; the fullest: {named}" if gpus > 1 else f"{where}: {named}"


def _growth(plan: Plan) -> str:
    """Words for the bytes per token: the growth of the cache by the very next token, by the formulas."""
    strides = sorted({tensor.span.numbers[0] for tensor in plan.cache.tensors if isinstance(tensor.span, Strided)})
    if strides:
        every = " and ".join(f"{stride:,}" for stride in strides)
        return f"the next token of a sequence; some layers add an entry only every {every} tokens"
    if not plan.cache.bytes_per_token:
        return "no layer grows at this length" if plan.policy is None else "the next token adds nothing: the policy drops as many"
    by = "" if plan.request.engine == DEFAULT else ", by the formulas"
    which = "each further token of a sequence" if plan.policy is None else "the next token of a sequence, under the policy"
    return f"{which}{by}"


def _gpu_figures(plan: Plan) -> list[tuple[str, int, str]]:
    """Activations, overhead, and the total of a GPU and of the host; empty without hardware."""
    memory, fit = plan.memory, plan.fit
    if memory.activations is None or memory.overhead is None or fit is None:
        return []
    divided = len(memory.devices) > 1
    everywhere = "GPU and host; " if divided else f"on all {fit.gpus:,} GPUs; " if fit.gpus > 1 else ""
    out = []
    for name, part in (("activations", memory.activations), ("overhead", memory.overhead)):
        if part.definition == "measured":
            meaning = "measured on this machine"
        elif part.low == part.high == part.bytes:
            meaning = "what the engine sets aside" if part.bytes else "nothing is set aside"
        else:
            meaning = f"{part.definition}: {human_bytes(part.low)} to {human_bytes(part.high)}"
        out.append((name, part.bytes, everywhere + meaning))
    if memory.per_gpu.total is not None and (divided or not memory.devices):
        fullest = f"the fullest of {fit.gpus:,} GPUs" if fit.gpus > 1 else "of the one GPU"
        meaning = f"{fullest}: {_range(*_ends(fit)[0])}"
        out.append(("per GPU", memory.per_gpu.total, meaning))
    if memory.devices:
        host = memory.devices[-1]
        out.append(("host memory", host.total, f"{human_bytes(host.total_low)} to {human_bytes(host.total_high)}"))
    return out


def verdict(plan: Plan) -> str:
    """The verdict in its own words, with how sure it is; then what the engine would do, and how far it is in time."""
    words = _fits(plan)
    if plan.within is None or plan.within.holds or not ((plan.fit is not None and plan.fit.fits) or plan.serves_users):
        return words
    return f"{words}; {'not within' if plan.within.holds is False else 'not known to be within'} the limits of time"


def _fits(plan: Plan) -> str:
    """The verdict in words, without the time that it takes."""
    fit = plan.fit
    assert fit is not None
    engine = find_engine(plan.request.engine)[0].label
    where = f" on {fit.gpus} x {fit.gpu}" if fit.gpu is not None else ""
    if plan.overrun is not None and plan.serves_users and not fit.fits:
        overrun, will = plan.overrun, "will" if plan.overrun.verdict.certain else "will probably"
        most = f" (up to {human_chance(overrun.chance_high)})" if not overrun.verdict.certain else ""
        but = f", but for a chance of {human_chance(overrun.chance)}{most}" if overrun.chance_high else ""
        full = f"if all had {plan.request.seq:,} tokens, {fit.expected_max_batch or 0:,} would fit"
        return f"{plural(overrun.users, 'user')} of these lengths {will} fit{where}{but}; {full}"
    flags = " ".join(one.flag for one in plan.pool.requires) if plan.pool is not None and fit.fits else ""
    variables = " ".join(plan.request.environment)
    required = f" with {flags}" if flags else ""
    required += f"{' and' if flags else ''} only with {variables}" if variables else ""
    if any(note.code == OPEN for note in plan.warnings):
        required += ", if it runs there"
    if any(note.code == WRITTEN for note in plan.notes):
        required += ", once it has a class for these layers"
    words = f"{fit.verdict.text}{where}"
    if fit.gpu_layers is not None and (fit.verdict.certain or fit.needed_high_bytes <= fit.usable_bytes):
        return f"{words}: {places(plan)}" if fit.fits else f"{words} with {places(plan)}"
    if not fit.verdict.certain:
        return f"{words}{required}, needs {' of '.join(_range(*ends) for ends in _ends(fit))}{_per_gpu(plan)}"
    if plan.pool is None:
        return words
    if plan.policy is not None and not plan.policy.offered and plan.pool.message is None:
        # What the engine itself would do, which lacks the policy, was not asked.
        return f"{words}, if {engine} had the policy"
    if fit.fits:
        return f"{words}: {engine} will start{required}"
    if plan.pool.fits:
        what = f"of {plan.request.batch:,} {_each(plan.request)}s"
        if fit.max_batch:
            return f"{words}: {engine} will start{required}, but holds {fit.max_batch:,} {what} at once"
        return f"{words}: {engine} will probably start{required}, but holds none {what} for certain"
    return f"{words}: {_unheld(plan)}"


def _unheld(plan: Plan) -> str:
    """A clause on what the engine does where its pool does not hold the longest sequence."""
    engine = find_engine(plan.request.engine)[0]
    starts = engine.facts.short_pool and plan.held_seq
    return f"{engine.label} {f'starts, and {engine.facts.short_pool}' if starts else 'will not start'}"


def _per_gpu(plan: Plan) -> str:
    """The words "per GPU" for figures of the fullest device; empty for a machine without a GPU."""
    return "" if len(plan.memory.devices) == 1 else " per GPU"


def places(plan: Plan) -> str:
    """The places: ``25 of 33 layers on the GPU, 4.10 GiB in host memory``; empty if the engine places nothing."""
    fit = plan.fit
    if fit is None or fit.gpu_layers is None or fit.all_layers is None or not plan.memory.devices:
        return ""
    host = plan.memory.devices[-1]
    where = "the GPU" if fit.gpus == 1 else f"{fit.gpus:,} GPUs"
    if fit.gpu_layers == fit.all_layers:
        words = f"all {fit.all_layers:,} layers on {where}"
        if not host.experts:
            return f"{words}, {human_bytes(host.moved)} of their weights in host memory" if host.moved else words
        return f"{words}, the experts of {len(host.experts):,} in host memory ({human_bytes(host.total)})"
    words = f"{fit.gpu_layers:,} of {fit.all_layers:,} layers on {where}"
    experts = f" and the experts of {len(host.experts):,} more" if host.experts else ""
    return f"{words}, the others{experts} in host memory ({human_bytes(host.total)})"


def fit_lines(plan: Plan) -> list[tuple[str, str]]:
    """Labelled lines with the reasons of the verdict, the pool, and how much more would fit."""
    fit, each = plan.fit, _each(plan.request)
    assert fit is not None
    out = [("error", clean(plan.reason))] if plan.reason and not plan.serves_users else []
    out += _budget_lines(plan, fit)
    if fit.max_batch is not None and fit.gpu is not None:
        long = f" of {plan.request.seq:,} tokens" if not plan.request.lengths else " of these lengths, as many of each"
        words = _most(fit.max_batch, fit.expected_max_batch, each, long, fit.limiting)
        if fit.fits and plan.speed is not None and plan.speed.each_at_most is not None and fit.max_batch > plan.request.batch:
            words += f", decoding {_ranged(plan.speed.each_at_most, ' tokens/s each')}"
        out.append(("at once", words))
    if fit.max_seq is not None and (fit.gpu is not None or plan.pool is None):
        whom = "" if plan.request.batch == 1 else f" for each of {plan.request.batch:,} {each}s"
        if plan.request.lengths:
            whom = f" for the longest of {plan.request.batch:,} {each}s, shorter ones as they are"
        out.append(("longest", _most(fit.max_seq, fit.expected_max_seq, "token", whom, fit.limiting_seq)))
    out += overrun_lines(plan)
    if (
        not plan.serves_users
        and (fewest := _fewest(fit))
        and (fit.min_gpus != fit.gpus or not fit.verdict.certain or not fit.fits)
    ):
        # One GPU does already where the host holds what it does not.
        whole = " to hold all layers on GPUs" if fit.fits and fit.all_layers is not None and fit.min_gpus != fit.gpus else ""
        out.append(("fewest", fewest + whole))
    if plan.within is not None:
        from hwcalc.report.within import within_lines

        out += within_lines(plan)
    speed = plan.speed
    # What does not fit does not run: a bound on its speed would say that it does.
    if fit.fits and speed is not None and speed.decode_tokens_per_s_bound is not None:
        out.append(("speed", _speed_words(plan, speed)))
    if plan.cost is not None:
        from hwcalc.report.columns import cost_words

        out += zip(("costs", "tokens"), cost_words(plan.cost), strict=False)
    return [*out, *(("costs", note.message) for note in plan.notes if note.code == NO_PRICE)]


def _speed_words(plan: Plan, speed: SpeedInfo) -> str:
    """The expected speed of steps and of a prompt, with what bounds it; the bound alone where nothing is expected."""
    prompt = plan.request.seq if plan.request.prompt is None else min(plan.request.prompt, plan.request.seq)
    each, first = speed.tokens_per_s_each, speed.ttft_s or speed.prefill_s
    if each is None:
        least = (
            f"; a prompt of {prompt:,} takes {speed.prefill_s_bound:.3g} s or more" if speed.prefill_s_bound and prompt else ""
        )
        return f"at most {speed.decode_tokens_per_s_bound:,.0f} tokens/s, {_bound(speed)}{least}"
    of_each, of_all = ("", "") if plan.request.batch == 1 else (" each", "")
    if plan.request.batch > 1 and speed.decode_tokens_per_s is not None and speed.decode_tokens_per_s.expected is not None:
        of_all = f", {speed.decode_tokens_per_s.expected:,.0f} in all"
    # Within limits of time the lines above count the prompts in between; this speed does not.
    alone = "" if plan.within is None else " while no prompt is computed"
    words = f"decodes {_ranged(each, f' tokens/s{of_each}')}{of_all}{alone}, {_bound(speed)}"
    if first is None or not prompt:
        return words
    what = f"a prompt of {prompt:,} takes" if speed.ttft_s is None else "the first token after"
    return f"{words}; {what} {_ranged(first, ' s')}"


def _ranged(value: Expected, unit: str) -> str:
    """The expected value and its range: ``38 tokens/s (31 to 45)``."""
    expected, low, high = (_digits(one or 0.0) for one in (value.expected, value.low, value.high))
    return f"{expected}{unit} ({low} to {high})"


def _digits(value: float) -> str:
    """Three digits of a number below a thousand, and whole numbers above."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.2g}" if value < 10 else f"{value:.0f}"


def _budget_lines(plan: Plan, fit: FitInfo) -> list[tuple[str, str]]:
    """The pool and what the engine makes of it; without one, the terms of what the fullest GPU needs."""
    budget, pool = fit.budget, plan.pool
    if pool is None or plan.memory.devices:
        if budget is None:
            return [("budget", f"{both(fit.usable_bytes)} per GPU for the cache")]
        margin = f", {human_bytes(budget.margin_bytes)} left alone" if budget.margin_bytes else ""
        whole = f"{human_bytes(budget.total_bytes)} visible{margin}"
        terms = [("cache", plan.cache.per_gpu_bytes), *((part.name, part.expected) for part in budget.parts)]
        return [
            ("needs", f"{human_bytes(fit.needed_bytes)} of {human_bytes(fit.usable_bytes)}{_per_gpu(plan)} ({whole})"),
            ("from", ", ".join(f"{name} {human_bytes(size)}" for name, size in terms)),
        ]
    estimate = "" if budget is None else f" (estimate: {human_bytes(max(0, budget.low))} to {human_bytes(max(0, budget.high))})"
    out = [("pool", f"{both(pool.budget_bytes)} per GPU for the cache{estimate}")]
    if budget is not None:
        requested = f"{human_bytes(budget.requested_bytes)} requested of {human_bytes(budget.total_bytes)}"
        parts = ", ".join(f"{part.name} {human_bytes(part.expected)}" for part in budget.parts)
        out.append(("from", f"{requested}, less {parts}"))
    if pool.blocks is not None and pool.bytes_per_block is not None:
        size = "" if pool.block_size is None else f" of {plural(pool.block_size, 'token')}"
        out.append(("blocks", f"{pool.blocks:,}{size}, {both(pool.bytes_per_block)} each"))
    if pool.tokens is not None:
        concurrency = "" if pool.max_concurrency is None else f", {pool.max_concurrency:.2f} x {plan.request.seq:,}"
        out.append(("holds", f"{pool.tokens:,} tokens{concurrency} (as its log says)"))
    if pool.max_seq is not None and fit.gpu is None:
        out.append(("longest", f"{pool.max_seq:,} tokens for one request"))
    return out


def overrun_lines(plan: Plan) -> list[tuple[str, str]]:
    """Lines: how likely the users overrun the pool, how many may run, and of what lengths; none where nothing is said of lengths."""
    info = plan.overrun
    if info is None:
        return []
    chance = human_chance(info.chance)
    if info.samples is not None:
        chance += f" (drawn {info.samples:,} times, within {human_chance(info.chance_error)})"
    elif info.chance_high != info.chance:
        chance += f" (up to {human_chance(info.chance_high)})"
    within = human_chance(1 - info.quantile)
    lengths = ("lengths", f"{info.lengths}: {info.mean_tokens:,.0f} tokens on average (--avg-seq)")
    if plan.fit is not None and not plan.fit.expected_max_batch:
        return [("overrun", f"none of the users is served: {_unheld(plan)}"), lengths]
    most = _most(info.max_users, info.expected_max_users, "user", f" with at most {within}", info.limiting)
    together = plural(info.users, "user") + (" overruns" if info.users == 1 else " overrun")
    return [("overrun", f"{together} the pool with a chance of {chance}; {most}"), lengths]


def _most(sure: int, expected: int | None, what: str, of: str, limiting: str | None) -> str:
    """A line: how many fit for sure, how many are expected where that differs, and the limit."""
    words = (f"any number of {what}s" if sure >= UNLIMITED else plural(sure, what)) + of
    if expected is not None and expected != sure:
        certain = "" if sure else " for certain"
        words += f"{certain}, {'any number' if expected >= UNLIMITED else f'{expected:,}'} expected"
    return words if limiting is None else f"{words} (limit: {limiting})"


def _fewest(fit: FitInfo) -> str:
    """The fewest GPUs that do for certain, and what is expected where that is fewer; empty if none is known."""
    words = []
    for layout in (fit.sure_min_layout, fit.min_layout):
        if layout is not None:
            # Where layers are placed, each GPU has a run of them: there is no other layout.
            sizes = f" ({layout.text})" if layout.text and fit.all_layers is None else ""
            words.append(f"{layout.gpus:,} x {fit.gpu}{sizes}")
    if not words:
        return ""
    if len(words) == 1 or fit.sure_min_layout == fit.min_layout:
        return words[0] + ("" if fit.sure_min_layout else ", probably")
    return f"{words[0]}; probably {words[1]}"


def _bound(speed: SpeedInfo) -> str:
    """Bound of the speed, or the host's share of the time where it holds a part that counts."""
    reads = {one.name.removesuffix("_reading"): one for one in speed.steps if one.name.endswith("_reading")}
    host, gpu = reads.get("host"), reads.get("gpu0")
    if host is not None and gpu is not None and speed.decode_step_s_bound:
        share = float(host.expected) / speed.decode_step_s_bound
        # The bandwidth of the host is the GPU's own where they share one memory.
        rates = {
            next((float(term.expected) for term in one.terms if term.name.endswith("_bandwidth")), 0.0) for one in (host, gpu)
        }
        if share >= _HOST_COUNTS and len(rates) > 1:
            return f"{100 * share:.0f} % of the time for what is in host memory"
    return f"bound by {speed.bound_by}"


_HOST_COUNTS: Final = 0.05
"""A part of the time that is said."""
_DETAILS: Final = frozenset({"needs", "from", "budget", "pool", "blocks", "holds"})
"""Lines that say how the answer comes about; all others are the answer."""
_OF_POOL: Final = frozenset({"pool", "from", "blocks", "holds"})


def first_lines(plan: Plan, *, full: bool = False) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
    """The labelled lines below a verdict: those of the answer, and those that say how it comes about.

    Without ``full``, details that the answer has in other words are left out.
    """
    if plan.fit is None:
        return [], []
    cache, lines = plan.cache, fit_lines(plan)
    pooled = plan.pool is not None and not plan.memory.devices
    shown = _DETAILS if full else _OF_POOL if pooled else frozenset()
    answer = [line for line in lines if line[0] not in _DETAILS]
    host = host_line(plan)
    # The cache of all sequences, of one, and of a token. Where ranks keep copies, the first two have these too.
    sizes = [human_bytes(cache.total_bytes)]
    sizes += [f"{human_bytes(cache.copied_bytes)} of it copies on {plan.request.tp:,} ranks"] if cache.copied_bytes else []
    which = f"a sequence of {plan.request.seq:,} tokens" if plan.request.lengths else "a sequence"
    sizes += [f"{human_bytes(cache.bytes_per_sequence)} {which}"] if plan.request.batch > 1 else []
    sizes += [f"{human_bytes(cache.bytes_per_token)} a token"] if cache.bytes_per_token else []
    needs = [] if plan.serves_users and not plan.fit.fits else [("needs", _needs(plan, plan.fit))]
    whole = [*needs, *([("host", host)] if host else []), ("cache", ", ".join(sizes))]
    # Why it does not fit comes first.
    place = sum(label == "error" for label, _ in answer)
    return [*answer[:place], *whole, *kept_lines(plan), *answer[place:]], [line for line in lines if line[0] in shown]


def _needs(plan: Plan, fit: FitInfo) -> str:
    """Need of the fullest GPU of what may be used of it, largest part first; parts in the unit of the whole: ``2.14`` beside ``87.38 GiB``."""
    unit = 1
    while unit * 1024 <= fit.needed_bytes and unit < 1024**4:
        unit *= 1024
    form = ",.2f" if unit > 1 else ",.0f"

    def span(ends: tuple[int, int]) -> str:
        low, high = (f"{end / unit:{form}}" for end in ends)
        return "" if low == high else f" ({low} to {high})"

    needed, usable = _ends(fit)
    each = f" on each of {fit.gpus:,} GPUs" if fit.gpus > 1 else ""
    whole = f"{human_bytes(fit.needed_bytes)}{span(needed)} of {human_bytes(fit.usable_bytes)}{span(usable)}{each}"
    if fit.budget is None:
        return f"{whole} for the cache"
    return f"{whole}: {', '.join(f'{name} {size / unit:{form}}' for size, name in _parts(plan.memory.per_gpu))}"


_SEEN_APART: Final = 0.01
"""The share of what may be used by which its ends must differ to be told apart from what is needed."""


def _ends(fit: FitInfo) -> tuple[tuple[int, int], tuple[int, int]]:
    """The low and the high end of what the fullest GPU needs, and those of what may be used of the memory that programs see.

    The bytes of the verdict count the second as needed, too, since it is held against one number: so it is here where its ends hardly differ.
    """
    budget = fit.budget
    if budget is None:
        return (fit.needed_bytes, fit.needed_bytes), (fit.usable_bytes, fit.usable_bytes)
    low, high = sum(part.low for part in budget.parts), sum(part.high for part in budget.parts)
    usable = (budget.low + high, budget.high + low)
    if usable[1] - usable[0] <= fit.usable_bytes * _SEEN_APART:
        return (fit.needed_low_bytes, fit.needed_high_bytes), (fit.usable_bytes, fit.usable_bytes)
    cache = fit.needed_bytes - sum(part.expected for part in budget.parts)
    return (cache + low, cache + high), usable


def _range(low: int, high: int) -> str:
    """Two sizes in words, or one if both are written alike."""
    words = human_bytes(low), human_bytes(high)
    return words[0] if words[0] == words[1] else " to ".join(words)


def _parts(device: DeviceInfo | PerGpu) -> list[tuple[int, str]]:
    """Parts of a device, largest first."""
    parts = {name: getattr(device, name) for name in ("weights", "cache", "activations", "overhead")}
    return sorted(((size, name) for name, size in parts.items() if size), reverse=True)


def host_line(plan: Plan) -> str:
    """A line of what the host's memory holds, largest part first; empty if no more than the input, or all."""
    if len(plan.memory.devices) < 2:
        return ""
    host = plan.memory.devices[-1]
    if not (host.layers or host.experts or host.output or host.cache or host.moved):
        return ""
    return f"{human_bytes(host.total)} of host memory: {', '.join(f'{name} {human_bytes(size)}' for size, name in _parts(host))}"


def kept_lines(plan: Plan) -> list[tuple[str, str]]:
    """A labelled line for the policy and one for what is shared; none without them."""
    if plan.policy is None and plan.sharing is None:
        return []
    from hwcalc.report.policy import policy_line, sharing_line

    return [(label, line) for label, line in (("policy", policy_line(plan)), ("shared", sharing_line(plan))) if line]


def start_lines(plan: Plan) -> list[tuple[str, str, str]]:
    """Commands that start a plan that fits, each with its label and a remark, or why there is none; nothing without a GPU or an engine."""
    if plan.fit is None or plan.fit.gpu is None or plan.refutes or plan.request.engine == DEFAULT:
        return []
    from hwcalc.report.emit import commands_to_start

    return commands_to_start(plan)


def ask_line(plan: Plan, command: str) -> tuple[str, str] | None:
    """The command that asks whether the plan fits, and what else helps; with hardware, what a server holds; ``None`` if nothing would be said."""
    if command and plan.fit is not None:
        return _ask_server(plan, command)
    if not command or any(note.code == NO_VERDICT for note in plan.warnings):
        return None
    unweighed = any(note.code == NO_WEIGHTS for note in plan.notes)
    if plan.memory.weights.bytes is None and not unweighed:
        # A GPU alone would bring no verdict.
        return None
    guessed = _usual_parameters(plan) if unweighed else 0
    number = f"{guessed / 10**9:.2g}B" if guessed >= 10**9 else f"{guessed / 10**6:.2g}M"
    if unweighed:
        command = f"{command} --parameters {number}"
    change = f", with {number} parameters: give your own number" if unweighed else ""
    from hwcalc.hardware.local import gpu_in_sight

    if gpu_in_sight():
        return f"{command} --gpu local", f"whether it fits this machine's GPU{change}"
    from hwcalc.profiles.gpus import EXAMPLES, example_gpu

    request, memory = plan.request, plan.memory
    ranks = request.tp * request.pp * request.dcp
    if find_engine(request.engine)[0].facts.splits_layers and ranks == 1:
        helps = f"whether it fits, how many layers, and what to type{change}; a Mac: m4-24gb; no GPU: cpu-32gb"
        return f"{command} --gpu {_AT_HOME}", helps
    needed = plan.cache.total_bytes if memory.total_bytes is None else memory.total_bytes
    needed += 2 * guessed  # in 16 bits
    name, count = example_gpu(needed, ranks) or (EXAMPLES[-1][0], ranks)
    several = f" --gpus {count}" if count > ranks else ""
    return f"{command} --gpu {name}{several}", f"whether it fits{change}; other hardware: kvplan gpus"


def _usual_parameters(plan: Plan) -> int:
    """12 x layers x width², as many as dense layers usually have (Kaplan et al. 2020, arXiv:2001.08361), of the widest heads.

    40 layers of 40 heads of 128: 12 x 40 x 5,120² = 12.6 billion. 8 billion where no layer has heads.
    """
    width = max((one.dims.get("num_attention_heads", 0) * one.dims.get("head_dim", 0) for one in plan.model.layers), default=0)
    return 12 * sum(one.count for one in plan.model.layers) * width**2 or 8 * 10**9


def _ask_server(plan: Plan, command: str) -> tuple[str, str] | None:
    """The command that plans a server where the user named none; ``None`` where it does not fit, or no server is known to run there."""
    fit, request = plan.fit, plan.request
    if fit is None or fit.gpu is None or not fit.fits or request.engine != DEFAULT or " --engine " in f"{command} ":
        return None
    if plan.policy is not None or request.encoder_seq is not None:
        return None
    from hwcalc.hardware.named import gpu_named

    with suppress(KvplanError):
        gpu = gpu_named(fit.gpu)
        for name, does in _SERVERS.items():
            if runs_today(name, gpu):
                return f"{command} --engine {name}", f"what a server holds: {find_engine(name)[0].label} {does}"
    return None


_SERVERS: Final = {"vllm": "reserves more than the formulas", "llamacpp": "has its own rules for the cache"}
"""Servers to plan next, the first one that runs there, and why its numbers differ."""
_AT_HOME: Final = "rtx-4060-ti"
"""A card for engines that people run at home: what does not fit it stays in host memory."""

DEVICE_HEADER: Final = ("device", "layers", "weights", "cache", "activations", "overhead", "total")


def device_rows(plan: Plan, *, full: bool = False) -> list[tuple[str, ...]]:
    """A row for each device: its layers, and its bytes; in full all digits."""
    size = exact if full else human_bytes
    rows = []
    for one in plan.memory.devices:
        layers, experts = (numbers.text if full else abbreviated(numbers.text) for numbers in (one.layers, one.experts))
        held = [layers, "output" if one.output else "", f"experts of {experts}" if one.experts else ""]
        held.append("input" if one.device == "host" else "")
        sizes = (size(number) if number else "-" for number in (one.weights, one.cache, one.activations, one.overhead))
        rows.append((one.device, ", ".join(filter(None, held)) or "-", *sizes, size(one.total)))
    return rows


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
    layers = stored(plan)
    # The numbers of tokens that a policy leaves in layers, from the least to the most.
    spans = {tensor.span for _, tensors in layers for tensor in tensors if isinstance(tensor.span, Kept)}
    kept = sorted(span.numbers[0] for span in spans)
    groups: dict[tuple[str, str], list[tuple[LayerInfo | None, tuple[TensorInfo, ...]]]] = {}
    for layer, tensors in layers:
        kind = layer.kind if layer is not None else "model"
        groups.setdefault((kind, _rule(tensors, kept)), []).append((layer, tensors))
    out = []
    for (kind, rule), members in groups.items():
        every = [tensor for _, tensors in members for tensor in tensors]
        out.append(
            LayerShare(
                title=kind_title(kind) if kind != "model" else beside_title(every),
                count=sum(layer.count for layer, _ in members if layer is not None),
                layers=LayerNumbers(sorted({number for layer, _ in members if layer is not None for number in layer.layers})),
                rule=rule,
                dtypes=", ".join(dict.fromkeys(tensor.dtype for tensor in every if not is_room(tensor))),
                bytes=sum(tensor.bytes for tensor in every),
            )
        )
    return out


def _rule(tensors: tuple[TensorInfo, ...], kept: list[int]) -> str:
    """The positions that the tensors keep: growing tensors first, then fixed state. ``kept`` are the numbers that a policy leaves."""
    if not tensors:
        return "nothing kept"
    fixed = {Role.STATE, Role.CONV}
    words = []
    for span in dict.fromkeys(tensor.span for tensor in tensors if tensor.role not in fixed and not is_room(tensor)):
        if isinstance(span, Kept) and len(kept) > _ALIKE:
            words.append(f"{kept[0]:,} to {kept[-1]:,} kept of n")
        else:
            words.append("every token" if isinstance(span, Full) or span.text == "n" else span.text)
    if any(tensor.role in fixed for tensor in tensors):
        words.append("fixed state")
    return " + ".join(dict.fromkeys(words))


_ALIKE: Final = 3
"""Lengths that a policy leaves in layers are told apart up to so many."""


def is_room(tensor: TensorInfo) -> bool:
    """True for bytes of blocks and of nothing in particular: neither a number of positions nor a dtype says anything of them."""
    return tensor.axes == ("bytes",)


FEW_NOTES: Final = 3
# Codes of notes whose subject changes the numbers most, and of those that name a default of ours.
_WEIGHTY: Final = frozenset(
    {
        "assumed", "unread-keys", "hub-unreachable", "user-profile", "unpinned", "version-unknown", "weights-unknown",
        "weights-approximate", "weights-unchecked", "budget-unknown", "gpu-memory-unknown", "gguf-not-read", "memory-option", "metal-limit",
        "no-own-cache", "encoder-only", "text-only", "per-replica", "dtype-ignored", "local-gpu", "instance", "needs-checkpoint", "shorter-context", "default-weights",
    }
)  # fmt: skip
_INSTEAD: Final = {"hub-unreachable": "gguf-not-read"}
"""Notes that matter less where another one says what came of it."""
_DEFAULTS: Final = ("default-seq", "default-encoder-seq", "default-dtype", "default-gpu", "default-margin")


def notes_of(plan: Plan, *, full: bool = False) -> tuple[list[str], int]:
    """The notes, the most important first, and how many more there are. ``full`` gives all of them."""
    stated = {note.code for note in plan.notes}

    def rank(note: Note) -> int:
        if note.code in _WEIGHTY and not stated >= {note.code, _INSTEAD.get(note.code)}:
            return 0
        return 2 + _DEFAULTS.index(note.code) if note.code in _DEFAULTS else 1

    texts = [*(clean(note.message) for note in sorted(plan.notes, key=rank)), source_line(plan)]
    few = len(texts) if full or len(texts) <= FEW_NOTES + 1 else FEW_NOTES
    return texts[:few], len(texts) - few


def advice_command(one: Try) -> str:
    """The command of a change, which is one line however long, so that it can be pasted; the engine's own flags where only it is told."""
    return one.command or clean(one.flag)


def advice_pair(one: Try, engine: str) -> tuple[str, str]:
    """The command of a change; what it gives, and the engine's own flags where they are not the words of the command."""
    rules = find_engine(engine)[0]
    own = one.flag if one.command and type(rules.command).flag is not Command.flag else ""
    again = "give the config again: < FILE" if one.command.startswith("kvplan - ") else ""
    return advice_command(one), clean(" · ".join(filter(None, (one.effect, own and f"{rules.label}: {own}", again))))


def advice_items(suggestions: Iterable[Try], engine: str) -> str:
    """The same of several, as a list in Markdown."""
    pairs = [advice_pair(one, engine) for one in suggestions]
    return "".join(f"- try: {code(command)}\\\n  {escaped(about)}\n" for command, about in pairs)


def code(text: str) -> str:
    """``text`` as code in Markdown, whatever quotes it has."""
    fence = "`" * (1 + max((len(run) for run in "".join(c if c == "`" else " " for c in text).split()), default=0))
    pad = " " if "`" in text else ""
    return f"{fence}{pad}{printable(text)}{pad}{fence}"


_MOST: Final = 5
"""Models that are named; JSON and CSV have the definition of each."""


def footnotes(named: Iterable[tuple[str, str | None]], view: View) -> str:
    """A line for each definition that needs one with the models that have it, from pairs of model and definition.

    Empty if all are as published.

    >>> print(footnotes([("a/b", "reconstructed"), ("a/c", "exact"), ("a/b", "reconstructed")], View()), end="")
    RECONSTRUCTED: the catalog's config is not a copy of the published file (a/b)
    """
    models: dict[str, dict[str, None]] = {"reconstructed": {}, "assumed": {}}
    for model, definition in named:
        if definition in models:
            models[definition][model] = None
    out = ""
    for definition, those in models.items():
        if those:
            more = f" and {len(those) - _MOST:,} more" if len(those) > _MOST else ""
            text = clean(f"{_DEFINITIONS[definition]} ({', '.join(list(those)[:_MOST])}{more})")
            out += f"{escaped(text) if view.format == 'markdown' else filled(text, view.width)}\n"
    return out
