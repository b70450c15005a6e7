"""Low-rank adapters beside the weights: what they add on a rank.

An adapter of rank r puts two matrices beside a linear layer of out x in: A of r x in and B of out x r (Hu et al. 2021,
arXiv:2106.09685, section 4.1). On a tensor-parallel rank they are cut as the layer is: where it is cut by outputs A is whole and B is
cut, where it is cut by inputs A is cut and B is whole; an expert that is dealt out takes its adapters along.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final

from hwcalc.engines.rank_weights import REFERENCE, RankBytes, Rules, cut_blocks, on_stages
from hwcalc.engines.request import ALONE, Parallel
from hwcalc.engines.shards import module_of
from hwcalc.errors import UsageError
from hwcalc.formulas.frozen import frozen
from hwcalc.formulas.weights import Block, Part, Weight, WeightRole
from hwcalc.model import ModelSpec

__all__ = ["Lora", "adapted", "adapter_numbers", "lora_bytes_rank", "most_on_a_stage", "parse_lora"]

_LARGEST_RANK: Final = 8192
_LARGEST_COUNT: Final = 100_000
_TARGETS: Final = ("all", "attention", "mlp")
_DTYPE_BYTES: Final[Mapping[str, int]] = {"bf16": 2, "fp16": 2, "fp32": 4}
_ALLOWED: Final = (
    f"rank=1..{_LARGEST_RANK:,}, count=1..{_LARGEST_COUNT:,}, targets={'|'.join(_TARGETS)}, dtype={'|'.join(_DTYPE_BYTES)}"
)
_MLP_PARTS: Final = frozenset({"mlp", "experts", "feed_forward", "block_sparse_moe", "shared_expert", "shared_experts"})


@frozen
class Lora:
    """Adapters that are on the GPU at once: ``count`` of them, each of ``rank``, beside the linear layers that ``targets`` names."""

    rank: int
    count: int = 1
    targets: str = "all"
    """``all``, ``attention`` (and other mixers of tokens, such as Mamba's) or ``mlp`` (experts too)."""
    dtype: str = "bf16"

    def __str__(self) -> str:
        return f"rank={self.rank},count={self.count},targets={self.targets},dtype={self.dtype}"

    @property
    def element_bytes(self) -> int:
        """Bytes of one number."""
        return _DTYPE_BYTES[self.dtype]


def parse_lora(text: str) -> Lora:
    """``rank=16,count=8,targets=attention,dtype=bf16``; only ``rank`` must be there.

    >>> parse_lora("rank=16,count=8").count
    8

    Raises :class:`~hwcalc.errors.UsageError` for another key, a key twice, or a value out of range.
    """
    given: dict[str, str] = {}
    for item in text.split(","):
        key, sign, value = (part.strip().lower() for part in item.partition("="))
        if not sign or key not in {"rank", "count", "targets", "dtype"} or key in given:
            reason = "twice" if key in given else "not known"
            raise UsageError(f"--lora {text[:60]!r}: {(key or item)[:20]!r} is {reason}.", hint=f"Allowed: {_ALLOWED}.")
        given[key] = value
    if "rank" not in given:
        raise UsageError(f"--lora {text[:60]!r} names no rank.", hint=f"Allowed: {_ALLOWED}.")
    return Lora(
        rank=_number(text, "rank", given["rank"], _LARGEST_RANK),
        count=_number(text, "count", given.get("count", "1"), _LARGEST_COUNT),
        targets=_word(text, "targets", given.get("targets", "all"), _TARGETS),
        dtype=_word(text, "dtype", given.get("dtype", "bf16"), _DTYPE_BYTES),
    )


def _number(text: str, key: str, value: str, largest: int) -> int:
    number = int(value) if value.isascii() and value.isdecimal() and len(value) < 10 else 0
    if not 1 <= number <= largest:
        raise UsageError(f"--lora {text[:60]!r}: {key} is out of range: {value[:20]!r}", hint=f"Allowed: {_ALLOWED}.")
    return number


def _word(text: str, key: str, value: str, words: Iterable[str]) -> str:
    if value not in words:
        raise UsageError(f"--lora {text[:60]!r}: {key}={value[:20]!r} is not known.", hint=f"Allowed: {_ALLOWED}.")
    return value


def lora_bytes_rank(model: ModelSpec, lora: Lora, parallel: Parallel = ALONE, *, rules: Rules = REFERENCE) -> RankBytes | None:
    """Bytes of adapters on the fullest rank; ``None`` if the model's weights are not counted.

    A layer of 4,096 x 4,096 with rank 16 in bf16 takes (16 x 4,096 + 4,096 x 16) x 2 = 262,144 bytes an adapter. Low is without
    routed experts, which many adapters leave alone. High is what PEFT 0.21's ``all-linear`` makes of a model of transformers 5:
    routers too, and twice the rank beside gate and up where they are one tensor, so that both have rows of their own.
    """
    if model.counted is None:
        return None
    blocks = cut_blocks(model, rules.held(model, model.counted, parallel.pp), rules.rank(model, parallel), rules)

    def beside(numbers: Callable[[Block, Weight, Lora], int]) -> int:
        def beside_one(block: Block, weight: Weight) -> int:
            return numbers(block, weight, lora)

        return lora.count * lora.element_bytes * most_on_a_stage(model, blocks, parallel.pp, rules, beside_one)

    low, expected, high = (beside(numbers) for numbers in (_outside_experts, _each, _as_peft))
    source = f"{lora.count:,} x rank {lora.rank:,} in {lora.dtype} beside {lora.targets} linear layers: A and B, arXiv:2106.09685"
    return RankBytes(low=low, expected=expected, high=high, source=source)


def most_on_a_stage(
    model: ModelSpec, blocks: tuple[Block, ...], pp: int, rules: Rules, numbers: Callable[[Block, Weight], int]
) -> int:
    """The most that a pipeline stage holds, where ``numbers`` says how many one layer keeps beside a tensor."""
    return max(
        sum(block.count * numbers(block, weight) for block in stage for weight in block.weights)
        for stage in on_stages(model, blocks, pp, rules)
    )


def adapter_numbers(rank: int, weight: Weight) -> int:
    """Numbers of A and B beside all copies of a matrix that is cut already."""
    rows, columns = weight.shape
    return weight.copies * rank * (rows + columns)


def adapted(block: Block, weight: Weight, lora: Lora) -> bool:
    """Whether a tensor is a linear layer of the language model that the adapters stand beside."""
    if block.part not in {Part.LANGUAGE, Part.ENCODER} or len(weight.shape) != 2:
        return False
    if weight.role not in {WeightRole.LINEAR, WeightRole.EXPERT}:
        return False
    if lora.targets == "all":
        return True
    is_mlp = block.kind in {"mlp", "moe"} or not _MLP_PARTS.isdisjoint(weight.path.split("."))
    return is_mlp is (lora.targets == "mlp")


def _each(block: Block, weight: Weight, lora: Lora) -> int:
    return adapter_numbers(lora.rank, weight) if adapted(block, weight, lora) else 0


def _outside_experts(block: Block, weight: Weight, lora: Lora) -> int:
    return 0 if weight.role is WeightRole.EXPERT else _each(block, weight, lora)


def _as_peft(block: Block, weight: Weight, lora: Lora) -> int:
    if weight.role is WeightRole.ROUTER and lora.targets == "all" and block.part is Part.LANGUAGE and len(weight.shape) == 2:
        return adapter_numbers(lora.rank, weight)
    numbers = _each(block, weight, lora)
    if numbers and weight.role is WeightRole.EXPERT and module_of(weight) in {"gate_proj", "up_proj"}:
        # B has rows for both, and columns for twice the rank.
        numbers += weight.copies * lora.rank * weight.shape[0]
    return numbers
