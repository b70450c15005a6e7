"""Logs of SGLang: figures that were reported in public are what the engine's rules say of such a model."""

from __future__ import annotations

from typing import Final

from hwcalc.reconcile.core import reconcile
from hwcalc.reconcile.dialects.sglang import SglangLog
from tests.hwcalc.reconcile.logs import LOGS, figures


def test_a_log_of_a_model_with_states() -> None:
    """Slots with both states and one more, a pool of attention, and a fifth of the slots as requests."""
    found = reconcile("Qwen/Qwen3.5-27B", LOGS / "sglang" / "qwen3.8-27b.log", gpu="h200")
    rows = figures(found)
    for name in ("conv pool", "state pool", "key pool", "value pool", "requests at once"):
        assert rows[name].within, name


def test_arguments_are_read() -> None:
    """Replicas of attention are ranks of one group; what is not set is left out."""
    parser = SglangLog()
    text = "server_args=ServerArgs(tp_size=8, dp_size=4, enable_dp_attention=True, kv_cache_dtype='fp8_e4m3', page_size=64, max_running_requests=None)"
    parser.feed(1, text)
    stated, options = parser.inputs()
    assert stated == {"tp": 2, "dp": 4, "dtype": "fp8_e4m3"}
    assert options == {"page_size": "64", "enable_dp_attention": "true"}


def test_a_word_that_known_releases_refuse_is_read_in_a_log() -> None:
    """Before 0.5.16 four bits had another name; --dtype does not take it."""
    lines = "max_total_num_tokens=100000, chunked_prefill_size=2048, max_running_requests=2048, context_len=8192\n"
    found = reconcile(
        "Qwen/Qwen2.5-1.5B-Instruct", f"server_args=ServerArgs(tp_size=1, kv_cache_dtype='fp4_e2m1')\n{lines}", gpu="b200"
    )
    (note,) = (note for note in found.notes if note.code == "older-name")
    assert "counted as fp4_mx_block16" in note.message


def test_a_word_is_read_as_the_release_means_it() -> None:
    """A log of 0.5.14 by its arguments, and one whose release the user names: 8,064 bytes a token of Qwen2.5 1.5B in four bits."""
    lines = "KV Cache is allocated. dtype: torch.float4_e2m1fn_x2, #tokens: 100000, K size: 0.34 GB, V size: 0.34 GB\n"
    lines += "max_total_num_tokens=100000, chunked_prefill_size=2048, max_running_requests=2048, context_len=8192\n"
    for more, engine in ((", cuda_graph_config=None", None), ("", "sglang@0.5.12")):
        text = f"server_args=ServerArgs(tp_size=1, kv_cache_dtype='fp4_e2m1'{more})\n{lines}"
        found = reconcile("Qwen/Qwen2.5-1.5B-Instruct", text, gpu="b200", engine=engine)
        assert found.engine_version == ("0.5.14" if engine is None else "0.5.12")
        assert not any(note.code == "older-name" for note in found.notes)
        assert ("dtype", "fp4_e2m1") in [(one.name, one.value) for one in found.inputs]


def test_arguments_tell_the_release() -> None:
    """Since 0.5.19 arguments are printed as a dictionary; the newest that is there came with the release."""
    for text, release in (
        ("server_args=ServerArgs(tp_size=2, kv_cache_dtype='fp8_e4m3', page_size=64, enable_flexkv=False)", "0.5.16"),
        (
            "server_args={'tp_size': 2, 'kv_cache_dtype': 'fp8_e4m3', 'page_size': 64, 'enable_flexkv': False, 'dsv4_attn_backend': None}",
            "0.5.20",
        ),
        ("server_args=ServerArgs(tp_size=2, kv_cache_dtype='fp8_e4m3', page_size=64)", None),
    ):
        parser = SglangLog()
        parser.feed(1, text)
        assert parser.inputs() == ({"tp": 2, "dtype": "fp8_e4m3"}, {"page_size": "64"})
        assert parser.facts.word("version") == release


def test_a_log_is_compared_with_the_release_that_it_tells() -> None:
    """An RTX 5090 takes chunks of 2,048 until 0.5.19; a named release comes before the log's."""
    lines = "max_total_num_tokens=100000, chunked_prefill_size=2048, max_running_requests=2048, context_len=40960\n"
    text = f"server_args={{'tp_size': 1, 'enable_flexkv': False, 'enable_layernorm_sp': False}}\n{lines}"
    assert reconcile("Qwen/Qwen3-8B", text, gpu="rtx-5090").engine_version == "0.5.19"
    assert reconcile("Qwen/Qwen3-8B", text, gpu="rtx-5090", engine="sglang@0.5.21").engine_version == "0.5.21"


def test_a_second_start_begins_anew() -> None:
    """The figures of a start that failed are not those of the next one."""
    parser = SglangLog()
    for number, text in enumerate(
        ("server_args=ServerArgs(tp_size=1)", "max_total_num_tokens=100, context_len=8", "server_args=ServerArgs(tp_size=2)")
    ):
        parser.feed(number, text)
    assert parser.starts == 2
    assert parser.facts.number("tokens") is None


