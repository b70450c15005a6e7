"""The flags of llama-server that kvplan writes and reads, and what stands for them here.

Read in ``common/arg.cpp`` of llama.cpp 0c1e57098. A flag with an empty ``value`` takes one; the others are switches.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, NamedTuple


class Switch(NamedTuple):
    """A flag without a value: the engine option that it sets, and to what."""

    option: str
    value: str


FLAGS: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        "n_ctx": ("-c", "--ctx-size"),
        "n_seq_max": ("-np", "--parallel"),
        "n_batch": ("-b", "--batch-size"),
        "n_ubatch": ("-ub", "--ubatch-size"),
        "type_k": ("-ctk", "--cache-type-k"),
        "type_v": ("-ctv", "--cache-type-v"),
        "flash_attn": ("-fa", "--flash-attn"),
        "n_gpu_layers": ("-ngl", "--gpu-layers", "--n-gpu-layers"),
        "n_cpu_moe": ("-ncmoe", "--n-cpu-moe"),
        "tensor_split": ("-ts", "--tensor-split"),
        "split_mode": ("-sm", "--split-mode"),
        "main_gpu": ("-mg", "--main-gpu"),
        "override_tensor": ("-ot", "--override-tensor"),
        "fit": ("-fit", "--fit"),
        "fit_target": ("-fitt", "--fit-target"),
        "fit_ctx": ("-fitc", "--fit-ctx"),
    }
)
"""Engine option -> the flags that take its value, the one that kvplan writes first."""
SWITCHES: Final[Mapping[str, Switch]] = MappingProxyType(
    {
        "-kvu": Switch("kv_unified", "true"),
        "--kv-unified": Switch("kv_unified", "true"),
        "-no-kvu": Switch("kv_unified", "false"),
        "--no-kv-unified": Switch("kv_unified", "false"),
        "--swa-full": Switch("swa_full", "true"),
        "-cmoe": Switch("cpu_moe", "true"),
        "--cpu-moe": Switch("cpu_moe", "true"),
        "-nkvo": Switch("no_kv_offload", "true"),
        "--no-kv-offload": Switch("no_kv_offload", "true"),
        "-nr": Switch("no_extra_bufts", "true"),
        "--no-repack": Switch("no_extra_bufts", "true"),
    }
)
"""Flag -> what it sets."""
CACHE_TYPES: Final = ("f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "iq4_nl", "q5_0", "q5_1")
"""The values of ``-ctk`` and ``-ctv``."""
_SPELLED: Final[Mapping[str, str]] = MappingProxyType(
    {"fp16": "f16", "float16": "f16", "fp32": "f32", "float32": "f32", "bfloat16": "bf16"}
)


def cache_type(name: str) -> str:
    """A cache format as llama.cpp spells it.

    >>> cache_type("fp16"), cache_type("q8_0")
    ('f16', 'q8_0')
    """
    return _SPELLED.get(name, name)
