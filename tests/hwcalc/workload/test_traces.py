"""Traces in every format that is read, of a few requests each, and files that are none."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hwcalc.errors import KvplanError, TraceError, UsageError
from hwcalc.workload.formats import BY_NAME, FORMATS, detect
from hwcalc.workload.opening import workload
from hwcalc.workload.request import Request, Segment, Workload, in_order

AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.9799600,4808,10\n2023-11-16 18:17:04.4799600,110,27\n"
AZURE_2024 = (
    "TIMESTAMP,ContextTokens,GeneratedTokens\n2024-05-10 00:00:00.009930+00:00,2162,5\n2024-05-10 00:00:01.009930+00:00,2399,6\n"
)
BURSTGPT = (
    "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
    "5,a,1.2,ChatGPT,472,18,490,Conversation log\n"
    "45,,0.3,ChatGPT,1087,0,1087,API log\n"
    "118,a,2.5,GPT-4,417,276,693,Conversation log\n"
)
MOONCAKE = "\n".join(
    json.dumps(row)
    for row in (
        {"timestamp": 0, "input_length": 1100, "output_length": 500, "hash_ids": [0, 1, 2]},
        {"timestamp": 3000, "input_length": 1024, "output_length": 20, "hash_ids": [0, 7]},
    )
)
QWEN = '{"chat_id": 3, "parent_chat_id": -1, "timestamp": 61.5, "input_length": 40, "output_length": 9, "type": "text", "turn": 1, "hash_ids": [5, 6, 7]}\n'
SHAREGPT = json.dumps(
    [
        {"id": "x", "conversations": [{"from": "human", "value": "a" * 40}, {"from": "gpt", "value": "b" * 20}, {"from": "human", "value": "c" * 4}, {"from": "gpt", "value": "d" * 9}]},
        {"id": "y", "conversations": [{"from": "gpt", "value": "begins with an answer"}]},
    ]
)  # fmt: skip
VLLM = {"date": "20260101", "backend": "vllm", "tokenizer_id": "t", "request_rate": "inf", "max_concurrency": None, "completed": 2, "total_input_tokens": 300, "input_lens": [100, 200], "output_lens": [7, 8], "start_times": [50.0, 52.5], "errors": ["", ""]}  # fmt: skip
SGLANG = {"backend": "sglang", "request_rate": 4.0, "max_concurrency": 8, "completed": 2, "total_input_tokens": 300, "total_output_tokens_retokenized": 15, "input_lens": [100, 200, 300], "output_lens": [7, 8, 0]}  # fmt: skip


def _file(tmp_path: Path, text: str | bytes, name: str = "trace") -> str:
    path = tmp_path / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return str(path)


def _rows(opened: Workload) -> list[tuple[float, int, int]]:
    return [(round(request.arrival_s, 3), request.prompt_tokens, request.output_tokens) for request in opened]


@pytest.mark.parametrize(
    ("text", "name", "rows"),
    [
        (AZURE, "azure", [(0, 4808, 10), (0.5, 110, 27)]),
        (AZURE_2024, "azure", [(0, 2162, 5), (1, 2399, 6)]),
        # The request without a response failed.
        (BURSTGPT, "burstgpt", [(0, 472, 18), (113, 417, 276)]),
        (MOONCAKE, "mooncake", [(0, 1100, 500), (3, 1024, 20)]),
        (QWEN, "qwen-bailian", [(0, 40, 9)]),
        # 4 bytes are a token. The second turn has 10 + 5 + 1 tokens before its answer of 9 / 4, rounded up.
        (SHAREGPT, "sharegpt", [(0, 10, 5), (0, 16, 3)]),
        (json.dumps(VLLM), "vllm-bench", [(0, 100, 7), (2.5, 200, 8)]),
        ("arrival;prompt;output\n0;5;1\n2;6;2\n", "csv", [(0, 5, 1), (2, 6, 2)]),
        ("time\tInput Tokens\tOutput Tokens\n1\t5.0\t1\n\n", "csv", [(0, 5, 1)]),
        (
            '{"ts": 3, "input_len": 5, "output_len": 1}\n\n{"ts": 4, "input_len": 6, "output_len": 2}',
            "jsonl",
            [(0, 5, 1), (1, 6, 2)],
        ),
    ],
)
def test_a_format_is_known_by_its_content_and_read(tmp_path: Path, text: str, name: str, rows: list[object]) -> None:
    """The first request arrives at 0. The same file packed by gzip, and with its format named, is the same."""
    path = _file(tmp_path, text)
    opened = workload(path)

    assert (opened.trace, _rows(opened)) == (name, rows)
    assert _rows(opened) == rows, "read again"
    assert _rows(workload(_file(tmp_path, gzip.compress(text.encode()), "packed"))) == rows
    assert _rows(workload(path, trace_format=name)) == rows


def test_parquet_with_named_columns(tmp_path: Path) -> None:
    """Columns by their usual names."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pa.table({"timestamp": [10.0, 12.0], "prompt_tokens": [5, 6], "completion_tokens": [1, 2], "text": ["a", "b"]})
    pq.write_table(table, tmp_path / "trace.parquet")
    opened = workload(tmp_path / "trace.parquet")

    assert (opened.trace, _rows(opened)) == ("parquet", [(0, 5, 1), (2, 6, 2)])


