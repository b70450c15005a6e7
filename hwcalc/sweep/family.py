"""The figures of all requests that differ in length and batch alone, as arrays, from the form of their deployment.

The form (:mod:`hwcalc.engines.forms`) gives the figures of all lengths and batches at once. What does not depend on length and batch comes
from one occupancy of the setting.

Arrays have 64 bits, and a larger number would be wrong in silence. So a form is first evaluated at the largest length and number of
sequences, in integers of Python (:meth:`Family.holds_for`).
"""

from __future__ import annotations

from typing import Any, Final

from hwcalc.engines.deployment import Occupancy
from hwcalc.engines.forms import ENDS, Curve, Memory, MemoryForm
from hwcalc.engines.memory import Section
from hwcalc.engines.models import follows_output
from hwcalc.formulas import Span
from hwcalc.formulas.arithmetic import larger
from hwcalc.formulas.record import Record
from hwcalc.formulas.stairs import stairs_at
from hwcalc.planner.forecast import quantity_of
from hwcalc.planner.plan import lasting_warnings, plan_memory
from hwcalc.planner.step_time import StepTimes, step_times
from hwcalc.planner.verdict import Verdict
from hwcalc.sweep.grid import OF_LIMITS, OF_SPEED, SPEED_DIGITS, Column, Piece, Value

_MOST: Final = 2**52
"""The most that may come of a form. Its numbers grow with length and batch, and no step is a thousand times what comes of it."""
_OF_A_VERDICT: Final = (
    *("total_per_gpu_low_bytes", "total_per_gpu_high_bytes", "usable_bytes", "fits"),
    *("kept_tokens", "policy_saved_bytes", "prefill_peak_bytes"),
    *OF_LIMITS,
    *OF_SPEED,
)
"""Columns that are empty without a GPU, a policy, limits of time or measurements."""
_WORDS: Final = tuple(verdict.value for verdict in (Verdict.NO, Verdict.PROBABLY_NOT, Verdict.PROBABLY, Verdict.FITS))
_WEIGHTS: Final = ("weights_bytes", "weights_per_gpu_bytes")


