"""Timing of reads on the CPU: what is counted, what is scaled, what is kept. The numbers themselves are the machine's."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hwcalc import load_model
from hwcalc.engines.deployment import Occupancy
from hwcalc.engines.pool import ITEM_BYTES
from hwcalc.errors import UnsupportedError, UsageError
from hwcalc.planner.context import open_request
from hwcalc.probe import bandwidth
from hwcalc.probe.bandwidth import BandwidthResult, Timing, measure_bandwidth, save_bandwidth
from hwcalc.probe.devices import Device
from hwcalc.units import MIB

CONFIG = {
    "model_type": "llama",
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "hidden_size": 512,
    "max_position_embeddings": 8192,
    "torch_dtype": "bfloat16",
}
TOKEN = 4 * 2 * 2 * 64 * 2
"""Bytes of a token: 4 layers, keys and values, 2 heads of 64, two bytes."""


def opened(config: Any = CONFIG, **wanted: Any) -> Occupancy:
    """The request for a small model."""
    return open_request(load_model(config), **{"seq": 1024, **wanted})


def measured(*, config: Any = CONFIG, most_bytes: int | None = None, **wanted: Any) -> BandwidthResult:
    """On this machine's memory, twice."""
    import torch

    return measure_bandwidth(opened(config, **wanted), Device(torch, "cpu"), repeats=2, reserve_bytes=0, most_bytes=most_bytes)


def test_the_whole_cache_is_read() -> None:
    """Two sequences of 1,024 tokens: all their bytes, once; attention reads as many."""
    result = measured(batch=2)

    assert 2 * 1024 * TOKEN == result.planned_bytes == result.read.bytes
    assert result.attention is not None
    assert 2 * 1024 * TOKEN == result.attention.bytes
    assert result.read.gbps == pytest.approx(result.read.bytes / result.read.seconds / 1e9)
    assert ["read of the cache", "attention step", "plain copy"] == [row[0] for row in result.rows()]


def test_no_faster_than_memory_can_be() -> None:
    """Pages are written before they are read: a zero page that all share would be read from the chip's cache at any rate."""
    result = measured(batch=32, most_bytes=64 * MIB)

    assert 64 * MIB == result.read.bytes
    # Twelve channels of DDR5-6400 deliver 614 GB/s, and no copy is a hundred times slower than a read.
    assert 0.01 < result.read.gbps < 700
    assert result.read.gbps < 100 * result.copy.gbps


def test_a_part_of_it() -> None:
    """With a limit of 1 MiB: as many bytes of the first tensors, and the plan's step is reckoned from the rate."""
    result = measured(batch=2, most_bytes=MIB)

    assert (MIB, 2 * 1024 * TOKEN) == (result.read.bytes, result.planned_bytes)
    assert result.step_seconds == pytest.approx(4 * result.read.seconds)
    assert result.copy.bytes == 2 * MIB


def test_a_rank_reads_its_shard() -> None:
    """Of two ranks and two stages each a quarter."""
    assert 1024 * TOKEN // 4 == measured(tp=2, pp=2).read.bytes


def test_a_pool_is_read_whole() -> None:
    """vLLM: 64 blocks of 16 tokens and the one that is never given out."""
    assert 65 * 16 * TOKEN == measured(engine="vllm").read.bytes


def test_latents_are_read_once() -> None:
    """Values of a latent are a part of its keys: 1,024 tokens x (32 + 16) x 2 bytes x 2 layers."""
    config = {
        "model_type": "deepseek_v3",
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "hidden_size": 64,
        "q_lora_rank": 32,
        "kv_lora_rank": 32,
        "qk_rope_head_dim": 16,
        "qk_nope_head_dim": 32,
        "v_head_dim": 32,
        "torch_dtype": "bfloat16",
    }
    result = measured(config=config)

    assert result.attention is not None
    assert 1024 * 48 * 2 * 2 == result.attention.bytes == result.read.bytes


