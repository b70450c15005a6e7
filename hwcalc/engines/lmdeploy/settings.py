"""The settings of LMDeploy, with every default filled in: its options by its own names, and the formats of its cache.

Sources: lmdeploy/messages.py (QuantPolicy, PytorchEngineConfig), lmdeploy/utils.py get_max_batch_size, cli/utils.py quant_policy,
pytorch/config.py _update_torch_dtype, pytorch/engine/cache_engine.py, pytorch/engine/executor/base.py _adjust_block_size,
pytorch/configurations/.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from hwcalc.engines.devices import compute_capability
from hwcalc.engines.models import model_classes
from hwcalc.engines.options import EngineOption, choice_option, integer_option, is_auto, is_on
from hwcalc.errors import UnknownNameError, UnsupportedError, UsageError
from hwcalc.formulas import GatedDeltaNet, LatentAttention, SlidingAttention, SparseIndexer
from hwcalc.formulas.record import Record
from hwcalc.text import brief, shown

if TYPE_CHECKING:
    from fractions import Fraction

    from hwcalc.engines.setup import Setup
    from hwcalc.model import ModelSpec

PYTORCH: Final = "pytorch"
TURBOMIND: Final = "turbomind"
BACKENDS: Final = (PYTORCH, TURBOMIND)


class KvFormat(Record):
    """A ``quant_policy``: bits of a key and of a value, and how many numbers of the model's dtype a head adds to a token of each."""

    policy: int
    name: str
    key_bits: int | None
    value_bits: int | None
    key_scales: int = 0
    value_scales: int = 0

    @property
    def spelled(self) -> str:
        """The name of the format; empty where the cache is in the dtype of the model."""
        return self.name if self.policy else ""


NONE: Final = KvFormat(policy=0, name="none", key_bits=None, value_bits=None)
FORMATS: Final[Mapping[int, KvFormat]] = MappingProxyType(
    {
        one.policy: one
        for one in (
            NONE,
            KvFormat(policy=4, name="int4", key_bits=4, value_bits=4, key_scales=2, value_scales=2),
            KvFormat(policy=8, name="int8", key_bits=8, value_bits=8, key_scales=2, value_scales=2),
            KvFormat(policy=16, name="fp8", key_bits=8, value_bits=8),
            KvFormat(policy=17, name="fp8_e5m2", key_bits=8, value_bits=8),
            # Keys have a scale of each of two parts, values only one.
            KvFormat(policy=42, name="turbo_quant", key_bits=4, value_bits=2, key_scales=2, value_scales=1),
        )
    }
)
"""``quant_policy`` -> the format."""
_NAMES: Final = {one.name: one for one in FORMATS.values()} | {"fp8_e4m3": FORMATS[16]}
_OWN: Final = frozenset({"fp16", "bf16"})
"""Names of a cache that is not quantised: it is in the dtype that the model runs in."""


def parse_policy(name: str, value: str) -> int:
    """The number of a policy, from the number or the name that the command line of LMDeploy takes."""
    given = value.strip().lower()
    form = _NAMES.get(given) or (FORMATS.get(int(given)) if given.isascii() and given.isdecimal() and len(given) < 4 else None)
    if form is None:
        allowed = ", ".join(f"{known.policy} ({known.name})" for known in FORMATS.values())
        raise UsageError(f"engine option {name}={brief(value, 40)} is not known.", hint=f"Allowed: {allowed}.")
    return form.policy


def read_format(dtype: str | None, option: str | None, backend: str) -> KvFormat:
    """The format that ``--dtype`` and the option ``quant_policy`` name. Raises an error if the back end has it not."""
    requested = None if option is None else FORMATS[parse_policy("quant_policy", option)]
    name, named = (dtype or "").strip().lower(), None
    if not is_auto(dtype):
        named = NONE if name in _OWN else _NAMES.get(name)
        if named is None:
            known = ", ".join(("auto", *sorted(_OWN), *(one for one in _NAMES if one != NONE.name)))
            what = f"LMDeploy has no KV cache in {shown(dtype or '', 40)}."
            raise UnknownNameError(what, option="dtype", hint=f"Known: {known}.")
    if requested is not None and named is not None and requested != named:
        raise UsageError(
            f"--dtype {brief(dtype or '', 40)} is quant_policy {named.policy}, but quant_policy={requested.policy} is given.",
            hint="Leave out one of them.",
        )
    chosen = requested or named or NONE
    if backend != PYTORCH and chosen.policy not in (0, 4, 8):
        message = f"TurboMind has no quant_policy {chosen.policy} ({chosen.name})."
        raise UnsupportedError(message, hint=f"Use 0, 4 or 8, or: --engine-option backend={PYTORCH}")
    return chosen


_FLAG: Final = choice_option("true", "false", "on", "off")


