"""vLLM as an engine: its facts, its options by the names of its flags, and a plan as its command line, release by release."""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Final

from hwcalc.engines.engine import Engine
from hwcalc.engines.facts import Command, Facts, IdleRules, RequestRules, Rest, Told, TradeOff, WeightFormats
from hwcalc.engines.options import AUTO, Choices, EngineOption, choice_option, integer_option, is_on, number_option
from hwcalc.engines.vllm.deployment import VllmDeployment, VllmOccupancy
from hwcalc.engines.vllm.formats import ALWAYS_MADE, LONG_NAMES, SINCE, cache_formats, quantizing_flag
from hwcalc.engines.vllm.layer_specs import KINDS
from hwcalc.engines.vllm.rules import NEWEST, VERSIONS, resolve
from hwcalc.engines.vllm.settings import (
    DRAFTED,
    MAX_LENGTH,
    backend_variable,
    default_utilization,
    drafted_tokens,
    model_and_tokens,
    parse_attention_backend,
    parse_limits,
)
from hwcalc.errors import UnsupportedError, UsageError
from hwcalc.model import Definition
from hwcalc.profiles.engine_flags import engine_flags
from hwcalc.profiles.engines import planned_version, since
from hwcalc.text import brief, shown

if TYPE_CHECKING:
    from hwcalc.engines.deployment import Deployment, Occupancy
    from hwcalc.engines.memory import BudgetPart
    from hwcalc.engines.options import CommandInput
    from hwcalc.engines.setup import Load, Setup
    from hwcalc.formulas import LayerKind
    from hwcalc.profiles.hardware_file import Gpu


_FLAG: Final = choice_option("true", "false", "on", "off")
_STATE_DTYPE: Final = choice_option("auto", "float32", "float16", "bfloat16", "fp32", "fp16", "bf16")
BACK_ENDS: Final = ("allgather_reducescatter", "deepep_high_throughput", "deepep_low_latency")
"""Back ends of expert parallelism (``--all2all-backend``). The first is the default, and has no buffers of its own."""
_GDN_BACK_ENDS: Final = ("auto", "flashinfer", "triton", "cutedsl")

OPTIONS: Final[Mapping[str, EngineOption]] = {
    name: EngineOption(name=name, help=text, default=default, check=check)
    for name, text, default, check in (
        ("block_size", "tokens in a block", "by backend, at least 16", integer_option(1, 2**20)),
        (MAX_LENGTH, "tokens of the longest sequence that the server allows", "the planned length", integer_option(1, 2**40)),
        ("max_num_batched_tokens", "tokens in a batch", "by GPU: 2048, 8192 or 16384", integer_option(1, 2**30)),
        ("max_num_seqs", "requests in a batch", "by GPU: 256 or 1024", integer_option(1, 2**30)),
        ("enable_prefix_caching", "keep blocks of finished requests", "true, false without attention", _FLAG),
        ("async_scheduling", "schedule a batch ahead", "true", _FLAG),
        ("disable_hybrid_kv_cache_manager", "keep windowed layers whole", "false", _FLAG),
        ("gdn_prefill_backend", "kernel of gated delta nets' prefill", "by GPU", choice_option(*_GDN_BACK_ENDS)),
        ("enforce_eager", "run without CUDA graphs", "false", _FLAG),
        ("language_model_only", "take no images or sound: towers are not loaded", "false", _FLAG),
        ("limit_mm_per_prompt", "items of each kind that a prompt may have", "no limit", parse_limits),
        ("attention_backend", "back end of attention, such as FLASHINFER", "by model and GPU", parse_attention_backend),
        ("all2all_backend", "how ranks exchange tokens of experts", BACK_ENDS[0], choice_option(*BACK_ENDS)),
        ("mamba_cache_dtype", "dtype of convolution states", "auto", _STATE_DTYPE),
        ("mamba_ssm_cache_dtype", "dtype of recurrent states", "auto", _STATE_DTYPE),
        ("num_gpu_blocks_override", "blocks, whatever the memory", "by memory", integer_option(1, 2**40)),
        ("dtype", "dtype that the model runs in", "auto", _STATE_DTYPE),
        ("cpu_offload_gb", "GiB of weights in host memory, per GPU", "0", number_option(2**20)),
        ("kv_offloading_size", "GiB of host memory for blocks that left the GPU", "none", number_option(2**20)),
        ("speculative", "ngram:N, mtp:N, eagle:, dflash: or draft:MODEL[:N]", "none", lambda _, value: value),
    )
}


