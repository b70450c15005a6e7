"""The lines of llama.cpp's log in the wordings of its releases, of ik_llama.cpp and of Ollama."""

from __future__ import annotations

import pytest

from hwcalc.reconcile.dialects.llamacpp import LlamacppLog
from hwcalc.reconcile.facts import Facts
from hwcalc.units import GIB, MIB


def read_log(log: str) -> LlamacppLog:
    """The log, read to its end."""
    parser = LlamacppLog()
    for number, line in enumerate(log.strip().splitlines(), 1):
        parser.feed(number, line)
    return parser


def read(log: str) -> Facts:
    """The facts of a log."""
    return read_log(log).facts


def sizes(facts: Facts, name: str) -> dict[str | None, float]:
    """The sizes of a fact in MiB, by device."""
    return {fact.rank: round(float(fact.value) / MIB, 2) for fact in facts.ranks(name) if not isinstance(fact.value, str)}


NEWEST = """
0.00.002.859 I srv          init: build_info: b10488-0c1e570
0.00.017.742 I load_tensors: loading model tensors, this can take a while... (load_mode = mmap)
0.00.018.000 I load_tensors: offloaded 35/35 layers to GPU
0.00.018.670 I load_tensors:   CPU_Mapped model buffer size =   525.13 MiB
0.00.018.671 I load_tensors:        CUDA0 model buffer size =  2368.31 MiB
0.00.019.098 I llama_context: constructing llama_context
0.00.019.101 I llama_context: n_seq_max             = 4
0.00.019.102 I llama_context: n_ctx                 = 8192
0.00.019.102 I llama_context: n_ctx_seq             = 8192
0.00.019.103 I llama_context: n_batch               = 2048
0.00.019.103 I llama_context: n_ubatch              = 512
0.00.019.104 I llama_context: flash_attn            = auto
0.00.019.104 I llama_context: kv_unified            = true
0.00.019.108 I llama_context: n_rs_seq              = 0
0.00.019.122 I llama_context:  CUDA_Host  output buffer size =     4.00 MiB
0.00.019.530 I llama_kv_cache:      CUDA0 KV buffer size =   160.00 MiB
0.00.023.634 I llama_kv_cache: size =  160.00 MiB (  8192 cells,   5 layers,  4/1 seqs), K (f16):   80.00 MiB, V (f16):   80.00 MiB
0.00.023.700 I llama_kv_cache:      CUDA0 KV buffer size =   522.00 MiB
0.00.023.701 I llama_kv_cache: size =  522.00 MiB (  4608 cells,  29 layers,  4/1 seqs), K (f16):  261.00 MiB, V (f16):  261.00 MiB
0.00.024.000 I sched_reserve:      CUDA0 compute buffer size =   517.00 MiB
0.00.024.001 I sched_reserve:  CUDA_Host compute buffer size =    29.01 MiB
0.01.000.000 I common_memory_breakdown_print: | memory breakdown [MiB] | total    free     self   model   context   compute    unaccounted |
0.01.000.001 I common_memory_breakdown_print: |   - CUDA0 (RTX 3090)   | 24124 = 20100 + ( 3567 =  2368 +     682 +     517) +         457 |
0.01.000.002 I common_memory_breakdown_print: |   - Host               |                    558 =   525 +       0 +      33                |
"""
"""The lines of 0c1e57098 (src/llama-context.cpp, llama-kv-cache.cpp, common/fit.cpp); Gemma 3 4B, four slots in one buffer."""


