"""The flags of ``vllm serve`` that kvplan writes, and the releases that know them.

Read in ``EngineArgs.add_cli_args`` (``engine/arg_utils.py``) of the releases from 0.6.0 to 0.33.0, and in the types of ``config`` that give
a flag its choices.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

from hwcalc.engines.vllm.versions import since
from hwcalc.errors import UnsupportedError
from hwcalc.profiles.engines import Version, planned_version
from hwcalc.text import brief

_ALWAYS: Final = "0.6"


class Flag(NamedTuple):
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
            hint=f"Use: --engine vllm@{flag.since} or newer, or leave out {_option(name)}.",
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


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}" if name in _KVPLAN else f"the engine option {name}"


def _reached(first: str, release: Version) -> bool:
    return release >= since(first)
