"""What Ollama tells the llama-server that it starts: context, slots, batch, flash attention.

Since 0.30, Ollama runs every GGUF file as a ``llama-server`` of its own (``llm/llama_server.go``); before, it had a runner with other
memory. Read in the releases 0.30.0 to 0.32.15 (commit fb30760996), which agree in all that is here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from hwcalc.formulas.arithmetic import either, smaller
from hwcalc.units import GIB, MIB

if TYPE_CHECKING:
    from hwcalc.parsers.gguf.hparams import Hparams
    from hwcalc.profiles.gpus import Gpu

DEFAULT_CONTEXT: Final = 4096
"""Tokens of a slot, where less than the memory of a tier is there, as on a machine without a GPU."""
TIERS: Final = ((47 * GIB, 262_144), (23 * GIB, 32_768))
"""Bytes of all GPUs together -> tokens of a slot (``server/routes.go``, since 0.15.5; before, 4,096 everywhere, and 2,048 until 0.6)."""
ONE_AT_A_TIME: Final = frozenset(
    {
        "mllama", "qwen3vl", "qwen3vlmoe", "qwen35", "qwen35moe", "qwen3next", "lfm2", "lfm2moe", "nemotron_h", "nemotron_h_moe",
        "nemotron_h_omni",
    }
)  # fmt: skip
"""Architectures that get one slot, whatever ``OLLAMA_NUM_PARALLEL`` says (``Scheduler.load`` in ``server/sched.go``)."""

_BATCHES: Final = ((32_768, 2048, 60, 2 * GIB), (4096, 1024, 75, 768 * MIB))
"""Above so many tokens: the batch, the most percent of memory that the model may be predicted to take, and bytes for the batch."""
_SMALLEST: Final = 512
_CONSTRAINED: Final = 256
_SMALL_CARD: Final = 8 * GIB
_FREE_PERCENT: Final = 80
_EMBEDDING: Final = 2048


def default_context(vram_bytes: int, most: int | None) -> int:
    """Tokens of a slot where nobody gives ``num_ctx``, on GPUs of so many bytes; not more than the model was trained for.

    >>> default_context(24 * 2**30, 131_072), default_context(16 * 2**30, 131_072), default_context(80 * 2**30, 40_960)
    (32768, 4096, 40960)
    """
    tokens = next((tokens for least, tokens in TIERS if vram_bytes >= least), DEFAULT_CONTEXT)
    return tokens if not most else min(tokens, most)


def predicted_bytes(file_bytes: int, read: Hparams, tokens: int) -> int:
    """Ollama's guess of a model's memory, from which it takes the batch (``PredictServerVRAM``): the file, and a cache of 16 bits.

    It takes the fewest key/value heads of all layers, and the hidden size by the heads for the width of a head, whatever the file says.
    """
    heads = max(read.n_head, default=0)
    shared = min(read.n_head_kv, default=0) or 1
    return file_bytes + 4 * read.n_layer_all * shared * (read.n_embd // heads if heads else 0) * tokens


def auto_batch(tokens: int, predicted: int, available: int, *, cuda_without_flash: bool = False, card_bytes: int = 0) -> int:
    """Tokens of a batch, logical and physical, where nobody gives ``num_batch``. ``tokens`` are those of all slots.

    ``available`` is what the GPUs have free; 0 where that is unknown, and then the batch follows from the context alone.

    >>> auto_batch(4096, 5 * 2**30, 16 * 2**30), auto_batch(8192, 5 * 2**30, 16 * 2**30), auto_batch(65_536, 5 * 2**30, 16 * 2**30)
    (512, 1024, 2048)
    >>> auto_batch(65_536, 10 * 2**30, 16 * 2**30), auto_batch(65_536, 13 * 2**30, 16 * 2**30)
    (1024, 512)
    """
    if cuda_without_flash:
        return either(tokens > DEFAULT_CONTEXT, _CONSTRAINED, _SMALLEST) if 0 < card_bytes <= _SMALL_CARD else _SMALLEST
    chosen = _SMALLEST
    for above, batch, percent, surcharge in reversed(_BATCHES):
        chosen = either((tokens > above) & _fits(predicted, available, percent, surcharge), batch, chosen)
    return chosen


def _fits(predicted: int, available: int, percent: int, surcharge: int) -> bool:
    if available == 0:
        return True
    free = available * _FREE_PERCENT // 100
    most: int = smaller(free, available * percent // 100)
    return (predicted == 0) | ((predicted <= most) & (surcharge <= free - predicted))


def embedding_batch(tokens: int) -> int:
    """Tokens of a batch of an embedding model."""
    batch: int = smaller(_EMBEDDING, tokens)
    return batch


def has_flash_attention(gpu: Gpu | None) -> bool:
    """Whether Ollama leaves flash attention to llama-server (``auto``) instead of turning it off: not on old cards of NVIDIA's."""
    if gpu is None or gpu.vendor.lower() != "nvidia" or gpu.compute_capability is None:
        return True
    major, _, minor = gpu.compute_capability.partition(".")
    return int(major) >= 6 and (int(major), int(minor or 0)) != (7, 2)
