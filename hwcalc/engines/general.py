"""The general rules, which an engine follows unless it overrides them.

Each layer has its own tensors. ``tp`` divides heads, but not a latent; ``pp`` divides layers, ``dp`` sequences, and ``dcp`` the tokens
of attention. The memory left for the cache follows from the equation of :mod:`hwcalc.engines.memory`.
"""

from __future__ import annotations

from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, ClassVar

from hwcalc.engines.deployment import Deployment, Occupancy
from hwcalc.engines.engine import Engine
from hwcalc.engines.models import loads_as_published, plain_format
from hwcalc.engines.setup import ALONE, Parallel
from hwcalc.engines.stored import allocations_of, bytes_of, fullest_rank_bytes, stage_groups, stage_spans
from hwcalc.engines.subjects import LayerByLayer
from hwcalc.formulas.formats import FLOATS
from hwcalc.model import Note, Noted
from hwcalc.profiles.engines import runtime_profile
from hwcalc.units import parse_share

if TYPE_CHECKING:
    from fractions import Fraction

    from hwcalc.engines.forms import Curve, MemoryForm
    from hwcalc.engines.memory import Budget, BudgetPart
    from hwcalc.engines.policies import CutLayers
    from hwcalc.engines.pool import Allocation
    from hwcalc.engines.rank_weights import Rules
    from hwcalc.engines.subjects import PolicyRules
    from hwcalc.formulas.hybrid import Group


@lru_cache(maxsize=1)
def _default_margin() -> Noted[Fraction]:
    """The share of the GPU that plans leave free, with a note that says so."""
    margin = parse_share(runtime_profile().margin.value)
    message = f"Safety margin: {100 * float(margin):g} % of the GPU is left alone. Set it with --margin."
    return Noted(margin, (Note(code="default-margin", message=message),))


