"""Text Generation Inference: what its launcher and its server make of a model and of settings, what its pool holds, and its command line.

``KV-cache blocks: N, size: B`` of its log counts the blocks of the warm-up batch again, which are free by then, so that the pool is all that
is left (``warmup`` in ``flash_causal_lm.py``). Block 0 is for health checks (``backends/v3/src/{radix,block_allocator}.rs``). What is left is
``max(0, cudaFree - (1 - cuda_memory_fraction x TGI_WIGGLE_ROOM) x total)`` after a prefill of ``max_batch_prefill_tokens``
(``get_cuda_free_memory`` in ``utils/import_utils.py``): with a ``TGI_WIGGLE_ROOM`` of 0.9, a tenth of the total stays free; CUDA graphs are captured into it
afterwards. A model of Mamba has no pool: its states are made for each batch.

Read, not run, in 3.3.7 (commit db931fcf42da, which calls itself 3.3.6-dev0), whose memory is that of 3.3.6: ``launcher/src/main.rs``
(resolve_attention, get_head_dim, compute_optimal, vram_maximum, the default of ``max_batch_prefill_tokens``, and the flags), ``server/text_generation_server/models/{globals,flash_causal_lm,mamba,__init__}.py``,
``layers/attention/kv_cache.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from msgspec.structs import replace

from hwcalc.engines.engine import EVERY_TOKEN
from hwcalc.engines.facts import Command, Facts, RequestRules, Told, Turns, WeightFormats
from hwcalc.engines.general import GeneralEngine
from hwcalc.engines.models import known_dtype, model_classes
from hwcalc.engines.options import AUTO, choice_option, integer_option, is_auto, is_on, number_option, options_of, share_option
from hwcalc.engines.pooled import BlockPool, PooledDeployment, PooledOccupancy
from hwcalc.engines.rank_weights import RankBytes, Rules
from hwcalc.engines.stored import Dtypes, StoredTensor, Support, store_all
from hwcalc.engines.subjects import AdapterRules, Traits
from hwcalc.engines.weights_beside import adapted, adapter_numbers
from hwcalc.errors import UnknownNameError, UnsupportedError, UsageError
from hwcalc.formulas import (
    AttentionKind,
    ChunkedAttention,
    ExpandedLatentAttention,
    FullAttention,
    LatentAttention,
    LayerKind,
    Mamba1,
    Role,
    SlidingAttention,
)
from hwcalc.formulas.attention import key_value_tensors
from hwcalc.formulas.formats import BF16, FLOATS, WeightFormat
from hwcalc.formulas.record import Record
from hwcalc.formulas.tensor import Once
from hwcalc.model import Definition, ModelSpec, Note, Noted
from hwcalc.profiles.engine_flags import engine_flags
from hwcalc.quantization.planned import format_name
from hwcalc.text import brief
from hwcalc.units import MIB

if TYPE_CHECKING:
    from hwcalc.engines.devices import Saving
    from hwcalc.engines.forms import Curve
    from hwcalc.engines.memory import Budget, BudgetPart
    from hwcalc.engines.options import CommandInput
    from hwcalc.profiles.hardware_file import Gpu

BLOCKS: Final[Mapping[str, int]] = MappingProxyType(
    {"flashinfer": 1, "flashdecoding": 256, "paged": 16, "flashdecoding-ipex": 64}
)
"""Back end -> tokens in a block."""
FRACTION: Final = 1.0
WIGGLE_ROOM: Final = 0.9
REQUESTS: Final = 128
KV_NAMES: Final = {"fp8": "fp8_e4m3fn", "fp8_e4m3": "fp8_e4m3fn", "fp8_e5m2": "fp8_e5m2"}
"""A format of kvplan -> a value of ``--kv-cache-dtype``."""
QUANTIZED: Final = {"fp8": "fp8", "bnb8": "bitsandbytes", "bnb4": "bitsandbytes-nf4"}
"""A format into which TGI converts while loading -> a value of ``--quantize``."""
_FLOATS: Final = ("bf16", "fp16")
_AMPERE: Final = 8
_FP16_METHODS: Final = frozenset({"awq", "exl2", "gptq", "marlin"})
_NOT_FOR_AUTO: Final = frozenset({"awq", "gptq", "exl2"})


class Settings(Record):
    """The settings that follow from the options. ``share`` is that of the whole GPU: ``cuda_memory_fraction`` x ``TGI_WIGGLE_ROOM``."""

    attention: str
    block_size: int
    share: float
    prefix_caching: bool
    prefill_tokens: int
    most_requests: int


_LEAST_ADAPTER_RANK: Final = 8
_ADAPTER_RANKS: Final = 16


class TgiAdapters(AdapterRules):
    """The adapters of ``LORA_ADAPTERS``, all on the GPUs from the start.

    Ranks are padded for the kernels, to 8 for each GPU or to a multiple of 16, and A and B are both divided. Source: TGI 3.3.7,
    server/text_generation_server/adapters/lora.py (``prepare_weights``, ``shard_lora_weights``); ``pad_rank`` as utils/sgmv.py had it before
    the kernels moved to kernels-community/punica-sgmv.
    """

    def on_gpu(self) -> RankBytes | None:
        model, lora, tp = self.deployment.model, self.lora, self.deployment.parallel.tp
        if model.counted is None:
            return None
        least = _LEAST_ADAPTER_RANK * tp
        rank = least if lora.rank <= least else -(-lora.rank // _ADAPTER_RANKS) * _ADAPTER_RANKS
        matrices = [(block, weight) for block in model.counted.blocks for weight in block.weights if adapted(block, weight, lora)]
        numbers = sum(block.count * adapter_numbers(rank, weight) for block, weight in matrices if weight.copies == 1)
        size = numbers * lora.count * lora.element_bytes // tp
        source = f"TGI 3.3.7 adapters/lora.py: {lora.count:,} adapters of rank {lora.rank:,}, padded to {rank:,}"
        return RankBytes(low=size, expected=size, high=size, source=source)


class TgiDeployment(PooledDeployment):
    """A model on TGI: what its launcher and its server make of the options."""

    adapter_class = TgiAdapters

    reserved_blocks = 1
    reserved_for = "health_block"
    budget_is_fixed = True
    traits = Traits(expands_latents=True)

    @cached_property
    def settings(self) -> Settings:
        """The settings that follow from the options."""
        options, setup, model = self.setup.options, self.setup, self.model
        # By the width of a head as the launcher reads it; dimensions by hand have no config that it could read.
        widths = {head_width(model.config)}
        if model.architecture is None:
            widths = {group.kind.head_dim for group in self.plain_stack.groups if isinstance(group.kind, AttentionKind)}
        flashinfer = widths <= {64, 128, 256}
        attention = options.get("attention", AUTO)
        if attention == AUTO:
            attention = self._chosen_attention(flashinfer=flashinfer)
        # Prefix caching is on with flashinfer, unless there are adapters or the model sees pictures.
        pictures = model.facts is not None and "vision_config" in model.config
        caches_prefixes = flashinfer and attention != "paged" and setup.lora is None and not pictures
        cached, room = options.get("prefix_caching"), options.get("wiggle_room")
        utilization = setup.hardware.memory_utilization
        fraction = share_option("cuda_memory_fraction", options.get("cuda_memory_fraction"), utilization, FRACTION)
        # The launcher leaves a twentieth free, and the server a tenth.
        launcher, server = (0.95, WIGGLE_ROOM) if room is None else (wiggle_room("wiggle_room", room),) * 2
        return Settings(
            attention=attention,
            block_size=BLOCKS[attention],
            share=fraction * server,
            prefix_caching=caches_prefixes if cached is None else is_on(cached),
            prefill_tokens=_whole(options, "max_batch_prefill_tokens")
            or prefill_tokens(model, setup.hardware.gpu, setup.parallel.tp, fraction * launcher),
            most_requests=_whole(options, "max_concurrent_requests") or REQUESTS,
        )

    @property
    def block_size(self) -> int:
        return self.settings.block_size

    @cached_property
    def block_pool(self) -> BlockPool | None:
        return None if any(isinstance(group.kind, Mamba1) for group in self.plain_stack.groups) else super().block_pool

    @property
    def words(self) -> Mapping[str, str]:
        """The words in the row of the model's class."""
        return model_classes("tgi").row(self.model).words

    @property
    def is_native(self) -> bool:
        """True if TGI has a class of its own; also for dimensions by hand, which are of no model type."""
        return "native" in self.words or "model_type" not in self.model.config

    @property
    def quantization_method(self) -> str:
        """The format of the published weights; empty if they are not quantised."""
        return str((self.model.quantization or {}).get("quant_method", "")).lower()

    @property
    def prompt_window(self) -> int | None:
        """The window that limits a prompt: ROCm's attention has no windows. ``None`` if none does."""
        window = self.model.config.get("sliding_window")
        return window if self.setup.hardware.vendor == "amd" and isinstance(window, int) and window >= 0 else None

    @cached_property
    def dtypes(self) -> Noted[Dtypes]:
        """The model's dtype, or fp8 with one scale for a whole tensor, which is not counted."""
        # The dtype of a model without `--dtype`, whatever its config says (`default_dtype` in models/__init__.py).
        bf16 = "bf16" in self.words and self.quantization_method not in _FP16_METHODS
        dtype = kept = known_dtype("bf16" if bf16 else "fp16")
        why = "in which TGI loads this model, whatever its config says"
        # An fp8 kv_cache_scheme of compressed-tensors counts with flashinfer on CUDA, and in TGI's own classes.
        scheme = (self.model.quantization or {}).get("kv_cache_scheme")
        is_fp8 = isinstance(scheme, dict) and (scheme.get("type"), scheme.get("num_bits")) == ("float", 8)
        heeded = self.settings.attention == "flashinfer" and self.setup.hardware.vendor == "nvidia" and self.is_native
        if heeded and is_fp8 and self.quantization_method == "compressed-tensors":
            kept, why = known_dtype("fp8_e4m3"), "the kv_cache_scheme of the checkpoint"
        message = f"KV dtype auto: {kept.name}, {why}. Set it with --dtype."
        notes: tuple[Note, ...] = (Note(code="default-dtype", message=message),)
        if not is_auto(self.setup.dtype):
            requested = (self.setup.dtype or "").strip().lower()
            spelled = {value: name for name, value in KV_NAMES.items()}.get(requested, requested)
            if spelled not in (*_FLOATS, *KV_NAMES):
                raise UnknownNameError(
                    f"--dtype {brief(requested, 40)}: TGI keeps its cache in the model's dtype, fp8_e4m3fn or fp8_e5m2.",
                    option="dtype",
                    hint=f"Use: --dtype auto, {', '.join((*_FLOATS, 'fp8', 'fp8_e5m2'))}",
                )
            kept, notes = known_dtype("fp8_e4m3" if spelled == "fp8" else spelled), ()
            dtype = kept if spelled in _FLOATS else dtype
        roles = dict.fromkeys(Role, kept)
        roles |= {Role.STATE: dtype, Role.CONV: dtype}
        return Noted(Dtypes(kv=kept.name, roles=MappingProxyType(roles)), notes)

    @cached_property
    def accepted(self) -> tuple[Note, ...]:
        """Notes on what TGI makes of the model. Raises an error for a model and options that it refuses under every load."""
        self._check_weights()
        check_layers(self)
        self._check_fp8()
        if self.settings.prefix_caching and self.settings.attention == "paged":
            raise UsageError("TGI: Prefix caching is only supported with flashinfer.", hint="Leave out prefix_caching.")
        return tuple(self._remarks())

    def weight_rules(self) -> Rules:
        return TGI

    def weight_dtype(self) -> str:
        """16 bits, whatever the checkpoint has."""
        return BF16.name

    def _chosen_attention(self, *, flashinfer: bool) -> str:
        """The back end that the launcher chooses: flashinfer, or another where the width of a head or the model is none of its."""
        if self.setup.hardware.vendor == "amd":
            # The images for ROCm set ATTENTION=paged.
            return "paged"
        if self.setup.hardware.vendor == "intel":
            return "flashdecoding-ipex"
        if flashinfer and "no_flashinfer" not in self.words:
            return "flashinfer"
        gpu = self.setup.hardware.gpu
        capability = None if gpu is None else gpu.compute_capability
        return "paged" if capability is not None and int(capability.partition(".")[0]) < _AMPERE else "flashdecoding"

    def _check_weights(self) -> None:
        named = format_name(self.setup.weights)
        if named is not None and named not in _FLOATS and named not in QUANTIZED:
            raise UnsupportedError(
                f"TGI does not make {named} weights of the published ones.",
                hint=f"Use --weights {', '.join((*_FLOATS, *QUANTIZED))}, or a model that is published so.",
            )
        if self.is_native:
            return
        if self.quantization_method in _NOT_FOR_AUTO:
            raise UnsupportedError(
                f"TGI: {self.quantization_method} quantization is not supported for AutoModel", hint="Use: --engine transformers"
            )
        if named == "bnb4":
            raise UnsupportedError(
                "TGI: 4bit quantization is not supported for AutoModel", hint="Leave out --weights, or use: bnb8"
            )
        if named == "fp8":
            message = f"TGI runs {self.model.model_type} by its transformers back end, which takes no --quantize fp8."
            raise UnsupportedError(message, hint="Leave out --weights.")

    def _check_fp8(self) -> None:
        """Raise an error for an fp8 cache that TGI refuses; see ``KVCache`` in layers/attention/kv_cache.py."""
        kept = self.dtypes.value.kv
        if not kept.startswith("fp8"):
            return
        if self.settings.attention == "flashdecoding":
            message = "TGI: FP8 KV cache is currently only supported for flashinfer on CUDA and paged attention."
            raise UnsupportedError(message, hint="Use: --dtype auto, or --engine-option attention=paged")
        if self.setup.hardware.vendor == "amd" and kept == "fp8_e5m2":
            raise UnsupportedError("TGI: float8_e5m2 FP8 KV cache is not supported on AMD ROCm.", hint="Use: --dtype fp8")
        if not self.is_native:
            message = f"TGI runs {self.model.model_type} by its transformers back end, which takes no --kv-cache-dtype."
            raise UnsupportedError(message, hint="Use: --dtype auto")

    def _remarks(self) -> Iterator[Note]:
        kinds: set[type[LayerKind]] = {type(group.kind) for group in self.plain_stack.groups}
        if self.block_pool is not None:
            size = "one token" if self.block_size == 1 else f"{self.block_size} tokens"
            message = f"Attention by {self.settings.attention}: blocks of {size}. Set it with --engine-option attention."
            yield Note(code="attention", message=message)
        if not kinds.isdisjoint((SlidingAttention, ChunkedAttention)):
            message = "TGI keeps every token of windowed layers: its server gives the allocator of blocks no window."
            yield Note(code="window-not-honoured", message=message)
        if LatentAttention in kinds:
            message = "TGI stores latent attention as keys and values of every head, both 192 wide or more."
            yield Note(code="latent-expanded", message=message)
        if not self.is_native:
            message = f"TGI has no class of its own for {self.model.model_type}: its transformers back end runs it."
            yield Note(code="transformers-back-end", message=message)