def entry_count_option(name: str, value: str) -> Fraction:
    """A share of what is free, above 0 and below 1, and in TurboMind of 0.14 a whole number for so many blocks."""
    from fractions import Fraction

    whole, _, part = value.partition(".")
    digits = (whole or "0") + part
    number = Fraction(value) if digits.isascii() and digits.isdecimal() and len(value) < 30 else Fraction(0)
    if not (0 < number < 1 or (number >= 1 and number.denominator == 1)):
        raise UsageError(
            f"engine option {name}={brief(value, 40)} is neither a share nor a number of blocks.",
            hint="Allowed: above 0 and below 1, such as 0.8; with backend=turbomind blocks too, such as 4096.",
        )
    return number


def _kernel_block(name: str, value: str) -> int:
    """A power of two from 16 on (lmdeploy/messages.py PytorchEngineConfig)."""
    number = integer_option(16, 2**20)(name, value)
    if number & (number - 1):
        raise UsageError(f"engine option {name}={brief(value, 40)} is no power of two.", hint="Allowed: 16, 32, 64, 128 ...")
    return number


OPTIONS: Final[Mapping[str, EngineOption]] = MappingProxyType(
    {
        name: EngineOption(name=name, help=text, default=default, check=check)
        for name, text, default, check in (
            ("backend", "which engine of the two", PYTORCH, choice_option(*BACKENDS)),
            ("quant_policy", "format of the cache: 0, 4, 8, 16, 17 or 42", "0, or by --dtype", parse_policy),
            ("cache_max_entry_count", "share of the free memory for the cache; TurboMind: or blocks", "0.8", entry_count_option),
            ("cache_block_seq_len", "tokens in a block", "64", integer_option(1, 2**20)),
            ("kernel_block_size", "tokens in a block of the kernels", "cache_block_seq_len", _kernel_block),
            ("max_batch_size", "sequences at once", "by GPU: 1024, 384 or 128", integer_option(1, 2**20)),
            ("max_prefill_token_num", "tokens of prompts at once", "8192", integer_option(1, 2**30)),
            ("num_gpu_blocks", "blocks, whatever the memory", "by memory", integer_option(16, 2**40)),
            ("enable_prefix_caching", "keep blocks of finished requests", "false", _FLAG),
            ("prefix_cache_state_budget", "state slots for prefix caching", "0", integer_option(0, 2**20)),
            ("fp32_mamba_ssm_dtype", "recurrent states in fp32", "false", _FLAG),
            ("flash_mla", "whether flash_mla is installed", "by GPU", _FLAG),
        )
    }
)

_BATCHES: Final = (("a100", 384), ("a800", 384), ("h100", 1024), ("h800", 1024), ("l20y", 1024), ("h200", 1024))
"""Part of a device's name, in the order in which LMDeploy looks -> ``max_batch_size``."""
_OTHER_BATCH: Final = 128
_HOPPER: Final = 90
_AMPERE: Final = 80
_WIDE_HEAD: Final = 512
_WIDE_HEAD_BLOCK: Final = 32
_MLA_BLOCK: Final = 64
_SPARE_SLOTS: Final = 2
"""A slot for the system, and one for rolling prefill."""


class LmdeploySettings(Record):
    """What a request comes to. ``window`` is that of the whole model, outside of which blocks are freed; 0 is none.

    ``sparse`` says that latents are in the fp8 rows of FlashMLA, with the keys of an indexer. ``slots`` are those of recurrent
    states, and ``reserved_blocks`` those that no request gets.
    """

    backend: str
    form: KvFormat
    model_dtype: str
    state_dtype: str
    tp: int
    block_size: int
    kernel_block_size: int
    ratio: float
    max_batch_size: int
    prefill_tokens: int
    num_gpu_blocks: int | None
    prefix_caching: bool
    window: int
    sparse: bool
    slots: int

    @property
    def pytorch(self) -> bool:
        """Whether this is the PyTorch back end."""
        return self.backend == PYTORCH

    @property
    def reserved_blocks(self) -> int:
        """The block of dummy inputs and padding, in PyTorch."""
        return int(self.pytorch)

    @property
    def spare_blocks(self) -> int:
        """Blocks that the longest sequence cannot have: PyTorch's sessions end a block before the last one."""
        return 2 * int(self.pytorch)


