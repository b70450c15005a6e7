"""The options under their own names, the settings of a server, and which models and setups TensorRT-LLM's PyTorch back end takes.

Read, not run: llmapi/llm_args.py KvCacheConfig (dtype, tokens_per_block, free_gpu_memory_fraction), models' ``get_model_defaults``, and
pyexecutor/py_executor_creator.py (64 tokens in a block for FlashMLA) of the sources of 1.4. What runs: docs/source/models/supported-models.md (00b6d5a),
``register_auto_model`` in _torch/models, and _torch/pyexecutor/_util.py. A model that is there for AutoDeploy alone has a cache manager
of another back end.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from hwcalc.engines.models import model_classes
from hwcalc.engines.options import AUTO, choice_option, integer_option, is_auto, is_on, options_of, size_option
from hwcalc.errors import UncountedError, UnknownNameError, UnsupportedError, UsageError
from hwcalc.formulas import (
    CompressedAttention,
    FullAttention,
    GatedDeltaNet,
    KimiDeltaAttention,
    LatentAttention,
    LayerKind,
    Mamba2,
    SlidingAttention,
    SparseIndexer,
)
from hwcalc.formulas.record import Record
from hwcalc.model import ModelSpec, Note, Noted
from hwcalc.text import brief, shown
from hwcalc.units import parse_tokens

if TYPE_CHECKING:
    from hwcalc.engines.setup import Setup

_FLAG: Final = choice_option("true", "false", "on", "off")
_STATES: Final = choice_option("auto", "float16", "bfloat16", "float32", "fp16", "bf16", "fp32")
_MOST_WINDOWS: Final = 1024


def read_fraction(name: str, value: str) -> float:
    """A share above 0 and below 1, as ``calculate_max_num_blocks`` asserts."""
    whole, _, part = value.partition(".")
    if whole in ("", "0") and part.isascii() and part.isdecimal() and len(part) < 20 and int(part):
        return float(f"0.{part}")
    raise UsageError(f"engine option {name}={brief(value, 40)} is no share.", hint="Allowed: above 0 and below 1, such as 0.9.")


def read_windows(name: str, value: str) -> tuple[int, ...]:
    """Windows in tokens, one for each layer in turn: ``512,512,32768``. They are repeated for further layers."""
    words = value.split(",")
    if len(words) > _MOST_WINDOWS:
        raise UsageError(f"engine option {name} has {len(words):,} windows.", hint=f"At most {_MOST_WINDOWS:,}.")
    return tuple(integer_option(1)(name, word.strip()) for word in words)


def _block_option(name: str, value: str) -> int:
    size = integer_option(2, 4096)(name, value)
    if size & (size - 1):
        raise UsageError(f"engine option {name}={size:,} is no power of two.", hint="Use 32, 64 or 128.")
    return size


def is_attention_dp(options: Mapping[str, str]) -> bool:
    """True if every rank keeps requests of its own, with all heads."""
    return is_on(options.get("enable_attention_dp"))


OPTIONS: Final = options_of(
    (
        "tokens_per_block",
        "tokens in a block",
        "32, 64 for sparse latents and on SM90, 128 for DeepSeek-V4",
        _block_option,
    ),
    ("free_gpu_memory_fraction", "share of what is left after loading", "0.9", read_fraction),
    ("max_batch_size", "requests at once", "2048", integer_option(1, 2**20)),
    ("max_num_tokens", "tokens in a batch", "8192", integer_option(1, 2**30)),
    ("max_tokens", "tokens of the pool, if the memory holds as many", "by memory", integer_option(1, 2**40)),
    ("max_attention_window", "windows of the layers in turn, such as 512,512,32768", "by manager", read_windows),
    ("avg_seq_len", "tokens of a usual sequence, by which V2 divides its pools", "by model", integer_option(1, 2**40)),
    ("manager", "cache manager: v1 or v2 (use_kv_cache_manager_v2)", "by model", choice_option("v1", "v2")),
    ("max_beam_width", "beams of a request", "1", integer_option(1, 1024)),
    ("enable_attention_dp", "every rank of tp keeps requests of its own", "false", _FLAG),
    ("enable_block_reuse", "keep blocks of finished requests", "true, false for some models", _FLAG),
    ("host_cache_size", "host memory for blocks that left the GPU: 64GiB", "0", size_option),
    ("mamba_ssm_cache_dtype", "dtype of recurrent states", "auto", _STATES),
    ("periodic_snapshot_interval", "tokens between kept recurrent states", "none", integer_option(1, 2**30)),
    ("indexer_k_dtype", "format of sparse attention's indexer keys", "fp8", choice_option("fp8", "fp4")),
)

STATE_KINDS: Final = (Mamba2, GatedDeltaNet, KimiDeltaAttention)
FRACTION: Final = 0.9
"""``free_gpu_memory_fraction`` where nobody says otherwise."""
ITEM_BYTES: Final = {"fp32": 4, "fp16": 2, "bf16": 2}
_BLOCK: Final = 32
_FLASH_BLOCK: Final = 64
_COMPRESSED_BLOCKS: Final = (128, 256)
_BATCH: Final = 2048
_TOKENS: Final = 8192
_OWN_FP8: Final = "fp8_ds_mla"
_DTYPES: Final = {"fp8": "fp8", "fp8_e4m3": "fp8", "nvfp4": "nvfp4", _OWN_FP8: _OWN_FP8}
_FLOATS: Final = {"float16": "fp16", "bfloat16": "bf16", "float32": "fp32", "fp16": "fp16", "bf16": "bf16", "fp32": "fp32"}
_HOPPER: Final = "9."


class Settings(Record):
    """The settings on which the rules of the pool depend. ``v2`` is the manager; ``window_pattern`` is as the option says."""

    kv_dtype: str
    model_dtype: str
    state_dtype: str
    block: int
    fraction: float
    sequences: int
    batched_tokens: int
    most_tokens: int | None
    v2: bool
    window_pattern: tuple[int, ...] | None
    derives_windows: bool
    attention_dp: bool
    reuse: bool
    host_bytes: int
    interval: int | None
    index_fp4: bool
    expected: int | None
    """``avg_seq_len``: tokens of a usual sequence, by which V2 divides its pools."""
    tp: int
    pp: int
    ranks: int
    scratch: bool
    """True if prompts that are read reuse the blocks of one layer of each kind (DeepSeek-V4's default)."""


def read_settings(model: ModelSpec, setup: Setup, beams: int) -> Noted[Settings]:
    """The settings of a server whose requests have so many beams. Raises an error for a value that the back end does not take."""
    options, kinds = setup.options, [group.kind for group in model.stack_for("tensorrt-llm").groups]
    model_dtype = model.dtype or "bf16"
    kv_dtype, notes = _kv_dtype(model, setup, kinds, model_dtype)
    compressed = any(isinstance(kind, CompressedAttention) for kind in kinds)
    windows = options.get("max_attention_window")
    interval = options.get("periodic_snapshot_interval")
    fraction = options.get("free_gpu_memory_fraction")
    share = setup.hardware.memory_utilization
    settings = Settings(
        kv_dtype=kv_dtype,
        model_dtype=model_dtype,
        state_dtype=_state_dtype(model, options, model_dtype),
        block=_block(setup, kinds, kv_dtype),
        fraction=read_fraction("free_gpu_memory_fraction", fraction) if fraction else FRACTION if share is None else share,
        sequences=_number(options, "max_batch_size", _BATCH),
        batched_tokens=_number(options, "max_num_tokens", _TOKENS),
        most_tokens=_number(options, "max_tokens", 0) or None,
        v2=_manager(model, setup, kinds, beams),
        window_pattern=None if windows is None else read_windows("max_attention_window", windows),
        # V2 derives the windows from sliding layers of one size and full layers.
        derives_windows=len({kind.window for kind in kinds if isinstance(kind, SlidingAttention)}) == 1
        and any(isinstance(kind, FullAttention) for kind in kinds),
        attention_dp=is_attention_dp(options),
        reuse=is_on(options["enable_block_reuse"]) if "enable_block_reuse" in options else "no_reuse" not in class_words(model),
        host_bytes=size_option("host_cache_size", options.get("host_cache_size", "0")),
        interval=None if interval is None else parse_tokens(interval, "periodic_snapshot_interval", minimum=1),
        index_fp4=options.get("indexer_k_dtype") == "fp4",
        expected=_number(options, "avg_seq_len", 0) or None,
        tp=setup.parallel.tp,
        ranks=setup.parallel.tp * setup.parallel.pp * (setup.parallel.dp if is_attention_dp(options) else 1),
        pp=setup.parallel.pp,
        scratch=compressed,
    )
    if beams > 1 and options.get("max_beam_width") and _number(options, "max_beam_width", 1) < beams:
        message = f"beams {beams:,} are more than max_beam_width={options['max_beam_width']}."
        raise UsageError(message, hint="Leave out max_beam_width, or give as many beams.")
    return Noted(settings, notes)


def _number(options: Mapping[str, str], name: str, default: int, least: int = 1) -> int:
    value = options.get(name)
    return default if value is None else parse_tokens(value, f"engine option {name}", minimum=least)


def _manager(model: ModelSpec, setup: Setup, kinds: list[LayerKind], beams: int) -> bool:
    """True if the V2 manager runs: the layers need it, the user names it, or it is the model's default without beams."""
    manager, beams = setup.options.get("manager"), max(beams, _number(setup.options, "max_beam_width", 1))
    widths = {kind.head_dim for kind in kinds if isinstance(kind, (FullAttention, SlidingAttention))}
    needs = len(widths) > 1 or any(isinstance(kind, (CompressedAttention, *STATE_KINDS)) for kind in kinds)
    if needs and manager == "v1":
        message = "these layers take the V2 manager: V1 has one width for all of them, and its pool of states is not known."
        raise UnsupportedError(message, hint="Leave out --engine-option manager=v1.")
    if needs and beams > 1:
        raise UnsupportedError(
            "the V2 manager, which these layers take, has no beams.", hint="Leave out beams and max_beam_width."
        )
    if manager is not None:
        return manager == "v2" and beams == 1
    return needs or ("v2" in class_words(model) and beams == 1)


def _block(setup: Setup, kinds: list[LayerKind], kv_dtype: str) -> int:
    """Tokens in a block: as the user sets them, or as the attention kernels take them."""
    gpu = setup.hardware.gpu
    latent = any(isinstance(kind, LatentAttention) for kind in kinds)
    requested = setup.options.get("tokens_per_block")
    if any(isinstance(kind, CompressedAttention) for kind in kinds):
        size = _COMPRESSED_BLOCKS[0] if requested is None else int(requested)
        if size not in _COMPRESSED_BLOCKS:
            message = f"DeepseekV4CacheManager requires tokens_per_block in [128, 256], got {size:,}."
            raise UsageError(message, hint="Use: --engine-option tokens_per_block=128 or 256")
        return size
    sparse = latent and any(isinstance(kind, SparseIndexer) for kind in kinds)
    hopper = gpu is None or (gpu.compute_capability or _HOPPER).startswith(_HOPPER)
    if kv_dtype == _OWN_FP8 and requested not in (None, str(_FLASH_BLOCK)):
        raise UsageError(
            f"FlashInfer DSA FMHA requires tokens_per_block=64, got {requested}.", hint="Use: --engine-option tokens_per_block=64"
        )
    if latent and (hopper or (sparse and requested is None)):
        return _FLASH_BLOCK
    return _BLOCK if requested is None else parse_tokens(requested, "engine option tokens_per_block", minimum=2)


def _state_dtype(model: ModelSpec, options: Mapping[str, str], model_dtype: str) -> str:
    """The format of recurrent states: what the user names, what the config says of the cache, or that of the model; Kimi's are fp32."""
    requested = options.get("mamba_ssm_cache_dtype", AUTO)
    if "kimi" in class_words(model):
        return "fp32"
    if requested != AUTO:
        return _FLOATS[requested]
    named = next((value for path, value in model.bearing.items() if path.endswith("mamba_ssm_cache_dtype")), None)
    return _FLOATS.get(str(named), model_dtype)


def _kv_dtype(model: ModelSpec, setup: Setup, kinds: list[LayerKind], model_dtype: str) -> tuple[str, tuple[Note, ...]]:
    """The KV dtype, and a note where nobody named it. A checkpoint may name one for ``auto``."""
    spelled = (setup.dtype or AUTO).strip().lower()
    sparse = any(isinstance(kind, LatentAttention) for kind in kinds) and any(isinstance(kind, SparseIndexer) for kind in kinds)
    if is_auto(setup.dtype):
        published = _published(model)
        why = f"that of the checkpoint, {published}" if published else f"the model's dtype, {model_dtype}"
        return published or model_dtype, (Note(code="default-dtype", message=f"KV dtype auto: {why}. Set it with --dtype."),)
    if _FLOATS.get(spelled) == model_dtype:
        return model_dtype, ()
    chosen = _DTYPES.get(spelled)
    if chosen is None:
        raise UnknownNameError(
            f"--dtype {shown(spelled, 40)} is no kv_cache_config.dtype of TensorRT-LLM for this model.",
            option="dtype",
            hint=f"Known: auto (here {model_dtype}), fp8, nvfp4, and {_OWN_FP8} for sparse latent attention.",
        )
    widths = {(kind.kv_lora_rank, kind.qk_rope_head_dim) for kind in kinds if isinstance(kind, LatentAttention)}
    if chosen == _OWN_FP8 and not (sparse and widths == {(512, 64)}):
        raise UnsupportedError(
            f"--dtype {_OWN_FP8} is a row of 656 bytes for sparse latent attention of 512 + 64 numbers.", hint="Use: --dtype fp8"
        )
    if chosen == "nvfp4" and (sparse or any(isinstance(kind, CompressedAttention) for kind in kinds)):
        raise UnsupportedError("TensorRT-LLM has no nvfp4 cache for sparse latent attention.", hint="Use: --dtype fp8")
    return chosen, ()


def _published(model: ModelSpec) -> str | None:
    """The KV dtype that a checkpoint of ModelOpt names (``kv_cache_quant_algo``); ``None`` for others."""
    for place in (model.quantization or {}, (model.quantization or {}).get("quantization")):
        if isinstance(place, Mapping):
            named = _DTYPES.get(str(place.get("kv_cache_quant_algo")).lower())
            scheme = place.get("kv_cache_scheme")
            if named is None and isinstance(scheme, Mapping) and scheme.get("type") == "float":
                named = next((name for bits, name in ((8, "fp8"), (4, "nvfp4")) if scheme.get("num_bits") == bits), None)
            if named is not None:
                return named
    return None


def class_words(model: ModelSpec) -> Mapping[str, str]:
    """The columns of the model's class in ``profiles/engines/tensorrt-llm/classes.yaml``."""
    return model_classes("tensorrt-llm").row(model).words


def check_supported(model: ModelSpec, setup: Setup) -> None:
    """Raise an error for a model or a setup that the back end refuses."""
    gpu, parallel = setup.hardware.gpu, setup.parallel
    if gpu is not None and "hopper_rows" in class_words(model) and (gpu.compute_capability or "").startswith("9."):
        message = "DeepSeek-V4 on Hopper requires kv_cache_config.dtype='fp8_ds_mla', whose pages kvplan does not know."
        raise UncountedError(message, hint="Name a Blackwell GPU, such as b200-180gb, or use --engine vllm.")
    if parallel.dcp > 1:
        message = "TensorRT-LLM's estimate of its pool does not know context parallelism."
        raise UnsupportedError(message, hint="Leave out --dcp, or use --engine vllm.")