def test_newest_wording() -> None:
    """Two caches on one device stay apart, and the table at the end has whole MiB."""
    log = read_log(NEWEST)
    facts = log.facts
    assert sizes(facts, "model_bytes") == {"CPU_Mapped": 525.13, "CUDA0": 2368.31}
    assert sizes(facts, "kv_bytes") == {"CUDA0 1": 160.0, "CUDA0 2": 522.0}
    assert sizes(facts, "kv_sum_bytes") == {"1": 160.0, "2": 522.0}
    assert [fact.value for fact in facts.ranks("cells")] == [8192, 4608]
    assert sizes(facts, "compute_bytes") == {"CUDA0": 517.0, "CUDA_Host": 29.01}
    assert sizes(facts, "output_bytes") == {"CUDA_Host": 4.0}
    assert sizes(facts, "context_sum_bytes") == {"CUDA0": 682.0, "Host": 0.0}
    total = facts.ranks("total_bytes")[0]
    assert (total.low, total.high) == (24124 * MIB, 24125 * MIB - 1)
    assert log.inputs() == (
        {"seq": 8192, "batch": 4},
        {
            "n_ctx": "8192",
            "n_seq_max": "4",
            "n_batch": "2048",
            "n_ubatch": "512",
            "n_rs_seq": "0",
            "type_k": "f16",
            "type_v": "f16",
            "n_gpu_layers": "35",
            "kv_unified": "true",
        },
    )


@pytest.mark.parametrize(
    ("log", "expected"),
    [
        pytest.param(
            # github.com/ollama/ollama/issues/10114
            """
            load_tensors: offloaded 25/25 layers to GPU
            load_tensors:        CUDA0 model buffer size =   577.22 MiB
            load_tensors:   CPU_Mapped model buffer size =   520.30 MiB
            llama_init_from_model: n_seq_max     = 1
            llama_init_from_model: n_ctx         = 32768
            llama_init_from_model: n_ctx_per_seq = 32768
            llama_init_from_model: n_batch       = 512
            llama_init_from_model: flash_attn    = 0
            llama_kv_cache_init: kv_size = 32768, offload = 1, type_k = 'f16', type_v = 'f16', n_layer = 24, can_shift = 1
            """,
            {"n_ctx": "32768", "n_seq_max": "1", "n_batch": "512", "type_k": "f16", "type_v": "f16", "flash_attn": "off"},
            id="2025-04",
        ),
        pytest.param(
            """
            time=2026-08-01T07:02:27.423Z level=INFO source=llama_server.go:400 msg="starting llama-server" cmd="llama-server --ctx-size 16384 --parallel 2 --batch-size 1024 --ubatch-size 1024 --cache-type-k q8_0 --cache-type-v q8_0 --n-gpu-layers 33"
            """,
            {"n_ctx": "16384", "n_seq_max": "2", "n_batch": "1024", "n_ubatch": "1024", "type_k": "q8_0", "type_v": "q8_0"},
            id="ollama-command",
        ),
    ],
)
def test_settings(log: str, expected: dict[str, str]) -> None:
    """Options are found in the context's lines and in Ollama's command."""
    _, options = read_log(log).inputs()
    assert expected.items() <= options.items()


def test_ik_llama() -> None:
    """A model's buffers have no word of their own, and a latent has its own sum."""
    # github.com/ikawrakow/ik_llama.cpp/pull/492
    facts = read(
        """
        llm_load_tensors:      CUDA0 buffer size = 12698.93 MiB
        llama_new_context_with_model: n_ctx      = 16384
        llama_new_context_with_model: mla_attn   = 3
        llama_new_context_with_model: attn_max_b = 512
        llama_kv_cache_init:      CUDA0 KV buffer size =   576.00 MiB
        llama_kv_cache_init:      CUDA1 KV buffer size =   522.00 MiB
        llama_new_context_with_model: KV self size  = 1098.00 MiB, c^KV (f16): 1098.00 MiB, kv^T: not used
        llama_new_context_with_model:  CUDA_Host  output buffer size =     0.49 MiB
        llama_new_context_with_model:      CUDA0 compute buffer size =  2094.00 MiB
        """
    )
    assert sizes(facts, "model_bytes") == {"CUDA0": 12698.93}
    assert sizes(facts, "kv_sum_bytes") == {"1": 1098.0}
    assert sizes(facts, "kv_bytes") == {"CUDA0 1": 576.0, "CUDA1 1": 522.0}
    assert facts.word("type_k") == "f16"


