"""The probe on the CPU to the byte, and on a CUDA device that is not there: the same code, counted by the slow model."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import pytest
from msgspec.structs import replace

from hwcalc.engines.deployment import Occupancy
from hwcalc.engines.pool import Allocation
from hwcalc.errors import KvplanError, UsageError
from hwcalc.formulas import (
    KINDS,
    BlockSparseAttention,
    ExpandedLatentAttention,
    GatedLinearAttention,
    LayerKind,
    MatrixLSTM,
    MetaTokens,
    RealGatedLRU,
    Rwkv4,
    SinkAttention,
    Stack,
    StreamConvolutions,
)
from hwcalc.library.load import load_model
from hwcalc.planner.context import open_request
from hwcalc.probe.devices import NoDeviceError, default_reserve, holding, is_out_of_memory, open_device
from hwcalc.probe.result import MEASURED, OUT_OF_MEMORY, REFUSED, Probed, RankResult
from hwcalc.probe.run import ProbeOptions, probe, scaled
from tests.hwcalc.probe.fake_cuda import CONTEXT, FakeTorch

MIB = 2**20
GIB = 2**30
LLAMA = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "num_hidden_layers": 6,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 64,
    "hidden_size": 512,
    "torch_dtype": "bfloat16",
}


def opened(model: Any, **options: Any) -> Occupancy:
    """The request, opened."""
    return open_request(load_model(model), **options)


def probed(
    model: Any, options: ProbeOptions, torch: Any = None, environment: dict[str, str] | None = None, **wanted: Any
) -> Probed:
    """The probe of one process, whatever the environment of the tests."""
    result = probe(opened(model, **wanted), options, environment=environment or {}, torch=torch)
    assert result is not None
    return result


def only(result: Probed) -> RankResult:
    """The one rank."""
    (rank,) = result.ranks
    return rank


def test_every_layer_kind_on_the_cpu_to_the_byte() -> None:
    """A model of each kind that the catalogue has, in every engine that takes it: every tensor is as large as predicted."""
    from hwcalc.engines import ENGINES
    from hwcalc.sources.listing import known_ids

    seen: set[str] = set()
    layouts: set[tuple[str, str]] = set()
    for name in known_ids():
        model = load_model(name)
        kinds = {group.kind.name for group in model.stack.groups}
        if kinds <= seen:
            continue
        seen |= kinds
        for engine in ENGINES:
            try:
                found = opened(model, seq=70, batch=2, engine=engine)
            except KvplanError:
                continue
            allocations = found.allocation(0)
            if not allocations:
                continue
            # Writing finds nothing in a large tensor that it does not find in a small one, and takes all the time.
            small = sum(one.bytes for one in allocations) <= 8 * MIB
            options = ProbeOptions(device="cpu", max_bytes=512 * MIB, fill=small and engine != "reference")
            if not divides(allocations, 512 * MIB):
                with pytest.raises(UsageError, match="hold no layer"):
                    probe(found, options, environment={})
                continue
            result = probe(found, options, environment={})
            assert result is not None
            assert result.agrees, (name, engine)
            assert all(one.predicted_bytes == one.measured_bytes for one in only(result).tensors), (name, engine)
            layouts |= {(engine, kind) for kind in kinds}
    without = {"no_cache", "shared_cache"}
    assert {kind for engine, kind in layouts if engine == "reference"} >= seen - without
    assert seen | {kind.name for kind in RARE} == set(KINDS)


def divides(allocations: Sequence[Allocation], most: int) -> bool:
    """Whether so many bytes hold some of them: not where pools of all layers, with blocks of several sizes or none, are larger."""
    blocks = {one.blocks for one in allocations}
    first = sum(one.bytes for one in allocations if one.layer == allocations[0].layer)
    return first <= most or (None not in blocks and len(blocks) == 1)


RARE: tuple[LayerKind, ...] = (
    Rwkv4(hidden_size=64, attention_hidden_size=96),
    SinkAttention(num_attention_heads=4, num_key_value_heads=2, head_dim=16, v_head_dim=16, sink=4, window=60),
    MatrixLSTM(num_heads=4, qk_head_dim=8, v_head_dim=16),
    RealGatedLRU(lru_width=96, d_conv=4),
    GatedLinearAttention(num_heads=4, key_head_dim=8, value_head_dim=16),
    MetaTokens(num_attention_heads=4, num_key_value_heads=2, head_dim=16, v_head_dim=32, num_memory_tokens=5),
    BlockSparseAttention(
        num_attention_heads=4, num_key_value_heads=2, head_dim=16, v_head_dim=16, kernel_size=8, kernel_stride=4, dense_len=64
    ),
    ExpandedLatentAttention(num_attention_heads=4, qk_nope_head_dim=16, qk_rope_head_dim=8, v_head_dim=16),
    StreamConvolutions(num_key_value_heads=2, head_dim=16, hidden_size=64, d_conv=4),
)
"""Kinds that no model of the catalogue has."""


@pytest.mark.parametrize("kind", RARE, ids=lambda kind: kind.name)
def test_rare_layer_kinds_on_the_cpu_to_the_byte(kind: LayerKind) -> None:
    """Those of models that are not in the catalogue."""
    model = replace(load_model(LLAMA), stack=Stack(((kind,), (kind,))))
    result = probed(model, ProbeOptions(device="cpu", fill=True), seq=70, batch=2)

    assert result.agrees
    assert {one.layer for one in only(result).tensors} == {0, 1}


@pytest.mark.parametrize(
    "wanted",
    [
        {"dtype": "q8_0"},
        {"dtype": "int4"},
        {"dtype": "fp8_e5m2"},
        {"engine": "transformers", "engine_options": {"cache": "static", "max_cache_len": "128"}},
        {"engine": "transformers", "engine_options": {"cache": "quantized"}},
        {"engine": "transformers", "engine_options": {"cache": "quantized", "quant_backend": "fp8"}},
        {"engine": "transformers", "engine_options": {"cache": "quantized", "quant_backend": "hqq", "nbits": "3"}},
        {"engine": "vllm"},
        {"engine": "vllm", "dtype": "fp8", "kv_memory": 20 * MIB},
        {"engine": "vllm", "dtype": "int4_per_token_head"},
        {"engine": "vllm", "tp": 2, "pp": 3},
    ],
    ids=str,
)
def test_every_layout_on_the_cpu_to_the_byte(wanted: dict[str, Any]) -> None:
    """Plain, packed, static, quantized, paged, sharded: written, read back, and as large as predicted."""
    result = probed(LLAMA, ProbeOptions(device="cpu", fill=True), seq=64, batch=2, **wanted)

    assert result.agrees
    assert only(result).filled is True
    assert only(result).outcome == MEASURED
    assert sum(one.measured_bytes or 0 for one in only(result).tensors) == only(result).planned_bytes > 0


@pytest.mark.parametrize("expandable", [False, True], ids=["default", "expandable"])
@pytest.mark.parametrize("seq", [100, 4_000, 9_999, 20_000])
def test_a_cuda_device_by_its_allocators_rules(seq: int, expandable: bool) -> None:
    """Allocated, reserved and requested bytes and the drop of free memory are those of the other model; nothing stays."""
    torch = FakeTorch(expandable=expandable)
    environment = {"PYTORCH_ALLOC_CONF": "expandable_segments:True"} if expandable else {}
    result = probed(LLAMA, ProbeOptions(reserve_bytes=0, fill=True), torch, environment, seq=seq)
    rank = only(result)

    assert result.agrees
    assert rank.environment.device == "cuda:0"
    assert rank.environment.device_name == "Fake H100"
    # Keys of one layer: 4 heads x seq x 64 numbers x 2 bytes; twelve such tensors.
    assert rank.asked_bytes == 12 * 512 * seq
    assert {one.name: one.tolerance_bytes for one in rank.comparisons} == {
        "tensors": 0,
        "requested_bytes": 0,
        "memory_allocated": 0,
        "memory_reserved": 0,
        "drop of mem_get_info": 2 * MIB,
    }
    assert all(one.difference_bytes == 0 for one in rank.comparisons)
    assert torch.allocator.reserved == torch.allocator.allocated == 0


def test_a_difference_is_said() -> None:
    """An allocator that counts 512 bytes more than the rules: measured minus predicted is +512, and nothing agrees any more."""
    result = probed(LLAMA, ProbeOptions(reserve_bytes=0), FakeTorch(extra=512), seq=100)
    (wrong,) = [one for one in only(result).comparisons if not one.agrees]

    assert not result.agrees
    assert (wrong.name, wrong.difference_bytes) == ("memory_allocated", 512)


def test_memory_that_forgets_is_found() -> None:
    """What is read back is not what was written."""
    result = probed(LLAMA, ProbeOptions(reserve_bytes=0, fill=True), FakeTorch(flaw=True), seq=100)

    assert only(result).filled is False
    assert not result.agrees


def test_settings_that_are_not_modelled_are_not_compared() -> None:
    """Another backend has other rules: bytes are shown, nothing is concluded, and a note says why."""
    result = probed(
        LLAMA, ProbeOptions(reserve_bytes=0), FakeTorch(), {"PYTORCH_CUDA_ALLOC_CONF": "backend:cudaMallocAsync"}, seq=100
    )
    figures = {one.name: one for one in only(result).comparisons}

    assert figures["memory_reserved"].predicted_bytes is None
    assert figures["memory_reserved"].tolerance_bytes is None
    assert [note.code for note in result.notes if note.code == "allocator-settings"]
    assert result.agrees


def test_memory_that_was_reserved_before_is_not_compared() -> None:
    """A process that holds memory of its own: which of its free blocks are used is not known."""
    torch = FakeTorch(held_before=3 * MIB)
    result = probed(LLAMA, ProbeOptions(reserve_bytes=0), torch, seq=100)

    assert [note.code for note in result.notes if note.code == "not-fresh"]
    assert result.agrees
    assert torch.allocator.allocated == 3 * MIB


def test_more_than_is_free_is_refused() -> None:
    """574 MiB are free, 100 are kept: of a cache of 480 MiB nothing is allocated."""
    torch = FakeTorch()
    result = probed(LLAMA, ProbeOptions(reserve_bytes=100 * MIB), torch, seq=80 * 1024)
    rank = only(result)

    assert (rank.outcome, rank.agrees, result.agrees) == (REFUSED, False, False)
    assert rank.free_bytes == 1024 * MIB - CONTEXT
    assert f"--max-bytes {474 * MIB}" in rank.message
    # The warm-up tensor alone.
    assert torch.made == 1
    assert all(one.measured_bytes is None for one in rank.tensors)


def test_out_of_memory_is_a_result() -> None:
    """Memory that another process takes in the meantime: what fitted is said, and all of it goes back."""
    torch = FakeTorch()
    torch.on_empty = lambda made: setattr(torch.allocator, "total", 100 * MIB if made > 2 else torch.allocator.total)
    result = probed(LLAMA, ProbeOptions(reserve_bytes=0), torch, seq=80 * 1024)
    rank = only(result)

    assert rank.outcome == OUT_OF_MEMORY
    assert not result.agrees
    # 40 MiB each: two of them in 100 MiB.
    assert "after 2 of 12 tensors" in rank.message
    assert [one.measured_bytes for one in rank.tensors[:3]] == [40 * MIB, 40 * MIB, None]
    assert torch.allocator.reserved == 0


def test_a_device_that_is_taken() -> None:
    """Another program holds all of it, so that there is no context: no device, in the words of the driver, and exit status 5."""
    torch = FakeTorch()

    def refused(_: int) -> None:
        raise RuntimeError("CUDA error: all CUDA-capable devices are busy or unavailable\nCUDA kernel errors might be ...")

    torch.on_empty = refused
    with pytest.raises(
        NoDeviceError, match=r"cuda:0 cannot be used: CUDA error: all CUDA-capable devices are busy or unavailable\."
    ):
        probed(LLAMA, ProbeOptions(), torch, seq=100)


def test_no_memory_to_read_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading back needs some bytes of its own: where they are missing, that is the result."""
    torch = FakeTorch()

    def full(*_: Any) -> bool:
        raise torch.OutOfMemoryError("CUDA out of memory.")

    monkeypatch.setattr("hwcalc.probe.run._fill", full)
    result = probed(LLAMA, ProbeOptions(reserve_bytes=0, fill=True), torch, seq=100)
    rank = only(result)

    assert (rank.outcome, rank.filled, result.agrees) == (OUT_OF_MEMORY, None, False)
    assert "read back" in rank.message
    assert torch.allocator.reserved == 0


