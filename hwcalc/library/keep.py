"""Tokens kept by a policy: :func:`keep`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hwcalc._version import __version__
from hwcalc.documents import SCHEMA_VERSION, Answer
from hwcalc.engines.deployment import Occupancy
from hwcalc.engines.models import model_dtype
from hwcalc.engines.policies import acted_on, courses_of, shapes_of
from hwcalc.errors import UsageError
from hwcalc.formulas.kind import BY_TOKEN
from hwcalc.formulas.record import Record
from hwcalc.formulas.tensor import Full
from hwcalc.library.load import load
from hwcalc.model import Definition, ModelLike, Note
from hwcalc.planner.asked import read_options
from hwcalc.planner.context import open_request
from hwcalc.planner.policy import policy_notes
from hwcalc.planner.values import one_of
from hwcalc.policies import outcome
from hwcalc.policies.base import EAGER, KVPRESS, RULES, SDPA, Chosen, Count, Effect, Extra, Quality, Setting, State, quality_of
from hwcalc.policies.parse import parse_policy
from hwcalc.policies.scratch import MEASURED_MODELS, Peak, Widths, peak_of
from hwcalc.units import human_bytes, parse_tokens


class MaskedPairs(Record):
    """Pairs of keys and values that are stored without weight, in all layers and heads. ``definition`` is that of their division."""

    low: int
    high: int
    definition: Definition


class Kept(Answer, Record):
    """Tokens that a policy keeps of prompt and text behind it.

    Lengths are tokens in each head of a layer, one number for each layer of the model; a layer without a cache of its own has 0. Where the text
    decides, ``per_layer`` is the most and ``per_layer_low`` the least, and bytes follow from the most. ``masked_per_layer_head`` adds up; which
    head has how many is exact only if ``masked.definition`` is not ``estimate``. ``series`` is the first layer that the policy acts on.
    """

    schema_version: str
    kvplan_version: str
    model: str
    policy: str
    effect: Effect | None
    rules: str
    attention: str
    kv_dtype: str
    prompt: int
    decode: int
    batch: int
    definition: Definition
    layers_acted_on: int
    per_layer: list[int]
    per_layer_low: list[int]
    after_decode_per_layer: list[int]
    masked_per_layer_head: list[list[int]] | None
    masked_bounds_per_layer_head: list[list[list[int]]] | None
    """The least and the most that each head of each layer can have masked."""
    masked: MaskedPairs | None
    read_per_layer: list[int] | None
    read_per_layer_low: list[int] | None
    kept_ranges: list[list[int]] | None
    """Kept positions, from start to end, where the rule alone says them."""
    first_decode_position: int
    full_bytes: int
    cache_bytes: int
    cache_low_bytes: int
    storage_bytes: int
    after_decode_bytes: int
    frees_memory: bool
    """True if less is stored behind the prefill than without the policy."""
    series: list[int]
    """Tokens behind each decode step."""
    most_tokens: int
    """The most behind the prefill or a step, in one layer."""
    most_tokens_within_step: int
    """The same within a step, before it cuts."""
    cuts: list[list[int]]
    """Step, tokens before and behind, of each step that cuts."""
    prefill_peak: Peak | None
    """The most bytes at once in the prefill, above the weights: as transformers and kvpress allocate on the CPU, without the last matrix."""
    reported_compression_ratio: float | None
    """The share that kvpress itself says it dropped; masked tokens count."""
    beside: tuple[Extra, ...]
    quality: tuple[Quality, ...]
    notes: tuple[Note, ...]

    @property
    def prefill_peak_bytes(self) -> int | None:
        """The high end of the peak."""
        return None if self.prefill_peak is None else self.prefill_peak.high

    def headline(self) -> str:
        """The answer in one line."""
        saved = f"{human_bytes(self.storage_bytes)} of {human_bytes(self.full_bytes)} behind a prompt of {self.prompt:,}"
        effect = "keeps everything" if self.effect is None else self.effect.text
        return f"{self.model}, {self.policy}: {saved} ({effect})"

    def records(self) -> list[dict[str, Any]]:
        """A row for each layer."""
        return [
            {
                "layer": number,
                "kept": tokens,
                "kept_low": low,
                "after_decode": after,
                "masked": None if self.masked_per_layer_head is None else sum(self.masked_per_layer_head[number]),
                "read": None if self.read_per_layer is None else self.read_per_layer[number],
            }
            for number, (tokens, low, after) in enumerate(
                zip(self.per_layer, self.per_layer_low, self.after_decode_per_layer, strict=True)
            )
        ]

    __repr__ = Answer.__repr__


def keep(
    model: ModelLike,
    policy: object = None,
    *,
    prompt: int | str,
    decode: int | str = 0,
    batch: int | str = 1,
    dtype: str | None = None,
    attention: str | None = None,
    rules: str | None = None,
    offline: bool = False,
    assume: str | None = None,
) -> Kept:
    """Tokens that ``policy`` keeps of ``prompt`` and of ``decode``, which follow one by one.

    ``policy`` is ``"snapkv:compression_ratio=0.5"``, or a name and a dict of options, which may hold policies in the same form; ``None``
    keeps all. ``attention`` is a kernel by its name in transformers, the fitting one by default. ``rules`` is ``kvpress`` (the default) or
    ``paper``. Raises a subclass of :class:`~hwcalc.errors.KvplanError`.

    >>> config = {"model_type": "llama", "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2,
    ...           "hidden_size": 64, "torch_dtype": "float32"}
    >>> kept = keep(config, "snapkv:compression_ratio=0.9,window_size=16", prompt=1000, decode=4)
    >>> kept.per_layer, kept.after_decode_per_layer, kept.cache_bytes
    ([99, 99, 99, 99], [103, 103, 103, 103], 101376)
    """
    chosen = parse_policy(policy)
    tokens, steps = parse_tokens(prompt, "prompt"), parse_tokens(decode, "decode", minimum=0)
    if steps > outcome.MOST_STEPS:
        raise UsageError(f"decode is {steps:,} steps.", hint=f"At most {outcome.MOST_STEPS:,} are followed.")
    asked = read_options({"seq": tokens, "batch": batch, "dtype": dtype, "offline": offline, "assume": assume})
    kernel = outcome.kernel_for(chosen, None if attention is None else one_of(outcome.ATTENTIONS)(attention, "attention"))
    book = KVPRESS if rules is None else one_of(RULES)(rules, "rules")
    if kernel == outcome.FLEX and book == KVPRESS and chosen is not None and any(one.policy.press for one in chosen.whole):
        # Its patch gives an argument twice, whatever the policy: kvpress 0.5.5, patch_attention_functions, under transformers 5.2.0, run.
        raise UsageError("kvpress 0.5.5 does not run with flex_attention.", hint="Use attention sdpa, or leave it out.")
    spec = load(model, asked.access, assume=asked.assume)
    opened = open_request(spec, seq=tokens, batch=asked.batch, dtype=asked.dtype, engine="reference").checked()
    setting = Setting(
        layers=shapes_of(opened.stack),
        depth=len(opened.stack),
        attention=kernel,
        rules=book,
        element_bytes=model_dtype(spec).value.row_bytes(1),
        batch=opened.batch,
        together=opened.batch,
        hidden_size=spec.hidden_size,
    )
    return _kept(opened, chosen, setting, steps)


def _kept(opened: Occupancy, chosen: Chosen | None, setting: Setting, steps: int) -> Kept:
    """The whole answer."""
    prompt, spec = opened.tokens, opened.model
    state = outcome.after_prefill(chosen, prompt, setting)
    courses = courses_of(chosen, state, prompt, steps, setting)
    first = courses[0] if courses else outcome.Course(last=0, most=0, most_within=0, cuts=(), lengths=())
    acted = acted_on(opened.stack)
    highs = {number: left.stored.high for number, left in zip(acted, state.layers, strict=True)}
    lows = {number: left.stored.low for number, left in zip(acted, state.layers, strict=True)}
    ends = {number: course.last for number, course in zip(acted, courses, strict=True)}
    full, stored = _bytes(opened, dict.fromkeys(acted, prompt)), _bytes(opened, highs)
    exact = chosen is None or all(left.stored.is_exact for left in state.layers)
    definition = Definition.EXACT if chosen is None else chosen.policy.definition if exact else Definition.ESTIMATE
    after = opened.sized(seq=prompt + steps)
    numbers = range(len(opened.stack))
    masked = {number: left.masked for number, left in zip(acted, state.layers, strict=True) if left.masked is not None}
    split: list[list[int]] | None = None
    bounds: list[list[list[int]]] | None = None
    if masked:
        heads = [masked[number].heads if number in masked else () for number in numbers]
        bounds = [[[head.low, head.high] for head in of_layer] for of_layer in heads]
    # Nothing by head where not even their sums are known.
    if masked and all(one.split for one in masked.values()):
        split = [list(masked[number].split) if number in masked else [] for number in numbers]

    def read(end: str) -> list[int] | None:
        reads = {number: left.read for number, left in zip(acted, state.layers, strict=True) if left.read is not None}
        return _lengths(opened, {number: getattr(one, end) for number, one in reads.items()}) if reads else None

    # The first decoded token is behind the prompt, or behind what is kept where keys were turned.
    turned = chosen is not None and chosen.policy.rerotates and chosen.get("rerotate_keys") is not False
    notes = [] if chosen is None else policy_notes(chosen, setting.attention, acted=len(acted), layers=len(opened.stack))
    return Kept(
        schema_version=SCHEMA_VERSION,
        kvplan_version=__version__,
        model=spec.id,
        policy="none" if chosen is None else chosen.text,
        effect=None if chosen is None else chosen.policy.effect,
        rules=setting.rules,
        attention=setting.attention,
        kv_dtype=opened.dtypes.kv,
        prompt=prompt,
        decode=steps,
        batch=opened.batch,
        definition=spec.definition(definition),
        layers_acted_on=len(acted),
        per_layer=_lengths(opened, highs),
        per_layer_low=_lengths(opened, lows),
        after_decode_per_layer=_lengths(after, ends),
        masked_per_layer_head=split,
        masked_bounds_per_layer_head=bounds,
        masked=_masked(state),
        read_per_layer=read("high"),
        read_per_layer_low=read("low"),
        kept_ranges=None if state.ranges is None else [list(part) for part in state.ranges],
        first_decode_position=next(iter(highs.values()), prompt) if turned else prompt,
        full_bytes=full,
        cache_bytes=stored,
        cache_low_bytes=_bytes(opened, lows),
        storage_bytes=stored,
        after_decode_bytes=_bytes(after, ends),
        frees_memory=stored < full,
        series=list(first.lengths),
        most_tokens=max((course.most for course in courses), default=0),
        most_tokens_within_step=max((course.most_within for course in courses), default=0),
        cuts=[list(cut) for cut in first.cuts],
        prefill_peak=_peak(opened, chosen, state, setting),
        reported_compression_ratio=outcome.reported_ratio(chosen, outcome.after_prefill(None, prompt, setting), setting),
        beside=_beside(chosen, state, courses, setting),
        quality=() if chosen is None else quality_of(chosen.policy.name),
        notes=(*opened.notes, *notes),
    )


def _beside(chosen: Chosen | None, state: State, courses: Sequence[outcome.Course], setting: Setting) -> tuple[Extra, ...]:
    """Memory beside the cache: in the prefill, and at the longest while text is generated."""
    if chosen is None:
        return outcome.extras_of(None, state.hidden, setting)
    longest = max((state.hidden, *(course.most_within for course in courses)))
    cuts = any(course.cuts for course in courses)
    return outcome.beside_of(chosen, setting, state, longest=longest, cuts=cuts).extras


def _peak(opened: Occupancy, chosen: Chosen | None, state: State, setting: Setting) -> Peak | None:
    """The peak of a prefill: of models whose layers are all alike and were measured."""
    spec, mlp = opened.model, opened.model.config.get("intermediate_size")
    if spec.model_type not in MEASURED_MODELS or len(setting.layers) != setting.depth or setting.attention not in (EAGER, SDPA):
        return None
    if not isinstance(mlp, int) or isinstance(mlp, bool) or not spec.hidden_size:
        return None
    return peak_of(chosen, opened.tokens, state, setting, Widths(hidden=spec.hidden_size, mlp=mlp))


def _lengths(opened: Occupancy, counts: Mapping[int, int]) -> list[int]:
    """Tokens in each layer: those that the policy keeps, else what the layer itself keeps of keys and values."""
    found = []
    for number, kinds in enumerate(opened.stack.layers):
        tensors = [tensor for kind in kinds for tensor in opened.kind_tensors[kind] if tensor.role in BY_TOKEN]
        found.append(counts[number] if number in counts else max((tensor.positions for tensor in tensors), default=0))
    return found


def _bytes(opened: Occupancy, counts: Mapping[int, int]) -> int:
    """Bytes of all layers: where the policy acts, of the tokens that it keeps."""
    total = 0
    for number, kinds in enumerate(opened.stack.layers):
        for kind in kinds:
            for tensor in opened.kind_tensors[kind]:
                cut = number in counts and kind.acts_by_token and tensor.role in BY_TOKEN and isinstance(tensor.span, Full)
                total += tensor.bytes // opened.tokens * counts[number] if cut else tensor.bytes
    return total


def _masked(state: State) -> MaskedPairs | None:
    masked = [left.masked for left in state.layers if left.masked is not None]
    if not masked:
        return None
    total = state.masked_total or Count(low=sum(one.total.low for one in masked), high=sum(one.total.high for one in masked))
    exact = all(head.is_exact for one in masked for head in one.heads)
    return MaskedPairs(low=total.low, high=total.high, definition=Definition.ENGINE if exact else Definition.ESTIMATE)
