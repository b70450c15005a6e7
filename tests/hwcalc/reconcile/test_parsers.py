"""What each dialect finds in its lines, good and bad; nothing that a log holds makes a parser fail, wait or grow."""

from __future__ import annotations

import io
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hwcalc.errors import LogError
from hwcalc.reconcile.core import LONGEST_LINE, Reader
from hwcalc.reconcile.dialects import DIALECTS, Dialect, find_dialect
from hwcalc.reconcile.facts import Facts, byte_range, number_after
from tests.paths import TESTS

LOGS: Final = TESTS / "logs"
CORPUS: Final = sorted(path.relative_to(LOGS).as_posix() for path in LOGS.rglob("*.*") if path.suffix in (".log", ".txt"))
GIB: Final = 2**30


def read_log(lines: Iterable[str], dialect: str = "vllm") -> Dialect:
    """The log, read to its end."""
    parser = find_dialect(dialect)()
    for number, line in Reader(list(lines)):
        parser.feed(number, line)
    return parser


def facts_of(lines: Iterable[str], dialect: str = "vllm") -> Facts:
    """Everything that these lines state."""
    return read_log(lines, dialect).facts


def file_facts(name: str, dialect: str = "vllm") -> Facts:
    """The same of a file of the corpus."""
    return facts_of((LOGS / name).read_text(encoding="utf-8").splitlines(), dialect)


@pytest.mark.parametrize(
    ("line", "name", "low", "high"),
    [
        # Two decimals: half a hundredth either way.
        ("Model loading took 14.99 GiB memory and 3.0 seconds", "weights_bytes", 14.985, 14.995),
        ("Model loading took 3.2637 GB and 18.052839 seconds", "weights_bytes", 3.26365, 3.26375),
        ("Loading model weights took 14.9888 GB", "weights_bytes", 14.98875, 14.98885),
        # A zero that is not printed was rounded all the same.
        ("Available KV cache memory: 8.0 GiB", "available_bytes", 7.995, 8.005),
        ("Available KV cache memory: 8 GiB", "available_bytes", 7.995, 8.005),
        ("\x1b[32mAvailable KV cache memory: 67.08 GiB\x1b[0m", "available_bytes", 67.075, 67.085),
        ("Available KV cache memory: 3.09 GiB (process-scoped)", "available_bytes", 3.085, 3.095),
        ("Available KV cache memory: 1,024.50 MiB", "available_bytes", 1024.495 / 1024, 1024.505 / 1024),
        ("Estimated CUDA graph memory: 0.36 GiB total", "graphs_estimated_bytes", 0.355, 0.365),
        ("Graph capturing finished in 7 secs, took 0.68 GiB", "graphs_bytes", 0.675, 0.685),
        ("kv_cache_size=3.81GiB gpu_memory_utilization=0.90", "available_bytes", 3.805, 3.815),
        ("usage is 14.73 GiB for consumed memory (weights + non-torch)", "consumed_bytes", 14.725, 14.735),
        ("11.75 GiB KV cache is needed, which is larger", "needed_bytes", 11.745, 11.755),
        ("(11.75 GiB KV cache is needed, which is larger", "needed_bytes", 11.745, 11.755),
    ],
)
def test_sizes_with_the_range_of_their_rounding(line: str, name: str, low: float, high: float) -> None:
    """In GiB of 2^30 bytes, which older versions call GB."""
    fact = facts_of([line]).last(name)

    assert fact is not None
    assert fact.low is not None
    assert fact.high is not None
    assert (fact.low / GIB, fact.high / GIB) == pytest.approx((low, high), abs=2 / GIB)
    assert fact.low <= fact.value <= fact.high  # type: ignore[operator]