def test_states_have_no_attention() -> None:
    """A model of states alone is read all the same."""
    result = measured(
        config={"model_type": "mamba", "hidden_size": 64, "num_hidden_layers": 3, "state_size": 8, "torch_dtype": "float32"},
        seq=1,
    )

    assert (None, "no layer has attention over a cache") == (result.attention, result.attention_message)
    assert result.read.bytes == result.planned_bytes


def test_formats_that_torch_cannot_attend_to() -> None:
    """FP8 is read as bytes; attention says that it does not."""
    result = measured(dtype="fp8")

    assert (None, "torch's attention does not read fp8") == (result.attention, result.attention_message)
    assert 1024 * TOKEN // 2 == result.read.bytes


def test_share_of_the_peak() -> None:
    """An L4 has 300 GB/s: a share is the measured rate over that."""
    result = measured(gpu="l4")

    assert ("l4", 300.0) == (result.gpu, result.peak_gbps)
    assert result.share(result.read) == pytest.approx(result.read.gbps / 300)
    assert result.share(Timing(bytes=3 * 10**9, seconds=0.02, passes=1)) == pytest.approx(0.5)


def test_without_a_profile() -> None:
    """There is no share."""
    result = measured()

    assert (None, None) == (result.peak_gbps, result.share(result.read))


