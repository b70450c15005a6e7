"""The weights of a model by format and use: which of them a token reads, and with which it multiplies."""

from __future__ import annotations

import enum
from collections.abc import Iterable

from hwcalc.formulas.frozen import frozen
from hwcalc.formulas.hints import TYPE_CHECKING, Final
from hwcalc.formulas.weights import Block, Part, Weight, WeightRole
from hwcalc.model import ModelSpec

if TYPE_CHECKING:
    from hwcalc.formulas.formats import WeightFormat
    from hwcalc.quantization.scheme import Scheme

__all__ = ["Use", "WeightShare", "expected_share", "weight_shares"]

_CROSS: Final = ("cross", "encoder_attn", "encdecattention")
_FROM_ENCODER: Final = frozenset({"k_proj", "v_proj", "k", "v", "key", "value", "kv_proj", "c_attn"})


_ALIKE: Final = 0.5
"""Tokens of one step choose experts as if so few were drawn at random: t to this power. With 2/3, steps of 1 to 32 sequences that were
measured reach the same share of the bandwidth (llama.cpp, benches/dgx-spark, gpt-oss and Qwen3-Coder)."""


class Use(enum.StrEnum):
    """Which tokens use a weight."""

    ALWAYS = "always"
    """Every token."""
    CHOSEN = "chosen"
    """Tokens that are routed to it: an expert."""
    ROW = "row"
    """Each token looks up one row: an embedding. There is no multiplication."""
    LAST = "last"
    """Tokens whose next token is predicted: all tokens of a decode step, the last token of a prompt. The output head."""
    ENCODER = "encoder"
    """Tokens of the encoder, before the first decode step."""


@frozen
class WeightShare:
    """The weights of one format and use: parameters and bytes of all copies and layers together.

    A token uses ``active`` of ``copies``: of the experts of a layer, or of the rows of a table.
    """

    format: str
    use: Use
    parameters: int
    bytes: int
    copies: int = 1
    active: int = 1

    def touched_bytes(self, tokens: float) -> float:
        """Bytes that ``tokens`` tokens of one step read."""
        if self.use is Use.CHOSEN:
            return self.bytes * expected_share(self.copies, self.active, max(1.0, tokens) ** _ALIKE)
        return self.bytes * min(1.0, tokens / self.copies) if self.use is Use.ROW else float(self.bytes)

    @property
    def flops_per_token(self) -> int:
        """Operations per token that uses the weights."""
        return 0 if self.use is Use.ROW else 2 * self.parameters * self.active // self.copies


def expected_share(copies: int, active: int, tokens: float) -> float:
    """The expected share of ``copies`` experts that ``tokens`` tokens use, if each token uses ``active`` of them at random.

    >>> expected_share(4, 1, 1), expected_share(4, 1, 2), expected_share(4, 4, 1)
    (0.25, 0.4375, 1.0)

    Two tokens both miss an expert with probability (3/4)^2, so the share is 1 - 9/16 = 7/16.
    """
    return float(1 - (1 - active / copies) ** tokens)


def weight_shares(model: ModelSpec, weights: str | None = None, dtype: str | None = None) -> tuple[WeightShare, ...] | None:
    """The weights of a model by format and use; ``None`` if they are not counted or their format is unknown.

    ``dtype`` is the dtype of weights that are not quantised. Multi-token prediction and the towers for images and sound are left out,
    since a decode step does not use them.
    """
    from hwcalc.quantization.planned import format_name, planned_scheme

    if model.counted is None:
        return None
    requested = format_name(weights)
    scheme, known = planned_scheme(model, requested)
    if not known:
        return None
    unquantized = _unquantized(requested, dtype or model.dtype)
    totals: dict[tuple[str, Use, int, int], list[int]] = {}
    for block, weight, use in _used_weights(model, model.counted.blocks):
        copies, active = _copies(weight, use)
        for name, elements, size in _portions(block, weight, scheme, unquantized):
            if elements:
                sums = totals.setdefault((name, use, copies, active), [0, 0])
                sums[0] += elements
                sums[1] += size
    return tuple(
        WeightShare(format=name, use=use, copies=copies, active=active, parameters=parameters, bytes=size)
        for (name, use, copies, active), (parameters, size) in totals.items()
    )


def _portions(block: Block, weight: Weight, scheme: Scheme | None, unquantized: WeightFormat) -> Iterable[tuple[str, int, int]]:
    """The formats of a weight in all layers of its block, with parameters and bytes."""
    if scheme is None:
        return ((unquantized.name, block.count * weight.elements, block.count * unquantized.bytes(weight)),)
    return ((one.format.name, one.elements, one.bytes) for one in scheme.portions(block, weight, unquantized))


def _unquantized(requested: str | None, dtype: str | None) -> WeightFormat:
    from hwcalc.formulas.formats import BF16, FLOATS

    return FLOATS.get(requested or "") or FLOATS.get(dtype or "", BF16)


def _copies(weight: Weight, use: Use) -> tuple[int, int]:
    if use is Use.ROW:
        return weight.shape[0], 1
    if use is Use.CHOSEN and weight.active is not None:
        return weight.copies, weight.active
    return 1, 1


def _used_weights(model: ModelSpec, blocks: Iterable[Block]) -> Iterable[tuple[Block, Weight, Use]]:
    """Every weight that a forward pass on text uses, with its use."""
    table: tuple[Block, Weight] | None = None
    has_head = False
    for block in blocks:
        if block.part not in (Part.LANGUAGE, Part.ENCODER):
            continue
        for weight in block.weights:
            use = _use_of(block, weight)
            if weight.role is WeightRole.HEAD and len(weight.shape) > 1:
                has_head = True
            is_vocabulary = use is Use.ROW and "per_layer" not in weight.path and weight.shape[0] == model.vocab_size
            if is_vocabulary and table is None and block.part is Part.LANGUAGE:
                table = block, weight
            yield block, weight, use
    # A tied model multiplies with its embedding. A class whose name ends in "Model" has no head at all.
    if table is not None and not has_head and not (model.architecture or "").endswith("Model"):
        yield *table, Use.LAST


def _use_of(block: Block, weight: Weight) -> Use:
    if weight.role is WeightRole.EMBEDDING and len(weight.shape) > 1:
        return Use.ROW
    if block.part is Part.ENCODER:
        return Use.ENCODER
    if weight.active is not None and weight.active < weight.copies:
        return Use.CHOSEN
    if weight.role is WeightRole.HEAD:
        return Use.LAST
    where = f"{block.kind} {weight.path}".lower()
    module = weight.path.removesuffix(".weight").removesuffix(".bias").rpartition(".")[2]
    return Use.ENCODER if module in _FROM_ENCODER and any(name in where for name in _CROSS) else Use.ALWAYS
