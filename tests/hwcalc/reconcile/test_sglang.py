"""Logs of SGLang: figures that were reported in public are what the engine's rules say of such a model."""

from __future__ import annotations

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