_OF_MODEL: Final = ("eagle", "dflash", "draft")
"""Methods of drafting with a model of their own, as the engine option ``speculative`` spells them."""
SPECULATIVE: Final = "Write: --engine-option speculative=ngram:N, mtp:N, eagle:MODEL:N or draft:MODEL:N"


def drafted_by(said: Mapping[str, Any]) -> str:
    """The engine option ``speculative`` for vLLM's ``--speculative-config``, which says method, model and number of tokens.

    >>> drafted_by({"method": "ngram", "num_speculative_tokens": 4})
    'ngram:4'
    >>> drafted_by({"method": "eagle3", "model": "org/head", "num_speculative_tokens": 3})
    'eagle:org/head:3'
    """
    method, model, tokens = (str(said.get(name) or "") for name in ("method", "model", "num_speculative_tokens"))
    if not method and not model:
        raise UsageError("the number of drafted tokens is given, without a method or a model.", hint=SPECULATIVE)
    kind = "draft" if method in ("", "draft_model") and model else method.removesuffix("3") if method == "eagle3" else method
    kind = "mtp" if method.endswith("mtp") else "ngram" if "ngram" in (method, model.strip("[]")) else kind
    parts = [kind, *([model] if kind in _OF_MODEL else []), *([tokens] if tokens else [])]
    if kind not in ("ngram", "mtp", *_OF_MODEL) or (kind in _OF_MODEL and not model):
        raise UsageError(f"the method {shown(method or model, 40)} of drafting is not planned.", hint=SPECULATIVE)
    return ":".join(parts)


_FLAGS: Final = engine_flags("vllm")
_KVPLAN: Final = frozenset({"seq", "revision", "tp", "pp", "dp", "dcp", "ep", "memory_utilization", "kv_memory", "lora"})


def flag_words(name: str, version: str, value: str | None = None) -> list[str]:
    """The flag for an option, with its value. Raises :class:`~hwcalc.errors.UnsupportedError` if the release does not take it."""
    flag, release = _FLAGS.flag_of[name], planned_version(version)
    if flag.since is not None and release < since(flag.since):
        option = f"--{name.replace('_', '-')}" if name in _KVPLAN else f"the engine option {name}"
        raise UnsupportedError(
            f"vLLM {version} has no {flag.spelled}: it came with {flag.since}.",
            hint=f"Use: --engine vllm@{flag.since} or newer, or leave out {option}.",
        )
    if value is None:
        return [flag.spelled]
    first = flag.values.get(value, flag.any_value)
    listed = flag.values and (flag.any_value is None or release < since(flag.any_value))
    if listed and (first is None or release < since(first)):
        known = ", ".join(word for word, each in flag.values.items() if release >= since(each))
        newer = "" if first is None else f"--engine vllm@{first} or newer, or "
        raise UnsupportedError(
            f"vLLM {version} does not take {flag.spelled} {brief(value, 40)}.", hint=f"Use: {newer}one of {known}."
        )
    return [f"{flag.spelled}={value}"] if value.startswith("-") else [flag.spelled, value]


_SWITCHES: Final = (
    "enable_prefix_caching", "async_scheduling", "disable_hybrid_kv_cache_manager", "enforce_eager", "language_model_only",
)  # fmt: skip
_FLOAT_KV_DTYPES: Final = {"bfloat16": "0.11", "float16": "0.18"}
"""The first release that takes the name of a 16-bit float as a KV dtype; before, ``auto`` is the model's dtype."""
_METHODS: Final = {"mtp": "0.11", "dflash": "0.20"}
"""The first release that knows a method of drafting by this name (``config/speculative.py``)."""
_OFFLOADS_BY_DEFAULT: Final = (0, 14)
"""Since this release, blocks are offloaded by ``native`` unless a backend is named; before, by none."""


def _kv_dtype(kv_dtype: str, version: str) -> list[str]:
    """The flag for a KV dtype that was named, as this release spells it. A checkpoint may have another one for ``auto``."""
    name, release = LONG_NAMES.get(kv_dtype, kv_dtype), planned_version(version)
    if name in LONG_NAMES.values():
        known = name in _FLOAT_KV_DTYPES and release >= since(_FLOAT_KV_DTYPES[name])
        return flag_words("kv_cache_dtype", version, name) if known else []
    first = SINCE.get(name)
    # The older releases take DeepSeek's own layout for fp8.
    return flag_words("kv_cache_dtype", version, "fp8" if first is not None and release < since(first) else name)