def test_one_gpu_for_several_processes() -> None:
    """Each takes the GPU of its own number; one that is named cannot be that of all."""
    environment = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}
    with pytest.raises(UsageError, match="one GPU for 2 processes"):
        probed(LLAMA, ProbeOptions(device="cuda:1"), FakeTorch(), environment=environment, seq=100, tp=2)


def test_an_interrupt_frees_everything() -> None:
    """Ctrl-C in the middle of it."""
    torch = FakeTorch()

    def interrupt(made: int) -> None:
        if made == 7:
            raise KeyboardInterrupt

    torch.on_empty = interrupt
    with pytest.raises(KeyboardInterrupt):
        probed(LLAMA, ProbeOptions(reserve_bytes=0), torch, seq=4_000)
    assert torch.allocator.allocated == torch.allocator.reserved == 0


def test_other_errors_of_the_runtime_are_no_results() -> None:
    """A broken driver is an error, and still everything is freed."""
    torch = FakeTorch()

    def broken(made: int) -> None:
        if made == 4:
            raise RuntimeError("CUDA error: an illegal instruction was encountered")

    torch.on_empty = broken
    with pytest.raises(RuntimeError, match="illegal instruction"):
        probed(LLAMA, ProbeOptions(reserve_bytes=0), torch, seq=4_000)
    assert torch.allocator.allocated == 0