def test_ids_of_blocks_are_prefixes(tmp_path: Path) -> None:
    """Two prompts of Mooncake with the first id in common share 512 tokens; the last block may be a part of one."""
    first, second = workload(_file(tmp_path, MOONCAKE))

    assert first.prefix == (Segment(0, 512), Segment(1, 512), Segment(2, 76))
    assert first.shared_tokens(second) == 512


def test_turns_of_a_conversation_follow_each_other(tmp_path: Path) -> None:
    """The second turn is sent after the first, and begins with its prompt and its answer. Other arrivals move whole conversations."""
    path = _file(tmp_path, SHAREGPT)
    first, second = workload(path)

    assert (second.after, second.session) == (first.number, first.session)
    assert first.prefix_tokens == first.prompt_tokens
    assert second.prefix[: len(first.prefix) + 1] == (*first.prefix, Segment(first.output_id, 5))
    assert [request.arrival_s for request in workload(path, arrival="rate=1")] == [0, 0]
    assert workload(path).summary().left_out == {"answers to nothing": 1}


def test_runs_without_times_arrive_as_the_benchmark_was_started(tmp_path: Path) -> None:
    """Four a second at random, the same each time; a note says so, and no more than eight at once. A request without an output failed. Of several runs the last counts."""
    path = _file(tmp_path, f"{json.dumps(VLLM)}\n{json.dumps(SGLANG)}\n")
    opened = workload(path, trace_format="sglang-bench")
    times = [request.arrival_s for request in opened]

    assert detect(_file(tmp_path, json.dumps(SGLANG), "one")).name == "sglang-bench"
    assert [request.prompt_tokens for request in opened] == [100, 200]
    assert 0 == times[0] < times[1]
    assert times == [request.arrival_s for request in opened]
    assert (len(opened.notes), opened.concurrency) == (2, 8)


def test_other_columns_can_be_named(tmp_path: Path) -> None:
    """In CSV by their header, in JSON lines also those inside others; groups, sessions, priorities and samples are read where they are."""
    path = _file(tmp_path, "when,in,out,group,prefix_tokens,session,priority,n,max_tokens\n1,50,5,sys,16,s1,-2,4,9\n")
    (request,) = workload(path, columns={"arrival": "when", "prompt": "in", "output": "out"})
    nested = _file(tmp_path, '{"usage": {"prompt_tokens": 50, "completion_tokens": 5}}', "nested")

    assert request.prefix == (Segment("sys", 16),)
    assert (request.session, request.priority, request.samples, request.max_tokens) == ("s1", -2, 4, 9)
    assert _rows(workload(nested, columns="prompt=usage.prompt_tokens,output=usage.completion_tokens")) == [(0, 50, 5)]


def test_a_trace_that_is_not_quite_sorted_is_sorted(tmp_path: Path) -> None:
    """Requests are numbered in the order of time."""
    opened = workload(_file(tmp_path, "arrival,prompt,output\n9,5,1\n2,6,2\n5,7,3\n"))

    assert _rows(opened) == [(0, 6, 2), (3, 7, 3), (7, 5, 1)]
    assert [request.number for request in opened] == [0, 1, 2]


