"""Receipts: written whole, planned again, and drift in words; what is no receipt is an error with a status of its own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from hwcalc.engines.options import parse_lora
from hwcalc.errors import ConfigError, KvplanError
from hwcalc.library.load import load_model
from hwcalc.planner.asked import read_options
from hwcalc.planner.context import open_request
from hwcalc.probe.receipt import check_path, make_receipt, read_receipt, verify, write_receipt
from hwcalc.probe.run import ProbeOptions, probe
from hwcalc.report.schema import json_schema
from tests.hwcalc.command import REPOSITORY, Capture, run
from tests.hwcalc.probe.fake_cuda import FakeTorch

MIB = 2**20
LLAMA = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 64,
    "hidden_size": 512,
    "torch_dtype": "bfloat16",
    # As configs of hybrid models have it; JSON proper has no word for it.
    "time_step_limit": [0.0, float("inf")],
}
KEPT = sorted((REPOSITORY / "tests/receipts").glob("*.json"))


def made(path: Path, torch: Any = None, options: ProbeOptions | None = None, **wanted: Any) -> dict[str, Any]:
    """A receipt's document, by way of its file."""
    context = open_request(load_model(wanted.pop("model", LLAMA)), **wanted)
    probed = probe(context, options or ProbeOptions(reserve_bytes=0), environment={}, torch=torch or FakeTorch())
    assert probed is not None
    write_receipt(make_receipt(context, probed), str(path))
    return read_receipt(str(path))


@pytest.mark.parametrize(
    "wanted",
    [
        {"seq": 9_999},
        {"seq": 500, "batch": 3, "dtype": "q8_0", "tp": 2, "pp": 3},
        {"seq": 500, "engine": "vllm", "dtype": "fp8"},
        {"seq": 512, "engine": "transformers", "engine_options": {"cache": "quantized", "q_group_size": "32"}},
    ],
    ids=str,
)
def test_a_receipt_is_planned_again(tmp_path: Path, wanted: dict[str, Any]) -> None:
    """It fits its schema, holds the whole request, and agrees with the rules that made it, the allocator's too."""
    document = made(tmp_path / "r.json", **wanted)
    verified = verify(document, "r.json")

    Draft202012Validator(json_schema("receipt")).validate(document)
    assert verified.agrees
    assert verified.drift == ()
    assert [one.name for one in verified.comparisons] == ["tensors", "memory_allocated", "memory_reserved"]
    assert all(one.difference_bytes == 0 for one in verified.comparisons)
    assert document["model_config"]["time_step_limit"] == [0.0, "inf"]


def test_a_scaled_pool_keeps_its_blocks(tmp_path: Path) -> None:
    """10 blocks were measured: what a plan of today makes of the budget is another matter."""
    options = ProbeOptions(reserve_bytes=0, max_bytes=1_000_000)
    document = made(tmp_path / "r.json", options=options, seq=1_000, engine="vllm")

    assert document["probe"]["ranks"][0]["tensors"][0]["shape"][0] == 1_000_000 // (4 * 16_384)
    assert verify(document, "r").agrees


def test_drift_is_said(tmp_path: Path) -> None:
    """A tensor that is now planned larger, one that is gone, and one that is new."""
    document = made(tmp_path / "r.json", seq=100)
    tensors = document["probe"]["ranks"][0]["tensors"]
    tensors[0] |= {"measured_bytes": 1, "shape": [1]}
    tensors[1]["name"] = "layers.0.other"
    verified = verify(document, "r")

    assert not verified.agrees
    # Keys of a layer: 4 heads x 100 tokens x 64 numbers x 2 bytes = 51,200.
    assert verified.comparisons[0].difference_bytes == 1 - 51_200
    assert verified.drift == (
        "layers.0.other was measured and is not planned any more.",
        "layers.0.values is planned and was not measured.",
        "layers.0.keys was [1] of 1 bytes and is planned as [1, 4, 100, 64] of 51,200.",
    )


def test_a_drift_of_the_allocator_is_said(tmp_path: Path) -> None:
    """What the device had reserved is not what the rules say now."""
    document = made(tmp_path / "r.json", seq=100)
    next(one for one in document["probe"]["ranks"][0]["comparisons"] if one["name"] == "memory_reserved")["measured_bytes"] += (
        2 * MIB
    )
    verified = verify(document, "r")

    assert [(one.name, one.difference_bytes) for one in verified.comparisons if not one.agrees] == [("memory_reserved", 2 * MIB)]


def test_nothing_measured_proves_nothing(tmp_path: Path) -> None:
    """The receipt of a refusal is kept, and agrees with nothing."""
    document = made(tmp_path / "r.json", options=ProbeOptions(reserve_bytes=2**40), seq=100)

    assert not verify(document, "r").agrees
    assert "nothing was measured" in verify(document, "r").drift[0]


@pytest.mark.parametrize("path", KEPT, ids=lambda path: path.stem)
def test_kept_receipts_hold(path: Path) -> None:
    """What was measured on real devices is what is planned today, to the byte."""
    document = read_receipt(str(path))

    Draft202012Validator(json_schema("receipt")).validate(document)
    assert verify(document, path.name).agrees


def test_there_are_kept_receipts() -> None:
    """An empty folder would prove nothing."""
    assert KEPT


