"""Ways of allocating a cache side by side: :func:`strategies`. And how the numbers of one come about: its steps as figures."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from fractions import Fraction
from typing import TYPE_CHECKING, Any, Final, Unpack

from msgspec.structs import replace

from hwcalc._version import __version__
from hwcalc.documents import SCHEMA_VERSION
from hwcalc.engines.models import has_cross
from hwcalc.errors import UsageError
from hwcalc.formulas import Role
from hwcalc.library.explained import ExplainedSection, figure_of
from hwcalc.library.plan import load_request
from hwcalc.model import Definition, ModelLike, Note
from hwcalc.planner import strategies as ways
from hwcalc.planner.asked import Asked, take_options
from hwcalc.planner.context import open_request
from hwcalc.planner.options import StrategiesOptions, takes
from hwcalc.planner.strategies_cost import head_choices, rounded
from hwcalc.planner.strategies_result import Strategies
from hwcalc.text import quoted, shown
from hwcalc.units import parse_share, parse_tokens, parse_uniform

if TYPE_CHECKING:
    from hwcalc.planner.strategies_result import Strategy

DEFAULT_FILL: Final = Fraction(1, 2)
MOST_SEQUENCES: Final = 10_000
"""The most lengths in a list."""
_HINT: Final = "Write: --lengths 1k,2k,8k for these sequences, or --lengths uniform:1..32k"


@takes(StrategiesOptions)
def strategies(
    model: ModelLike | None = None,
    *,
    block_size: int | str | None = None,
    fill: float | str | None = None,
    lengths: str | Sequence[int | str] | None = None,
    **options: Unpack[StrategiesOptions],
) -> Strategies:
    """Put ways of allocating the cache of ``batch`` sequences of ``seq`` tokens side by side.

    What is wasted is counted for sequences that fill a share ``fill`` of their length (a half by default), or have the ``lengths`` of a list
    (``"1k,2k,8k"``), or lengths that are all equally likely (``"uniform:1..32k"``). ``prompt`` tokens of each sequence are the prompt (1 by
    default), the others are generated. ``block_size`` is that of pages: the engine's own, or 16. ``options`` are keywords of
    :func:`hwcalc.plan`. Raises a subclass of :class:`~hwcalc.errors.KvplanError`.

    >>> config = {"model_type": "llama", "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
    ...           "hidden_size": 4096, "torch_dtype": "bfloat16"}
    >>> found = strategies(config, seq=2000, lengths="100,2000")
    >>> [(one.name, one.held_bytes, one.wasted_bytes) for one in found.strategies][1:4]
    [('growth', 275251200, 0), ('slots', 524288000, 249036800), ('pages', 276824064, 1572864)]
    >>> found.pairs.quoted_recomputed, found.pairs.quoted_cached
    (8000000000, 4000000)
    """
    _, asked = take_options("strategies", options)
    size = None if block_size is None else parse_tokens(block_size, "block-size")
    named: tuple[int, ...] = ()
    uniform: tuple[int, int] | None = None
    if lengths is not None:
        if fill is not None:
            raise UsageError("--fill and --lengths both say how long the sequences are.", hint="Give one of them.")
        named, uniform = _read_lengths(lengths)
    share = DEFAULT_FILL if fill is None else parse_share(fill, "fill")
    if not 0 <= share <= 1:
        raise UsageError(f"fill is {quoted(fill, 40)}.", hint="Allowed: a share from 0 to 1, such as 50%.")
    asked = _with_lengths(asked, named, uniform)
    spec, request = load_request(model, asked)
    opened = open_request(spec, **request)
    filled = ((int(opened.tokens * share), opened.batch),)
    now = tuple(Counter(named).items()) if named or uniform is not None else filled
    setting = ways.setting_of(opened, now, prompt=1 if asked.prompt is None else asked.prompt, uniform=uniform, block_size=size)
    return _answer(setting, share if lengths is None else None)


def _read_lengths(given: object) -> tuple[tuple[int, ...], tuple[int, int] | None]:
    """The lengths of a list, or the ends of those that are equally likely."""
    if isinstance(given, str):
        uniform = parse_uniform(given, "lengths")
        if uniform is not None:
            return (), uniform
        if len(given) > 32 * MOST_SEQUENCES:
            raise UsageError(
                f"lengths has {len(given):,} characters.",
                hint=f"At most {MOST_SEQUENCES:,} sequences; or: --lengths uniform:1..32k",
            )
        given = given.split(",")
    if not isinstance(given, (list, tuple)) or not given:
        raise UsageError(f"lengths must be text or a list of numbers (got {quoted(given, 40)}).", hint=_HINT)
    if len(given) > MOST_SEQUENCES:
        raise UsageError(
            f"lengths has {len(given):,} sequences.", hint=f"At most {MOST_SEQUENCES:,}; or: --lengths uniform:1..32k"
        )
    try:
        return tuple(parse_tokens(one, "lengths") for one in given), None
    except UsageError as error:
        raise UsageError(error.message, hint=_HINT) from None


def _with_lengths(asked: Asked, named: tuple[int, ...], uniform: tuple[int, int] | None) -> Asked:
    """The options, with the full length and the number of sequences that follow from the lengths."""
    if not named and uniform is None:
        return asked
    longest = max(named) if named else uniform[1] if uniform is not None else 0
    changes: dict[str, Any] = {}
    if asked.seq is None:
        changes["seq"] = longest
    elif longest > asked.seq:
        raise UsageError(
            f"a sequence of {longest:,} tokens is longer than --seq {asked.seq:,}.", hint="Raise --seq, or lower --lengths."
        )
    if named:
        if "batch" in asked.given and asked.batch not in {1, len(named)}:
            raise UsageError(f"--lengths names {len(named):,} sequences, --users {asked.batch:,}.", hint="Leave out --users.")
        changes["batch"] = len(named)
    return asked.changed(**changes)


def _answer(setting: ways.Setting, fill: Fraction | None) -> Strategies:
    opened, lengths = setting.opened, setting.lengths
    own = ways.engine_strategy(setting)
    gpu = opened.setup.hardware.gpu
    sizes = {cell.block_size for cell in setting.cells if cell.grows}
    if lengths.uniform is not None:
        low, high = lengths.uniform
        told = f"{lengths.batch:,} of {low:,} to {high:,} tokens, all equally likely"
    elif fill is not None:
        told = f"{lengths.batch:,} of {lengths.now[0][0]:,} tokens, {float(100 * fill):g}% of {lengths.seq:,}"
    else:
        more = f" and {len(lengths.now) - 8:,} other lengths" if len(lengths.now) > 8 else ""
        told = f"{', '.join(f'{count:,} of {length:,}' for length, count in sorted(lengths.now)[:8])}{more} tokens"
    return Strategies(
        schema_version=SCHEMA_VERSION,
        kvplan_version=__version__,
        model=opened.model.id,
        engine=opened.engine.name,
        engine_version=opened.deployment.version or None,
        gpu=None if gpu is None else gpu.id,
        seq=lengths.seq,
        batch=lengths.batch,
        prompt=lengths.prompt,
        encoder_seq=lengths.encoder_tokens,
        kv_dtype=opened.dtypes.kv,
        block_size=max(sizes, default=0),
        lengths=told,
        fill=None if fill is None else float(fill),
        needed_bytes=rounded(setting.needed),
        definition=setting.now,
        host_link=setting.link,
        pairs=ways.pair_counts(lengths),
        strategies=(*ways.strategies_of(setting), *(() if own is None else (own,))),
        heads=head_choices(opened, lengths),
        notes=(*opened.notes, *_notes(setting)),
    )


def _notes(setting: ways.Setting) -> list[Note]:
    """Notes for a reader."""
    opened, told = setting.opened, list[tuple[str, str]]()
    roles = {tensor.role for group in opened.stack.groups for tensor in group.kind.tensors()}
    gpu = opened.setup.hardware.gpu
    if roles and roles <= {Role.STATE, Role.CONV}:
        message = (
            "The model keeps states alone, which are as large at every length: nothing need be recomputed, and nothing grows, is "
            "paged or is left unused. The row without a cache says what it would cost to drop them."
        )
        told.append(("states-alone", message))
    elif roles & {Role.STATE, Role.CONV}:
        told.append(
            ("states", "States are overwritten in place: they are in no block, never copied, and as large at every length.")
        )
    if has_cross(opened.model):
        message = "Without a cache the encoder still runs once, and its output is kept; its keys and values are counted once, which is a lower bound."
        told.append(("encoder-once", message))
    if setting.cached.flops_per_step is None:
        told.append(("weights-unknown", "The weights are not counted: operations are those of attention alone."))
    if gpu is not None and setting.link is None:
        told.append(("no-link", f"The profile of {gpu.id} names no link to the host: offloading has no time."))
    if setting.lengths.uniform is not None:
        message = "Bytes for random lengths are expected values, rounded to whole bytes."
        told.append((Definition.ESTIMATE.value, message))
    return [Note(code=code, message=message) for code, message in told]


_OF_ENGINE: Final = "What the engine holds by its own rules. kvplan explain MODEL --engine ENGINE derives it tensor by tensor."


def only_strategy(found: Strategies, name: str) -> Strategies:
    """The answer with one strategy alone. Raises :class:`~hwcalc.errors.UsageError` if it has none of that name."""
    wanted = name.strip().lower()
    kept = tuple(strategy for strategy in found.strategies if strategy.name == wanted)
    if not kept:
        hint = f"Known: {', '.join(strategy.name for strategy in found.strategies)}."
        if wanted == ways.ENGINE:
            hint = "Name one: --engine vllm"
        raise UsageError(f"strategy {shown(name, 40)} is not known.", hint=hint)
    return replace(found, strategies=kept)


def strategy_section(strategy: Strategy) -> ExplainedSection:
    """Each number of a strategy with its formula, in the order in which they follow from each other."""
    figures = []
    for step in strategy.steps:
        definition = strategy.peak_definition if step.name == "peak_bytes" else strategy.definition
        definition = {"operations": Definition.EXACT, "s": Definition.BOUND}.get(step.unit, definition)
        figures.append(figure_of(step, f"strategies.{strategy.name}.{step.name}", definition=definition.value))
    known = strategy.name in ways.NAMES
    return ExplainedSection(
        name=strategy.name,
        title=strategy.title,
        about=ways.WORDS[strategy.name].about if known else _OF_ENGINE,
        figures=tuple(figures),
        remarks=(f"The trade: {strategy.trades}." if known else strategy.trades, f"Used by: {strategy.used_by}."),
    )
