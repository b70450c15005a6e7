"""The request to an engine."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar, cast

from msgspec import field
from msgspec.structs import asdict, replace

from hwcalc.errors import UsageError
from hwcalc.formulas.record import Record
from hwcalc.model import ModelSpec

if TYPE_CHECKING:
    from fractions import Fraction

    from hwcalc.engines.lora import Lora
    from hwcalc.policies.asked import AskedPolicy
    from hwcalc.profiles.gpus import Gpu

__all__ = ["ALONE", "MOST_RANKS", "UNSHARED", "Family", "Hardware", "Parallel", "Request", "Servers", "Sharing", "is_plain"]

T = TypeVar("T")

MOST_RANKS: Final = 4096
_UNKNOWN: Final[Any] = object()
"""Stands for an answer that is not kept yet; ``None`` may be one."""


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
    """Whether measurements of the user replace estimates."""


class Sharing(Record):
    """What sequences have in common: the first ``prefix`` tokens of all, and the prompt of the samples or beams of one request."""

    prefix: int = 0
    samples: int = 1
    beams: int = 1
    apart: bool = False
    """Whether every sequence is kept by itself all the same, to compare."""
    scattered: int = 1
    """Replicas over which the branches of a request are dealt, where this is one of the replicas."""

    @property
    def branches(self) -> int:
        """Sequences that grow out of one prompt."""
        return self.samples * self.beams

    @property
    def asked(self) -> bool:
        """Whether sequences have anything in common."""
        return bool(self.prefix) or self.branches > 1


UNSHARED: Final = Sharing()
"""Every sequence by itself."""


class Request(Record):
    """A parsed request. ``dtype`` is the text of ``--dtype``, or ``None`` for the default of the engine."""

    seq: int
    batch: int = 1
    dtype: str | None = None
    encoder_seq: int | None = None
    engine_version: str | None = None
    parallel: Parallel = field(default_factory=Parallel)
    hardware: Hardware = field(default_factory=Hardware)
    weights: str | None = None
    lora: Lora | None = None
    draft: ModelSpec | None = None
    """The model of ``--draft``: a small model that proposes tokens, which the planned model verifies."""
    option_draft: ModelSpec | None = None
    """The draft model that an engine option names (:meth:`Engine.draft_named`)."""
    options: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    prompt: int | None = None
    """Tokens of the prompt, of those of a sequence; ``None`` is all of them."""
    policy: AskedPolicy | None = None
    """What is dropped of the cache; ``None`` is nothing."""
    sharing: Sharing = UNSHARED
    lengths: tuple[int, ...] = ()
    """Unlike lengths of the requests, of which each has its share of the batch; ``seq`` is the longest. Empty if all are alike."""

    @property
    def prompt_tokens(self) -> int:
        """Tokens of the prompt: all of the sequence, or those that the user says, if it has as many."""
        return self.seq if self.prompt is None else min(self.prompt, self.seq)

    @property
    def gpus(self) -> int:
        """The number of GPUs."""
        return self.parallel.gpus

    @property
    def sequences(self) -> int:
        """Sequences that are alive at once: the samples or beams of every request."""
        return self.batch * self.sharing.branches

    @property
    def lengths_of(self) -> tuple[tuple[int, int], ...]:
        """The tokens of requests, longest first, and how many requests have so many. The longer ones are one more if they do not divide.

        >>> Request(seq=8, batch=5, lengths=(8, 2)).lengths_of
        ((8, 3), (2, 2))
        """
        if not self.lengths:
            return ((self.seq, self.batch),)
        longest = max(self.lengths)
        # The longest requests have the planned length; a solver that shortens it cuts the others too.
        lengths = sorted((self.seq if one == longest else min(one, self.seq) for one in self.lengths), reverse=True)
        each, more = divmod(self.batch, len(lengths))
        counts: dict[int, int] = {}
        for number, tokens in enumerate(lengths):
            counts[tokens] = counts.get(tokens, 0) + each + (number < more)
        return tuple((tokens, count) for tokens, count in counts.items() if count)

    @property
    def replica_requests(self) -> int:
        """The number of requests of the fullest data-parallel replica."""
        return -(-self.batch // self.parallel.dp)

    @property
    def replica_batch(self) -> int:
        """The number of sequences of the fullest data-parallel replica."""
        return self.replica_requests * self.sharing.branches

    def flat(self) -> dict[str, Any]:
        """All values by the names of the options, with those of :class:`Parallel` and :class:`Hardware` on the same level."""
        asked, sharing = self.policy, self.sharing
        return {
            **asdict(self),
            **asdict(self.parallel),
            **asdict(self.hardware),
            "policy": None if asked is None else asked.chosen.text,
            "policy_rules": None if asked is None else asked.rules,
            "compaction": None if asked is None else asked.compaction,
            "shared_prefix": sharing.prefix or None,
            "lengths": self.lengths or None,
            "samples": sharing.samples,
            "beams": sharing.beams,
        }

    def changed(self, **change: Any) -> Request:
        """A copy with other values. Fields of :class:`Parallel` and :class:`Hardware` are given by their own names.

        >>> Request(seq=8).changed(batch=2, tp=4).parallel.tp
        4
        """
        for group in ("parallel", "hardware"):
            names = change.keys() & _GROUPED[group]
            if names:
                change[group] = replace(change.get(group, getattr(self, group)), **{name: change.pop(name) for name in names})
        return replace(self, **change)


_GROUPED: Final[Mapping[str, frozenset[str]]] = {
    "parallel": frozenset(Parallel.__struct_fields__),
    "hardware": frozenset(Hardware.__struct_fields__),
}


class Family:
    """An opened request with those that differ from it only in lengths, sequences, and what these have in common.

    They share the answers that do not depend on that.
    """

    request: Request

    @cached_property
    def family(self) -> dict[Hashable, Any]:
        """The shared answers of the family, by key (:meth:`shared`)."""
        return {}

    def shared(self, key: Hashable, make: Callable[[], T]) -> T:
        """Call ``make`` once for the whole family and return the result. It must not depend on length or batch."""
        answer: T = self.family.get(key, _UNKNOWN)
        if answer is _UNKNOWN:
            answer = self.family[key] = make()
        return answer

    def sibling(self, request: Request) -> Self:
        """Another request of the same family. It is not checked."""
        sibling: Self = replace(cast("Any", self), request=request)
        vars(sibling)["family"] = self.family
        return sibling

    def with_request(self, request: Request) -> Self:
        """The sibling with this request; the same one if it is no other."""
        return self if request == self.request else self.sibling(request)


def is_plain(request: Request) -> bool:
    """Whether all sequences are alike, keep everything and share nothing, and nobody drafts: any other request has no form."""
    return request.policy is None and not request.lengths and request.sharing == UNSHARED and request.draft is None