def broken(document: dict[str, Any], *keys: Any, value: Any) -> dict[str, Any]:
    """The document with another value at a path."""
    copy: dict[str, Any] = json.loads(json.dumps(document))
    place: Any = copy
    for key in keys[:-1]:
        place = place[key]
    if value is KeyError:
        del place[keys[-1]]
    else:
        place[keys[-1]] = value
    return copy


RANK = ("probe", "ranks", 0)


@pytest.mark.parametrize(
    "keys",
    [
        ("schema_version",),
        ("model_id",),
        ("model_config",),
        ("arguments",),
        ("probe",),
        ("kvplan_version",),
        ("probe", "ranks"),
        (*RANK, "outcome"),
        (*RANK, "rank"),
        (*RANK, "stage"),
        (*RANK, "tensors"),
        (*RANK, "tensors", 0, "name"),
        (*RANK, "tensors", 0, "shape"),
        (*RANK, "tensors", 0, "measured_bytes"),
        (*RANK, "environment"),
        (*RANK, "environment", "allocator"),
        (*RANK, "comparisons"),
        (*RANK, "comparisons", 2, "measured_bytes"),
    ],
    ids=str,
)
@pytest.mark.parametrize(
    "value", [KeyError, None, -1, True, "x", [], {}, [1], 10**400, 1e300, {"a": {}}], ids=lambda v: str(v)[:12]
)
def test_damaged_receipts(tmp_path: Path, keys: tuple[Any, ...], value: Any) -> None:
    """Whatever is wrong in one: a clear error, or a receipt that does not agree; never a traceback."""
    document = broken(made(tmp_path / "r.json", seq=100), *keys, value=value)
    (tmp_path / "r.json").write_text(json.dumps(document))
    try:
        verified = verify(read_receipt(str(tmp_path / "r.json")), "r")
    except ConfigError as error:
        assert error.message  # noqa: PT017 - either way is right
        return
    harmless = keys in {("model_id",), ("kvplan_version",), ("arguments",)} and isinstance(value, (str, dict))
    assert harmless or not verified.agrees or keys[-1] in {"rank", "allocator", "comparisons"}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "null",
        "{",
        "NaN",
        '{"schema_version": NaN}',
        "[" * 100_000,
        "\ud83d".encode("utf-8", "surrogatepass"),
        b"\xff\xfe\x00",
    ],
    ids=lambda text: str(text)[:10],
)
def test_files_that_are_no_receipt(tmp_path: Path, capsys: Capture, text: str | bytes) -> None:
    """Exit status 3 and a message."""
    path = tmp_path / "r.json"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    status, out, err = run(capsys, "probe", "--verify", str(path))

    assert (status, out) == (3, "")
    assert err.startswith("kvplan: ")


@pytest.mark.parametrize(("path", "status"), [("", 2), ("/nowhere/at/all/r.json", 74), ("/", 74), ("a\0b", 2), (".", 74)])
def test_a_place_where_no_receipt_can_be(path: str, status: int) -> None:
    """It is said before anything is measured."""
    with pytest.raises(KvplanError) as caught:
        check_path(path)

    assert caught.value.exit_code == status


def test_requests_that_a_receipt_should_not_make(tmp_path: Path) -> None:
    """Numbers out of range in the arguments are errors of the receipt, and unknown ones are passed over."""
    document = made(tmp_path / "r.json", seq=100)
    for name, value in (("seq", -1), ("tp", 10**9), ("engine", "no such"), ("engine_options", [1]), ("margin", "x"), ("pp", 5)):
        with pytest.raises(ConfigError):
            verify({**document, "arguments": {**document["arguments"], name: value}}, "r")
    assert verify({**document, "arguments": {**document["arguments"], "token": "x"}}, "r").agrees


def test_a_draft_and_adapters_are_part_of_the_request(tmp_path: Path) -> None:
    """The draft's own layers are in the cache: without its config the plan would be another. A name in its place is refused."""
    draft = load_model({**LLAMA, "num_hidden_layers": 1})
    document = made(tmp_path / "r.json", seq=500, engine="vllm", draft=draft, lora=parse_lora("rank=8"), weights="fp8")

    assert document["arguments"]["lora"] == "rank=8,count=1,targets=all,dtype=bf16"
    assert document["arguments"]["weights"] == "fp8"
    assert verify(document, "r.json").agrees

    document["arguments"]["draft"] = "org/name"
    with pytest.raises(ConfigError, match="no draft"):
        verify(document, "r.json")


def test_what_is_dropped_and_shared_is_part_of_the_request(tmp_path: Path) -> None:
    """As it is typed; a receipt without it is as it always was."""
    asked = read_options(
        {
            "seq": 500,
            "policy": "adakv:press=(knorm:compression_ratio=0.5)",
            "prompt": 300,
            "policy_rules": "paper",
            "compaction": "none",
        }
    )
    opened = open_request(load_model(LLAMA), **asked.keywords())
    probed = probe(open_request(load_model(LLAMA), seq=500), ProbeOptions(reserve_bytes=0), environment={}, torch=FakeTorch())
    assert probed is not None
    arguments = make_receipt(opened, probed).arguments

    assert read_options(arguments).policy == asked.policy
    assert {name: arguments[name] for name in ("prompt", "policy_rules", "compaction")} == {
        "prompt": 300, "policy_rules": "paper", "compaction": "none",
    }  # fmt: skip
    assert made(tmp_path / "r.json", seq=500)["arguments"].keys() == {"seq", "batch", "engine"}
