"""A request to TGI, with what its options and the model come to.

Read, not run, in 3.3.6-dev0 (commit db931fcf42da): ``launcher/src/main.rs`` resolve_attention,
``server/text_generation_server/models/{globals,flash_causal_lm}.py``, ``layers/attention/kv_cache.py``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from hwcalc.engines.capability import check_generation
from hwcalc.engines.general import GeneralOccupancy
from hwcalc.engines.model_dtypes import known_dtype
from hwcalc.engines.noted import Noted
from hwcalc.engines.options import (
    AUTO,
    integer_option,
    is_auto,
    is_on,
    number_option,
    share_option,
)
from hwcalc.engines.pages import blocks_of_requests
from hwcalc.engines.policies import Support
from hwcalc.engines.stored import Dtypes, StoredTensor
from hwcalc.engines.tgi.launcher import head_width, prefill_tokens
from hwcalc.engines.tgi.layers import check_layers, layer_tensors
from hwcalc.engines.tgi.models import check_class, check_weights, is_bf16, is_native, published_format
from hwcalc.errors import UnknownNameError, UnsupportedError, UsageError
from hwcalc.formulas import AttentionKind, ChunkedAttention, LatentAttention, LayerKind, Mamba1, Role, SlidingAttention
from hwcalc.formulas.formats import BF16
from hwcalc.formulas.record import Record
from hwcalc.model import Note
from hwcalc.quantization.planned import format_name
from hwcalc.text import brief

if TYPE_CHECKING:
    from hwcalc.engines.budget import Budget
    from hwcalc.engines.forms import Curve, MemoryForm
    from hwcalc.engines.pool import PoolInfo
    from hwcalc.engines.rank_weights import Rules
    from hwcalc.engines.saving import Saving


_FLOATS: Final = ("bf16", "fp16")

_OLDEST_GPU: Final = 75
BLOCKS: Final[Mapping[str, int]] = MappingProxyType(
    {"flashinfer": 1, "flashdecoding": 256, "paged": 16, "flashdecoding-ipex": 64}
)
"""Back end -> tokens in a block."""

FRACTION: Final = 1.0

WIGGLE_ROOM: Final = 0.9

REQUESTS: Final = 128

_LAUNCHER_ROOM: Final = 0.95

_FLASHINFER_WIDTHS: Final = (64, 128, 256)

_NO_FLASHINFER: Final = frozenset({"falcon", "deepseek_v2"})

_AMPERE: Final = 8


class Settings(Record):
    """What the options come to. ``share`` is that of the whole GPU: ``cuda_memory_fraction`` x ``TGI_WIGGLE_ROOM``."""

    attention: str
    block_size: int
    share: float
    prefix_caching: bool
    prefill_tokens: int
    most_requests: int


class TgiOccupancy(GeneralOccupancy):
    """It also keeps the settings."""

    @cached_property
    def settings(self) -> Settings:
        """What the options come to."""
        return self.shared("settings", self._read)

    @property
    def pooled(self) -> bool:
        """Whether there is a pool of blocks: not for Mamba, whose states are made for each batch."""
        return not any(isinstance(group.kind, Mamba1) for group in self.plain_stack.groups)

    @property
    def model_format(self) -> str:
        """The dtype that TGI loads a model in without ``--dtype``, whatever its config says (``default_dtype`` in models/__init__.py)."""
        return "bf16" if is_bf16(self.model) else "fp16"

    @property
    def published_format(self) -> str | None:
        """The format of the cache that the checkpoint names, where TGI heeds it: with flashinfer on CUDA, and in its own classes."""
        heeded = self.settings.attention == "flashinfer" and self.vendor == "nvidia" and is_native(self.model)
        return published_format(self.model) if heeded else None

    @property
    def vendor(self) -> str:
        """The maker of the GPU; NVIDIA where none is named."""
        gpu = self.request.hardware.gpu
        return "nvidia" if gpu is None else gpu.vendor.lower()

    def _read(self) -> Settings:
        options = self.request.options
        attention = options.get("attention", AUTO)
        if attention == AUTO:
            attention = _attention(self)
        cached = options.get("prefix_caching")
        return Settings(
            attention=attention,
            block_size=BLOCKS[attention],
            share=_fraction(self) * _room(options, WIGGLE_ROOM),
            prefix_caching=_caches_prefixes(self, attention) if cached is None else is_on(cached),
            prefill_tokens=_whole(options, "max_batch_prefill_tokens")
            or prefill_tokens(
                self.model, self.request.hardware.gpu, self.request.parallel.tp, _fraction(self) * _room(options, _LAUNCHER_ROOM)
            ),
            most_requests=_whole(options, "max_concurrent_requests") or REQUESTS,
        )

    def choose_dtypes(self) -> Noted[Dtypes]:
        """The model's dtype, or fp8 with one scale for a whole tensor, which is not counted."""
        own, published = known_dtype(self.model_format), self.published_format
        kept = own if published is None else known_dtype(published)
        why = (
            "in which TGI loads this model, whatever its config says" if kept is own else "the kv_cache_scheme of the checkpoint"
        )
        message = f"KV dtype auto: {kept.name}, {why}. Set it with --dtype."
        notes: tuple[Note, ...] = (Note(code="default-dtype", message=message),)
        if not is_auto(self.request.dtype):
            from hwcalc.engines.tgi.command import KV_NAMES

            asked = (self.request.dtype or "").strip().lower()
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

    def check_class(self) -> None:
        check_class(self.model)

    def check(self) -> None:
        for name in ("pp", "dcp", "ep"):
            if getattr(self.request.parallel, name) > 1:
                raise UnsupportedError(f"TGI has no --{name}: it shards every layer.", hint="Use: --tp")
        check_generation(
            self.request.hardware.gpu, _OLDEST_GPU, "GPUs below CUDA capability 7.5 are not supported by TGI's attention."
        )
        if self.request.sharing.beams > 1:
            raise UnsupportedError("TGI has no beam search.", hint="Leave out --beams, or use: --samples")
        _check_weights(self.request.weights)
        check_weights(self.model, format_name(self.request.weights))
        check_layers(self)
        _check_fp8(self)
        _check_window(self)
        if self.settings.prefix_caching and self.settings.attention == "paged":
            raise UsageError("TGI: Prefix caching is only supported with flashinfer.", hint="Leave out prefix_caching.")
        self.tell(*self.shared("remarks", lambda: tuple(_remarks(self))))

    def tensors(self, kind: LayerKind) -> tuple[StoredTensor, ...]:
        return layer_tensors(kind, self)

    def expands_latents(self) -> bool:
        return True

    def plan_budget(self) -> Noted[Budget | None]:
        if not self.pooled:
            return super().plan_budget()
        from hwcalc.engines.tgi.memory import plan_budget

        return self.shared("budget", lambda: plan_budget(self))

    def plan_pool(self, budget_bytes: int) -> Noted[PoolInfo | None]:
        from hwcalc.engines.tgi.pool import plan_pool

        return Noted(plan_pool(self, budget_bytes) if self.pooled else None)

    def holds(self, budget_bytes: int) -> bool:
        from hwcalc.engines.tgi.pool import block_bytes

        if not self.pooled:
            return self.needed_bytes <= budget_bytes
        return budget_bytes >= 0 and budget_bytes // block_bytes(self) - 1 >= blocks_of_requests(self, self.settings.block_size)

    def most_sequences(self) -> tuple[int, str]:
        return self.settings.most_requests * self.request.parallel.dp, "max_concurrent_requests"

    def longest(self, budget_bytes: int, bound: int) -> int | None:
        from hwcalc.engines.tgi.pool import block_bytes

        if not self.pooled or self.request.lengths or self.request.sharing.asked:
            return None
        usable = max(0, max(0, budget_bytes) // block_bytes(self) - 1)
        return min(bound, usable // self.request.replica_batch * self.settings.block_size)

    def curve(self) -> Curve | None:
        curve, window = super().curve(), _window_of(self)
        return curve if curve is None or window is None else replace(curve, most_tokens=window + 1)

    def form(self) -> MemoryForm | None:
        """The warm-up is the same for all requests, and so are all parts of the equation; one block is kept for health checks."""
        from hwcalc.engines.forms import Blocks

        if not self.pooled:
            return super().form()
        from hwcalc.engines.general_form import form_with
        from hwcalc.engines.tgi.pool import block_bytes

        return form_with(self, blocks=Blocks(bytes=block_bytes(self), null=1))

    def chunks(self) -> tuple[int | None, int | None, int | None]:
        tokens = self.settings.prefill_tokens
        return tokens, tokens, tokens

    def weight_rules(self) -> Rules:
        from hwcalc.engines.tgi.weights import TGI

        return TGI

    def weight_dtype(self) -> str:
        """16 bits, whatever the checkpoint has."""
        return BF16.name

    def support_of_sharing(self) -> Support:
        """Source: backends/v3/src/radix.rs."""
        how = "every request has its own blocks"
        if self.settings.prefix_caching:
            how = "blocks of earlier prompts are found again in a tree; what requests that run at once share is not planned"
        return Support(offered=False, how=how)

    def savings(self, short_bytes: int) -> Iterator[Saving]:
        from hwcalc.engines.saving import Cost, Saving

        if self.settings.attention in ("flashinfer", "paged"):
            yield Saving(Cost.CACHE, "fp8 cache", {"dtype": "fp8"})
        yield Saving(Cost.WEIGHTS, "fp8 weights", {"weights": "fp8"})
        yield Saving(Cost.FEW_BITS, "bnb4 weights", {"weights": "bnb4"})


def _whole(options: Mapping[str, str], name: str) -> int | None:
    return None if name not in options else integer_option(1)(name, options[name])


def _room(options: Mapping[str, str], default: float) -> float:
    named = options.get("wiggle_room")
    return default if named is None else wiggle_room("wiggle_room", named)


def wiggle_room(name: str, value: str) -> float:
    """A share that is neither nothing nor all."""
    share = number_option(1)(name, value)
    if not 0 < share < 1:
        raise UsageError(
            f"TGI: assert {'TGI_WIGGLE_ROOM > 0' if share == 0 else 'TGI_WIGGLE_ROOM < 1'}", hint="Use: wiggle_room=0.95"
        )
    return share


def _fraction(opened: TgiOccupancy) -> float:
    name = "cuda_memory_fraction"
    return share_option(name, opened.request.options.get(name), opened.request.hardware.memory_utilization, FRACTION)


def _attention(opened: TgiOccupancy) -> str:
    """The back end that the launcher chooses: flashinfer, or another where the width of a head or the model is none of its."""
    if opened.vendor == "amd":
        # The images for ROCm set ATTENTION=paged.
        return "paged"
    if opened.vendor == "intel":
        return "flashdecoding-ipex"
    if opened.vendor != "nvidia":
        raise UnsupportedError(f"TGI has no back end for {opened.vendor} GPUs.", hint="Use: --gpu h100-sxm5-80gb")
    if _has_flashinfer(opened) and opened.model.model_type not in _NO_FLASHINFER:
        return "flashinfer"
    gpu = opened.request.hardware.gpu
    capability = None if gpu is None else gpu.compute_capability
    return "paged" if capability is not None and int(capability.partition(".")[0]) < _AMPERE else "flashdecoding"


def _caches_prefixes(opened: TgiOccupancy, attention: str) -> bool:
    """Prefix caching is on with flashinfer, unless there are adapters or the model sees pictures."""
    pictures = opened.model.facts is not None and "vision_config" in opened.model.config
    if attention == "paged" or opened.request.lora is not None or pictures:
        return False
    return _has_flashinfer(opened)


def _has_flashinfer(opened: TgiOccupancy) -> bool:
    """By the width of a head as the launcher reads it; dimensions by hand have no config that it could read."""
    if opened.model.architecture is None:
        widths = {group.kind.head_dim for group in opened.plain_stack.groups if isinstance(group.kind, AttentionKind)}
        return widths <= set(_FLASHINFER_WIDTHS)
    return head_width(opened.model.config) in _FLASHINFER_WIDTHS


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


def _window_of(opened: TgiOccupancy) -> int | None:
    """The window that limits a prompt; ``None`` if none does."""
    window = opened.model.config.get("sliding_window")
    return window if opened.vendor == "amd" and isinstance(window, int) and window >= 0 else None


def _check_window(opened: TgiOccupancy) -> None:
    """ROCm's attention has no windows: a prompt may not be longer than the window that the config names."""
    window = _window_of(opened)
    if window is not None and opened.tokens - 1 > window:
        raise UnsupportedError(
            "TGI: The backend rocm does not support sliding window attention that is used by the model type "
            f"{opened.model.model_type}: `--max-input-tokens` must not exceed sliding_window={window}.",
            hint=f"Use: --seq {window + 1}",
        )


def _check_fp8(opened: TgiOccupancy) -> None:
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


def _remarks(opened: TgiOccupancy) -> Iterator[Note]:
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
