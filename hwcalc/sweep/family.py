"""One setting of a grid in the engine's own normal form: what its plans say at every length and for every batch, as arrays.

The form is that of the engine (:mod:`hwcalc.engines.forms`), and what does not depend on length and batch comes from one opened request. A
setting that has no form is planned point by point.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Final

import numpy as np

from hwcalc.engines.budget import Section
from hwcalc.engines.deployment import Occupancy
from hwcalc.engines.forms import ENDS, Curve, Memory, MemoryForm
from hwcalc.formulas import Span
from hwcalc.formulas.arithmetic import larger
from hwcalc.formulas.record import Record
from hwcalc.formulas.stairs import stairs_at
from hwcalc.planner.memory import plan_memory
from hwcalc.planner.plan import lasting_warnings
from hwcalc.planner.verdict import Verdict
from hwcalc.sweep.axes import Piece
from hwcalc.sweep.blocks import Column, Value
from hwcalc.sweep.reach import reached

_OF_A_VERDICT: Final = (
    *("total_per_gpu_low_bytes", "total_per_gpu_high_bytes", "usable_bytes", "fits"),
    *("kept_tokens", "policy_saved_bytes", "prefill_peak_bytes"),
)
"""Columns that are empty without a GPU or a policy."""
_VERDICTS: Final = (Verdict.NO, Verdict.PROBABLY_NOT, Verdict.PROBABLY, Verdict.FITS)
_WORDS: Final = np.array([verdict.value for verdict in _VERDICTS], dtype=object)
_MOST: Final = 2**62
_WEIGHTS: Final = ("weights_bytes", "weights_per_gpu_bytes")
_SPARE_BITS: Final = 10


class Family(Record):
    """The requests of one setting, which differ in length and batch alone. ``form`` is that of a GPU, ``curve`` that of the cache."""

    opened: Occupancy
    curve: Curve
    form: MemoryForm | None
    row: dict[str, Any]
    """The columns that are the same at every point."""
    warnings: tuple[str, ...]
    """The codes of the warnings that every point has."""
    grown: dict[Span, int]
    """The bytes of a position of all tensors of one sequence that have this span, by the formulas."""

    def agrees(self, piece: Piece, refused: Any) -> bool:
        """Whether the form refuses no more than these points."""
        most_tokens, most_sequences = self.curve.most_tokens, self.curve.most_sequences
        if most_tokens is None and most_sequences is None:
            return True
        tokens, sequences = piece.tokens, piece.sequences
        beyond = tokens < 0 if most_tokens is None else tokens > most_tokens
        if most_sequences is not None:
            beyond = beyond | (-(-sequences // self.opened.request.parallel.dp) > most_sequences)
        return not beyond.any() if refused is None else bool(((refused != None) | ~beyond).all())  # noqa: E711 - place by place

    def holds_for(self, piece: Piece) -> bool:
        """Whether the form speaks of these lengths, and no number needs more than 64 bits."""
        if max(*piece.seqs, *piece.batches) > _MOST:
            return False
        tokens, sequences = self._accepted(piece)
        far = int(tokens.max()), int(sequences.max())
        if self.form is not None and tokens.min() < self.form.least_tokens:
            return False
        caches = self.curve.total_bytes(*far) + self.curve.needed_bytes(*far)
        simple = caches + sum(self.row[name] or 0 for name in _WEIGHTS) + self._most_grown(far[0])
        if self.form is None:
            # No step of a plain curve is larger than the sum, which grows with both.
            return simple <= (_MOST if type(self.curve) is Curve else _MOST >> _SPARE_BITS)
        most = reached((1, far[0] + 1), (1, far[1]), partial(self._answers, self.form))
        if most is not None:
            return max(most, simple) <= _MOST
        # Such a form takes arrays alone. Its numbers grow with both, and no step is a thousand times what comes of it.
        return bool(max(simple, *self._answers(self.form, *far)) <= _MOST >> _SPARE_BITS)

    def _most_grown(self, tokens: int) -> int:
        """More bytes than any step of the growth has."""
        longest = max(tokens + 1, self.opened.encoder_tokens)
        return sum(size * max(longest, sum(span.numbers)) for span, size in self.grown.items())

    def _answers(self, form: MemoryForm, tokens: Any, sequences: Any) -> list[Any]:
        """All that is asked of a form and is a number or a verdict."""
        memory = form.at(tokens, sequences)
        parts = (memory.parts_bytes("expected", section.value) for section in Section)
        total = self._total(memory)
        holds = map(memory.holds, ENDS)
        return [memory.needed_bytes, *(() if total is None else (total,)), *parts, *holds]

    def columns(self, piece: Piece) -> dict[str, Column]:
        """All columns but length and batch."""
        tokens, sequences = self._accepted(piece)
        shape = len(piece.seqs), len(piece.batches)
        arrays = {"bytes_per_token": self._growth(tokens)}
        arrays |= self._without_gpu(tokens, sequences) if self.form is None else self._on_gpu(self.form.at(tokens, sequences))
        return {
            **self.row,
            **{name: _column(array, shape) for name, array in arrays.items()},
            "warning": self._warning(piece),
        }

    def _accepted(self, piece: Piece) -> tuple[Any, Any]:
        """Lengths and batches; the largest that are accepted in place of larger ones, whose rows nobody reads."""
        tokens, sequences = piece.tokens, piece.sequences
        if self.curve.most_tokens is not None:
            tokens = tokens.clip(max=self.curve.most_tokens)
        if self.curve.most_sequences is not None:
            sequences = sequences.clip(max=self.curve.most_sequences * self.opened.request.parallel.dp)
        return tokens, sequences

    def _without_gpu(self, tokens: Any, sequences: Any) -> dict[str, Any]:
        replicas = self.opened.request.parallel.dp
        needed = self.curve.needed_bytes(tokens, sequences if replicas == 1 else -(-sequences // replicas))
        return self._beside_weights(self.curve.total_bytes(tokens, sequences), needed)

    def _beside_weights(self, cache: Any, needed: Any) -> dict[str, Any]:
        """The cache on all GPUs and what is needed of it on the fullest, and their sums with the weights alone."""
        weights, on_gpu = (self.row[name] for name in _WEIGHTS)
        return {
            "cache_total_bytes": cache,
            "cache_per_gpu_bytes": needed,
            "total_bytes": None if weights is None else cache + weights,
            "total_per_gpu_bytes": None if on_gpu is None else needed + on_gpu,
        }

    def _on_gpu(self, memory: Memory) -> dict[str, Any]:
        usable, needed = memory.form.usable[1], memory.needed_bytes
        low, high = (usable - memory.left(end) + needed for end in ("high", "low"))
        return {
            **(self._beside_weights(memory.total_bytes, needed) if self.is_given else self._equation(memory)),
            "total_per_gpu_low_bytes": larger(0, low),
            "total_per_gpu_high_bytes": high,
            "usable_bytes": usable,
            "fits": _verdicts(*map(memory.holds, ENDS)),
        }

    def _equation(self, memory: Memory) -> dict[str, Any]:
        parts = {section: memory.parts_bytes("expected", section.value) for section in Section}
        return {
            "cache_total_bytes": memory.total_bytes,
            "cache_per_gpu_bytes": memory.needed_bytes,
            "weights_per_gpu_bytes": parts[Section.WEIGHTS],
            "total_bytes": self._total(memory),
            "total_per_gpu_bytes": sum(parts.values()) + memory.needed_bytes,
        }

    @property
    def is_given(self) -> bool:
        """Whether the user gives the budget, of which nothing is taken but the cache."""
        return self.opened.request.hardware.kv_memory is not None

    def _total(self, memory: Memory) -> Any:
        """The memory of all GPUs, as a plan has it: what the fullest has beside its cache, as often as there are GPUs."""
        weights = self.row["weights_bytes"]
        if memory.devices_bytes is not None:
            return memory.devices_bytes
        if weights is None:
            return None
        beside = sum(memory.parts_bytes("expected", section.value) for section in (Section.ACTIVATIONS, Section.OVERHEAD))
        return memory.total_bytes + weights + self.opened.request.gpus * beside

    def _growth(self, tokens: Any) -> Any:
        """The bytes that one more token adds to a sequence, while the encoder's input stays the same."""
        encoder: Any = self.opened.growing_encoder_tokens
        encoder = tokens if encoder is None else encoder
        grown: Any = 0
        for span, size in self.grown.items():
            stairs = span.stairs(encoder)
            grown = grown + size * (stairs_at(stairs, tokens + 1) - stairs_at(stairs, tokens))
        return grown

    def _warning(self, piece: Piece) -> Column:
        """The codes of a plan's warnings, row by row."""
        always, longest = " ".join(self.warnings) or None, self.opened.model.max_position_embeddings
        if longest is None or max(piece.seqs) <= longest:
            return always
        both = " ".join(("beyond-maximum", *self.warnings))
        if min(piece.seqs) > longest:
            return both
        return [both if seq > longest else always for seq in piece.seqs for _ in piece.batches]