def test_ollamas_own_engine() -> None:
    """Sizes with one decimal leave a wider range."""
    # github.com/ollama/ollama/issues/12027 and pull/11090
    facts = read(
        """
        time=2025-08-24T08:26:00.310Z level=INFO source=ggml.go:362 msg="offloaded 41/41 layers to GPU"
        time=2025-08-24T08:26:00.310Z level=INFO source=backend.go:310 msg="model weights" device=CUDA0 size="4.3 GiB"
        time=2025-08-24T08:26:00.310Z level=INFO source=backend.go:321 msg="kv cache" device=CUDA0 size="936.0 MiB"
        time=2025-08-24T08:26:00.310Z level=INFO source=backend.go:332 msg="compute graph" device=CUDA0 size="98.0 MiB"
        time=2025-08-24T08:26:00.310Z level=INFO source=backend.go:337 msg="compute graph" device=CPU size="8.0 MiB"
        time=2025-07-18T14:50:58.130Z level=INFO source=ggml.go:672 msg="compute graph" backend=CUDA1 buffer_type=CUDA1 size="0 B"
        time=2025-08-24T08:26:00.310Z level=INFO source=backend.go:342 msg="total memory" size="5.4 GiB"
        """
    )
    weights = facts.ranks("model_bytes")[0]
    # 4.3 with one decimal is 4.25 to 4.35.
    assert (weights.low, weights.high) == (4_563_402_752, 4_670_776_934)
    assert float(weights.value) == pytest.approx(4.3 * GIB, abs=1)
    assert sizes(facts, "kv_bytes") == {"CUDA0 1": 936.0}
    assert sizes(facts, "compute_bytes") == {"CUDA0": 98.0, "CPU": 8.0, "CUDA1": 0.0}


def test_dry_runs_drafts_and_further_contexts_do_not_count() -> None:
    """Only the first model's first context is the plan's."""
    facts = read(
        """
        print_info: no_alloc              = 1
        load_tensors:        CUDA0 model buffer size =   111.00 MiB
        build: 10488 (0c1e570) with cc
        print_info: no_alloc              = 0
        load_tensors:        CUDA0 model buffer size =   222.00 MiB
        llama_context: constructing llama_context
        llama_kv_cache:      CUDA0 KV buffer size =   10.00 MiB
        llama_context: constructing llama_context
        llama_kv_cache:      CUDA0 KV buffer size =   20.00 MiB
        llama_model_loader: loaded meta data with 14 key-value pairs and 39 tensors from draft.gguf (version GGUF V3 (latest))
        load_tensors:        CUDA0 model buffer size =   333.00 MiB
        """
    )
    assert sizes(facts, "model_bytes") == {"CUDA0": 222.0}
    assert sizes(facts, "kv_bytes") == {"CUDA0 1": 10.0}


def test_a_fault_of_the_table_is_left_out() -> None:
    """The last column may be nonsense; the others are read."""
    # github.com/ggml-org/llama.cpp/issues/19437: the last column is below zero and printed without its sign.
    facts = read(
        """
        llama_context: constructing llama_context
        llama_memory_breakdown_print: |   - CUDA0 (GTX 1080 Ti) | 11165 = 8702 + (10001 =  9814 +     134 +      51) + 17592186036877 |
        llama_memory_breakdown_print: |   - Host                |                   197 =   166 +       0 +      30                   |
        """
    )
    assert sizes(facts, "context_sum_bytes") == {"CUDA0": 134.0, "Host": 0.0}


def test_the_last_start_counts() -> None:
    """A second start in one log replaces the first."""
    parser = LlamacppLog()
    for number, line in enumerate((NEWEST + NEWEST.replace("160.00 MiB", "170.00 MiB")).strip().splitlines(), 1):
        parser.feed(number, line)
    assert parser.starts == 2
    assert sizes(parser.facts, "kv_bytes") == {"CUDA0 1": 170.0, "CUDA0 2": 522.0}