def _option(name: str, value: str, version: str) -> list[str]:
    """The flag of an engine option; none for ``auto``, which vLLM takes without it."""
    if name in _SWITCHES and not is_on(value):
        # Where the release has no flag to turn it off, it is off by default.
        first = _FLAGS.flag_of[name].negated
        return [_FLAGS.negated(name)] if first is not None and planned_version(version) >= since(first) else []
    if name in _SWITCHES:
        return flag_words(name, version)
    if name == "speculative":
        import json

        method, _, rest = value.partition(":")
        first = _METHODS.get(method)
        if first is not None and planned_version(version) < since(first):
            raise UnsupportedError(
                f"vLLM {version} does not know {method} as a method of --speculative-config: it came with {first}.",
                hint=f"Use: --engine vllm@{first} or newer, or leave out the engine option speculative.",
            )
        document: dict[str, object] = {"method": "draft_model" if method == "draft" else method}
        if method in DRAFTED:
            document["model"], document["num_speculative_tokens"] = model_and_tokens(rest)
        else:
            document["num_speculative_tokens"] = drafted_tokens(method, rest)
        return flag_words("speculative", version, json.dumps(document))
    if name == "limit_mm_per_prompt":
        import json

        return flag_words(name, version, json.dumps(parse_limits(name, value)))
    if value == AUTO or (name == "attention_backend" and backend_variable({name: value}, version)):
        return []
    words = flag_words(name, version, LONG_NAMES.get(value, value))
    if name == "kv_offloading_size" and planned_version(version) < _OFFLOADS_BY_DEFAULT:
        words += flag_words("kv_offloading_backend", version, "native")
    return words