def read_settings(model: ModelSpec, setup: Setup) -> LmdeploySettings:
    """Fill in the defaults. Raises an error for settings that LMDeploy refuses."""
    options, gpu = setup.options, setup.hardware.gpu
    backend = options.get("backend", PYTORCH)
    form = read_format(setup.dtype, options.get("quant_policy"), backend)
    kinds = {type(group.kind) for group in model.stack.groups}
    sparse = SparseIndexer in kinds
    if sparse:
        # FlashMLA's rows are fp8 whatever the user names.
        form = NONE
        if not _has_flash_mla(setup):
            raise UnsupportedError(
                "DeepSeek-V3.2 requires flash_mla to be available, says LMDeploy of sparse attention; it runs from Hopper on.",
                hint="Use: --gpu h200, without flash_mla=false",
            )
    # bf16 for a model of bf16 on a GPU that has it; fp16 for all others, and for AWQ.
    method = str((model.quantization or {}).get("quant_method", "")).lower()
    dtype = "bf16" if model.dtype == "bf16" and method != "awq" and compute_capability(gpu) >= _AMPERE else "fp16"
    block, kernel = _blocks(model, setup, backend, sparse=sparse)
    # The sequences that run at once: by the name of the device; without a GPU those of an H100.
    name = "h100" if gpu is None else f"{gpu.id} {gpu.name}".lower()
    batch = _number(setup, "max_batch_size", next((size for part, size in _BATCHES if part in name), _OTHER_BATCH))
    slots = batch if GatedDeltaNet in kinds else 0
    if slots and backend == PYTORCH:
        slots += _SPARE_SLOTS + _number(setup, "prefix_cache_state_budget", 0)
    count = options.get("cache_max_entry_count")
    entries = None if count is None else entry_count_option("cache_max_entry_count", count)
    if entries is not None and entries >= 1 and backend == PYTORCH:
        message = f"invalid cache_max_entry_count, says LMDeploy's PyTorch back end: {entries} is no share."
        raise UsageError(message, hint="Use: --engine-option cache_max_entry_count=0.8, or num_gpu_blocks for blocks")
    ratio = setup.hardware.memory_utilization if entries is None or entries >= 1 else float(entries)
    if "num_gpu_blocks" in options and backend == TURBOMIND:
        message = "num_gpu_blocks is an option of the PyTorch back end."
        raise UsageError(message, hint=f"Leave it out, or use: --engine-option backend={PYTORCH}")
    blocks = _number(setup, "num_gpu_blocks", 0) if "num_gpu_blocks" in options else None
    window = _window(model) if backend == PYTORCH else 0
    return LmdeploySettings(
        backend=backend,
        form=form,
        model_dtype=dtype,
        state_dtype="fp32" if backend == PYTORCH and is_on(options.get("fp32_mamba_ssm_dtype")) else dtype,
        tp=setup.parallel.tp,
        block_size=block,
        kernel_block_size=kernel,
        ratio=0.8 if ratio is None else ratio,
        max_batch_size=batch,
        prefill_tokens=_number(setup, "max_prefill_token_num", 8192),
        num_gpu_blocks=int(entries) if entries is not None and entries >= 1 else blocks,
        prefix_caching=is_on(options.get("enable_prefix_caching")) and not window,
        window=window,
        sparse=sparse,
        slots=slots,
    )


def _number(setup: Setup, name: str, default: int) -> int:
    value = setup.options.get(name)
    return default if value is None else int(str(OPTIONS[name].check(name, value)))


def _window(model: ModelSpec) -> int:
    """The window outside of which blocks are freed: where the config names one and its use is not switched off; 0 is none."""
    if "window_off" in model_classes("lmdeploy").row(model).words or not model.config.get("use_sliding_window", True):
        return 0
    named = model.facts.sliding_window
    built = (group.kind.window for group in model.stack.groups if isinstance(group.kind, SlidingAttention))
    return named or max(built, default=0)


def _blocks(model: ModelSpec, setup: Setup, backend: str, *, sparse: bool) -> tuple[int, int]:
    """Tokens in a block, and in a block of the kernels."""
    block_size = _number(setup, "cache_block_seq_len", 64)
    kernel = _number(setup, "kernel_block_size", block_size)
    if backend == TURBOMIND:
        step = 32 if compute_capability(setup.hardware.gpu) >= _AMPERE else 64
        if block_size % step:
            message = f"cache_block_seq_len={block_size:,} is no multiple of {step}."
            raise UsageError(message, hint=f"TurboMind has blocks of {step}, {2 * step} ...")
        return block_size, block_size
    if kernel < 16 or kernel & (kernel - 1) or block_size % kernel:
        raise UsageError(
            f"cache_block_seq_len={block_size:,} is no multiple of a kernel block of {kernel:,}, or that is no power of two from 16 on.",
            hint="Use: --engine-option cache_block_seq_len=64, and for other multiples kernel_block_size=16",
        )
    wide = [kind for kind in (group.kind for group in model.stack.groups) if isinstance(kind, LatentAttention)]
    if wide and "expanded" not in model_classes("lmdeploy").row(model).words and (sparse or _has_flash_mla(setup)):
        if block_size != _MLA_BLOCK:
            raise UsageError(f"cache_block_seq_len={block_size:,}: flash_mla has blocks of 64.", hint="Leave it out.")
        return block_size, kernel
    widths = [kind.kv_lora_rank + kind.qk_rope_head_dim for kind in wide]
    widths += [getattr(group.kind, "head_dim", 0) or 0 for group in model.stack.groups if group.kind not in wide]
    if max(widths, default=0) >= _WIDE_HEAD and block_size > _WIDE_HEAD_BLOCK:
        return _WIDE_HEAD_BLOCK, _WIDE_HEAD_BLOCK
    return block_size, kernel


def _has_flash_mla(setup: Setup) -> bool:
    """Whether flash_mla is installed, which runs from Hopper on."""
    given = setup.options.get("flash_mla")
    return compute_capability(setup.hardware.gpu) >= _HOPPER and (given is None or is_on(given))
