"""A pool of blocks as an engine reports it, and the tensors that a rank allocates."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from msgspec import field

from hwcalc.documents import Part
from hwcalc.engines.steps import Step
from hwcalc.formulas import LayerNumbers
from hwcalc.formulas.record import Record
from hwcalc.model import Definition


class PoolShare(Record):
    """A pool that sequences of any lengths fill together: how many units it has, and how many a sequence takes by its tokens.

    ``of_sequence`` takes a number of tokens, or an array of them. Each of ``copies`` such pools has its share of a replica's sequences.
    Where one ``waits``, more sequences than there is room for are queued, not stopped.
    """

    name: str
    total: int
    of_sequence: Callable[[int], int]
    copies: int = 1
    waits: bool = False


class PoolGroup(Record):
    """Layers that share one block table: how many, what they take of a block, and how many blocks one request needs.

    ``page_bytes`` is what a block takes of one layer, null where the layers differ; ``block_bytes`` of all the group's layers. ``steps``
    say how the blocks of a request are counted.
    """

    kind: str
    count: int
    layers: LayerNumbers
    block_size: int
    page_bytes: int | None
    block_bytes: int
    blocks_per_request: int
    steps: tuple[Step, ...] = ()


class Try(Record):
    """A change that would make it start; it was planned again before it was written here.

    ``command`` is a whole command line of kvplan, quoted for a shell, and empty where only the engine is told. ``flag`` has the engine's
    own flags for what changes; it is empty where no flag does it, such as another GPU. ``effect`` says what changes and what that gives.
    ``settings`` are the options that differ from those of the plan, as a check file writes them, null for one that is taken back;
    those of the engine have names such as ``engine_options.block_size``.
    """

    flag: str
    effect: str
    command: str = ""
    settings: Mapping[str, str | None] = field(default_factory=dict)


class PoolInfo(Part):
    """An engine's pool for a byte budget per GPU, counted as its own log counts; what an engine lacks is null.

    ``tokens`` is the figure of the log, ``max_seq`` the longest sequence that one request could have, ``max_requests`` how many
    requests of ``seq`` tokens fit at once. ``fits`` says whether one request fits, ``message`` why not, in the engine's own words,
    and ``requires`` what else must be set for the engine to start. ``steps`` say how the figures come about.
    """

    budget_bytes: int
    tokens: int | None = None
    bytes_per_token: int | None = None
    blocks: int | None = None
    block_size: int | None = None
    bytes_per_block: int | None = None
    blocks_per_request: int | None = None
    max_concurrency: float | None = None
    max_requests: int | None = None
    max_seq: int | None = None
    swa_tokens: int | None = None
    state_slots: int | None = None
    needed_bytes: int | None = None
    fits: bool
    message: str | None = None
    requires: tuple[Try, ...] = ()
    definition: Definition = Definition.ENGINE
    steps: tuple[Step, ...] = ()
    at_once: int | None = None
    """Requests of ``seq`` tokens that fit at once, where ``max_requests`` is the engine's own limit for any length."""


ITEM_BYTES: Final = {"fp32": 4, "fp16": 2, "bf16": 2, "fp8_e4m3": 1, "fp8_e5m2": 1, "int8": 1, "uint8": 1, "int64": 8}
"""Bytes of a number in the formats that store each number by itself.

Tensors in these formats have the shape of the cache; in every other format they are rows of bytes (``uint8``).
"""


class Allocation(Record):
    """One tensor of one rank. ``layer`` is -1 if the tensor belongs to no layer, or to several.

    ``bytes`` is the product of ``shape`` and the bytes of a number of ``dtype`` (:data:`ITEM_BYTES`). ``blocks`` is set if the tensor
    is part of a pool: it is the length of the first axis, and a smaller pool of the same layout has fewer blocks.
    """

    name: str
    layer: int
    dtype: str
    shape: tuple[int, ...]
    bytes: int
    blocks: int | None = None
