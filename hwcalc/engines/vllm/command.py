"""The command line of vLLM that serves a plan."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from hwcalc.engines.options import AUTO, is_on
from hwcalc.engines.vllm.flags import FLAGS, flag_words, switch_words
from hwcalc.engines.vllm.formats import LONG_NAMES, first_release
from hwcalc.engines.vllm.speculation import DRAFTED, model_and_tokens
from hwcalc.engines.vllm.versions import NEWEST, since
from hwcalc.engines.vllm.weight_formats import ALWAYS_MADE, made_of_published
from hwcalc.errors import UnsupportedError, UsageError
from hwcalc.profiles.engines import planned_version

if TYPE_CHECKING:
    from hwcalc.engines.command import CommandInput

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
    from hwcalc.engines.lora import parse_lora
    from hwcalc.engines.vllm.lora import slot_rank

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