@pytest.mark.parametrize(
    ("line", "name", "value"),
    [
        ("GPU KV cache size: 1,043,072 tokens", "tokens", 1_043_072),
        ("GPU KV cache size: 1043072 tokens", "tokens", 1_043_072),
        ("GPU KV cache size: 1\u202f043\u202f072 tokens", "tokens", 1_043_072),
        ("GPU KV cache size: 1_043_072 tokens", "tokens", 1_043_072),
        ("# GPU blocks: 1952, # CPU blocks: 2048", "blocks", 1952),
        ("GPU blocks: 1952, # CPU blocks: 2048", "blocks", 1952),
        ("# cuda blocks: 1395, # CPU blocks: 2340", "blocks", 1395),
        ("# rocm blocks: 7, # CPU blocks: 0", "blocks", 7),
        ("Setting attention block size to 1056 tokens to ensure that", "attention_block_tokens", 1056),
        ("Using max model len 131072", "max_model_len", 131_072),
        ("Chunked prefill is enabled with max_num_batched_tokens=8192.", "max_num_batched_tokens", 8192),
        ("max_num_seqs (1024) exceeds available Mamba cache blocks (614)", "blocks", 614),
        ("Current kv cache memory in use is 9232221491 bytes.", "pool_bytes", 9_232_221_491),
        ("Overriding num_gpu_blocks=28649 with num_gpu_blocks_override=100", "num_gpu_blocks_override", 100),
        ("the estimated maximum model length is 65520. Try", "longest_tokens", 65_520),
        ("can be stored in KV cache (23648).", "stored_tokens", None),
        ("maximum number of tokens that can be stored in KV cache (23648).", "stored_tokens", 23_648),
    ],
)
def test_whole_numbers(line: str, name: str, value: int | None) -> None:
    """Grouped or not; of a line that is cut in front of its words, nothing."""
    assert facts_of([line]).number(name) == value


def test_one_line_of_the_newer_log() -> None:
    """The device, the share, and the equation's terms, numbers first."""
    facts = file_facts("vllm/v1-0.29-qwen2.5-0.5b.log")
    stated = {name: round(float(facts.number(f"{name}_bytes") or 0) / GIB, 2) for name in ("free", "total", "requested")}
    parts = {name: round(float(facts.number(f"{name}_bytes") or 0) / GIB, 2) for name in ("weights", "activation", "non_torch")}

    assert stated == {"free": 15.32, "total": 15.55, "requested": 13.99}
    assert parts == {"weights": 0.93, "activation": 1.06, "non_torch": 0.07}
    assert (facts.number("gpu_memory_utilization"), facts.word("version")) == (0.9, "0.29.0")
    assert (facts.number("concurrency"), facts.number("concurrency_tokens")) == (31.83, 32_768)
    assert facts.number("pool_bytes") == round(11.94 * GIB)


def test_columns() -> None:
    """A version that set its figures in columns."""
    facts = file_facts("vllm/v0-0.6-llama-3-8b-h100-columns.log")
    names = ("total", "requested", "weights", "non_torch", "activation", "available")

    found = [round(float(facts.number(f"{name}_bytes") or 0) / GIB, 2) for name in names]
    assert found == [79.22, 71.29, 14.96, 1.79, 1.26, 53.29]
    assert facts.number("gpu_memory_utilization") == 0.9


def test_several_processes() -> None:
    """The pool is the smallest, the weights are the largest; each process is told apart by the last name before the message."""
    facts = file_facts("vllm/v0-0.8-workers-24gb.log")
    smallest, largest = facts.smallest("available_bytes"), facts.largest("weights_bytes")

    assert [fact.rank for fact in facts.ranks("available_bytes")] == ["VllmWorkerProcess 521", "VllmWorkerProcess 507", None]
    assert smallest is not None
    assert largest is not None
    assert (smallest.value, smallest.rank, smallest.line) == (round(1.52 * GIB), "VllmWorkerProcess 507", 4)
    assert (largest.value, largest.rank) == (round(21.25 * GIB), "VllmWorkerProcess 507")


@pytest.mark.parametrize(
    ("prefix", "rank"),
    [
        ("", None),
        ("INFO 05-14 00:04:17 [gpu_worker.py:460] ", None),
        ("(APIServer pid=1) INFO ", None),
        ("(EngineCore pid=120) INFO ", None),
        ("(Worker_TP1 pid=448) INFO ", "Worker_TP1"),
        ("(Worker_PP0_TP1 pid=448) INFO ", "Worker_PP0_TP1"),
        ("(EngineCore_DP1 pid=9) INFO ", "EngineCore_DP1"),
        ("(VllmWorkerProcess pid=2607784) INFO ", "VllmWorkerProcess 2607784"),
        ("\x1b[36m(RayWorkerWrapper pid=77, ip=10.0.0.1)\x1b[0m INFO ", "RayWorkerWrapper 77"),
        ("2026-04-19 12:18:46.757 | (Worker_TP0 pid=2) INFO ", "Worker_TP0"),
        ("(VllmWorker rank=1 pid=1234) INFO ", "VllmWorker rank=1"),
        ("[pod/a] (Worker pid=12) INFO ", "Worker 12"),
        ("(pid=3) ", None),
        ("pid= INFO ", None),
    ],
)
def test_who_wrote_it(prefix: str, rank: str | None) -> None:
    """The process's own name, with its number where names are all alike."""
    fact = facts_of([f"{prefix}Available KV cache memory: 8.0 GiB"]).last("available_bytes")

    assert fact is not None
    assert fact.rank == rank