def test_the_pools_of_deepseek_v4() -> None:
    """The line of its own, beside the one of all models: windows are a tenth of the tokens."""
    text = (
        "[2026-11-01 10:00:00] DSV4 pool sizes: full=12864000, swa=1286400, c4=3216000, c128=100500\n"
        "[2026-11-01 10:00:09] max_total_num_tokens=12864000, max_running_requests=256, context_len=8192\n"
    )
    found = reconcile("deepseek-ai/DeepSeek-V4-Flash", text, gpu="h200-sxm-141gb", tp=4)
    rows = {row.name: row for row in found.rows}
    assert rows["window tokens"].reported == 1_286_400
    assert rows["tokens"].reported == 12_864_000
    assert abs(rows["window tokens"].predicted - 1_286_400) < 13_000


DRAFTED: Final = (
    "[2026-01-04 07:26:40] server_args=ServerArgs(model_path='/models/Qwen/Qwen3-30B-A3B-w8a8', tp_size=2, quantization='modelslim', "
    "mem_fraction_static=0.86, max_running_requests=192, chunked_prefill_size=-1, device='npu')\n"
    "[2026-01-04 07:26:50 TP0] Init torch distributed ends. mem usage=0.01 GB\n"
    "[2026-01-04 07:26:52 TP0] Load weight begin. avail mem=60.79 GB\n"
    "[2026-01-04 07:28:05 TP0] Load weight end. type=Qwen3MoeForCausalLM, avail mem=45.18 GB, mem usage=15.61 GB.\n"
    "[2026-01-04 07:28:05 TP0] KV Cache is allocated. #tokens: 802688, K size: 18.38 GB, V size: 18.38 GB\n"
    "[2026-01-04 07:28:05 TP0] Memory pool end. avail mem=8.40 GB\n"
    "[2026-01-04 07:28:40 TP0] Capture cuda graph end. Time elapsed: 35.01 s. mem usage=2.13 GB. avail mem=6.27 GB.\n"
    "[2026-01-04 07:28:40 TP0] Load weight begin. avail mem=6.27 GB\n"
    "[2026-01-04 07:28:41 TP0] Load weight end. type=LlamaForCausalLMEagle3, avail mem=5.88 GB, mem usage=0.39 GB.\n"
    "[2026-01-04 07:28:41 TP0] KV Cache is allocated. #tokens: 802688, K size: 0.38 GB, V size: 0.38 GB\n"
    "[2026-01-04 07:28:42 TP0] max_total_num_tokens=802688, max_running_requests=192, context_len=40960\n"
)


def test_a_log_with_a_draft() -> None:
    """Weights and pools are the model's, whatever graphs and the draft take later; a format that only the files know is not judged."""
    parser = SglangLog()
    for number, line in enumerate(DRAFTED.splitlines()):
        parser.feed(number, line)
    assert parser.facts.number("weights_bytes") == round(15.61 * 2**30)
    assert parser.facts.number("key_bytes") == parser.facts.number("value_bytes") == round(18.38 * 2**30)
    found = reconcile("Qwen/Qwen3-30B-A3B", DRAFTED)
    rows = figures(found)
    assert (rows["weights"].within, rows["weights"].needs) == (None, "--weights")
    assert rows["key pool"].within
    assert rows["value pool"].within
    assert found.within
    assert "tokens" not in rows
    assert {"other-port", "weights-unknown"} <= {note.code for note in found.notes}


def test_tokens_follow_from_the_lines_about_loading() -> None:
    """Of 17.50 GiB that are left, 15 % of 22.91 stay free: 14.06 GiB for pools of windows and tokens; 0.06 GiB are taken in between."""
    text = (
        "server_args=ServerArgs(model_path='google/gemma-4-26B-A4B-it', tp_size=2, mem_fraction_static=0.85, swa_full_tokens_ratio=0.1, "
        "attention_backend='triton', page_size=1, max_running_requests=1, context_length=262144, device='cuda')\n"
        "[2026-06-10 03:16:42 TP1] Load weight begin. avail mem=23.06 GB\n"
        "[2026-06-10 03:16:42 TP0] Load weight begin. avail mem=22.91 GB\n"
        "[2026-06-10 03:16:49 TP1] Load weight end. type=Gemma4, quant=awq, bits=4, avail mem=13.71 GB, mem usage=9.34 GB.\n"
        "[2026-06-10 03:16:49 TP0] Load weight end. type=Gemma4, quant=awq, bits=4, avail mem=13.57 GB, mem usage=9.34 GB.\n"
        "[2026-06-10 03:16:49 TP0] Use sliding window memory pool. full_layer_tokens=530280, swa_layer_tokens=53028\n"
        "[2026-06-10 03:16:49 TP0] KV Cache is allocated. #tokens: 53028, K size: 2.53 GB, V size: 2.53 GB\n"
        "[2026-06-10 03:16:49 TP0] KV Cache is allocated. #tokens: 530280, K size: 2.53 GB, V size: 2.53 GB\n"
        "[2026-06-10 03:16:50 TP0] max_total_num_tokens=530280, max_running_requests=1, context_len=262144\n"
    )
    found = reconcile(None, text)
    rows = figures(found)
    assert found.model == "google/gemma-4-26B-A4B-it"
    assert rows["tokens"].within
    assert rows["window tokens"].within
    assert rows["window key pool"].within
    assert rows["weights"].needs == "--weights"
