"""A plan as the command line of vLLM, and the flags of its releases."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from hwcalc.engines.options import AUTO, is_on
from hwcalc.engines.vllm.formats import ALWAYS_MADE, LONG_NAMES, first_release, made_of_published
from hwcalc.engines.vllm.rules import NEWEST, since
from hwcalc.engines.vllm.settings import DRAFTED, model_and_tokens
from hwcalc.errors import UnsupportedError, UsageError
from hwcalc.profiles.engines import Version, planned_version
from hwcalc.text import brief

if TYPE_CHECKING:
    from hwcalc.engines.options import CommandInput

_ALWAYS: Final = "0.6"


class Flag(Struct, frozen=True):
    """A flag and the first release that has it.

    ``values`` has the first release that takes a value, if there is a list of them; from ``any_value`` on there is none. ``negated`` is the
    first release with ``--no-…``.
    """

    name: str
    since: str = _ALWAYS
    negated: str | None = None
    values: Mapping[str, str] = MappingProxyType({})
    any_value: str | None = None


def _choices(**values: str) -> Mapping[str, str]:
    return MappingProxyType(values)


# 0.6.4 took blocks of 64 and 128 already, 0.6.5 did not.
_BLOCKS: Final = MappingProxyType(
    {**dict.fromkeys(("8", "16", "32"), _ALWAYS), **dict.fromkeys(("64", "128"), "0.6.6"), "1": "0.8.5", "256": "0.11.1"}
)
_STATES: Final = _choices(float32="0.10.1", float16="0.13", bfloat16="0.22")
FLAGS: Final[Mapping[str, Flag]] = MappingProxyType(
    {
        "seq": Flag("--max-model-len"),
        "revision": Flag("--revision"),
        "kv_dtype": Flag("--kv-cache-dtype"),
        "tp": Flag("--tensor-parallel-size"),
        "pp": Flag("--pipeline-parallel-size"),
        "dp": Flag("--data-parallel-size", "0.8.3"),
        "dcp": Flag("--decode-context-parallel-size", "0.10.2"),
        "ep": Flag("--enable-expert-parallel", "0.8"),
        "memory_utilization": Flag("--gpu-memory-utilization"),
        "kv_memory": Flag("--kv-cache-memory-bytes", "0.10.2"),
        "quantization": Flag("--quantization"),
        "lora": Flag("--enable-lora"),
        "loras": Flag("--max-loras"),
        "lora_rank": Flag("--max-lora-rank"),
        "speculative": Flag("--speculative-config", "0.8.2"),
        "block_size": Flag("--block-size", values=_BLOCKS, any_value="0.18"),
        "max_num_batched_tokens": Flag("--max-num-batched-tokens"),
        "max_num_seqs": Flag("--max-num-seqs"),
        "enable_prefix_caching": Flag("--enable-prefix-caching", negated="0.6.5"),
        "async_scheduling": Flag("--async-scheduling", "0.10", negated="0.10"),
        "disable_hybrid_kv_cache_manager": Flag("--disable-hybrid-kv-cache-manager", "0.9.1", negated="0.9.1"),
        "gdn_prefill_backend": Flag(
            "--gdn-prefill-backend", "0.18", values=_choices(flashinfer="0.18", triton="0.18", cutedsl="0.22")
        ),
        "enforce_eager": Flag("--enforce-eager", negated="0.9"),
        "all2all_backend": Flag("--all2all-backend", "0.11.1"),
        "mamba_cache_dtype": Flag("--mamba-cache-dtype", "0.10.1", values=_STATES),
        "mamba_ssm_cache_dtype": Flag("--mamba-ssm-cache-dtype", "0.10.1", values=_STATES),
        "num_gpu_blocks_override": Flag("--num-gpu-blocks-override"),
        "dtype": Flag("--dtype"),
        "cpu_offload_gb": Flag("--cpu-offload-gb"),
        "kv_offloading_size": Flag("--kv-offloading-size", "0.11.1"),
        "kv_offloading_backend": Flag("--kv-offloading-backend", "0.11.1"),
    }
)
"""Option of kvplan or engine option -> its flag."""
_KVPLAN: Final = frozenset({"seq", "revision", "tp", "pp", "dp", "dcp", "ep", "memory_utilization", "kv_memory", "lora"})


def flag_words(name: str, version: str, value: str | None = None) -> list[str]:
    """The flag for an option, with its value. Raises :class:`~hwcalc.errors.UnsupportedError` if the release does not take it."""
    flag, release = FLAGS[name], planned_version(version)
    if not _reached(flag.since, release):
        raise UnsupportedError(
            f"vLLM {version} has no {flag.name}: it came with {flag.since}.",
            hint=f"Use: --engine vllm@{flag.since} or newer, or leave out {_kvplan_option(name)}.",
        )
    if value is None:
        return [flag.name]
    if flag.values and not (flag.any_value and _reached(flag.any_value, release)):
        _check_value(name, version, value)
    return [f"{flag.name}={value}"] if value.startswith("-") else [flag.name, value]


def switch_words(name: str, version: str, *, on: bool) -> list[str]:
    """The flag that turns a switch on or off. It is left out where the release has none to turn it off: there it is off by default."""
    flag = FLAGS[name]
    if on:
        return flag_words(name, version)
    known = flag.negated is not None and _reached(flag.negated, planned_version(version))
    return [f"--no-{flag.name.removeprefix('--')}"] if known else []


def _check_value(name: str, version: str, value: str) -> None:
    flag, release = FLAGS[name], planned_version(version)
    first = flag.values.get(value, flag.any_value)
    if first is not None and _reached(first, release):
        return
    known = ", ".join(word for word, each in flag.values.items() if _reached(each, release))
    newer = "" if first is None else f"--engine vllm@{first} or newer, or "
    raise UnsupportedError(f"vLLM {version} does not take {flag.name} {brief(value, 40)}.", hint=f"Use: {newer}one of {known}.")


def _kvplan_option(name: str) -> str:
    return f"--{name.replace('_', '-')}" if name in _KVPLAN else f"the engine option {name}"


def _reached(first: str, release: Version) -> bool:
    return release >= since(first)


_FLAG_KEYS: Final = {"dtype": "kv_dtype"}
"""Option of kvplan -> key in the table of flags, where that is another."""
_PARALLEL: Final = ("tp", "pp", "dp", "dcp")
_SWITCHES: Final = ("enable_prefix_caching", "async_scheduling", "disable_hybrid_kv_cache_manager", "enforce_eager")
_FLOAT_KV_DTYPES: Final = {"bfloat16": "0.11", "float16": "0.18"}
"""The first release that takes the name of a 16-bit float as a KV dtype; before, ``auto`` is the model's dtype."""
_METHODS: Final = {"mtp": "0.11", "dflash": "0.20"}
"""The first release that knows a method of drafting by this name (``config/speculative.py``)."""
_OFFLOADS_BY_DEFAULT: Final = (0, 14)
"""Since this release, blocks are offloaded by ``native`` unless a backend is named; before, by none."""