def test_settings() -> None:
    """As a dict, as an engine's configuration and as a Namespace."""
    lines = [
        (
            "non-default args: {'model': 'a/b', 'max_model_len': 262144, 'tensor_parallel_size': 2, 'kv_cache_dtype': 'fp8_e5m2', "
            "'max_num_seqs': 2, 'gpu_memory_utilization': 0.95, 'block_size': 32, 'enable_prefix_caching': True, "
            "'speculative_config': {'method': 'mtp', 'num_speculative_tokens': 3}}"
        ),
        (
            "(EngineCore pid=1) INFO [core.py:1] Initializing a V1 LLM engine (v0.11.1rc2.dev141+g38f225c2a) with config: model='a/b', "
            "dtype=torch.float16, max_seq_len=262144, tensor_parallel_size=2, pipeline_parallel_size=3, data_parallel_size=1, "
            "kv_cache_dtype=fp8_e5m2, quantization=None, enable_prefix_caching=True, speculative_config=None"
        ),
    ]
    stated, options = read_log(lines).inputs()

    assert stated == {"seq": 262_144, "tp": 2, "pp": 3, "dp": 1, "memory_utilization": 0.95, "dtype": "fp8_e5m2"}
    assert options == {
        "block_size": "32",
        "max_num_seqs": "2",
        "enable_prefix_caching": "true",
        "dtype": "float16",
        "speculative": "mtp:3",
    }
    older = "INFO args: Namespace(host=None, model='a/b', max_model_len=4096, tensor_parallel_size=4, gpu_memory_utilization=0.8)"
    assert read_log([older]).inputs()[0] == {"seq": 4096, "tp": 4, "memory_utilization": 0.8}
    for text, version in [
        ("vLLM API server version 0.8.5.post1", "0.8.5"),
        ("vLLM API server version 0.9.0.1", "0.9.0.1"),
        ("Initializing a V1 LLM engine (v0.11.1rc2.dev141+g38f225c2a) with config: model='a/b'", "0.11.1"),
        ("Initializing a V1 LLM engine (v0.20.0) with config: model='a/b'", "0.20.0"),
        ("vLLM API server version dev", None),
    ]:
        assert facts_of([text]).word("version") == version


def test_nothing_in_bad_lines() -> None:
    """Lines that only look as if they stated something."""
    assert [(fact.name, fact.value) for fact in file_facts("vllm/bad-lines.log").all()] == []


def test_another_start_forgets_the_one_before() -> None:
    """Of a server that was started twice, the last start counts; another replica's is no other start."""
    parser = find_dialect("vllm")()
    for number, line in Reader(LOGS / "vllm/v1-0.33-llama-3.1-8b-two-starts.log"):
        parser.feed(number, line)
    assert parser.starts == 2
    assert "needed_bytes" not in parser.facts
    assert parser.facts.number("max_model_len") == 65_520

    replicas = find_dialect("vllm")()
    for number, text in enumerate(
        [
            "(EngineCore_DP0 pid=1) GPU KV cache size: 100 tokens",
            "(EngineCore_DP1 pid=2) Initializing a V1 LLM engine (v0.33.0) with config: max_seq_len=64",
            "(EngineCore_DP1 pid=2) GPU KV cache size: 90 tokens",
        ]
    ):
        replicas.feed(number, text)
    assert replicas.starts == 1
    assert len(replicas.facts.ranks("tokens")) == 2