class TgiOccupancy(PooledOccupancy):
    """What TGI holds under one load."""

    deployment: TgiDeployment

    def check(self) -> None:
        for name in ("pp", "dcp", "ep"):
            if getattr(self.setup.parallel, name) > 1:
                raise UnsupportedError(f"TGI has no --{name}: it shards every layer.", hint="Use: --tp")
        if self.setup.draft is not None:
            raise UnsupportedError(
                "TGI loads no draft model: it drafts by Medusa heads or n-grams.", hint="Leave out --draft, or use --engine vllm"
            )
        if self.load.sharing.beams > 1:
            raise UnsupportedError("TGI has no beam search.", hint="Leave out --beams, or use: --samples")
        accepted = self.deployment.accepted
        window = self.deployment.prompt_window
        if window is not None and self.tokens - 1 > window:
            raise UnsupportedError(
                "TGI: The backend rocm does not support sliding window attention that is used by the model type "
                f"{self.model.model_type}: `--max-input-tokens` must not exceed sliding_window={window}.",
                hint=f"Use: --seq {window + 1}",
            )
        self.tell(*accepted)

    def tensors(self, kind: LayerKind) -> tuple[StoredTensor, ...]:
        return RULES[type(kind)](kind, self)

    def chunks(self) -> tuple[int | None, int | None, int | None]:
        tokens = self.deployment.settings.prefill_tokens
        return tokens, tokens, tokens

    def _plan_budget(self) -> Noted[Budget | None]:
        if self.deployment.block_pool is None:
            return super()._plan_budget()
        # It is the same under every load: the warm-up has one long prompt.
        return self.deployment.shared("budget", self._warm_budget)

    def _warm_budget(self) -> Noted[Budget | None]:
        """The bytes left for the pool: the share of the GPU minus what is allocated after the warm-up; ``None`` if memory or weights are unknown."""
        from hwcalc.engines.memory import budget_of, forward, loaded_beside, outside

        found, notes = loaded_beside(self)
        if found is None:
            return Noted(None, notes)
        gpu, memory, weights = found
        settings = self.deployment.settings
        tokens = settings.prefill_tokens
        activations = forward(self.replica.sized(seq=max(tokens, 1), batch=1), (tokens, tokens, tokens), 1)
        parts: tuple[BudgetPart, ...] = (*weights, activations, *outside(self, gpu))
        budget, measured = budget_of(self, memory, parts, tokens=tokens, rows=1, share=settings.share)
        return Noted(budget, (*notes, *measured))

    def pool_message(self, pool: BlockPool, budget_bytes: int, requests: int) -> str | None:
        if not pool.blocks(budget_bytes):
            tokens = self.deployment.settings.prefill_tokens
            return f"Not enough memory to handle {tokens} prefill tokens. You need to decrease `--max-batch-prefill-tokens`"
        return None if requests else f"Not enough memory to handle `max_total_tokens={self.tokens}`"

    def most_sequences(self) -> tuple[int, str]:
        return self.deployment.settings.most_requests * self.setup.parallel.dp, "max_concurrent_requests"

    def curve(self) -> Curve | None:
        curve, window = super().curve(), self.deployment.prompt_window
        return curve if curve is None or window is None else replace(curve, most_tokens=window + 1)

    @cached_property
    def sharing_support(self) -> Support:
        """Source: backends/v3/src/radix.rs."""
        how = "every request has its own blocks"
        if self.deployment.settings.prefix_caching:
            how = "blocks of earlier prompts are found again in a tree; what requests that run at once share is not planned"
        return Support(offered=False, how=how)

    def savings(self, short_bytes: int) -> Iterator[Saving]:
        from hwcalc.engines.devices import Cost, Saving

        if self.deployment.settings.attention in ("flashinfer", "paged"):
            yield Saving(Cost.CACHE, "fp8 cache", {"dtype": "fp8"})
        yield Saving(Cost.WEIGHTS, "fp8 weights", {"weights": "fp8"})
        yield Saving(Cost.FEW_BITS, "bnb4 weights", {"weights": "bnb4"})


