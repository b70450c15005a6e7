"""What a request means to vLLM once every default is filled in: formats, block sizes, batches, speculation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from hwcalc.engines.request import Request
from hwcalc.engines.vllm import formats, versions
from hwcalc.engines.vllm.blocks import gpu_architecture, sparse_word
from hwcalc.engines.vllm.defaults import batch_defaults
from hwcalc.engines.vllm.speculation import Speculation, read_speculation
from hwcalc.engines.vllm.states import STATE_KINDS, default_state_dtype
from hwcalc.errors import UsageError
from hwcalc.formulas import CompressedAttention, LatentAttention, LayerKind, SharedCache, SparseIndexer
from hwcalc.formulas.formats import FLOATS
from hwcalc.formulas.frozen import frozen, replace
from hwcalc.model import ModelSpec
from hwcalc.profiles.dtypes import find_dtype
from hwcalc.units import parse_tokens

__all__ = ["VllmSettings", "cached_kinds", "read_settings"]

# Their attention layers are built without the cache settings, so that the KV dtype does not reach them.
_DEAF: Final = frozenset({"FalconForCausalLM"})


@frozen
class VllmSettings:
    """All that the planner of blocks needs beside the layers. ``word`` is the KV dtype in the engine's words, resolved."""

    word: str
    plain: str
    """The dtype that the model runs in."""
    conv: str
    state: str
    architecture: int
    version: int
    tp: int
    pp: int
    dcp: int
    block_size: int | None
    batched_tokens: int
    full_batch: int | None
    """``batched_tokens`` of longer sequences, where that is a default: a batch never holds more than all sequences do."""
    sequences: int
    prefix_caching: bool
    async_scheduling: bool
    hybrid: bool
    override: int | None
    speculation: Speculation | None

    @property
    def plain_bytes(self) -> int:
        """Bytes of an element of the model."""
        return FLOATS[self.plain].number_bytes

    @property
    def speculated(self) -> int:
        """Tokens that are drafted at a time."""
        return 0 if self.speculation is None else self.speculation.tokens

    @property
    def in_flight(self) -> int:
        """Tokens scheduled and not settled: with async scheduling one batch more than there are pipeline stages."""
        if self.version < versions.IN_FLIGHT_SINCE:
            return self.batched_tokens
        return (self.pp + self.async_scheduling) * self.batched_tokens

    def sized(self, request: Request) -> VllmSettings:
        """The same for a request that differs in length alone."""
        sequences, batched, full = _batches(request)
        if (sequences, batched, full) == (self.sequences, self.batched_tokens, self.full_batch):
            return self
        return replace(self, sequences=sequences, batched_tokens=batched, full_batch=full)

    def same_batches(self, seq: int) -> bool:
        """Whether a longest sequence of ``seq`` tokens has batches of the same size."""
        whole = self.full_batch
        return whole is None or (self.batched_tokens == whole and self.sequences * seq >= whole)


def read_settings(model: ModelSpec, request: Request, version: str) -> VllmSettings:
    """Fill in what the user left open, as vLLM does. Raises what a wrong value deserves."""
    options = request.options
    architecture = gpu_architecture(request.hardware.gpu)
    plain = _model_dtype(model, options.get("dtype"))
    sequences, batched, full_batch = _batches(request)
    kinds = cached_kinds(model)
    conv = _plain_option(options, "mamba_cache_dtype", plain)
    return VllmSettings(
        word=_word(model, request.dtype, plain, architecture, kinds),
        plain=plain,
        conv=conv,
        state=_plain_option(options, "mamba_ssm_cache_dtype", default_state_dtype(model, conv)),
        architecture=architecture,
        version=versions.minor(version),
        tp=request.parallel.tp,
        pp=request.parallel.pp,
        dcp=request.parallel.dcp,
        block_size=_number(options.get("block_size"), "block_size"),
        batched_tokens=batched,
        full_batch=full_batch,
        sequences=sequences,
        prefix_caching=_flag(options.get("enable_prefix_caching"), default=not (bool(kinds) and kinds <= set(STATE_KINDS))),
        async_scheduling=_flag(options.get("async_scheduling"), default=True),
        hybrid=not _flag(options.get("disable_hybrid_kv_cache_manager"), default=False),
        override=_number(options.get("num_gpu_blocks_override"), "num_gpu_blocks_override"),
        speculation=read_speculation(options.get("speculative"), request.draft, request.option_draft),
    )