def test_kept_for_later_plans(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The reading is in the user's file for that accelerator, with device, torch and date."""
    import torch

    from hwcalc.profiles.calibration import BANDWIDTH, load_calibration

    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    result = measured(gpu="l4")

    path = save_bandwidth(result)

    assert tmp_path in path.parents
    kept = load_calibration("l4", BANDWIDTH)
    assert kept is not None
    (reading,) = kept.readings
    assert result.attention is not None
    assert {
        "read_gbps": result.read.gbps,
        "copy_gbps": result.copy.gbps,
        "attention_gbps": result.attention.gbps,
    } == dict(reading.values)
    assert (torch.__version__, result.environment.date[:10]) == (reading.measured.torch, reading.measured.date)


def test_only_for_a_named_accelerator() -> None:
    """Without a profile there is nothing that it could stand in for."""
    with pytest.raises(UsageError, match="accelerator"):
        save_bandwidth(measured())


@pytest.mark.parametrize(("name", "value"), [("most_bytes", 1000), ("repeats", 0), ("reserve_bytes", 2**60)])
def test_arguments_out_of_range(name: str, value: int) -> None:
    """Too little to be memory, no pass, or nothing left to measure with."""
    import torch

    with pytest.raises(UsageError):
        measure_bandwidth(opened(), Device(torch, "cpu"), **{name: value})  # type: ignore[arg-type]


def peak_bytes(work: Callable[[], object], *known: Any) -> int:
    """The most bytes that torch holds at once of tensors that it makes while it works."""
    from torch.utils._python_dispatch import TorchDispatchMode

    inputs = {tensor.untyped_storage().data_ptr() for tensor in known}
    held: dict[int, int] = {}
    sums = [0]

    class Watch(TorchDispatchMode):  # type: ignore[misc]
        """Sees every operation, those inside of attention too."""

        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            result = function(*args, **(kwargs or {}))
            storage = result.untyped_storage()
            mark = storage.data_ptr()
            if mark not in inputs and mark not in held:
                held[mark] = storage.nbytes()
                sums.append(sum(held.values()))
                weakref.finalize(storage, held.pop, mark, None)
            return result

    with Watch():
        work()
    return max(sums)


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize(
    "heads, kv_heads, key_width, value_width, latent",
    [(16, 1, 80, 64, True), (8, 2, 64, 64, False), (8, 8, 192, 128, False), (8, 2, 320, 320, False)],
)
def test_copies_of_torch_have_to_fit(
    heads: int, kv_heads: int, key_width: int, value_width: int, latent: bool, dtype: str
) -> None:
    """What torch holds beside the cache without a fused kernel, watched: as much as is left for it, and not much less."""
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel

    kind, tokens = {"fp32": torch.float32, "bf16": torch.bfloat16}[dtype], 4000
    layer = bandwidth._AttentionLayer(
        heads=heads, kv_heads=kv_heads, tokens=tokens, key_width=key_width, value_width=value_width, latent=latent
    )
    query, keys, values = bandwidth._call(layer, 1, tokens, dtype, Device(torch, "cpu"))
    assert keys.dtype is kind
    with torch.no_grad(), sdpa_kernel(SDPBackend.MATH):
        peak = peak_bytes(lambda: bandwidth._attend([(query, keys, values)], Device(torch, "cpu")), query, keys, values)
    copies = peak / (layer.row * tokens * ITEM_BYTES[dtype])
    fused = dtype == "bf16" and key_width == value_width <= 256

    # Probabilities and results are small beside the cache.
    assert fused or copies - 0.5 < layer.copied(dtype) < copies * 1.05 + 1
    assert not fused or layer.copied(dtype) == 0


def test_copies_by_hand() -> None:
    """DeepSeek-V3: of 576 cached numbers 128 heads need 576 and 576 scaled and 512, in four bytes instead of two, and one of each before.

    2 x (128 x (576 + 576 + 512) + 576 + 512) / 576 = 743.3
    """
    layer = bandwidth._AttentionLayer(heads=128, kv_heads=1, tokens=10, key_width=576, value_width=512, latent=True)

    assert layer.copied("bf16") == 744


def test_attention_that_does_not_fit_leaves_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    """Out of memory in torch's attention: what was read is a result all the same."""

    def full(*_: Any) -> Timing:
        raise MemoryError

    monkeypatch.setattr(bandwidth, "_steps", full)
    result = measured()

    assert result.attention is None
    assert "more memory than there is" in result.attention_message
    assert result.read.bytes == 1024 * TOKEN


def test_small_tensors_are_read_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight tensors of 256 KiB in pieces of 1 MiB: two kernels, not eight."""
    sizes: list[int] = []
    plain = bandwidth._filled

    def filled(size: int, device: Device) -> Any:
        sizes.append(size)
        return plain(size, device)

    monkeypatch.setattr(bandwidth, "_filled", filled)
    monkeypatch.setattr(bandwidth, "_PIECE_BYTES", MIB)
    measured(batch=2, seq=512)

    assert sizes == [MIB] * (2 * 512 * TOKEN // MIB)


def test_nothing_to_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """A model that keeps nothing has nothing to time."""
    import torch

    request = opened()
    monkeypatch.setattr(type(request), "allocation", lambda *_: ())
    with pytest.raises(UnsupportedError):
        measure_bandwidth(request, Device(torch, "cpu"))


@pytest.mark.parametrize(("error", "expected"), [(MemoryError(), UsageError), (KeyboardInterrupt(), KeyboardInterrupt)])
def test_nothing_stays(monkeypatch: pytest.MonkeyPatch, error: BaseException, expected: type[BaseException]) -> None:
    """Out of memory is an error with a hint, Ctrl-C goes through, and no tensor is left of either."""
    import torch

    request = opened()
    measure_bandwidth(request, Device(torch, "cpu"), repeats=1, most_bytes=MIB)
    # What is alive now is not searched: that is most of torch.
    gc.collect()
    gc.freeze()

    def broken(*_: Any) -> Timing:
        raise error

    monkeypatch.setattr(bandwidth, "best_time", broken)
    with pytest.raises(expected):
        measure_bandwidth(request, Device(torch, "cpu"), repeats=1, most_bytes=MIB)

    gc.collect()
    left = [type(thing) for thing in gc.get_objects() if issubclass(type(thing), torch.Tensor)]
    gc.unfreeze()
    assert left == []
