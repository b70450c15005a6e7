"""A model's weights by format and use: which of them a token reads and multiplies with."""

from __future__ import annotations

import enum
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from hwcalc.formulas.frozen import frozen
from hwcalc.formulas.weights import Block, Part, Weight, WeightRole
from hwcalc.model import ModelSpec

if TYPE_CHECKING:
    from hwcalc.formulas.formats import WeightFormat

__all__ = ["Use", "WeightShare", "expected_share", "weight_shares"]

_CROSS: Final = ("cross", "encoder_attn", "encdecattention")
_FROM_ENCODER: Final = frozenset({"k_proj", "v_proj", "k", "v", "key", "value", "kv_proj", "c_attn"})


class Use(enum.StrEnum):
    """How often a weight is used."""

    ALWAYS = "always"
    """By every token."""
    CHOSEN = "chosen"
    """By the tokens that are routed to it: experts."""
    ROW = "row"
    """One row for each token: embeddings. Looked up, not multiplied."""
    LAST = "last"
    """By tokens whose successor is wanted: all of a decode step, the last one of a prompt. The head."""
    ENCODER = "encoder"
    """By the encoder's tokens, before the first step."""


@frozen
class WeightShare:
    """Weights that are alike in format and use: how many numbers, how many bytes, all copies and layers together.

    Of ``copies`` a token uses ``active``: experts and those it is sent to, or the rows of a table.
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
            return self.bytes * expected_share(self.copies, self.active, tokens)
        return self.bytes * min(1.0, tokens / self.copies) if self.use is Use.ROW else float(self.bytes)

    @property
    def flops_per_token(self) -> int:
        """Operations for a token that uses it."""
        return 0 if self.use is Use.ROW else 2 * self.parameters * self.active // self.copies


def expected_share(copies: int, active: int, tokens: float) -> float:
    """The share of ``copies`` experts that ``tokens`` tokens touch, each choosing ``active`` different ones, all as likely.

    >>> expected_share(4, 1, 1), expected_share(4, 1, 2), expected_share(4, 4, 1)
    (0.25, 0.4375, 1.0)

    Two tokens leave an expert alone with (3/4)^2: 1 - 9/16 = 7/16.
    """
    return float(1 - (1 - active / copies) ** tokens)


def weight_shares(model: ModelSpec, weights: str | None = None, dtype: str | None = None) -> tuple[WeightShare, ...] | None:
    """The model's weights by format and use; ``None`` where they are not counted or their format is not known.

    Multi-token prediction and the towers of images and sound are left out: a step of text does not use them.
    """
    from hwcalc.quantization.planned import format_name, planned_scheme

    if model.counted is None:
        return None
    wanted = format_name(weights)
    scheme, known = planned_scheme(model, wanted)
    if not known:
        return None
    plain = _plain(wanted, dtype or model.dtype)
    found: dict[tuple[str, Use, int, int], list[int]] = {}
    for block, weight, use in _used(model):
        formats = ((block.count, plain),) if scheme is None else scheme.formats(block, weight, plain)
        copies, active = _copies(weight, use)
        for count, form in formats:
            if count:
                sums = found.setdefault((form.name, use, copies, active), [0, 0])
                sums[0] += count * weight.elements
                sums[1] += count * form.bytes(weight)
    return tuple(
        WeightShare(format=name, use=use, copies=copies, active=active, parameters=parameters, bytes=size)
        for (name, use, copies, active), (parameters, size) in found.items()
    )


def _plain(wanted: str | None, dtype: str | None) -> WeightFormat:
    from hwcalc.formulas.formats import BF16, FLOATS

    return FLOATS.get(wanted or "") or FLOATS.get(dtype or "", BF16)


def _copies(weight: Weight, use: Use) -> tuple[int, int]:
    if use is Use.ROW:
        return weight.shape[0], 1
    if use is Use.CHOSEN and weight.active is not None:
        return weight.copies, weight.active
    return 1, 1


def _used(model: ModelSpec) -> Iterable[tuple[Block, Weight, Use]]:
    """Every weight that text passes through, and how."""
    assert model.counted is not None
    table: tuple[Block, Weight] | None = None
    headed = False
    for block in model.counted.blocks:
        if block.part not in (Part.LANGUAGE, Part.ENCODER):
            continue
        for weight in block.weights:
            use = _use_of(block, weight)
            if weight.role is WeightRole.HEAD and len(weight.shape) > 1:
                headed = True
            words = use is Use.ROW and "per_layer" not in weight.path and weight.shape[0] == model.vocab_size
            if words and table is None and block.part is Part.LANGUAGE:
                table = block, weight
            yield block, weight, use
    # A model that ends in hidden states has no head; all others multiply with the table if they have none of their own.
    if table is not None and not headed and not (model.architecture or "").endswith("Model"):
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