def test_a_row_far_behind_its_place_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """No more than a part of a trace is held to sort it."""
    monkeypatch.setattr("hwcalc.workload.request.MOST_LATE", 8)
    late = [Request(number=0, arrival_s=1.0 + (number < 10), prompt_tokens=1, output_tokens=1) for number in range(12)]

    with pytest.raises(TraceError, match="Sort"):
        list(in_order(late))


def test_the_first_requests_and_other_times(tmp_path: Path) -> None:
    """``requests`` takes the first, ``speedup`` divides the times, ``arrival`` has others."""
    path = _file(tmp_path, "arrival,prompt,output\n0,5,1\n2,6,2\n5,7,3\n")

    assert _rows(workload(path, requests=2, speedup=4)) == [(0, 5, 1), (0.5, 6, 2)]
    assert _rows(workload(path, arrival="rate=2")) == [(0, 5, 1), (0.5, 6, 2), (1, 7, 3)]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b"", "is empty"),
        (b"\0\1\2\3" * 50, "no text"),
        (b"\xff\xfe\xfa" * 50, "no text"),
        (b"PAR1 and then nothing", "cannot be read"),
        (b"\x1f\x8b broken", "cannot be read"),
        (b"arrival,prompt\n1,2\n", "output tokens"),
        (b"arrival,prompt,output\n1,2\n", "line 2"),
        (b"arrival,prompt,output\n1,2,3\n1,many,3\n", "line 3"),
        (b"arrival,prompt,output\n1,2,-3\n", "line 2"),
        (b"arrival,prompt,output\n1,0,3\n", "line 2"),
        (b"arrival,prompt,output\n1,99999999999999,3\n", "line 2"),
        (b"arrival,prompt,output\n1,1" + b"9" * 5000 + b",3\n", "line 2"),
        (b"arrival,prompt,output\nsoon,2,3\n", "line 2"),
        (b"arrival,prompt,output\nnan,2,3\n", "line 2"),
        (b"arrival,prompt,output\n-5,2,3\n", "line 2"),
        (b'arrival,prompt,output\n1,"2,3\n4', "line"),
        (b"arrival,prompt,output,text\n1,2,3," + b"x" * 200_000, "line 2"),
        (b"arrival,prompt,output\n1,2,3\n\xff\xff,2,3\n", "line 3"),
        (b'{"input_len": 5, "output_len": 1}\n{"input_len": 5', "line 2"),
        (b'{"input_len": 5, "output_len": 1}\n[]', "line 2"),
        (b'{"input_len": 5, "output_len": 1}\n{"input_len": true, "output_len": 1}', "line 2"),
        (b'{"input_len": 5, "output_len": 1}\n' + b"[" * 100_000, "line 2"),
        (b'{"input_length": 5, "output_length": 1, "hash_ids": ["a"]}', "hash_ids"),
        (b"[1, 2]", "conversation 1"),
        (b'[{"conversations": [{"from": "human"}]}]', "conversation 1"),
        (b'[{"conversations": []}, {"conv', "conversation 2"),
        (b"[" * 100_000, "conversation 1"),
        (b'{"completed": 2, "total_input_tokens": 300, "tokenizer_id": "t"}', "no lengths"),
        (b'{"input_lens": [1, 2], "output_lens": [1]}', "2 prompts and 1 outputs"),
        (b'{"input_lens": [1, 2], "output_lens": "x"}', "no result"),
        (b'{"input_lens": [1], "output_lens": [1], "request_rate": -1}', "request_rate"),
        (b"x" * (5 * 2**20), "4 MiB"),
    ],
)
def test_what_cannot_be_read_is_said_with_its_place(tmp_path: Path, text: bytes, said: str) -> None:
    """Every error is of its own class, whose exit code is 3, and none is a traceback of Python."""
    path = _file(tmp_path, text)

    with pytest.raises(TraceError) as caught:
        list(workload(path))
    assert said in str(caught.value)
    assert caught.value.exit_code == 3


def test_files_that_are_not_there_or_cannot_be_read_again(tmp_path: Path) -> None:
    """A missing file, a folder, standard input."""
    for path in (str(tmp_path / "none.csv"), str(tmp_path), "-"):
        with pytest.raises(TraceError):
            list(workload(path))