def _whole(options: Mapping[str, str], name: str) -> int | None:
    return None if name not in options else integer_option(1)(name, options[name])


def wiggle_room(name: str, value: str) -> float:
    """A share that is neither nothing nor all."""
    share = number_option(1)(name, value)
    if not 0 < share < 1:
        raise UsageError(
            f"TGI: assert {'TGI_WIGGLE_ROOM > 0' if share == 0 else 'TGI_WIGGLE_ROOM < 1'}", hint="Use: wiggle_room=0.95"
        )
    return share


_NOPE: Final = 128
_ROPE: Final = 64


class TgiRules(Rules):
    """Weights by ideal sharding. Key/value heads are divided and rounded down, a single one stays; none is repeated."""

    engine = "tgi"

    def weight_format(self, model: ModelSpec, weight_dtype: str | None) -> WeightFormat:
        """Weights are loaded in 16 bits, whatever the checkpoint has."""
        return FLOATS.get(weight_dtype or "", BF16)

    def shard(self, model: ModelSpec, kind: LayerKind, tp: int) -> LayerKind:
        if isinstance(kind, (LatentAttention, ExpandedLatentAttention)):
            return replace(kind, num_attention_heads=max(1, kind.num_attention_heads // tp))
        if not isinstance(kind, AttentionKind) or keeps_whole_heads(model):
            return kind
        heads, kv_heads = max(1, kind.num_attention_heads // tp), max(1, kind.num_key_value_heads // tp)
        return replace(kind, num_attention_heads=heads, num_key_value_heads=kv_heads)


TGI: Final = TgiRules()


def keeps_whole_heads(model: ModelSpec) -> bool:
    """True if the transformers back end does not divide the heads."""
    return "whole_heads" in model_classes("tgi").row(model).words


def check_layers(deployment: TgiDeployment) -> None:
    """Refuse what the flash classes do not take. Raises :class:`~hwcalc.errors.UnsupportedError`."""
    tp, model = deployment.setup.parallel.tp, deployment.model
    shapes = set()
    for group in deployment.plain_stack.groups:
        kind = group.kind
        if isinstance(kind, LatentAttention) and not deployment.is_native:
            raise UnsupportedError(f"TGI has no latent attention in {model.model_type}.", hint="Use: --engine reference")
        if not isinstance(kind, AttentionKind):
            continue
        shapes.add((kind.num_key_value_heads, kind.head_dim))
        if kind.num_attention_heads % tp:
            raise UnsupportedError(
                f"TGI: `num_heads` must be divisible by `num_shards` (got `num_heads`: {kind.num_attention_heads} and `num_shards`: {tp}).",
                hint="Use another --tp.",
            )
        if kind.num_key_value_heads > tp and kind.num_key_value_heads % tp and not keeps_whole_heads(model):
            raise UnsupportedError(
                f"TGI: `num_key_value_heads` must be divisible by `num_shards` (got `num_key_value_heads`: {kind.num_key_value_heads} and "
                f"`num_shards`: {tp}).",
                hint="Use another --tp.",
            )
        if 1 < kind.num_key_value_heads < tp and not keeps_whole_heads(model):
            raise UnsupportedError(
                f"TGI: assert self.num_kv_heads > 0: {kind.num_key_value_heads} key/value heads on {tp} shards, and none is repeated.",
                hint=f"Use: --tp {kind.num_key_value_heads}",
            )
    if len(shapes) > 1:
        raise UnsupportedError("TGI has one shape of keys and values for all layers of a model.", hint="Use: --engine reference")


def _attention(kind: AttentionKind, occupancy: TgiOccupancy) -> tuple[StoredTensor, ...]:
    """Every token of every layer, whatever its window; values are as wide as keys."""
    tensors = key_value_tensors(kind.num_key_value_heads, kind.head_dim, kind.head_dim, occupancy.deployment.pages)
    return store_all(occupancy, tensors)


def _latent(kind: LatentAttention, occupancy: TgiOccupancy) -> tuple[StoredTensor, ...]:
    """Keys and values of every head, both as wide as the wider of them.

    The keys ``qk_nope_dim`` and ``qk_rope_dim``, for which TGI looks, are in no config: the widths are 128 + 64 whatever it says.
    """
    width = max(_NOPE + _ROPE, kind.v_head_dim)
    axes = ("num_attention_heads", "max(qk_nope_head_dim + qk_rope_head_dim, v_head_dim)")
    tensors = key_value_tensors(kind.num_attention_heads, width, width, occupancy.deployment.pages)
    stored = store_all(occupancy, (replace(tensor, axes=axes) for tensor in tensors))
    if (kind.qk_nope_head_dim, kind.qk_rope_head_dim) == (_NOPE, _ROPE) or occupancy.together.unlike:
        return stored
    words = f"{kind.num_attention_heads:,} x {width:,}"
    return tuple(
        replace(tensor, rule=f"{occupancy.batch:,} x {tensor.positions:,} x {words} x {item.block_bytes} B: TGI's own widths")
        for tensor, item in ((tensor, occupancy.dtypes.roles[tensor.role]) for tensor in stored)
    )


def _mamba(kind: Mamba1, occupancy: TgiOccupancy) -> tuple[StoredTensor, ...]:
    """States of a batch: all columns of the convolution, in the model's dtype."""
    conv, *rest = kind.tensors()
    columns = replace(conv, shape=(*conv.shape, kind.d_conv), axes=(*conv.axes, "d_conv"), span=Once())
    return store_all(occupancy, (columns, *rest))


RULES: Final[Mapping[type[LayerKind], Callable[..., tuple[StoredTensor, ...]]]] = MappingProxyType(
    {
        FullAttention: _attention,
        SlidingAttention: _attention,
        ChunkedAttention: _attention,
        LatentAttention: _latent,
        Mamba1: _mamba,
    }
)
"""Kind of layer -> the tensors of a layer of that kind."""

_TERA: Final = 10**12
_FLOPS: Final[Mapping[str, int]] = MappingProxyType(
    {
        **dict.fromkeys(("h100-sxm5-80gb", "h100-nvl-94gb"), 900 * _TERA),
        "h200-sxm-141gb": 989 * _TERA,
        **dict.fromkeys(("a100-sxm4-80gb", "a100-sxm4-40gb", "a100-pcie-80gb"), 312 * _TERA),
        "l4": 121 * _TERA,
        "l40": 181 * _TERA,
        "l40s": 363 * _TERA,
        "a10g": 125 * _TERA,
        "a40": 149 * _TERA,
    }
)
"""GPU whose name the launcher knows -> what it takes for its speed."""
_LEAST: Final = 100
_DEFAULT: Final = 4096
_ITEM_BYTES: Final = 2
_GEMMA3_WIDTH: Final = 256


def head_width(config: Mapping[str, Any]) -> int | None:
    """``head_dim``, or the hidden width shared out over the heads; ``None`` where the keys have other names, or stand in ``text_config``.

    >>> head_width({"hidden_size": 4096, "num_attention_heads": 32}), head_width({"n_embd": 768, "n_head": 12})
    (128, None)
    """
    text = config.get("text_config")
    hidden = _number(config, "hidden_size", 0) or _number(config, "n_embd", 0)
    heads = _number(config, "num_attention_heads", 0)
    shared = hidden // heads if hidden and heads and hidden % heads == 0 else 0
    inner = _number(text, "head_dim", 0) if isinstance(text, Mapping) else 0
    special = _GEMMA3_WIDTH if inner == 0 and isinstance(text, Mapping) and config.get("model_type") == "gemma3" else 0
    return _number(config, "head_dim", 0) or shared or inner or special or None


def prefill_tokens(model: ModelSpec, gpu: Gpu | None, shards: int, share: float) -> int:
    """The default of ``max_batch_prefill_tokens``: by the speed of a GPU that it knows, at most the model's length and what memory holds.

    ``share`` is that of all memory.
    """
    config, named = model.config, model_classes("tgi").row(model).words.get("prefill_tokens", _DEFAULT)
    limits, sizes = [int(named), model.max_position_embeddings], _sizes(config)
    flops = None if gpu is None else _FLOPS.get(gpu.id)
    if gpu is None or flops is None or sizes is None:
        return min(limit for limit in limits if limit is not None)
    heads, kv_heads, width, hidden, inner, layers = sizes
    if "vision_config" not in config:
        used = _number(config, "num_experts_per_tok", 1) + _number(config, "n_shared_experts", 0)
        attention = 2 * (3 * heads + 2 * kv_heads) * width * hidden
        optimal = flops * shards // ((attention + 6 * hidden * inner * used) * layers)
        limits[0] = optimal if optimal > _LEAST else limits[0]
    vocabulary = config.get("vocab_size")
    if gpu.memory_total_mib is not None and isinstance(vocabulary, int) and not config.get("quantization_config"):
        experts = _number(config, "num_local_experts", 1)
        layer = 3 * inner * experts * hidden + (heads + 2 * kv_heads) * width + heads * width * hidden
        weights = _ITEM_BYTES * (layer * layers + 2 * hidden * vocabulary)
        token = 4 * kv_heads * width * layers + 3 * _ITEM_BYTES * (inner + inner // 2) * experts
        left = int(gpu.memory_total_mib * MIB * share) * shards - weights
        limits += [left // token] if left > 0 else []
    return min(limit for limit in limits if limit is not None)


def _sizes(config: Mapping[str, Any]) -> tuple[int, int, int, int, int, int] | None:
    """Heads, key/value heads, their width, hidden and inner width, and layers; ``None`` where a key is not there."""
    hidden = _number(config, "hidden_size", 0) or _number(config, "n_embd", 0)
    heads = _number(config, "num_attention_heads", 0)
    inner, layers = (_number(config, name, 0) for name in ("intermediate_size", "num_hidden_layers"))
    sizes = (heads, _number(config, "num_key_value_heads", heads), head_width(config) or 0, hidden, inner, layers)
    return sizes if all(sizes) else None


def _number(config: Mapping[str, Any], name: str, default: int) -> int:
    value = config.get(name)
    return value if isinstance(value, int) and value >= 0 else default


_SWITCH: Final = choice_option("true", "false", "1", "0")
_OPTIONS: Final = options_of(
    ("attention", "back end, which decides the tokens of a block", "by head width and GPU", choice_option("auto", *BLOCKS)),
    ("cuda_memory_fraction", "share of the GPU", str(FRACTION), number_option(1)),
    ("wiggle_room", "share of that for weights and cache (TGI_WIGGLE_ROOM)", str(WIGGLE_ROOM), wiggle_room),
    ("max_batch_prefill_tokens", "tokens of the warm-up", "by GPU and model, or 4096", integer_option(1, 2**30)),
    ("max_concurrent_requests", "requests at once", str(REQUESTS), integer_option(1, 2**20)),
    ("prefix_caching", "keep blocks of finished requests", "with flashinfer", _SWITCH),
)
_FLAGS: Final = engine_flags("tgi")
_VARIABLES: Final = _FLAGS.option_variables
_DTYPES: Final = {"bf16": "bfloat16", "fp16": "float16"}


class TgiCommand(Command):
    """``text-generation-launcher`` for a plan: most options are flags, some are variables."""

    known = True

    def asked(self, said: Told) -> Mapping[str, Any]:
        """Without ``--num-shard`` it takes all GPUs that it sees.

        Raises :class:`~hwcalc.errors.UsageError` for prompts as long as a whole request (``launcher/src/main.rs``, db931fc).
        """
        longest = said.extra.get("max_input_tokens", said.extra.get("max_input_length"))
        total = said.options.get("seq")
        if isinstance(longest, int) and isinstance(total, int) and longest >= total:
            raise UsageError(
                f"prompts of {longest:,} tokens leave nothing of requests of {total:,}: TGI refuses that.",
                hint=f"Write: --max-input-tokens {total - 1}",
            )
        return said.changed(**said.on_all_gpus())

    def flag(self, name: str, value: object) -> str:
        """TGI's spelling of one option of kvplan or one engine option; empty if it has no flag for it."""
        if name in _VARIABLES:
            return f"{_VARIABLES[name]}={value}"
        if name == "dtype":
            return " ".join(_kv_dtype(str(value)))
        if name == "weights":
            return " ".join(_FLAGS.words("quantization", QUANTIZED[str(value)])) if str(value) in QUANTIZED else ""
        return _FLAGS.text(name, value)

    def words(self, planned: CommandInput) -> list[str]:
        """The words for a plan. Raises :class:`~hwcalc.errors.UsageError` for what the launcher cannot be told."""
        from hwcalc.engines.options import check_one_replica
        from hwcalc.quantization.planned import format_name

        for name in ("draft", "kv_memory"):
            if getattr(planned, name) is not None:
                option = name.replace("_", "-")
                raise UsageError(f"text-generation-launcher has no flag for --{option}.", hint=f"Leave out --{option}.")
        if planned.lora is not None:
            raise UsageError("--lora names no adapter that TGI could load.", hint="Leave out --lora.")
        check_one_replica(planned, "TGI")
        of = _FLAGS.words
        words = [*_FLAGS.program, *of("model", planned.path or planned.model)]
        words += of("revision", planned.revision) if planned.revision is not None else []
        words += [*of("sharded", "true"), *of("tp", planned.parallel.tp)] if planned.parallel.tp > 1 else []
        words += [*of("seq", planned.seq), *of("max_input_tokens", max(1, planned.seq - 1))]
        words += _kv_dtype(planned.kv_dtype) if planned.kv_dtype_named else []
        if planned.weights is not None:
            # The deployment has refused all others.
            name = format_name(planned.weights) or ""
            words += of("dtype", _DTYPES[name]) if name in _DTYPES else of("quantization", QUANTIZED[name])
        if planned.memory_utilization is not None and "cuda_memory_fraction" not in planned.options:
            words += of("memory_utilization", planned.memory_utilization)
        for name, value in planned.options.items():
            words += [] if name in _VARIABLES else of(name, value)
        options = planned.options.items()
        variables = [f"{_VARIABLES[name]}={value}" for name, value in options if name in _VARIABLES and value != "auto"]
        return [*(["env", *variables] if variables else []), *words, *planned.flags]


class TgiRequests(RequestRules):
    """Requests, with the prompts that the kernels of ROCm take."""

    def turns(self, model: ModelSpec, options: Mapping[str, str]) -> Turns:
        """ROCm takes no prompt that is longer than a window, and a prompt has a token less than its sequence."""
        window = model.config.get("sliding_window")
        return super().turns(model, options).also(tokens=(window + 1,) if isinstance(window, int) else ())


class Tgi(GeneralEngine):
    """Text Generation Inference: a pool of blocks, counted as after its warm-up."""

    deployment = TgiDeployment
    occupancy = TgiOccupancy
    request_class = TgiRequests
    name = "tgi"
    title = "Text Generation Inference: blocks for every token of every layer"
    label = "TGI"
    definition = Definition.ENGINE
    facts = Facts(
        users_option="max_concurrent_requests",
        chunk_option="max_batch_prefill_tokens",
        cache_is="blocks of the planned sequences",
        pool_is="KV-cache blocks x block size",
        unbounded=MappingProxyType({SlidingAttention: EVERY_TOKEN, ChunkedAttention: EVERY_TOKEN}),
        pooled=True,
        # warmup in flash_causal_lm.py: max_total_tokens is at most blocks x block size, unless it is named.
        short_pool="takes what it holds as max_total_tokens",
        planned_on=("7.5+", "gfx*", "xe*"),
    )
    weights = WeightFormats(None, "fp8", "bnb4")
    command = TgiCommand()
    versions = ("3.3.7", "3.3.6")
    source = "TGI 3.3.7 (db931fcf42da), models/flash_causal_lm.py"
    kinds = frozenset(RULES)
    options = _OPTIONS


def _kv_dtype(name: str) -> list[str]:
    return _FLAGS.words("kv_cache_dtype", KV_NAMES[name]) if name in KV_NAMES else _FLAGS.words("dtype", _DTYPES[name])
