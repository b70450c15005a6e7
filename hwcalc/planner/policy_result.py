"""What a plan says of its cache policy."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import field

from hwcalc.engines.steps import Step
from hwcalc.formulas import LayerNumbers
from hwcalc.formulas.record import Record
from hwcalc.model import Definition
from hwcalc.policies.base import Effect, Extra, Quality

class PolicyLayers(Record):
    """Layers that the policy leaves alike: tokens of a sequence behind the prompt (the least too, where the text decides), at the most,
    within a step before it cuts, and at the end; ``read`` are those that a decode step reads behind the prompt, null where it reads all.
    """

    layers: LayerNumbers
    kept: int
    kept_low: int
    most: int
    last: int
    read: int | None


class PolicyBlocks(Record):
    """What the policy gives back of the blocks of one sequence at its largest cut, in all groups of layers that it cuts.

    ``held`` blocks have the ``before`` tokens; ``nominal`` are as many as the dropped tokens would fill. Without compaction a block goes
    when no head and no layer of its group needs a token of it: ``free`` is exact where the rule says which tokens stay, else expected where
    ``choosers`` heads choose at random on their own, between ``free_low`` and ``free_high``. ``free_compacted`` go when survivors move
    together: ``repack_copies`` slots of each head and layer in order, of which TriAttention's code changes ``rewritten_slots``, or
    ``fill_copies`` into holes. ``steady`` is the most that a sequence holds behind its prompt, ``most`` at any time.
    """

    block_size: int
    before: int
    held: int
    nominal: int
    choosers: int
    free: int | float
    free_low: int
    free_high: int
    free_compacted: int
    repack_copies: int
    fill_copies: int
    rewritten_slots: int
    repack_bytes: int
    fill_bytes: int
    steady: int
    most: int
    definition: Definition
    steps: tuple[Step, ...] = ()


class PolicyInfo(Record):
    """A cache policy at work on the planned sequences.

    ``offered`` says whether the engine has it, ``support`` how, or what it would take; the plan of a policy that the engine lacks is as if
    it had it, and ``definition`` is ``assumed``. Bytes are those of the cache of all sequences: without the policy, behind the prompt, at
    the most while text is generated, and at the end; ``low`` is the least that the text may leave. ``prefill_peak_bytes`` are cache and
    ``beside`` while the last layer of the prompt is scored, on one GPU, and ``full_prefill_peak_bytes`` that cache
    without the policy. ``masked_pairs`` of a token and a head are stored and have no weight, ``masked_low_pairs`` at the least; null where
    nothing is masked. ``loses`` says that the memory equation needs more with the policy than without. ``options``, ``flags`` and
    ``environment`` are what an engine that has it is started with beside: engine options, words of its command, and variables.
    ``steps`` say how the fullest moment of the prefill comes about.
    """

    name: str
    effect: Effect
    rules: str
    attention: str
    offered: bool
    support: str
    definition: Definition
    prompt: int
    output: int
    layers: tuple[PolicyLayers, ...]
    full_bytes: int
    prefill_bytes: int
    prefill_low_bytes: int
    most_bytes: int
    most_low_bytes: int
    last_bytes: int
    saved_bytes: int
    masked_pairs: int | None
    masked_low_pairs: int | None
    prefill_peak_bytes: int
    full_prefill_peak_bytes: int
    loses: bool
    blocks: PolicyBlocks | None
    beside: tuple[Extra, ...]
    quality: tuple[Quality, ...]
    options: Mapping[str, str] = field(default_factory=dict)
    flags: tuple[str, ...] = ()
    environment: tuple[str, ...] = ()
    steps: tuple[Step, ...] = ()