@pytest.mark.parametrize(
    "given",
    [{"trace_format": "pcap"}, {"columns": "prompt"}, {"columns": "size=in"}, {"prompt": "5"}, {"colour": "5"}, {"speedup": "fast"}, {"speedup": 0}, {"requests": 0}],
)  # fmt: skip
def test_wrong_options_of_a_trace_are_refused(tmp_path: Path, given: dict[str, object]) -> None:
    """Wrong usage, before anything is read."""
    with pytest.raises(UsageError):
        workload(_file(tmp_path, AZURE), **given)  # type: ignore[arg-type]


def test_what_makes_no_workload_is_refused() -> None:
    """Nothing, a number, words beside a format."""
    for arguments, options in (
        ((), {}),
        ((5,), {}),
        (("",), {}),
        (("prompt=5 output=5",), {"trace_format": "csv"}),
        (("a\0b",), {}),
    ):
        with pytest.raises(KvplanError):
            workload(*arguments, **options)


@given(st.binary(max_size=300), st.sampled_from([one.name for one in FORMATS]))
def test_no_bytes_make_anything_but_requests_or_an_error(
    tmp_path_factory: pytest.TempPathFactory, text: bytes, name: str
) -> None:
    """Whatever the format is said to be."""
    path = tmp_path_factory.getbasetemp() / "noise"
    path.write_bytes(text)

    try:
        requests = list(workload(path, trace_format=name))
    except TraceError:
        return
    assert all(request.prompt_tokens > 0 and request.output_tokens > 0 for request in requests)


def test_a_summary_counts(tmp_path: Path) -> None:
    """Of 10, 20, 30 and 400 tokens half are at most 20; 3 requests within the 120 seconds after the first are one in 40."""
    rows = [(0, 10, 1), (60, 20, 2), (60, 30, 3), (120, 400, 4, "system", 64)]
    summary = workload(rows).summary()

    assert (summary.requests, summary.duration_s, summary.rate_per_s, summary.peak_rate_per_s) == (4, 120, 3 / 120, 2 / 60)
    assert (summary.prompt.quantiles["p50"], summary.prompt.quantiles["p95"]) == (20, 400)
    assert (summary.prompt.mean, summary.output.total, summary.total.longest) == (115, 10, 404)
    with pytest.raises(UsageError, match="no requests"):
        Workload.of([]).summary()


SEGMENTS = st.lists(st.builds(Segment, st.sampled_from("ab"), st.integers(1, 20)), max_size=3).map(tuple)


@given(st.lists(st.tuples(SEGMENTS, st.integers(1, 30)), min_size=1, max_size=5), st.integers(1, 9))
def test_the_share_of_prefixes_is_that_of_blocks_which_come_again(
    prompts: list[tuple[tuple[Segment, ...], int]], block_size: int
) -> None:
    """Counted block by block: those whose tokens, and all before them, an earlier prompt began with; all tokens but one."""
    requests = [
        Request(number=number, prompt_tokens=sum(one.tokens for one in prefix) + own, output_tokens=1, prefix=prefix)
        for number, (prefix, own) in enumerate(prompts)
    ]
    seen, hits = set[tuple[object, ...]](), 0
    for request in requests:
        tokens = [(one.id, place) for one in request.prefix for place in range(one.tokens)]
        tokens += [(request.number, f"own {place}") for place in range(request.prompt_tokens - len(tokens))]  # type: ignore[misc]
        blocks = [tuple(tokens[:end]) for end in range(block_size, len(tokens) + 1, block_size)]
        known = next((place for place, block in enumerate(blocks) if block not in seen), len(blocks))
        hits += min(known, (request.prompt_tokens - 1) // block_size) * block_size
        seen.update(blocks)

    summary = Workload.of(requests).summary(block_size)

    assert summary.prefixes.shared_tokens == hits


def test_a_prompt_shares_the_output_before_it_but_its_last_token() -> None:
    """Prompts of 16 tokens and outputs of 16: the next turn finds 31 of 32, which are one block of 16 and, of blocks of 31, one."""
    rows = [(0, 16, 16), (1, 40, 1, "r0", 32)]

    assert [workload(rows).summary(size).prefixes.shared_tokens for size in (16, 31)] == [16, 31]


def test_every_format_has_its_source() -> None:
    """Those that are published."""
    plain = {"csv", "jsonl", "parquet"}
    assert all(one.source for name, one in BY_NAME.items() if name not in plain)