class Family(Record):
    """The requests of one setting, which differ in length and batch alone.

    ``form`` is the memory of a GPU, ``curve`` that of the cache.
    """

    opened: Occupancy
    curve: Curve
    form: MemoryForm | None
    row: dict[str, Any]
    """The columns that are the same at every point."""
    warnings: tuple[str, ...]
    """The codes of the warnings that every point has."""
    grown: dict[Span, int]
    """The bytes of a position of all tensors of one sequence that have this span, by the formulas."""
    times: StepTimes | None
    """The steps, where something like them was measured."""

    def agrees(self, piece: Piece, refused: Any) -> bool:
        """True if every point of the piece that the form refuses is among the ``refused`` ones."""
        most_tokens, most_sequences = self.curve.most_tokens, self.curve.most_sequences
        if most_tokens is None and most_sequences is None:
            return True
        tokens, sequences = piece.tokens, piece.sequences
        beyond = tokens < 0 if most_tokens is None else tokens > most_tokens
        if most_sequences is not None:
            beyond = beyond | (-(-sequences // self.opened.setup.parallel.dp) > most_sequences)
        return not beyond.any() if refused is None else bool(((refused != None) | ~beyond).all())  # noqa: E711 - place by place

    def _accepted(self, piece: Piece) -> tuple[Any, Any]:
        """The lengths and batches of a piece, cut to the largest that the form accepts. The rows of larger ones are replaced by errors."""
        tokens, sequences = piece.tokens, piece.sequences
        if self.curve.most_tokens is not None:
            tokens = tokens.clip(max=self.curve.most_tokens)
        if self.curve.most_sequences is not None:
            sequences = sequences.clip(max=self.curve.most_sequences * self.opened.setup.parallel.dp)
        return tokens, sequences

    def holds_for(self, piece: Piece) -> bool:
        """True if the form covers the lengths of the piece, and no number needs more than 64 bits."""
        if max(*piece.seqs, *piece.batches) > _MOST:
            return False
        accepted = self._accepted(piece)
        tokens, sequences = int(accepted[0].max()), int(accepted[1].max())
        if self.form is not None and accepted[0].min() < self.form.least_tokens:
            return False
        # Of the growth no step is larger than this.
        longest = max(tokens + 1, self.opened.encoder_tokens)
        grown = sum(size * max(longest, sum(span.numbers)) for span, size in self.grown.items())
        caches = self.curve.total_bytes(tokens, sequences) + self.curve.needed_bytes(tokens, sequences)
        simple = caches + sum(self.row[name] or 0 for name in _WEIGHTS) + grown
        if self.form is None:
            return bool(simple <= _MOST)
        memory = self.form.at(tokens, sequences)
        parts = (memory.parts_bytes("expected", section.value) for section in Section)
        return bool(max(simple, memory.needed_bytes, self._total(memory) or 0, *parts) <= _MOST)

    def _total(self, memory: Memory) -> Any:
        """The bytes on all GPUs: cache, weights, and for each GPU activations and overhead of the fullest.

        It is ``None`` if weights are unknown.
        """
        weights = self.row["weights_bytes"]
        if memory.devices_bytes is not None:
            return memory.devices_bytes
        if weights is None:
            return None
        others = sum(memory.parts_bytes("expected", section.value) for section in (Section.ACTIVATIONS, Section.OVERHEAD))
        return memory.total_bytes + weights + self.opened.setup.gpus * others

    def columns(self, piece: Piece) -> dict[str, Column]:
        """All columns but length and batch."""
        tokens, sequences = self._accepted(piece)
        # What one more token adds to a sequence, while the encoder's input stays the same.
        opened = self.opened
        encoder: Any = None if follows_output(opened.model, opened.load) else opened.encoder_tokens
        grown: Any = 0
        for span, size in self.grown.items():
            stairs = span.stairs(tokens if encoder is None else encoder)
            grown = grown + size * (stairs_at(stairs, tokens + 1) - stairs_at(stairs, tokens))
        arrays: dict[str, Any] = {"bytes_per_token": grown}
        memory = None
        if self.form is None:
            replicas = self.opened.setup.parallel.dp
            cache = self.curve.total_bytes(tokens, sequences)
            needed = self.curve.needed_bytes(tokens, sequences if replicas == 1 else -(-sequences // replicas))
        else:
            memory = self.form.at(tokens, sequences)
            cache, needed, usable = memory.total_bytes, memory.needed_bytes, self.form.usable[1]
            low, high = (usable - memory.left(end) + needed for end in ("high", "low"))
            arrays |= {"total_per_gpu_low_bytes": larger(0, low), "total_per_gpu_high_bytes": high, "usable_bytes": usable}
            arrays["fits"] = _verdicts(*map(memory.holds, ENDS))
        if memory is None or self.opened.setup.hardware.kv_memory is not None:
            # A budget that the user gives holds the cache alone.
            weights, on_gpu = (self.row[name] for name in _WEIGHTS)
            arrays["total_bytes"] = None if weights is None else cache + weights
            arrays["total_per_gpu_bytes"] = None if on_gpu is None else needed + on_gpu
        else:
            parts = {section: memory.parts_bytes("expected", section.value) for section in Section}
            arrays["weights_per_gpu_bytes"] = parts[Section.WEIGHTS]
            arrays["total_bytes"] = self._total(memory)
            arrays["total_per_gpu_bytes"] = sum(parts.values()) + needed
        arrays |= {"cache_total_bytes": cache, "cache_per_gpu_bytes": needed}
        if self.times is not None:
            rates = quantity_of(self.times.decode(sequences, tokens)).per_s(sequences)
            ends = rates.expected, rates.low, rates.high
            arrays |= {name: rate.round(SPEED_DIGITS) for name, rate in zip(OF_SPEED, ends, strict=True)}
        shape = len(piece.seqs), len(piece.batches)
        columns = {name: _column(array, shape) for name, array in arrays.items()}
        return {**self.row, **columns, "warning": self._warning(piece)}

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
    """The figures of all requests that differ from this one in length and batch alone; ``None`` if the engine has no form of them.

    ``gpu`` is the accelerator that the rows name.
    """
    setup, hardware = opened.setup, opened.setup.hardware
    if setup.policy is not None or opened.load.lengths or opened.load.sharing.asked:
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
    warnings = lasting_warnings(opened, known_weights=memory.weights.bytes is not None, verdict=form is not None)
    row: dict[str, Any] = {
        "model": opened.model.id,
        "engine": opened.engine.name,
        "engine_version": opened.deployment.version or None,
        "dtype": opened.dtypes.kv,
        "gpu": gpu if form is None or hardware.gpu is None else hardware.gpu.id,
        "gpus": None if form is None else setup.gpus,
        "tp": setup.parallel.tp,
        "policy": None,
        "definition": definition,
        "weights_bytes": memory.weights.bytes,
        "weights_per_gpu_bytes": memory.per_gpu.weights,
        **dict.fromkeys(_OF_A_VERDICT),
        "error": None,
    }
    grown: dict[Span, int] = {}
    for group in opened.model.stack.groups:
        for tensor in group.kind.tensors():
            size = group.count * tensor.bytes_per_position(opened.dtypes.roles[tensor.role])
            if size:
                grown[tensor.span] = grown.get(tensor.span, 0) + size
    codes = tuple(note.code for note in warnings)
    times = step_times(opened)
    if times is not None and times.speed_class is None:
        times = None
    return Family(opened=opened, curve=curve, form=form, row=row, warnings=codes, grown=grown, times=times)


def _verdicts(low: Any, expected: Any, high: Any) -> Any:
    """The verdicts as an array of text, from arrays of what fits at each end of the estimates: :meth:`Verdict.of`, element by element."""
    import numpy as np

    certain = (low == expected) & (high == expected)
    words = np.where(expected, np.where(certain, 3, 2), np.where(certain, 0, 1))
    return np.array(_WORDS, dtype=object)[words]


def _column(array: Any, shape: tuple[int, int]) -> Column:
    """The column of an array: a single value if all points have the same, else a value for each point."""
    import numpy as np

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