def serve(planned: CommandInput) -> list[str]:
    """The words of ``vllm serve`` for a plan, with the further flags that its pool requires.

    Raises :class:`~hwcalc.errors.UnsupportedError` for an option for which the planned release has no flag.
    """
    version = planned.version or NEWEST
    named_like_a_flag = planned.model.startswith("-")
    words = ["vllm", "serve", *([] if named_like_a_flag else [planned.model]), *flag_words("seq", version, str(planned.seq))]
    if planned.revision is not None:
        words += flag_words("revision", version, planned.revision)
    if planned.kv_dtype_named:
        words += _kv_dtype(planned.kv_dtype, version)
    for name in _PARALLEL:
        size = getattr(planned.parallel, name)
        if size > 1:
            words += flag_words(name, version, str(size))
    if planned.parallel.ep > 1:
        words += flag_words("ep", version)
    if planned.memory_utilization is not None:
        words += flag_words("memory_utilization", version, str(planned.memory_utilization))
    if planned.kv_memory is not None:
        words += flag_words("kv_memory", version, str(planned.kv_memory))
    if planned.weights is not None:
        words += _weights(planned.weights, version)
    if planned.lora is not None:
        words += _lora(planned.lora, version)
    if planned.draft is not None:
        words += _option("speculative", f"draft:{planned.draft}", version)
    for name, value in planned.options.items():
        words += _option(name, value, version)
    for required in planned.requires:
        words += required.flag.split()
    words += planned.flags
    # What stands behind "--" is no flag for any of vLLM's parsers.
    return [*words, "--", planned.model] if named_like_a_flag else words