def test_metrics() -> None:
    """Labels, escaped quotes, what is None, how much is in use."""
    log = read_log((LOGS / "prometheus/v1-llama-3.1-8b.txt").read_text(encoding="utf-8").splitlines(), "prometheus")
    facts = log.facts

    assert {name: facts.number(name) for name in ("blocks", "tokens", "smallest_block_tokens", "usage_share")} == {
        "blocks": 4096,
        "tokens": 65_536,
        "smallest_block_tokens": 16,
        "usage_share": 0.5,
    }
    assert facts.number("concurrency") == 1.000244140625
    assert facts.number("kv_cache_memory_bytes") is None
    assert facts.word("enable_prefix_caching") == "true"
    assert {fact.rank for fact in facts.ranks("blocks")} == {"engine 0"}
    # The longest request: 65,536 tokens / 1.000244140625 = 65,520.
    assert log.inputs()[0]["seq"] == 65_520


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("out-of-memory.log", {"total": 23.65 * GIB, "process": 23.60 * GIB, "allocated": 22.90 * GIB, "tried": 22 * 2**20}),
        ("out-of-memory-older.log", {"total": 11.17 * GIB, "allocated": 10.85 * GIB, "reserved": 10.86 * GIB}),
        ("memory-summary.log", {"allocated": 14957 * 2**20, "peak": 17060 * 2**20, "peak_reserved": 17100 * 2**20}),
    ],
)
def test_what_torch_says(name: str, expected: dict[str, float]) -> None:
    """Both texts of an exhausted device, and the summary's table."""
    facts = file_facts(f"transformers/{name}", "transformers")

    assert {key: facts.number(f"{key}_bytes") for key in expected} == {key: round(value) for key, value in expected.items()}