def test_fewer_layers_and_fewer_blocks() -> None:
    """Half of six layers are three; of a pool the blocks that a limit holds; below one of them there is nothing to measure."""
    result = probed(LLAMA, ProbeOptions(device="cpu", scale=Fraction(1, 2)), seq=100)
    assert only(result).scaled == "3 of 6 layers"
    assert len(only(result).tensors) == 6

    # A page: 16 tokens x 4 heads x 2 x 64 x 2 bytes = 16,384; a block of six layers 98,304.
    result = probed(LLAMA, ProbeOptions(device="cpu", max_bytes=1_000_000), seq=1_000, engine="vllm")
    assert only(result).scaled == "10 of 64 blocks"
    assert {one.shape for one in only(result).tensors} == {(10, 16_384)}
    with pytest.raises(UsageError, match="no block"):
        probed(LLAMA, ProbeOptions(device="cpu", max_bytes=98_303), seq=1_000, engine="vllm")
    with pytest.raises(UsageError, match="no layer"):
        probed(LLAMA, ProbeOptions(device="cpu", max_bytes=1), seq=1_000)


@pytest.mark.parametrize("scale", [Fraction(0), Fraction(-1), Fraction(3, 2)])
def test_a_share_is_above_nothing_and_up_to_all(scale: Fraction) -> None:
    """Anything else is refused."""
    with pytest.raises(UsageError, match="scale"):
        probed(LLAMA, ProbeOptions(device="cpu", scale=scale), seq=100)