class VllmCommand(Command):
    """``vllm serve`` for a plan."""

    known: ClassVar[bool] = True
    joins_nodes: ClassVar[bool] = True

    def asked(self, said: Told) -> Mapping[str, Any]:
        """Experts are dealt out over all ranks of tensor and data parallelism, and a draft and adapters are said by several flags."""
        options, settings = said.options, said.settings
        ranks = options.get("tp", 1) * options.get("dp", 1)
        changed: dict[str, Any] = {"ep": (ranks if ranks > 1 else None) if options.get("ep") is True else None}
        draft = settings.get("speculative")
        if isinstance(draft, Mapping) and draft:
            changed["engine_options"] = said.knobs(speculative=drafted_by(draft))
        lora = settings.get("lora")
        if isinstance(lora, Mapping) and lora.get("enable"):
            loaded = f",loaded={lora['max_cpu_loras']}" if lora.get("max_cpu_loras") else ""
            changed["lora"] = f"rank={lora.get('max_lora_rank', 16)},count={lora.get('max_loras', 1)}{loaded}"
        return said.changed(**changed)

    def flag(self, name: str, value: object) -> str:
        """The spelling in vLLM of one option of kvplan or one engine option; empty if it has no flag for it.

        It has none for the number of sequences: what is planned to be held at once is not ``max_num_seqs``, which vLLM admits at once and
        for which it keeps memory besides.
        """
        if name == "weights":
            flag, value = ALWAYS_MADE.get(str(value), ("", ""))
            return f"{_FLAGS.written[flag]} {value}" if flag else ""
        if name == "ep":
            return _FLAGS.written[name] if value != 1 else ""
        if _FLAGS.is_switch(name):
            return _FLAGS.written[name] if is_on(str(value)) else _FLAGS.negated(name)
        key = "kv_cache_dtype" if name == "dtype" else name
        return f"{_FLAGS.written[key]} {value}" if key in _FLAGS.written else ""

    def settings(self, changed: Mapping[str, Any], setup: Setup, load: Load) -> Mapping[str, Any]:
        """A server with a ``max_model_len`` of its own is not told the length of the sequences that users send. A share of the GPU that is taken
        back is the release's default.
        """
        if "memory_utilization" in changed and changed["memory_utilization"] is None:
            changed = {**changed, "memory_utilization": default_utilization(setup.engine_version or NEWEST)}
        return changed if MAX_LENGTH not in setup.options else {name: each for name, each in changed.items() if name != "seq"}

    def on_nodes(self, planned: CommandInput, nodes: int) -> str:
        """Flags of replicas that stay within a node, or those of ranks over nodes (``vllm/engine/arg_utils.py``)."""
        replicas = planned.parallel.dp
        if replicas % nodes == 0:
            local = replicas // nodes
            return (
                f"On each: --data-parallel-size-local {local} --data-parallel-address ADDRESS of the first; on the others also "
                f"--headless --data-parallel-start-rank {'RANK' if nodes > 2 else local}{f' ({local}, {2 * local} ...)' if nodes > 2 else ''}."
            )
        return (
            f"On each: --nnodes {nodes} --node-rank RANK (from 0) --master-addr ADDRESS of the first; on the others also --headless. "
            "Or once in a Ray cluster of them: --distributed-executor-backend ray."
        )

    def words(self, planned: CommandInput) -> list[str]:
        """The words of ``vllm serve`` for a plan, with the further flags that its pool requires.

        Raises :class:`~hwcalc.errors.UnsupportedError` for an option for which the planned release has no flag, and
        :class:`~hwcalc.errors.UsageError` for a format of weights that must be published.
        """
        version = planned.version or NEWEST
        named_like_a_flag = planned.model.startswith("-")
        length = planned.options.get(MAX_LENGTH, str(planned.seq))
        words = ["vllm", "serve", *([] if named_like_a_flag else [planned.model]), *flag_words("seq", version, length)]
        if planned.revision is not None:
            words += flag_words("revision", version, planned.revision)
        if planned.kv_dtype_named:
            words += _kv_dtype(planned.kv_dtype, version)
        for name in ("tp", "pp", "dp", "dcp"):
            size = getattr(planned.parallel, name)
            if size > 1:
                words += flag_words(name, version, str(size))
        if planned.parallel.ep > 1:
            words += flag_words("ep", version)
        for name in ("memory_utilization", "kv_memory"):
            if getattr(planned, name) is not None:
                words += flag_words(name, version, str(getattr(planned, name)))
        if planned.weights is not None:
            from hwcalc.quantization.planned import format_name, unmade

            weights = format_name(planned.weights) or ""
            made = quantizing_flag(weights, version)
            if made is None:
                raise unmade("vLLM", weights, planned.model)
            words += flag_words(made[0], version, made[1])
        if planned.lora is not None:
            from hwcalc.engines.options import parse_lora
            from hwcalc.engines.vllm.weights import slot_rank

            lora = parse_lora(planned.lora)
            words += flag_words("lora.enable", version) + flag_words("lora.max_loras", version, str(lora.count))
            words += flag_words("lora.max_lora_rank", version, str(slot_rank(lora.rank)))
            words += [] if lora.loaded is None else flag_words("lora.max_cpu_loras", version, str(lora.loaded))
        draft = {} if planned.draft is None else {"speculative": f"draft:{planned.draft}"}
        for name, value in (*draft.items(), *planned.options.items()):
            words += [] if name == MAX_LENGTH else _option(name, value, version)
        for required in planned.requires:
            words += required.flag.split()
        words += planned.flags
        # What stands behind "--" is no flag for any of vLLM's parsers.
        return [*words, "--", planned.model] if named_like_a_flag else words


class VllmIdle(IdleRules):
    """Sleep mode: weights and adapter slots lie in a pool that sleep releases. The context, NCCL, and CUDA graphs stay on the GPU.

    Level 1 copies the pool to pinned host memory, each segment of it rounded up to a power of two by PyTorch; a server that is awake again
    keeps these blocks unless ``VLLM_SLEEP_MODE_RELEASE_HOST_MEMORY`` is set. Source: vLLM 0.32, device_allocator/cumem.py,
    device_allocator/sleep_mode_backend.py, v1/worker/gpu_worker.py; docs/features/sleep_mode.md.
    """

    _STARTS = ("VLLM_SERVER_DEV_MODE=1", "--enable-sleep-mode")
    ways = (
        Rest(name="level 1", how="POST /sleep?level=1; POST /wake_up", starts_with=_STARTS, copied=True, host_factor=2),
        Rest(
            name="level 2",
            how="POST /sleep?level=2; POST /wake_up?tags=weights, POST /collective_rpc (reload_weights), POST /wake_up?tags=kv_cache",
            starts_with=_STARTS,
        ),
    )
    stays = frozenset({"non-torch", "workspaces", "expert exchange", "CUDA graphs"})
    keeps_host = True
    source = "vLLM 0.32 device_allocator/cumem.py, v1/worker/gpu_worker.py"

    def ways_of(self, occupancy: Occupancy) -> tuple[Rest, ...]:
        """Both levels. From 0.14 to 0.16 weights were loaded outside the pool, so that they stayed on the GPU (pull request 32947)."""
        version = occupancy.deployment.version
        release = planned_version(version)
        if release < since("0.7"):
            raise UnsupportedError(
                f"vLLM {version} has no sleep mode: it came with 0.7.", hint="Use: --engine vllm@0.17 or newer"
            )
        if since("0.14") <= release < since("0.17"):
            message = f"vLLM {version} keeps the weights on the GPU while it sleeps (github.com/vllm-project/vllm/issues/32714)."
            raise UnsupportedError(message, hint="Use: --engine vllm@0.17 or newer")
        return self.ways

    def outside(self, gpu: Gpu) -> BudgetPart | None:
        """The context on the GPU, which was there before vLLM's first look at the memory, and lies outside its share."""
        from hwcalc.engines.memory import driver_context

        return driver_context(gpu)

    def starts_with(self, total_bytes: int, needed_bytes: int) -> tuple[str, ...]:
        """The least share, in hundredths, with room for what is expected to be needed. vLLM starts only where so much is free."""
        return ("--gpu-memory-utilization", f"{ceil(100 * needed_bytes / total_bytes) / 100:g}")