def test_a_gigabyte_of_a_script_may_be_either() -> None:
    """15 GB is at least 14.995 x 10^9 bytes and at most 15.005 x 2^30; in GiB there is no doubt."""
    either = facts_of(["Memory footprint: 15 GB"], "transformers").last("footprint_bytes")
    binary = facts_of(["Memory footprint: 15 GiB"], "transformers").last("footprint_bytes")

    assert either is not None
    assert binary is not None
    assert (either.low, either.high) == (14_995_000_000, 15_005 * GIB // 1000)
    assert binary.low == -(-14_995 * GIB // 1000)
    assert facts_of(["memory footprint: 15"], "transformers").last("footprint_bytes") is None


def test_groups_of_digits() -> None:
    """A comma is part of a number only before three digits: a list is no number."""
    found = [number_after(f"x={text}", "x") for text in ("1,2,4", "1,234", "1,2345", "12,345,678.5", "-3.58 GiB")]

    assert [one.value for one in found if one is not None] == [1, 1234, 1, 12_345_678.5, -3.58]


@pytest.mark.parametrize("factor", [1, 1000, 1024, 2**20, 2**30])
@pytest.mark.parametrize("text", ["1", "0.4", "14.99", "14.9888", "123456.78"])
def test_rounding_ends_hold_what_is_printed_so(text: str, factor: int) -> None:
    """Both ends are printed as the figure again, and one byte beyond is not."""
    from fractions import Fraction

    found = number_after(f"x {text}", "x")
    assert found is not None
    value, low, high = byte_range(found, factor)
    decimals = max(2, len(text.partition(".")[2]))
    exact, half = Fraction(text), Fraction(1, 2 * 10**decimals)
    assert low <= value <= high
    if factor > 1:
        # Where no whole number is printed so, the nearest stands for both ends.
        assert exact - half <= Fraction(low, factor) <= Fraction(high, factor) <= exact + half or low == value == high
        assert Fraction(low - 1, factor) < exact - half
        assert Fraction(high + 1, factor) > exact + half


@given(st.lists(st.text(max_size=300), max_size=5))
def test_any_text(lines: list[str]) -> None:
    """No text makes a parser fail."""
    for dialect in DIALECTS:
        facts_of(lines, dialect.name)


WORDS: Final = (
    "Available KV cache memory", ": ", "GiB", "GPU KV cache size", "tokens", "1,234", ".", "5", "x", "(", "/", "=", "'", "{", "}", '"',
    "Maximum concurrency for", "tokens per request", "Free memory on device", "Desired GPU memory utilization is", "pid=", " ", ",",
    "vllm:cache_config_info{", 'block_size="', "Initializing a", " engine (v", "non-default args", "'max_model_len': ", "|", "-",
    "Tried to allocate", "out of memory", "memory footprint", "KV cache is needed", "blocks:", "# GPU ", "\\", "\x1b[", "\x00", "\u00b2",
)  # fmt: skip


@given(st.lists(st.sampled_from(WORDS), max_size=40).map("".join))
def test_pieces_of_lines(line: str) -> None:
    """Neither do pieces of what is looked for, in any order."""
    for dialect in DIALECTS:
        facts_of([line, line], dialect.name)


@pytest.mark.parametrize("name", CORPUS)
def test_cut_lines(name: str) -> None:
    """Every line of the corpus, cut at every place: what it states is what the whole line states, or nothing, or the number's front."""
    for line in (LOGS / name).read_text(encoding="utf-8").splitlines():
        step = max(1, len(line) // 200)
        for end in range(0, len(line), step):
            for dialect in DIALECTS:
                facts_of([line[:end]], dialect.name)


@pytest.mark.parametrize(
    "line",
    [
        "Available KV cache memory" + " " * LONGEST_LINE,
        "Available KV cache memory: " + "9" * LONGEST_LINE,
        "GPU KV cache size: " + "1,234" * (LONGEST_LINE // 5),
        "GPU KV cache size: " * (LONGEST_LINE // 19),
        "non-default args: {" + "'max_model_len': " * (LONGEST_LINE // 20),
        "Initializing a V1 LLM engine (v" + "model=" * (LONGEST_LINE // 8),
        "vllm:cache_config_info{" + 'a="' * (LONGEST_LINE // 3),
        'vllm:cache_config_info{a="' + "\\" * LONGEST_LINE,
        "(" * LONGEST_LINE + "pid=",
        "| " * LONGEST_LINE,
        "\x1b[" * (LONGEST_LINE // 2),
        "\x1b]" * (LONGEST_LINE // 2),
        "out of memory (GPU " + ";" * LONGEST_LINE,
    ],
)
def test_no_line_takes_long(line: str) -> None:
    """A line of the greatest length is done with in a moment, whatever it repeats; ten times so long takes no longer."""
    start = time.process_time()
    for dialect in DIALECTS:
        facts_of([line * 10], dialect.name)
    assert time.process_time() - start < 2


def test_facts_are_bounded() -> None:
    """A million processes are not kept apart."""
    facts = facts_of(f"(Worker_{number} pid=1) Available KV cache memory: 1.00 GiB" for number in range(6000))

    assert len(facts) <= 4096


def test_lines_are_bounded_and_clean() -> None:
    """The rest of a long line is not taken for a new one; UTF-16 without its zero bytes is read, and so is a broken one."""
    long = b"x" * (3 * LONGEST_LINE) + b"GPU KV cache size: 5 tokens\nGPU KV cache size: 7 tokens\n"
    reader = Reader(io.BytesIO(long))
    assert [text[:18] for _, text in reader] == ["x" * 18, "GPU KV cache size:"]
    assert "long lines" in "".join(reader.remarks)

    utf16 = "\ufeff# GPU blocks: 12, # CPU blocks: 3\r\n".encode("utf-16-le")
    broken = b"\xff\xfe\x80 # GPU blocks: 12, # CPU\n"
    for raw in (utf16, broken):
        parser = find_dialect("vllm")()
        for number, text in Reader(io.BytesIO(raw)):
            parser.feed(number, text)
        assert parser.facts.number("blocks") == 12


def test_too_many_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading ends, and says so."""
    monkeypatch.setattr("hwcalc.reconcile.core.MOST_LINES", 3)
    reader = Reader(["INFO a line"] * 10)
    assert len(list(reader)) == 3
    assert "first 3 lines" in reader.remarks[0]


@pytest.mark.parametrize("log", [5, [1], None])
def test_what_is_no_log(log: object) -> None:
    """A clear error of the log's own kind."""
    with pytest.raises(LogError):
        list(Reader(log))  # type: ignore[arg-type]


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    """So are a missing file, a folder and a name that no file can have."""
    for path in (tmp_path / "none.log", tmp_path, Path("a\0b")):
        with pytest.raises(LogError, match="cannot be read"):
            list(Reader(path))