def test_a_limit_that_holds_everything_changes_nothing() -> None:
    """The allocations are given back as they are."""
    one = Allocation(name="a", layer=0, dtype="int8", shape=(5,), bytes=5)

    assert scaled([one], 5) == ((one,), None)


def test_devices_by_name() -> None:
    """No number is the first; a third of two, a Metal device without one and other words are refused, each with its own exit code."""
    torch: Any = FakeTorch()

    assert [open_device(word, torch=torch).label for word in (None, "cuda", "CUDA:1", "cpu")] == [
        "cuda:0",
        "cuda:0",
        "cuda:1",
        "cpu",
    ]
    for word in ("cuda:2", "mps"):
        with pytest.raises(NoDeviceError) as caught:
            open_device(word, torch=torch)
        assert caught.value.exit_code == 5
        assert caught.value.hint
    for word in ("gpu", "cuda:", "cuda:-1", "cuda:0000", "", "cpu:0"):
        with pytest.raises(UsageError):
            open_device(word, torch=torch)


def test_what_is_left_alone() -> None:
    """A gibibyte, or a twentieth of a large device: of 143,156 MiB 7,157.8."""
    assert default_reserve(open_device("cuda", torch=FakeTorch(total=2 * GIB))) == GIB
    assert default_reserve(open_device("cuda", torch=FakeTorch(total=143_156 * MIB))) == 143_156 * MIB * 5 // 100


def test_out_of_memory_has_many_names() -> None:
    """A class of torch's, Python's, or words of the CPU allocator."""
    torch: Any = FakeTorch()

    assert is_out_of_memory(torch.OutOfMemoryError("x"), torch)
    assert is_out_of_memory(MemoryError(), torch)
    assert is_out_of_memory(RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 1 bytes"), torch)
    assert is_out_of_memory(RuntimeError("CUDA error: out of memory"), torch)
    assert is_out_of_memory(RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate(handle)"), torch)
    assert not is_out_of_memory(RuntimeError("CUDA error: an illegal memory access was encountered"), torch)
    assert not is_out_of_memory(RuntimeError("shape mismatch"), torch)
    assert not is_out_of_memory(ValueError("memory"), torch)


def test_holding_gives_back_after_an_error() -> None:
    """The list is empty and the cache is, too."""
    torch = FakeTorch()
    device = open_device("cuda", torch=torch)
    kept: list[Any] = []

    def fails() -> None:
        nonlocal kept
        with holding(device) as kept:
            kept.append(device.empty((MIB,), "int8"))
            assert torch.allocator.allocated == MIB
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fails()
    assert kept == []
    assert torch.allocator.reserved == 0