def cached_kinds(model: ModelSpec) -> frozenset[type[LayerKind]]:
    """The kinds of layer that keep anything of their own."""
    kinds = {type(group.kind) for group in model.stack_for("vllm").groups if group.kind.tensors()}
    return frozenset(kinds - {SharedCache})


def _batches(request: Request) -> tuple[int, int, int | None]:
    """``max_num_seqs``, ``max_num_batched_tokens``, and the latter for longer sequences where it is a default."""
    sequences, batched = batch_defaults(request.hardware.gpu)
    own_sequences = _number(request.options.get("max_num_seqs"), "max_num_seqs")
    own_batched = _number(request.options.get("max_num_batched_tokens"), "max_num_batched_tokens")
    sequences = own_sequences or sequences
    if own_batched is None:
        if own_sequences is None:
            sequences = min(sequences, batched)
        return sequences, min(batched, sequences * request.seq), batched
    if own_sequences is not None and own_sequences > own_batched:
        raise UsageError(
            f"max_num_seqs={own_sequences:,} is more than max_num_batched_tokens={own_batched:,}.", hint="vLLM refuses that."
        )
    return min(sequences, own_batched), own_batched, None


def _model_dtype(model: ModelSpec, wanted: str | None) -> str:
    """Checkpoints in fp32 are loaded in half precision unless ``dtype=float32`` is asked for."""
    own = model.dtype if model.dtype in ("bf16", "fp16") else "bf16"
    if wanted in (None, "auto"):
        return own
    found = find_dtype(wanted or "")
    if found is None or found.name not in FLOATS:
        raise UsageError(
            f"engine option dtype={(wanted or '')[:40]} is not known.", hint="Allowed: auto, bfloat16, float16, float32."
        )
    return found.name


def _word(model: ModelSpec, wanted: str | None, plain: str, architecture: int, kinds: frozenset[type[LayerKind]]) -> str:
    word = formats.read_word(wanted or "auto")
    named = formats.plain_name(word)
    if named is not None:
        if named != plain:
            raise UsageError(
                f"--dtype {word}: vLLM takes only the dtype that the model runs in, {plain}.", hint="Use --dtype auto"
            )
        word = "auto"
    elif word == "auto":
        word = formats.checkpoint_word(model.quantization) or "auto"
        if word == "auto" and architecture // 10 == 10 and model.architecture == "GlmMoeDsaForCausalLM":
            word = "fp8_e4m3"
    if CompressedAttention in kinds:
        plain_given = named is not None
        word = "auto" if plain_given else "fp8_ds_mla" if word == "auto" or word.startswith("fp8") else word
    elif LatentAttention in kinds and SparseIndexer in kinds:
        word = sparse_word(word, architecture, plain=word in ("auto", "nvfp4_ds_mla"))
    if model.architecture in _DEAF:
        return "auto"
    formats.check_word(word, kinds, architecture)
    return word


def _plain_option(options: Mapping[str, str], name: str, default: str) -> str:
    value = options.get(name)
    if value in (None, "auto"):
        return default
    found = find_dtype(str(value))
    if found is None or found.name not in FLOATS:
        raise UsageError(
            f"engine option {name}={str(value)[:40]} is not known.", hint="Allowed: auto, bfloat16, float16, float32."
        )
    return found.name


def _number(value: str | None, name: str) -> int | None:
    return None if value is None else parse_tokens(value, f"engine option {name}")


def _flag(value: str | None, *, default: bool) -> bool:
    return default if value is None else value.lower() in ("true", "1", "on", "yes")
