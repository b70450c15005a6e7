"""Hugging Face Text Generation Inference: blocks of a pool, by the back end of attention."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, ClassVar, Final

from msgspec.structs import replace

from hwcalc.engines.base import Opened
from hwcalc.engines.capability import check_generation
from hwcalc.engines.general import GeneralEngine
from hwcalc.engines.kinds import EVERY_TOKEN
from hwcalc.engines.model_dtypes import known_dtype
from hwcalc.engines.noted import Noted
from hwcalc.engines.options import Choices, EngineOption, choice_option, integer_option, is_auto, number_option
from hwcalc.engines.pages import blocks_of_requests
from hwcalc.engines.policies import Support
from hwcalc.engines.request import Request
from hwcalc.engines.stored import Dtypes, StoredTensor
from hwcalc.engines.tgi.layers import RULES, check_layers, layer_tensors
from hwcalc.engines.tgi.models import check_class, check_weights, is_native
from hwcalc.engines.tgi.opened import BLOCKS, FRACTION, REQUESTS, WIGGLE_ROOM, TgiOpened, of_tgi, wiggle_room
from hwcalc.engines.turns import Turns
from hwcalc.errors import UnknownNameError, UnsupportedError, UsageError
from hwcalc.formulas import ChunkedAttention, LatentAttention, LayerKind, Role, SlidingAttention
from hwcalc.formulas.formats import BF16
from hwcalc.model import Definition, ModelSpec, Note
from hwcalc.quantization.planned import format_name
from hwcalc.text import brief

if TYPE_CHECKING:
    from hwcalc.engines.budget import Budget
    from hwcalc.engines.command import CommandInput
    from hwcalc.engines.forms import Curve, MemoryForm
    from hwcalc.engines.pool import PoolInfo
    from hwcalc.engines.rank_weights import Rules
    from hwcalc.engines.saving import Saving

__all__ = ["Tgi"]

_FLOATS: Final = ("bf16", "fp16")
_SWITCH: Final = choice_option("true", "false", "1", "0")
_OPTIONS: Final[tuple[tuple[str, str, str, Callable[[str, str], object]], ...]] = (
    ("attention", "back end, which decides the tokens of a block", "by head width and GPU", choice_option("auto", *BLOCKS)),
    ("cuda_memory_fraction", "share of the GPU", str(FRACTION), number_option(1)),
    ("wiggle_room", "share of that for weights and cache (TGI_WIGGLE_ROOM)", str(WIGGLE_ROOM), wiggle_room),
    ("max_batch_prefill_tokens", "tokens of the warm-up", "by GPU and model, or 4096", integer_option(1, 2**30)),
    ("max_concurrent_requests", "requests at once", str(REQUESTS), integer_option(1, 2**20)),
    ("prefix_caching", "keep blocks of finished requests", "with flashinfer", _SWITCH),
)
_OLDEST_GPU: Final = 75


class Tgi(GeneralEngine):
    """The pool of TGI."""

    name: ClassVar[str] = "tgi"
    title: ClassVar[str] = "Text Generation Inference: blocks for every token of every layer"
    label: ClassVar[str] = "TGI"
    definition: ClassVar[Definition] = Definition.ENGINE
    cache_is: ClassVar[str] = "blocks of the planned sequences"
    pool_is: ClassVar[str] = "KV-cache blocks x block size"
    versions: ClassVar[tuple[str, ...]] = ("3.3.6",)
    source: ClassVar[str] = "TGI db931fcf42da (3.3.6-dev0), models/flash_causal_lm.py"
    kinds: ClassVar[frozenset[type[LayerKind]] | None] = frozenset(RULES)
    unbounded: ClassVar[Mapping[type[LayerKind], str]] = MappingProxyType(
        {SlidingAttention: EVERY_TOKEN, ChunkedAttention: EVERY_TOKEN}
    )
    has_command: ClassVar[bool] = True
    pooled: ClassVar[bool] = True
    weight_choices: ClassVar[tuple[str | None, ...]] = (None, "fp8", "bnb4")
    choices: ClassVar[Choices | None] = None
    options: ClassVar[Mapping[str, EngineOption]] = MappingProxyType(
        {name: EngineOption(name=name, help=text, default=default, check=check) for name, text, default, check in _OPTIONS}
    )

    def unchecked(self, model: ModelSpec, request: Request) -> TgiOpened:
        return TgiOpened(engine=self, model=model, request=request, version=self.version(request.engine_version))

    def dtypes(self, opened: Opened) -> Noted[Dtypes]:
        """The model's dtype, or fp8 with one scale for a whole tensor, which is not counted."""
        own, published = known_dtype(of_tgi(opened).model_format), of_tgi(opened).published_format
        kept = own if published is None else known_dtype(published)
        why = (
            "in which TGI loads this model, whatever its config says" if kept is own else "the kv_cache_scheme of the checkpoint"
        )
        message = f"KV dtype auto: {kept.name}, {why}. Set it with --dtype."
        notes: tuple[Note, ...] = (Note(code="default-dtype", message=message),)
        if not is_auto(opened.request.dtype):
            from hwcalc.engines.tgi.command import KV_NAMES

            asked = (opened.request.dtype or "").strip().lower()
            spelled = {value: name for name, value in KV_NAMES.items()}.get(asked, asked)
            if spelled not in (*_FLOATS, *KV_NAMES):
                raise UnknownNameError(
                    f"--dtype {brief(asked, 40)}: TGI keeps its cache in the model's dtype, fp8_e4m3fn or fp8_e5m2.",
                    option="dtype",
                    hint=f"Use: --dtype auto, {', '.join((*_FLOATS, 'fp8', 'fp8_e5m2'))}",
                )
            kept, notes = known_dtype("fp8_e4m3" if spelled == "fp8" else spelled), ()
            own = kept if spelled in _FLOATS else own
        roles = dict.fromkeys(Role, kept)
        roles |= {Role.STATE: own, Role.CONV: own}
        return Noted(Dtypes(kv=kept.name, roles=MappingProxyType(roles)), notes)

    def check_class(self, opened: Opened) -> None:
        check_class(opened.model)

    def check(self, opened: Opened) -> None:
        own = of_tgi(opened)
        for name in ("pp", "dcp", "ep"):
            if getattr(opened.request.parallel, name) > 1:
                raise UnsupportedError(f"TGI has no --{name}: it shards every layer.", hint="Use: --tp")
        check_generation(
            opened.request.hardware.gpu, _OLDEST_GPU, "GPUs below CUDA capability 7.5 are not supported by TGI's attention."
        )
        if opened.request.sharing.beams > 1:
            raise UnsupportedError("TGI has no beam search.", hint="Leave out --beams, or use: --samples")
        _check_weights(opened.request.weights)
        check_weights(opened.model, format_name(opened.request.weights))
        check_layers(own)
        _check_fp8(own)
        _check_window(own)
        if own.settings.prefix_caching and own.settings.attention == "paged":
            raise UsageError("TGI: Prefix caching is only supported with flashinfer.", hint="Leave out prefix_caching.")
        opened.tell(*opened.shared("remarks", lambda: tuple(_remarks(own))))

    def tensors(self, kind: LayerKind, opened: Opened) -> tuple[StoredTensor, ...]:
        return layer_tensors(kind, of_tgi(opened))

    def expands_latents(self, opened: Opened) -> bool:
        return True

    def budget(self, opened: Opened) -> Noted[Budget | None]:
        own = of_tgi(opened)
        if not own.pooled:
            return super().budget(opened)
        from hwcalc.engines.tgi.memory import plan_budget

        return opened.shared("budget", lambda: plan_budget(own))

    def pool(self, opened: Opened, budget_bytes: int) -> Noted[PoolInfo | None]:
        from hwcalc.engines.tgi.pool import plan_pool

        own = of_tgi(opened)
        return Noted(plan_pool(own, budget_bytes) if own.pooled else None)

    def holds(self, opened: Opened, budget_bytes: int) -> bool:
        from hwcalc.engines.tgi.pool import block_bytes

        own = of_tgi(opened)
        if not own.pooled:
            return opened.needed_bytes <= budget_bytes
        return budget_bytes >= 0 and budget_bytes // block_bytes(own) - 1 >= blocks_of_requests(own, own.settings.block_size)

    def most_sequences(self, opened: Opened) -> tuple[int, str]:
        return of_tgi(opened).settings.most_requests * opened.request.parallel.dp, "max_concurrent_requests"

    def longest(self, opened: Opened, budget_bytes: int, bound: int) -> int | None:
        from hwcalc.engines.tgi.pool import block_bytes

        own = of_tgi(opened)
        if not own.pooled or opened.request.lengths or opened.request.sharing.asked:
            return None
        usable = max(0, max(0, budget_bytes) // block_bytes(own) - 1)
        return min(bound, usable // opened.request.replica_batch * own.settings.block_size)

    def curve(self, opened: Opened) -> Curve | None:
        curve, window = super().curve(opened), _window_of(of_tgi(opened))
        return curve if curve is None or window is None else replace(curve, most_tokens=window + 1)

    def form(self, opened: Opened) -> MemoryForm | None:
        """The warm-up is the same for all requests, and so are all parts of the equation; one block is kept for health checks."""
        from hwcalc.engines.forms import Blocks

        own = of_tgi(opened)
        if not own.pooled:
            return super().form(opened)
        from hwcalc.engines.general_form import form_with
        from hwcalc.engines.tgi.pool import block_bytes

        return form_with(opened, blocks=Blocks(bytes=block_bytes(own), null=1))

    def turns(self, model: ModelSpec, options: Mapping[str, str]) -> Turns:
        """ROCm takes no prompt that is longer than a window, and a prompt has a token less than its sequence."""
        window = model.config.get("sliding_window")
        return super().turns(model, options).also(tokens=(window + 1,) if isinstance(window, int) else ())

    def chunks(self, opened: Opened) -> tuple[int | None, int | None, int | None]:
        tokens = of_tgi(opened).settings.prefill_tokens
        return tokens, tokens, tokens

    def weight_rules(self, opened: Opened) -> Rules:
        from hwcalc.engines.tgi.weights import TGI

        return TGI

    def weight_dtype(self, opened: Opened) -> str:
        """16 bits, whatever the checkpoint has."""
        return BF16.name

    def sharing_support(self, opened: Opened) -> Support:
        """Source: backends/v3/src/radix.rs."""
        how = "every request has its own blocks"
        if of_tgi(opened).settings.prefix_caching:
            how = "blocks of earlier prompts are found again in a tree; what requests that run at once share is not planned"
        return Support(offered=False, how=how)

    def savings(self, opened: Opened, short_bytes: int) -> Iterator[Saving]:
        from hwcalc.engines.saving import Cost, Saving

        if of_tgi(opened).settings.attention in ("flashinfer", "paged"):
            yield Saving(Cost.CACHE, "fp8 cache", {"dtype": "fp8"})
        yield Saving(Cost.WEIGHTS, "fp8 weights", {"weights": "fp8"})
        yield Saving(Cost.FEW_BITS, "bnb4 weights", {"weights": "bnb4"})

    def flag(self, name: str, value: object) -> str:
        from hwcalc.engines.tgi.command import flag_text

        return flag_text(name, value)

    def command(self, planned: CommandInput) -> list[str]:
        from hwcalc.engines.tgi.command import launch

        return launch(planned)


def _check_weights(requested: str | None) -> None:
    name = format_name(requested)
    if name is None or name in _FLOATS:
        return
    from hwcalc.engines.tgi.command import QUANTIZED

    if name in QUANTIZED:
        return
    raise UnsupportedError(
        f"TGI does not make {name} weights of the published ones.",
        hint=f"Use --weights {', '.join((*_FLOATS, *QUANTIZED))}, or a model that is published so.",
    )


def _window_of(opened: TgiOpened) -> int | None:
    """The window that limits a prompt; ``None`` if none does."""
    window = opened.model.config.get("sliding_window")
    return window if opened.vendor == "amd" and isinstance(window, int) and window >= 0 else None


def _check_window(opened: TgiOpened) -> None:
    """ROCm's attention has no windows: a prompt may not be longer than the window that the config names."""
    window = _window_of(opened)
    if window is not None and opened.tokens - 1 > window:
        raise UnsupportedError(
            "TGI: The backend rocm does not support sliding window attention that is used by the model type "
            f"{opened.model.model_type}: `--max-input-tokens` must not exceed sliding_window={window}.",
            hint=f"Use: --seq {window + 1}",
        )


def _check_fp8(opened: TgiOpened) -> None:
    """As ``KVCache`` in layers/attention/kv_cache.py."""
    if not opened.dtypes.kv.startswith("fp8"):
        return
    attention = opened.settings.attention
    if attention == "flashdecoding":
        raise UnsupportedError(
            "TGI: FP8 KV cache is currently only supported for flashinfer on CUDA and paged attention.",
            hint="Use: --dtype auto, or --engine-option attention=paged",
        )
    if opened.vendor == "amd" and opened.dtypes.kv == "fp8_e5m2":
        raise UnsupportedError("TGI: float8_e5m2 FP8 KV cache is not supported on AMD ROCm.", hint="Use: --dtype fp8")
    if not is_native(opened.model):
        raise UnsupportedError(
            f"TGI runs {opened.model.model_type} by its transformers back end, which takes no --kv-cache-dtype.",
            hint="Use: --dtype auto",
        )


def _remarks(opened: TgiOpened) -> Iterator[Note]:
    settings, model = opened.settings, opened.model
    kinds: set[type[LayerKind]] = {type(group.kind) for group in opened.plain_stack.groups}
    if opened.pooled:
        size = "one token" if settings.block_size == 1 else f"{settings.block_size} tokens"
        message = f"Attention by {settings.attention}: blocks of {size}. Set it with --engine-option attention."
        yield Note(code="attention", message=message)
    if not kinds.isdisjoint((SlidingAttention, ChunkedAttention)):
        message = "TGI keeps every token of windowed layers: its server gives the allocator of blocks no window."
        yield Note(code="window-not-honoured", message=message)
    if LatentAttention in kinds:
        yield Note(
            code="latent-expanded", message="TGI stores latent attention as keys and values of every head, both 192 wide or more."
        )
    if not is_native(model):
        message = f"TGI has no class of its own for {model.model_type}: its transformers back end runs it."
        yield Note(code="transformers-back-end", message=message)
