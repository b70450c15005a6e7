"""What a server is started with (:class:`Setup`), and what it has to hold (:class:`Load`)."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from msgspec import field
from msgspec.structs import asdict, replace

from hwcalc.errors import UsageError
from hwcalc.formulas.record import Record
from hwcalc.model import ModelSpec

if TYPE_CHECKING:
    from fractions import Fraction

    from hwcalc.engines.options import Lora
    from hwcalc.policies.base import AskedPolicy
    from hwcalc.profiles.hardware_file import Gpu

MOST_RANKS: Final = 4096


class Parallel(Record):
    """The sizes of tensor, pipeline, data, decode-context and expert parallelism, each from 1 to 4,096."""

    tp: int = 1
    pp: int = 1
    dp: int = 1
    dcp: int = 1
    ep: int = 1

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if not 1 <= value <= MOST_RANKS:
                raise UsageError(f"{name} is {value:,}.", hint=f"Allowed: a whole number from 1 to {MOST_RANKS:,}.")

    @property
    def gpus(self) -> int:
        """The number of GPUs. dcp and ep reuse the GPUs of tp and dp."""
        return self.tp * self.pp * self.dp

    @property
    def group(self) -> int:
        """The ranks of a stage that have all experts between them: those of all replicas."""
        return self.tp * self.dp

    @property
    def expert_ranks(self) -> int:
        """The ranks over which the experts of a layer are divided, whole or in parts."""
        return self.ep if self.ep > 1 else self.group


class Servers(Parallel):
    """A layout whose replicas are servers of their own: each has all experts."""

    @property
    def group(self) -> int:
        return self.tp


ALONE: Final = Parallel()
"""A single GPU."""


class Hardware(Record):
    """The accelerator, and how much of its memory may be used. ``None`` means that the user does not say."""

    gpu: Gpu | None = None
    memory_utilization: float | None = None
    """The share of each GPU that the engine may use."""
    kv_memory: int | None = None
    """Bytes of each GPU for the cache."""
    margin: Fraction | None = None
    """The share of each GPU that stays free."""
    calibrated: bool = True
    """True if measurements of the user replace estimates."""
    started: bool = False
    """True if the engine is known to have started on it, such as by its log: nothing is refused or open then."""

    @property
    def vendor(self) -> str:
        """The maker of the GPU; NVIDIA where none is named."""
        return "nvidia" if self.gpu is None else self.gpu.vendor.lower()


class Sharing(Record):
    """What sequences have in common: the first ``prefix`` tokens of all, and the prompt of the samples or beams of one request."""

    prefix: int = 0
    samples: int = 1
    beams: int = 1
    apart: bool = False
    """True if every sequence is kept by itself all the same, to compare."""
    scattered: int = 1
    """Replicas over which the branches of a request are dealt, where this is one of the replicas."""

    @property
    def branches(self) -> int:
        """Sequences that grow out of one prompt."""
        return self.samples * self.beams

    @property
    def asked(self) -> bool:
        """True if sequences have anything in common."""
        return bool(self.prefix) or self.branches > 1


UNSHARED: Final = Sharing()
"""Every sequence by itself."""


class Setup(Record):
    """What a server is started with, whatever it then has to hold.

    ``dtype`` and ``weights`` are the texts of ``--dtype`` and ``--weights``; ``None`` leaves them to the engine and to the model's files.
    """

    dtype: str | None = None
    engine_version: str | None = None
    parallel: Parallel = ALONE
    hardware: Hardware = Hardware()
    weights: str | None = None
    lora: Lora | None = None
    draft: ModelSpec | None = None
    """The model of ``--draft``: a small model that proposes tokens, which the planned model verifies."""
    option_draft: ModelSpec | None = None
    """The draft model that an engine option names (:meth:`~hwcalc.engines.facts.RequestRules.draft_named`)."""
    options: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    policy: AskedPolicy | None = None
    """What is dropped of the cache; ``None`` is nothing."""
    others: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    """The parsed options of the plan for which no record has a field, by their names."""

    def __hash__(self) -> int:
        """A hash of the fields that differ most often. Equality compares all fields."""
        gpu, options = self.hardware.gpu, frozenset(self.options.items())
        return hash((self.dtype, self.engine_version, self.parallel, self.weights, None if gpu is None else gpu.id, options))

    @property
    def gpus(self) -> int:
        """The number of GPUs."""
        return self.parallel.gpus


class Load(Record):
    """What a server has to hold at once: ``batch`` requests of ``seq`` tokens, prompt and output together."""

    seq: int
    batch: int = 1
    encoder_seq: int | None = None
    """Tokens of the encoder's output; ``None`` leaves them to the model."""
    prompt: int | None = None
    """Tokens of the prompt, of those of a sequence; ``None`` is all of them."""
    sharing: Sharing = UNSHARED
    lengths: tuple[int, ...] = ()
    """Unlike lengths of the requests, of which each has its share of the batch; ``seq`` is the longest. Empty if all are alike."""
    of_replica: bool = False
    """True if this is the share of one data-parallel replica, instead of the load of all of them."""

    @property
    def is_alike(self) -> bool:
        """True if all requests have one length and share nothing."""
        return not self.lengths and self.sharing == UNSHARED

    @property
    def prompt_tokens(self) -> int:
        """Tokens of the prompt: all of the sequence, or those that the user says, if it has as many."""
        return self.seq if self.prompt is None else min(self.prompt, self.seq)

    @property
    def sequences(self) -> int:
        """Sequences that are alive at once: the samples or beams of every request."""
        return self.batch * self.sharing.branches

    @property
    def lengths_of(self) -> tuple[tuple[int, int], ...]:
        """The tokens of requests, longest first, and how many requests have so many. The longer ones are one more if they do not divide.

        >>> Load(seq=8, batch=5, lengths=(8, 2)).lengths_of
        ((8, 3), (2, 2))
        """
        if not self.lengths:
            return ((self.seq, self.batch),)
        longest = max(self.lengths)
        # The longest requests have the planned length; a solver that shortens it cuts the others too.
        lengths = sorted((self.seq if length == longest else min(length, self.seq) for length in self.lengths), reverse=True)
        each, more = divmod(self.batch, len(lengths))
        counts: dict[int, int] = {}
        for number, tokens in enumerate(lengths):
            counts[tokens] = counts.get(tokens, 0) + each + (number < more)
        return tuple((tokens, count) for tokens, count in counts.items() if count)


