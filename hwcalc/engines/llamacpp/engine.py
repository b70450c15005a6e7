"""llama.cpp v0.5.0 (commit 0c1e57098): what ``llama_init_from_model`` allocates for a context.

A context allocates all of its cells when it is made. Their number follows from ``n_ctx``, which is shared by all sequences, and from the
number of sequences; a longer conversation takes no more memory, and one that fills its cells ends.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Final

from hwcalc.engines.base import Engine, Opened
from hwcalc.engines.kinds import BY_MODEL
from hwcalc.engines.llamacpp.assignment import PINNED
from hwcalc.engines.llamacpp.opened import LlamacppOpened, of_llamacpp
from hwcalc.engines.llamacpp.options import OPTIONS
from hwcalc.engines.llamacpp.place_options import PLACE_OPTIONS
from hwcalc.engines.llamacpp.places import LlamacppPlaces
from hwcalc.engines.llamacpp.refusals import check_context, check_weights
from hwcalc.engines.llamacpp.rules import RULES, ngram_state
from hwcalc.engines.llamacpp.settings import MAX_SEQUENCES, dtypes_of, read_settings
from hwcalc.engines.noted import Noted
from hwcalc.engines.options import Choices, EngineOption, is_auto, is_on
from hwcalc.engines.pool import PoolInfo
from hwcalc.engines.request import Request
from hwcalc.engines.stored import Dtypes, StoredTensor
from hwcalc.errors import UnknownNameError, UnsupportedError
from hwcalc.formulas import LayerKind, SlidingAttention
from hwcalc.model import Definition, ModelSpec, Note
from hwcalc.parsers.gguf.hparams import hparams_of
from hwcalc.text import brief

if TYPE_CHECKING:
    from hwcalc.engines.command import CommandInput
    from hwcalc.engines.forms import Curve, MemoryForm
    from hwcalc.engines.policies import Support
    from hwcalc.engines.saving import Saving
    from hwcalc.engines.turns import Turns
    from hwcalc.policies.base import Chosen

__all__ = ["Llamacpp"]

_AS_PUBLISHED: Final = "Planned are weights as the checkpoint has them. Most run a smaller file: --weights q4_k_m, or auto."


class Llamacpp(LlamacppPlaces):
    """The contexts of llama.cpp."""

    name: ClassVar[str] = "llamacpp"
    title: ClassVar[str] = "llama.cpp: llama-server and bindings"
    label: ClassVar[str] = "llama.cpp"
    definition: ClassVar[Definition] = Definition.ENGINE
    cache_is: ClassVar[str] = "cells of the whole context, from the start"
    pool_is: ClassVar[str] = "n_ctx"
    versions: ClassVar[tuple[str, ...]] = ("v0.5.0",)
    source: ClassVar[str] = "llama.cpp 0c1e57098 (v0.5.0)"
    kinds: ClassVar[frozenset[str]] = frozenset(RULES)
    unbounded: ClassVar[Mapping[type[LayerKind], str]] = MappingProxyType({SlidingAttention: BY_MODEL})
    options: ClassVar[Mapping[str, EngineOption]] = MappingProxyType({**OPTIONS, **PLACE_OPTIONS})
    choices: ClassVar[Choices | None] = Choices(
        dtypes=("q8_0", "q4_0"),
        weights=("bf16", "q8_0", "q6_k", "q4_k_m"),
        # With layers left to the host, what is there follows from length and batch.
        options=MappingProxyType({"n_gpu_layers": "all"}),
    )
    has_command: ClassVar[bool] = True
    file_remark: ClassVar[str] = (
        "The file is one that llama.cpp's converter and llama-quantize make, or that others publish under a like name."
    )

    def resolve_version(self, requested: str) -> str:
        """``0.5``, ``v0.5.0`` and ``0.5.0`` are the release whose rules are known."""
        if requested.removeprefix("v") in ("0.5", "0.5.0"):
            return self.versions[0]
        raise UnknownNameError(
            f"--engine {self.name}@{brief(requested, 20)}: no rules for that version.",
            option="engine",
            hint=f"Known: {', '.join(self.versions)}. Builds shortly before and after it have the same rules: --engine {self.name}",
        )

    def unchecked(self, model: ModelSpec, request: Request) -> Opened:
        return LlamacppOpened(engine=self, model=model, request=request, version=self.version(request.engine_version))

    def weight_sizes(self, model: ModelSpec) -> Mapping[str | None, int]:
        from hwcalc.quantization.published_mixes import mix_sizes

        return mix_sizes(model, self.weight_choices_of(model), hparams_of(model).architecture.always_loaded)

    def dtypes(self, opened: Opened) -> Noted[Dtypes]:
        one = of_llamacpp(opened).settings
        found = dtypes_of(one.type_k, one.type_v)
        named = not is_auto(opened.request.dtype) or {"type_k", "type_v"} & opened.request.options.keys()
        return Noted(found, () if named else (_default_dtype(found.kv),))

    def check(self, opened: Opened) -> None:
        own = of_llamacpp(opened)
        if opened.request.sharing.beams > 1:
            raise UnsupportedError("llama.cpp has no beam search.", hint="Leave out --beams, or use: --samples")
        check_weights(own.request.weights)
        check_context(own)
        own.place_options  # noqa: B018 - refuses what cannot be
        if own.request.weights is None and own.model.gguf is None and own.request.hardware.gpu is not None:
            own.tell(Note(code="default-weights", message=_AS_PUBLISHED))

    def tensors(self, kind: LayerKind, opened: Opened) -> tuple[StoredTensor, ...]:
        own = of_llamacpp(opened)
        return RULES[type(kind).__name__](kind, own if kind.kept is not None else own.uncut)

    def extras(self, opened: Opened) -> tuple[StoredTensor, ...]:
        return ngram_state(of_llamacpp(opened))

    def length_named(self, model: ModelSpec, batch: int, options: Mapping[str, str]) -> int | None:
        """With ``n_ctx``, what each sequence may have of it."""
        if "n_ctx" not in options:
            return None
        self.check_options(options)
        named = read_settings(Request(seq=1, batch=max(1, batch), options=options), hparams_of(model))
        return min(named.n_ctx_asked, named.n_ctx_seq) or None

    def turns(self, model: ModelSpec, options: Mapping[str, str]) -> Turns:
        """As many sequences as there may be slots; outside llama-server no more than a batch has tokens, which a short context cuts."""
        return super().turns(model, options).also(sequences=(MAX_SEQUENCES, hparams_of(model).n_ctx_train))

    def most_sequences(self, opened: Opened) -> tuple[int, str] | None:
        request, one = opened.request, of_llamacpp(opened).settings
        limits = [(one.n_seq_max if "n_seq_max" in request.options else MAX_SEQUENCES, "n_seq_max")]
        if "n_ctx" in request.options:
            limits.append((max(request.replica_batch, one.n_ctx_asked // request.seq), "n_ctx"))
        most, name = min(limits)
        return request.parallel.dp * most, name

    def curve(self, opened: Opened) -> Curve | None:
        from hwcalc.engines.llamacpp.form import curve_of

        return curve_of(of_llamacpp(opened))

    def form(self, opened: Opened) -> MemoryForm | None:
        from hwcalc.engines.llamacpp.form import form_of

        own = of_llamacpp(opened)
        # A family begins with the answers of the one that it was pinned from.
        form: MemoryForm | None = own.shared(("form", PINNED in own.family), lambda: form_of(own))
        return form

    def longest(self, opened: Opened, budget_bytes: int, bound: int) -> int | None:
        """With ``n_ctx``, the length does not depend on the memory."""
        own = of_llamacpp(opened)
        if "n_ctx" not in own.request.options:
            return None
        return min(bound, own.settings.n_ctx_seq) if own.needed_bytes <= budget_bytes else 0

    def pool(self, opened: Opened, budget_bytes: int) -> Noted[PoolInfo | None]:
        """The context itself: its cells do not follow from the memory, but it must fit."""
        own, needed = of_llamacpp(opened), opened.needed_bytes
        one = own.settings
        return Noted(
            PoolInfo(
                budget_bytes=budget_bytes,
                tokens=one.n_ctx,
                bytes_per_token=None,
                blocks=None,
                block_size=None,
                bytes_per_block=None,
                blocks_per_request=None,
                max_concurrency=None,
                max_requests=None,
                max_seq=one.n_ctx_seq if opened.evicted is None else max(opened.tokens, one.n_ctx_seq),
                swa_tokens=one.n_stream * one.cells_swa if any(own.hparams.is_swa) else None,
                state_slots=None,
                needed_bytes=needed,
                fits=needed <= budget_bytes,
                message=None,
                requires=(),
                definition=Definition.ENGINE,
            )
        )

    def holds(self, opened: Opened, budget_bytes: int) -> bool:
        """Whether its context fits: there is no pool to be filled."""
        return opened.needed_bytes <= budget_bytes

    def scored_at_once(self, opened: Opened) -> tuple[int, int]:
        """The prompts that end in one batch of ``n_ubatch``. In one buffer for all sequences each token has scores of all their cells."""
        one, batch = of_llamacpp(opened).settings, opened.request.replica_batch
        prompt = max(1, opened.request.prompt_tokens - opened.ahead)
        rows = min(one.n_ubatch, batch * prompt) * (batch if one.kv_unified else 1)
        return min(batch, 1 + (one.n_ubatch - 1) // prompt), rows

    def prefill_bytes(self, opened: Opened, stage: int) -> int:
        """A context has all its cells from the start."""
        return opened.needed_bytes

    def pads(self, opened: Opened) -> bool:
        from hwcalc.engines.llamacpp.sharing import is_unified

        return not is_unified(opened.request)

    def sharing_support(self, opened: Opened) -> Support:
        from hwcalc.engines.llamacpp.sharing import sharing_support

        return sharing_support(opened)

    def policy_support(self, opened: Opened, chosen: Chosen) -> Support:
        from hwcalc.engines.llamacpp.evicting import support

        planned = of_llamacpp(opened)
        return support(planned, chosen, planned.unshifted, planned.shift_words)

    def started_by(self, options: Mapping[str, str]) -> Engine:
        """Ollama, if the options say so: it is this engine with other defaults."""
        if self.name == "llamacpp" and is_on(options.get("ollama")):
            from hwcalc.engines import find_engine

            return find_engine("ollama")[0]
        return self

    def settings(self, opened: Opened) -> Mapping[str, int | str | bool]:
        """As the log of llama.cpp names them."""
        return of_llamacpp(opened).settings.named

    def savings(self, opened: Opened, short_bytes: int) -> Iterator[Saving]:
        from hwcalc.engines.llamacpp.savings import savings

        return savings(of_llamacpp(opened), short_bytes)

    def own_settings(self, opened: Opened, settings: Mapping[str, Any]) -> Mapping[str, Any]:
        """Lengths and numbers of sequences together are the context of all slots."""
        if not settings.keys() & {"seq", "batch"}:
            return settings
        seq, batch = settings.get("seq", opened.tokens), settings.get("batch", opened.batch)
        others = {name: value for name, value in settings.items() if name not in ("seq", "batch")}
        return {"n_ctx": seq * batch, **({"n_seq_max": batch} if "batch" in settings else {}), **others}

    def flag(self, name: str, value: object) -> str:
        from hwcalc.engines.llamacpp.command import flag_text

        return flag_text(name, value)

    def command(self, planned: CommandInput) -> list[str]:
        from hwcalc.engines.llamacpp.command import serve

        return serve(planned)


@lru_cache(maxsize=16)
def _default_dtype(kv: str) -> Note:
    return Note(code="default-dtype", message=f"KV dtype {kv}: llama.cpp's default. Set it with --dtype.")