def flag_text(name: str, value: object) -> str:
    """How vLLM spells one option of kvplan or one engine option; empty if it has no flag for it.

    It has none for the number of sequences: what is planned to be held at once is not ``max_num_seqs``, which vLLM admits at once and
    for which it keeps memory besides.
    """
    if name in _SWITCHES:
        flag = FLAGS[name].name
        return flag if is_on(str(value)) else f"--no-{flag.removeprefix('--')}"
    if name == "weights":
        flag, value = ALWAYS_MADE.get(str(value), ("", ""))
        return f"{FLAGS[flag].name} {value}" if flag else ""
    if name == "ep":
        return FLAGS[name].name if value != 1 else ""
    key = _FLAG_KEYS.get(name, name)
    return f"{FLAGS[key].name} {value}" if key in FLAGS else ""


def _kv_dtype(kv_dtype: str, version: str) -> list[str]:
    """The flag for a KV dtype that was named, as this release spells it. A checkpoint may have another one for ``auto``."""
    name, release = LONG_NAMES.get(kv_dtype, kv_dtype), planned_version(version)
    if name in LONG_NAMES.values():
        known = name in _FLOAT_KV_DTYPES and release >= since(_FLOAT_KV_DTYPES[name])
        return flag_words("kv_dtype", version, name) if known else []
    first = first_release(name)
    # The older releases take DeepSeek's own layout for fp8.
    return flag_words("kv_dtype", version, "fp8" if first is not None and release < since(first) else name)


def _weights(requested: str, version: str) -> list[str]:
    """The flag for a weight format to which vLLM converts while loading. Raises an error for formats that must be published."""
    from hwcalc.quantization.planned import format_name

    name = format_name(requested) or ""
    made = made_of_published(name, version)
    if made is not None:
        return flag_words(made[0], version, made[1])
    raise UsageError(
        f"vLLM does not make {name} weights of the published ones.",
        hint="Leave out --weights, or name a model that is published so.",
    )


def _lora(text: str, version: str) -> list[str]:
    from hwcalc.engines.options import parse_lora
    from hwcalc.engines.vllm.weights import slot_rank

    lora = parse_lora(text)
    return [
        *flag_words("lora", version),
        *flag_words("loras", version, str(lora.count)),
        *flag_words("lora_rank", version, str(slot_rank(lora.rank))),
    ]


def _option(name: str, value: str, version: str) -> list[str]:
    """The flag of an engine option; none for ``auto``, which vLLM takes without it."""
    if name in _SWITCHES:
        return switch_words(name, version, on=is_on(value))
    if name == "speculative":
        return flag_words("speculative", version, _speculative(value, version))
    if value == AUTO:
        return []
    words = flag_words(name, version, LONG_NAMES.get(value, value))
    if name == "kv_offloading_size" and planned_version(version) < _OFFLOADS_BY_DEFAULT:
        words += flag_words("kv_offloading_backend", version, "native")
    return words


def _speculative(value: str, version: str) -> str:
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
        document["num_speculative_tokens"] = int(rest)
    return json.dumps(document)