class GeneralDeployment(Deployment):
    """A server by the general rules. A subclass needs at least :attr:`dtypes`."""

    def weight_parts(self) -> Noted[tuple[BudgetPart, ...] | None]:
        """Weights on the GPU of the pipeline stage that holds most. ``None``, with a note, if they are unknown.

        If the size of the published files is known and the user asks for no other format, that size is divided over the ranks in the
        proportion of the counted parameters, or evenly if they are not counted. Otherwise the parameters are counted in their format.
        """
        from hwcalc.engines.memory import Section, estimated, exact
        from hwcalc.engines.rank_weights import rank_weight_bytes
        from hwcalc.quantization.planned import format_name, planned_scheme

        model, parallel, rules = self.model, self.parallel, self.weight_rules()
        weight_format = format_name(self.setup.weights)
        weight_dtype = self.weight_dtype() if weight_format is None or weight_format not in FLOATS else weight_format
        scheme, known = planned_scheme(model, weight_format)
        held = None if scheme is None else rules.held(scheme)
        unpacked = scheme is not None and held is None

        def on_ranks(parallel: Parallel) -> tuple[int, ...] | None:
            scheme = held if known else None
            key = (rules, "weights", weight_format, weight_dtype, scheme is None, parallel)
            return model.once(
                key, lambda: rank_weight_bytes(model, parallel, weight_dtype=weight_dtype, scheme=scheme, rules=rules)
            )

        stages = on_ranks(parallel)
        if model.weights is not None and weight_format is None and not unpacked and loads_as_published(model, weight_dtype):
            published = model.weights.total_bytes
            if stages is not None:
                shared = "" if parallel.gpus * parallel.ep == 1 else ", shared out as the model is cut"
                size = published * max(stages) // max(1, sum(on_ranks(ALONE) or ()))
                return Noted((exact("weights", Section.WEIGHTS, size, f"{model.weights.source}{shared}"),))
            if parallel.gpus == 1:
                return Noted((exact("weights", Section.WEIGHTS, published, model.weights.source),))
            uncounted = runtime_profile().estimate("uncounted_weights")
            each = -(-published // (parallel.tp * parallel.pp))
            return Noted((estimated("weights", Section.WEIGHTS, uncounted, times=each),))
        if stages is None or not known:
            budget = "a budget with --kv-memory"
            way_out = budget if model.counted is None else f"a format with --weights, or {budget}"
            message = f"Weights of {model.id} are not known: no verdict. Give {way_out}."
            return Noted(None, (Note(code="weights-unknown", message=message),))
        name = weight_dtype if held is None else held.name
        part = exact("weights", Section.WEIGHTS, max(stages), f"parameters of a rank, {name}")
        if scheme is None or not unpacked:
            return Noted((part,))
        message = f"The files keep the weights in {scheme.name}; transformers unpacks them when it loads them: on the GPU they are {name}."
        return Noted((part,), (Note(code="weights-unpacked", message=message),))

    def weight_rules(self) -> Rules:
        """The rules by which weights are divided over ranks; by default every matrix is divided evenly."""
        from hwcalc.engines.rank_weights import REFERENCE

        return REFERENCE

    def weight_dtype(self) -> str:
        """By default that of the model. An engine whose rules read the weights in another one says so here too."""
        return plain_format(self.model).name


class GeneralOccupancy(Occupancy):
    """What an engine holds by the general rules. A subclass needs at least :meth:`tensors`."""

    policy_class: ClassVar[type[PolicyRules]] = LayerByLayer

    @cached_property
    def cut_layers(self) -> CutLayers | None:
        """Bytes of the layers that the policy cuts, where they follow from those of a token."""
        if self.setup.policy is None:
            return None
        from hwcalc.engines.policies import cut_layers

        return cut_layers(self)

    @cached_property
    def needed_bytes(self) -> int:
        if self.cut_layers is None and self.setup.gpus == self.setup.parallel.dcp == 1:
            return self.stored_bytes
        if self.cut_layers is None:
            return fullest_rank_bytes(self, self.gpu_groups())
        # A policy has cut each layer by itself.
        sizes = self.cut_layers.sizes
        return max(sum(sizes[span.start : span.stop]) for span in stage_spans(self)) + bytes_of(self.replica.extras)

    def gpu_groups(self) -> tuple[tuple[Group, ...], ...]:
        """The layers on each GPU that differs, by kind; the fullest counts. By default those of each pipeline stage."""
        return stage_groups(self)

    def allocation(self, stage: int) -> tuple[Allocation, ...]:
        return allocations_of(self, stage_spans(self)[stage])

    def _plan_budget(self) -> Noted[Budget | None]:
        from hwcalc.engines.forms import passed_tokens
        from hwcalc.engines.memory import budget_of, forward, loaded_beside, outside
        from hwcalc.quantization.planned import format_name

        found, notes = loaded_beside(self)
        if found is None:
            return Noted(None, notes)
        gpu, memory, weights = found
        policy: tuple[BudgetPart, ...] = ()
        if self.evicted is not None:
            from hwcalc.engines.policies import policy_part

            policy = policy_part(self)
        hardware, rows, chunks = self.setup.hardware, self.request.replica_batch, self.chunks()
        weight_format = format_name(self.setup.weights)
        activations = forward(self, chunks, rows, dtype=weight_format if weight_format in FLOATS else None)
        margin, margin_notes = hardware.margin, tuple[Note, ...]()
        if margin is None and hardware.memory_utilization is None:
            # Who gives the share that the engine may use leaves no margin by default.
            margin, margin_notes = _default_margin()
        parts = (*weights, activations, *self.working(), *policy, *outside(self, gpu))
        tokens, share = passed_tokens(self.tokens, rows, chunks[1]), hardware.memory_utilization
        share = 1.0 if share is None else share
        budget, measured = budget_of(self, memory, parts, tokens=tokens, rows=rows, share=share, margin=margin)
        return Noted(budget, (*notes, *measured, *margin_notes))

    def chunks(self) -> tuple[int | None, int | None, int | None]:
        """The most tokens of one forward pass of a replica: low, expected and high; ``None`` is no limit.

        By default prompts are processed in chunks.
        """
        from hwcalc.engines.memory import chunk_tokens

        return chunk_tokens()

    def forward_tokens(self) -> tuple[int, int, int]:
        from hwcalc.engines.forms import passed_tokens

        batch = self.request.replica_batch
        low, expected, high = (passed_tokens(self.tokens, batch, chunk) for chunk in self.chunks())
        return low, expected, high

    def curve(self) -> Curve | None:
        from hwcalc.engines.general_form import general_curve

        return general_curve(self, self.gpu_groups())

    def form(self) -> MemoryForm | None:
        from hwcalc.engines.general_form import general_form

        return general_form(self, self.chunks()[1])


class GeneralEngine(Engine):
    """The general rules. A subclass needs at least a name, a :attr:`deployment` and an :attr:`occupancy`."""

    deployment: ClassVar[type[Deployment]] = GeneralDeployment
    occupancy: ClassVar[type[Occupancy]] = GeneralOccupancy
