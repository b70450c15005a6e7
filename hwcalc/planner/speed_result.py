"""What a plan says of its speed, and of what that costs: records, whose fields are the JSON document."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from hwcalc.documents import Part
from hwcalc.engines.steps import Step
from hwcalc.formulas.record import Record
from hwcalc.model import Definition


class Expected(Part):
    """A speed or a time: the bound that nothing beats, the expected value, and the ends between which four of five measurements lie.

    ``low`` is the smaller number. Null is unknown: all but the bound where nothing like it was measured.
    """

    bound: float | None
    expected: float | None
    low: float | None
    high: float | None


class SpeedInfo(Part):
    """How fast at most, if it fits (``fit.fits``). Null is unknown: the accelerator's bandwidth or rate, or the model's weights.

    ``decode_tokens_per_s_bound`` counts all sequences of all replicas, each holding ``seq`` tokens; ``decode_step_s_bound`` is
    the time in which every sequence gains one token, ``prefill_s_bound`` until the first token of one prompt (of ``prompt``
    tokens, else ``seq``). ``bound_by`` is ``memory bandwidth``, ``host memory bandwidth`` (most of the time goes to what lies
    there), ``host link`` (to copies of that) or ``compute``. Bytes and operations are those of one tensor-parallel rank, its
    pipeline stages added up: weights and caches that a step reads (with several pipeline stages, a step of one of the parts that
    the batch is split into).
    ``definition`` is ``bound`` (by the profile's peak), ``measured`` (by the bandwidth that the user's own machine reached) or
    ``unknown``. ``steps`` say how the figures come about.

    The other fields have an expected value as well: ``decode_tokens_per_s`` and ``tokens_per_s_each`` while every sequence holds ``seq``
    tokens, ``prefill_s`` and ``prefill_tokens_per_s`` of one prompt alone. With ``prompt``, the rest of ``seq`` is the output of each request:
    ``ttft_s`` until its first token, ``itl_s`` between two tokens with what the prompts of others take, ``e2e_s`` until its last, and
    ``output_tokens_per_s`` of all with the time for their prompts. ``each_at_most`` are the tokens per
    second of each of as many sequences as fit for sure (``fit.max_batch``). ``speed_class`` names the class of engine and hardware in
    ``profiles/speed``, null where nothing like it was measured, and ``expected_source`` what it was fitted to.
    """

    definition: Definition
    decode_tokens_per_s_bound: float | None
    decode_step_s_bound: float | None
    bound_by: str | None
    prefill_s_bound: float | None
    prefill_bound_by: str | None
    weight_bytes_per_step: int | None
    cache_bytes_per_step: int | None
    flops_per_step: int | None
    prefill_flops: int | None
    source: str
    steps: tuple[Step, ...]
    decode_tokens_per_s: Expected | None = None
    tokens_per_s_each: Expected | None = None
    each_at_most: Expected | None = None
    prefill_s: Expected | None = None
    prefill_tokens_per_s: Expected | None = None
    output_tokens_per_s: Expected | None = None
    ttft_s: Expected | None = None
    itl_s: Expected | None = None
    e2e_s: Expected | None = None
    speed_class: str | None = None
    expected_source: str | None = None

    def row(self) -> dict[str, float | None]:
        """Tokens per second of all sequences, by the names of :data:`SPEED_COLUMNS`."""
        found = self.decode_tokens_per_s
        ends = (None, None, None) if found is None else (found.expected, found.low, found.high)
        return dict(zip(SPEED_COLUMNS, (*ends, self.decode_tokens_per_s_bound), strict=True))


SPEED_COLUMNS: Final = ("decode_tokens_per_s", "decode_tokens_per_s_low", "decode_tokens_per_s_high", "decode_tokens_per_s_bound")
"""Columns of tables of plans: the expected value, its range, and the bound."""
NO_PRICE: Final = "no-price"
"""The code of the note that the hardware has no price."""


class PriceInfo(Record):
    """A row of a table of prices: dollars an hour of ``count`` accelerators, or of each where they are sold one by one, on a day.

    ``kind`` is ``on_demand``, ``spot``, ``market`` or ``owned``; ``user`` says that the price is the user's own, which alone may be without a
    date, and ``old`` that it is more than 180 days old.
    """

    usd_per_hour: float
    provider: str
    instance: str
    accelerator: str
    count: int
    region: str
    kind: str
    date: str | None
    source: str
    user: bool
    old: bool

    @property
    def name(self) -> str:
        """The name of the priced machine: ``aws/p5.48xlarge``."""
        return self.instance if self.provider == "own" else f"{self.provider}/{self.instance}"

    @property
    def text(self) -> str:
        """The priced machine, the kind of the price and its day."""
        from hwcalc.hardware.prices import KINDS, STALE_DAYS, Kind

        how = "your price" if self.user and self.kind == Kind.ON_DEMAND else KINDS[self.kind]
        return ", ".join(filter(None, (self.name, how, self.date, f"older than {STALE_DAYS} days" if self.old else "")))


class CostInfo(Part):
    """What the hardware costs in dollars, by a row of a table of which it is a whole multiple.

    ``usd_per_million_tokens`` of output is at ``tokens_per_s``, in a share ``use`` of the time that is paid: of as many users as the limits
    of time allow, else of the planned sequences while they decode. Its ``low`` end is that of the fast end of the speed's range. Null where
    no speed is expected, or where the plan does not fit. ``usd_per_user_month`` is the price of a month divided by ``users``, those within
    the limits or the planned ones; null for one. ``owned`` are the accelerators of this kind that ``own`` names; null where it is not given.
    """

    usd_per_hour: float
    usd_per_month: float
    price: PriceInfo
    use: float
    tokens_per_s: float | None
    usd_per_million_tokens: Expected | None
    users: int | None
    usd_per_user_month: float | None
    owned: int | None = None

    @property
    def is_owned(self) -> bool:
        """True if the price is the power of what the user owns."""
        return self.price.kind == "owned"


def rented_words(costs: Iterable[CostInfo]) -> tuple[str, ...]:
    """A sentence that names what is counted as rented where the user says what is owned; none where nothing is."""
    rented = {cost.price.accelerator: cost.owned for cost in costs if cost.owned is not None and not cost.is_owned}
    words = [f"more {name} than the {owned:,} that you own" if owned else f"all {name}" for name, owned in rented.items()]
    return (f"Counted as rented: {', '.join(words)}.",) if words else ()


COST_COLUMNS: Final = (
    "usd_per_hour", "usd_per_month", "usd_per_million_tokens", "usd_per_million_tokens_low", "usd_per_million_tokens_high",
    "usd_per_user_month", "use", "priced_as", "price_date", "price_source",
)  # fmt: skip
"""Columns of tables of plans: what they cost, and the row of a table and its day that say so."""


def cost_row(cost: CostInfo | None) -> dict[str, float | str | None]:
    """The headline figures of what a plan costs, by the names of :data:`COST_COLUMNS`; null without a price."""
    if cost is None:
        return dict.fromkeys(COST_COLUMNS)
    tokens, sold = cost.usd_per_million_tokens, cost.price
    of_tokens = (None, None, None) if tokens is None else (tokens.expected, tokens.low, tokens.high)
    of_price = (sold.name, sold.date, sold.source)
    values = (cost.usd_per_hour, cost.usd_per_month, *of_tokens, cost.usd_per_user_month, cost.use, *of_price)
    return dict(zip(COST_COLUMNS, values, strict=True))