class VllmRequests(RequestRules):
    """Requests, where an option may name a draft model."""

    def draft_named(self, options: Mapping[str, str]) -> str | None:
        """The id of the model in ``draft:MODEL[:N]``, ``eagle:…`` or ``dflash:…``, a value of the option ``speculative``."""
        method, _, rest = options.get("speculative", "").partition(":")
        return model_and_tokens(rest)[0] if method in DRAFTED and rest else None


class Vllm(Engine):
    """A pool of blocks, by the rules of vLLM."""

    deployment: ClassVar[type[Deployment]] = VllmDeployment
    occupancy: ClassVar[type[Occupancy]] = VllmOccupancy
    request_class = VllmRequests
    scheduler: ClassVar[str | None] = "hwcalc.replay.vllm.settings"
    name: ClassVar[str] = "vllm"
    title: ClassVar[str] = "vLLM: blocks of a pool that groups of layers share"
    label: ClassVar[str] = "vLLM"
    definition: ClassVar[Definition] = Definition.ENGINE
    facts: ClassVar[Facts] = Facts(
        cache_formats=cache_formats(NEWEST),
        # What a release reads of them is in formats.py.
        foreign_formats=("GGUF files", "bitsandbytes"),
        idle=VllmIdle(),
        # vllm/config/cache.py, gpu_memory_utilization: "a per-instance limit", two of which may be 0.5 each.
        utilization_of_server=True,
        states_option="mamba_ssm_cache_dtype",
        users_option="max_num_seqs",
        int8_cache="int8_per_token_head",
        chunk_option="max_num_batched_tokens",
        trade_offs=MappingProxyType(
            {
                "max_num_batched_tokens": TradeOff(values=("1024", "2048", "4096", "8192", "16384")),
                "max_num_seqs": TradeOff(values=("16", "32", "64", "128", "256")),
                "enable_prefix_caching": TradeOff(values=("false",), of_prefixes=True),
                "dtype": TradeOff(values=("fp8",)),
            }
        ),
        cache_is="blocks that the planned sequences hold",
        pool_is="GPU KV cache size",
        pooled=True,
        drafts_in_cache=True,
        sums_in_32_bits=True,
        counts_copies=True,
        assumed_gpu="h100-sxm5-80gb",
        choices=Choices(dtypes=("fp8", "nvfp4", "fp8_ds_mla"), weights=("bf16", "fp8", "awq", "nvfp4")),
        scatters=True,
        planned_on=("5.0+", "rubin-288gb", "gfx*"),
        longest_option=MAX_LENGTH,
    )
    weights: ClassVar[WeightFormats] = WeightFormats(None, "fp8", "awq")
    command: ClassVar[Command] = VllmCommand()
    versions: ClassVar[tuple[str, ...]] = VERSIONS
    source: ClassVar[str] = "vLLM 0.33.0, v1/core/kv_cache_planning.py"
    kinds: ClassVar[frozenset[type[LayerKind]] | None] = KINDS
    options: ClassVar[Mapping[str, EngineOption]] = OPTIONS

    def _resolve_version(self, requested: str) -> str:
        return resolve(requested)