def family_of(opened: Occupancy, gpu: str | None) -> Family | None:
    """The family of an opened request; ``None`` if its engine has no form of it. ``gpu`` is the accelerator that the rows name."""
    request, hardware = opened.request, opened.request.hardware
    if request.policy is not None or request.lengths or request.sharing.asked:
        return None
    judged = hardware.gpu is not None or hardware.kv_memory is not None
    form = opened.form() if judged else None
    if judged and form is None and (hardware.kv_memory is not None or opened.budget is not None):
        return None
    curve = opened.curve() if form is None else form.curve
    if curve is None:
        return None
    definition = opened.model.definition(opened.engine.definition)
    # The weights and the bytes of the cache do not depend on each other: of any point, the weights are those of all.
    memory = plan_memory(opened, cache_bytes=0, rank_bytes=0, definition=definition, budget=None)
    known = memory.weights.bytes is not None
    warnings = lasting_warnings(opened, known_weights=known, verdict=form is not None)
    row: dict[str, Any] = {
        "model": opened.model.id,
        "engine": opened.engine.name,
        "engine_version": opened.version or None,
        "dtype": opened.dtypes.kv,
        "gpu": gpu if form is None or hardware.gpu is None else hardware.gpu.id,
        "gpus": None if form is None else request.gpus,
        "tp": request.parallel.tp,
        "policy": None,
        "definition": definition,
        "weights_bytes": memory.weights.bytes,
        "weights_per_gpu_bytes": memory.per_gpu.weights,
        **dict.fromkeys(_OF_A_VERDICT),
        "error": None,
    }
    return Family(
        opened=opened,
        curve=curve,
        form=form,
        row=row,
        warnings=tuple(note.code for note in warnings),
        grown=_grown(opened),
    )


def _grown(opened: Occupancy) -> dict[Span, int]:
    roles = opened.dtypes.roles
    sizes: dict[Span, int] = {}
    for group in opened.model.stack.groups:
        for tensor in group.kind.tensors():
            size = group.count * tensor.bytes_per_position(roles[tensor.role])
            sizes[tensor.span] = sizes.get(tensor.span, 0) + size
    return {span: size for span, size in sizes.items() if size}


def _verdicts(low: Any, expected: Any, high: Any) -> Any:
    """The words of verdicts, from what holds at the ends of the estimates: :meth:`Verdict.of`, place by place."""
    certain = (low == expected) & (high == expected)
    words = np.where(expected, np.where(certain, 3, 2), np.where(certain, 0, 1))
    return _WORDS[words]


def _column(array: Any, shape: tuple[int, int]) -> Column:
    """A number for all points, or one for each."""
    if array is None or isinstance(array, int):
        return array
    if array.shape == shape:
        flat = array.ravel()
    elif array.min() == array.max():
        same: Value = array.item(0)
        return same
    else:
        flat = np.broadcast_to(array, shape).ravel()
    column: Column = flat
    if array.dtype == object:
        words = flat.tolist()
        column = words if len(set(words)) > 1 else words[0]
    return column