SETUP_FIELDS: Final = frozenset(Setup.__annotations__)
LOAD_FIELDS: Final = frozenset(Load.__annotations__)
_NESTED: Final[Mapping[str, frozenset[str]]] = {
    "parallel": frozenset(Parallel.__annotations__),
    "hardware": frozenset(Hardware.__annotations__),
}
SETTINGS: Final = SETUP_FIELDS.union(LOAD_FIELDS, *_NESTED.values())
"""The names of all fields of a request, those of its parallel sizes and its hardware too."""


def changed_setup(setup: Setup, change: Mapping[str, Any]) -> Setup:
    """The setup with other values. Fields of :class:`Parallel` and :class:`Hardware` are given by their own names.

    >>> changed_setup(Setup(), {"tp": 4}).parallel.tp
    4
    """
    values = dict(change)
    for group, names in _NESTED.items():
        inner = {name: values.pop(name) for name in values.keys() & names}
        if inner:
            values[group] = replace(values.get(group, getattr(setup, group)), **inner)
    return replace(setup, **values) if values else setup


class Request(Record):
    """A parsed request: a setup, and the load that is planned for it."""

    setup: Setup
    load: Load

    @classmethod
    def of(cls, **values: Any) -> Request:
        """The request with these fields of :class:`Setup` and :class:`Load`, and of :class:`Parallel` and :class:`Hardware`.

        >>> Request.of(seq=8, batch=2, tp=4).setup.gpus
        4
        """
        load = {name: values.pop(name) for name in values.keys() & LOAD_FIELDS}
        return cls(setup=changed_setup(Setup(), values), load=Load(**load))

    def flat(self) -> dict[str, Any]:
        """All values by the names of the options, with those of :class:`Parallel` and :class:`Hardware` on the same level."""
        setup, load, policy = self.setup, self.load, self.setup.policy
        return {
            **asdict(setup),
            **asdict(load),
            **asdict(setup.parallel),
            **asdict(setup.hardware),
            **setup.others,
            "policy": None if policy is None else policy.chosen.text,
            "policy_rules": None if policy is None else policy.rules,
            "compaction": None if policy is None else policy.compaction,
            "shared_prefix": load.sharing.prefix or None,
            "lengths": load.lengths or None,
            "samples": load.sharing.samples,
            "beams": load.sharing.beams,
        }

    def changed(self, **change: Any) -> Request:
        """A copy with other values. Fields of :class:`Parallel` and :class:`Hardware` are given by their own names.

        >>> Request.of(seq=8).changed(batch=2, tp=4).setup.parallel.tp
        4
        """
        load = {name: change.pop(name) for name in change.keys() & LOAD_FIELDS}
        return Request(
            setup=changed_setup(self.setup, change) if change else self.setup,
            load=replace(self.load, **load) if load else self.load,
        )

    @property
    def replicas(self) -> int:
        """The number of data-parallel replicas that have this load between them."""
        return 1 if self.load.of_replica else self.setup.parallel.dp

    @property
    def replica_requests(self) -> int:
        """The number of requests of the fullest data-parallel replica."""
        return -(-self.load.batch // self.replicas)

    @property
    def replica_batch(self) -> int:
        """The number of sequences of the fullest data-parallel replica."""
        return self.replica_requests * self.load.sharing.branches

    @property
    def is_plain(self) -> bool:
        """True if all sequences are alike, keep all and share nothing, and nobody drafts: any other request has no form."""
        return self.setup.policy is None and self.setup.draft is None and self.load.is_alike
