"""Words of every report on whether a plan fits: the verdict, its reasons, how much more would fit, how fast, and what the host holds."""

from __future__ import annotations

from typing import Final

from hwcalc.engines import find_engine
from hwcalc.engines.runs_on import OPEN
from hwcalc.model import WRITTEN
from hwcalc.planner.result import DeviceInfo, FitInfo, PerGpu, Plan, RequestInfo
from hwcalc.planner.speed_result import NO_PRICE, Expected, SpeedInfo, rented_words
from hwcalc.planner.verdict import UNLIMITED
from hwcalc.report.text import both, plural
from hwcalc.text import clean
from hwcalc.units import few_digits, human_bytes, human_chance


# The dimensions by which people compare models, and how they are printed; ``explain`` has the others.
def unit_of(request: RequestInfo) -> str:
    """Word for what ``batch`` counts: sequences, or requests."""
    return "sequence" if request.samples == request.beams == 1 else "request"


def verdict(plan: Plan) -> str:
    """The verdict in its own words, with how sure it is; then what the engine would do, and how far it is in time."""
    words = _fits(plan)
    if plan.within is None or plan.within.holds or not ((plan.fit is not None and plan.fit.fits) or plan.serves_users):
        return words
    return f"{words}; {plan.within.standing} the limits of time"


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
        return f"{words}: {plan.places}" if fit.fits else f"{words} with {plan.places}"
    if not fit.verdict.certain:
        return f"{words}{required}, needs {' of '.join(span_text(*ends) for ends in fullest_ends(fit))}{_per_gpu(plan)}"
    if plan.pool is None:
        return words
    if plan.policy is not None and not plan.policy.offered and plan.pool.message is None:
        # What the engine itself would do, which lacks the policy, was not asked.
        return f"{words}, if {engine} had the policy"
    if fit.fits:
        return f"{words}: {engine} will start{required}"
    if plan.pool.fits:
        what = f"of {plan.request.batch:,} {unit_of(plan.request)}s"
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


def fit_lines(plan: Plan) -> list[tuple[str, str]]:
    """Labelled lines with the reasons of the verdict, the pool, and how much more would fit."""
    fit, each = plan.fit, unit_of(plan.request)
    assert fit is not None
    reasons = [plan.reason] if plan.reason and not plan.serves_users else []
    if reasons and plan.refused_length:
        # The engine reads the length before it measures any memory.
        reasons = [plan.refused_length, f"with it: {plan.reason}"]
    out = [("error", clean(reason)) for reason in reasons]
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
        sure, moved, further = fit.max_seq, fit.moved_max_seq or 0, ""
        if not sure and moved <= (fit.expected_max_seq or 0):
            # As the layers lie nothing is sure, and what is sure has others of them on the GPU.
            sure = moved
        elif moved > sure:
            # What ends it is said by what takes it further.
            further = f"; {moved:,} with more in host memory"
        limit = None if further else fit.limiting_seq
        if not (sure or fit.expected_max_seq):
            together = whom if plan.request.batch == 1 or plan.request.lengths else f" for {plan.request.batch:,} {each}s at once"
            out.append(("longest", f"no length fits{together}{f' (limit: {limit})' if limit else ''}"))
        else:
            out.append(("longest", _most(sure, fit.expected_max_seq, "token", whom, limit) + further))
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
    if fit.fits and speed is not None and (speed.decode_tokens_per_s_bound or speed.prefill_s_bound) is not None:
        out.append(("speed", _speed_words(plan, speed)))
    if plan.cost is not None:
        from hwcalc.report.columns import cost_words

        out += zip(("costs", "tokens"), cost_words(plan.cost), strict=False)
        out += (("costs", words) for words in rented_words([plan.cost]))
    return [*out, *(("costs", note.message) for note in plan.notes if note.code == NO_PRICE)]


def _speed_words(plan: Plan, speed: SpeedInfo) -> str:
    """The expected speed of steps and of a prompt, with what bounds it; the bound alone where nothing is expected."""
    prompt = plan.request.seq if plan.request.prompt is None else min(plan.request.prompt, plan.request.seq)
    each, first = speed.tokens_per_s_each, speed.ttft_s or speed.prefill_s
    if speed.decode_tokens_per_s_bound is None:
        time = f"{speed.prefill_s_bound:.3g} s or more" if first is None else _ranged(first, " s")
        return f"a prompt of {prompt:,} takes {time}"
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
    expected, low, high = (few_digits(one or 0.0) for one in (value.expected, value.low, value.high))
    return f"{expected}{unit} ({low} to {high})"


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

    needed, usable = fullest_ends(fit)
    each = f" on each of {fit.gpus:,} GPUs" if fit.gpus > 1 else ""
    whole = f"{human_bytes(fit.needed_bytes)}{span(needed)} of {human_bytes(fit.usable_bytes)}{span(usable)}{each}"
    if fit.budget is None:
        return f"{whole} for the cache"
    return f"{whole}: {', '.join(f'{name} {size / unit:{form}}' for size, name in _parts(plan.memory.per_gpu))}"


_SEEN_APART: Final = 0.01
"""The share of what may be used by which its ends must differ to be told apart from what is needed."""


def fullest_ends(fit: FitInfo) -> tuple[tuple[int, int], tuple[int, int]]:
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


def span_text(low: int, high: int) -> str:
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
