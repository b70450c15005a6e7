"""Weight files that are not the whole model of their config are told from those that are."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from hwcalc import load_model, plan
from hwcalc.formulas.formats import BF16
from hwcalc.formulas.weights import Part, WeightRole
from hwcalc.model import Definition, ModelSpec, RawModel, WeightFacts
from hwcalc.parsers.parse import parse
from hwcalc.profiles.catalog import find_entry, list_models
from hwcalc.quantization.planned import LEAST_PERCENT, needed_parameters, planned_scheme
from tests.hub.repositories import CONFIG, weight_file
from tests.hwcalc.command import Capture, run

QWEN = "Qwen/Qwen3-8B"
PARAMETERS = 8_190_735_360
"""Published of Qwen3-8B; 622,329,856 of them are the head (151,936 x 4,096)."""


def config_of(model_id: str) -> dict[str, Any]:
    """The config in the catalog."""
    entry = find_entry(model_id)
    assert entry is not None
    config: dict[str, Any] = entry.data["config"]
    return config


def stored(config: Mapping[str, Any], sizes: Mapping[str, int], model_id: str = "m") -> ModelSpec:
    """A model with files of these bytes by dtype."""
    facts = WeightFacts(bytes_by_dtype=sizes, elements_by_dtype={}, files=1, tensors=1)
    return parse(RawModel(id=model_id, config=config, source="local", weights=facts))


def is_partial(model: ModelSpec) -> bool:
    """Whether the model has the warning."""
    return [note.code for note in model.warnings] == ["weights-partial"]


@pytest.mark.parametrize(
    ("sizes", "partial"),
    [
        ({}, True),
        ({"BF16": 8}, True),
        ({"BF16": 2 * 622_329_856}, True),  # the embedding alone
        ({"BF16": 2 * PARAMETERS * 3 // 4}, True),  # three of four shards
        ({"F8_E8M0": PARAMETERS}, True),
        ({"I64": PARAMETERS // 8}, True),  # one bit a parameter, which no format has that a config leaves out
        ({"NEW_TYPE": PARAMETERS // 8}, True),
        ({"BF16": 2 * PARAMETERS * 9 // 10}, True),
        ({"BF16": 2 * PARAMETERS}, False),
        ({"BF16": 2 * (PARAMETERS - 622_329_856)}, False),  # without its head, as embedding models are published
        ({"F8_E4M3": PARAMETERS}, False),
        ({"F32": 4 * PARAMETERS}, False),
        ({"BF16": 3 * PARAMETERS}, False),
        ({"U32": PARAMETERS // 2, "BF16": 2 * PARAMETERS // 32}, False),  # 4 bits in a format that the config does not name
    ],
)
def test_files_are_compared_with_the_parameters_of_the_config(sizes: dict[str, int], partial: bool) -> None:
    """Qwen3-8B: bytes that hold less than nine tenths of what every copy has are not planned."""
    model = stored(config_of(QWEN), sizes)

    assert is_partial(model) is partial
    assert (model.weights is None) is partial
    weights = plan(model, seq=1024).memory.weights
    assert weights.bytes == (2 * PARAMETERS if partial else sum(sizes.values()))
    assert weights.definition == (Definition.ESTIMATE if partial else Definition.EXACT)


def test_the_larger_is_planned() -> None:
    """Half of the parameters in 64 bits take twice the bytes of all in 16."""
    model = stored(config_of(QWEN), {"F64": 4 * PARAMETERS})

    assert is_partial(model)
    assert plan(model, seq=1024).memory.weights.bytes == 4 * PARAMETERS


@pytest.mark.parametrize(
    ("model_id", "sizes"),
    [
        # Its header: 521,011,200 bytes of four weights each, and 328,775,890 in 16 bits.
        ("microsoft/bitnet-b1.58-2B-4T", {"U8": 521_011_200, "BF16": 657_551_780}),
        # 9,555,148,800 bytes of two weights each, 597,196,800 scales, 1,804,459,584 in 16 bits: the 13.8 GB of its page.
        ("openai/gpt-oss-20b", {"U8": 9_555_148_800 + 597_196_800, "BF16": 2 * 1_804_459_584}),
    ],
)
def test_published_files_of_packed_weights_are_whole(model_id: str, sizes: dict[str, int]) -> None:
    """Half of them are not."""
    assert not is_partial(stored(config_of(model_id), sizes))
    assert is_partial(stored(config_of(model_id), {dtype: size // 2 for dtype, size in sizes.items()}))


QUANTISED: dict[str, tuple[dict[str, Any], dict[str, int]]] = {
    "gptq 4 bit": ({"quant_method": "gptq", "bits": 4, "group_size": 128}, {"I32": 4, "F16": 1}),
    "gptq 8 bit": ({"quant_method": "gptq", "bits": 8, "group_size": 128}, {"I32": 8, "F16": 1}),
    "awq": ({"quant_method": "awq", "bits": 4, "group_size": 128}, {"I32": 4, "F16": 1}),
    "bitsandbytes": ({"quant_method": "bitsandbytes", "load_in_4bit": True}, {"U8": 4, "F32": 1}),
    "bitsandbytes 8 bit": ({"quant_method": "bitsandbytes", "load_in_8bit": True}, {"I8": 8, "F32": 1}),
    "fp8": ({"quant_method": "fp8", "weight_block_size": [128, 128]}, {"F8_E4M3": 8}),
    "compressed-tensors": (
        {
            "quant_method": "compressed-tensors",
            "format": "pack-quantized",
            "config_groups": {
                "g": {"targets": ["Linear"], "weights": {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 128}}
            },
        },
        {"I32": 4, "I64": 1, "BF16": 1},
    ),
    "nvfp4": ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, {"U8": 4, "F8_E4M3": 1}),
    "a method that is not known": ({"quant_method": "aqlm", "nbits_per_codebook": 16}, {"I16": 2, "F16": 1}),
}
"""The config's quantization and the bits of each dtype that a linear weight takes. A bit of scales is generous."""


@pytest.mark.parametrize("name", QUANTISED)
def test_packed_weights_are_unpacked(name: str) -> None:
    """A matrix of 4 bits has eight numbers in an I32; embedding, head and norms of Qwen3-8B keep 16 bits."""
    quantization, bits = QUANTISED[name]
    tables = 2 * 622_329_856
    sizes = {dtype: (PARAMETERS - tables) * width // 8 for dtype, width in bits.items()}
    sizes["BF16"] = sizes.get("BF16", 0) + 2 * tables
    config = config_of(QWEN) | {"quantization_config": quantization}

    assert not is_partial(stored(config, sizes))
    assert is_partial(stored(config, {dtype: size // 12 for dtype, size in sizes.items()}))


def test_no_published_model_is_called_partial() -> None:
    """Every config of the catalog that is a copy of the published file, with as many 16-bit parameters as its publisher counts.

    The counts of quantised models are of packed elements, and are left out, as are round numbers.
    """
    compared = 0
    for model_id in list_models():
        entry = find_entry(model_id)
        assert entry is not None
        count = (entry.data.get("parameters") or {}).get("total")
        if not count or count % 10**6 == 0 or not str(entry.data.get("fidelity")).startswith("published"):
            continue
        model = stored(entry.data["config"], {"BF16": 2 * count}, model_id)
        if model.quantization is None and model.counted is not None and entry.data.get("stored_elements") is None:
            compared += 1
            assert not model.warnings, model_id
            # Half a percent above the least: no count is near it by chance.
            assert 200 * count > (2 * LEAST_PERCENT + 1) * needed_parameters(model.counted), model_id
    assert compared > 100


def test_no_model_is_called_partial_as_its_own_scheme_stores_it() -> None:
    """Every model that is counted, without its towers, its head and its layers of multi-token prediction."""
    packed = {2: "U8", 3: "I32", 4: "U8", 8: "F8_E4M3", 16: "BF16", 32: "F32"}
    for model_id in list_models():
        model = parse(RawModel(id=model_id, config=config_of(model_id), source="local"))
        scheme, known = planned_scheme(model, None)
        if model.counted is None or not known:
            continue
        sizes: dict[str, int] = {}
        for block in model.counted.blocks:
            for weight in block.weights if block.part in (Part.LANGUAGE, Part.ENCODER) else ():
                if weight.role is not WeightRole.HEAD:
                    for count, form in [(block.count, BF16)] if scheme is None else scheme.formats(block, weight, BF16):
                        dtype = packed[form.bits]
                        sizes[dtype] = sizes.get(dtype, 0) + count * weight.elements * form.bits // 8
        assert not is_partial(stored(config_of(model_id), sizes, model_id)), model_id


def test_what_is_not_counted_has_a_note() -> None:
    """With an architecture that is assumed, nothing says how many parameters there should be but the embedding: 256 x 64."""
    config = CONFIG | {"model_type": "nobody-knows", "architectures": ["Nobody"]}
    for elements, code in ((100, ["weights-unchecked"]), (256 * 64, [])):
        facts = WeightFacts(bytes_by_dtype={"BF16": 2 * elements}, elements_by_dtype={}, files=1, tensors=1)
        model = parse(RawModel(id="m", config=config, source="local", weights=facts), assume="gqa")
        assert [note.code for note in model.notes if note.code.startswith("weights-")] == code
        assert plan(model, seq=16).memory.weights.bytes == 2 * elements


def folder_of(tmp_path: Path) -> str:
    """Qwen3-8B's config beside a file of one tensor."""
    tmp_path.joinpath("config.json").write_text(json.dumps(config_of(QWEN)), encoding="utf-8")
    file = weight_file({"w": ("BF16", (2, 2))})
    tmp_path.joinpath("model.safetensors").write_bytes(file.part(0, file.size))
    return str(tmp_path)


def test_every_command_says_it_and_plans_the_parameters(tmp_path: Path, capsys: Capture) -> None:
    """Eight bytes beside the config of 16.4 GB: they do not fit in 12 GB, whoever is asked."""
    model, gpu = folder_of(tmp_path), "rtx-3060-12gb"
    words = "not the whole model: they hold at most 4 parameters in 8 bytes"

    status, out, _ = run(capsys, model, "--gpu", gpu, "--seq", "1k", "--json")
    document = json.loads(out)
    assert (status, document["fit"]["verdict"], document["memory"]["weights"]["bytes"]) == (1, "no", 2 * PARAMETERS)
    assert [row["code"] for row in document["warnings"]] == ["weights-partial"]
    assert words in document["warnings"][0]["message"]
    assert "weights-partial" not in [row["code"] for row in document["notes"]]

    status, out, _ = run(capsys, model, "--gpu", gpu, "--seq", "1k")
    assert status == 1
    assert words in " ".join(out.split())

    _, out, err = run(capsys, "compare", model, "--gpu", gpu, "--seq", "1k")
    assert words in " ".join((out + err).split())
    _, out, _ = run(capsys, "recommend", model, "--gpu", gpu, "--seq", "1k")
    assert words in " ".join(out.split())
    _, out, err = run(capsys, "diff", model, QWEN, "--seq", "1k", "--offline")
    assert words in " ".join((out + err).split())
    assert "weights" not in "".join(line for line in out.splitlines() if line.endswith(" 8"))
    _, out, _ = run(capsys, "sweep", model, "--gpu", gpu, "--seq", "1k,64k")
    assert [line.split(",")[-2] for line in out.splitlines()] == ["warning", "weights-partial", "beyond-maximum weights-partial"]
    check = tmp_path / "check.yaml"
    check.write_text(
        f"schema_version: 1\nchecks:\n  - {{model: {json.dumps(model)}, gpu: {gpu}, seq: 1k, fits: true}}\n", encoding="utf-8"
    )
    status, out, _ = run(capsys, "check", str(check))
    assert status == 1
    assert words in " ".join(out.split())


def test_a_format_of_ones_own_needs_no_warning(tmp_path: Path) -> None:
    """With --weights the files are not planned anyway."""
    assert not plan(load_model(folder_of(tmp_path)), seq=1024, weights="fp8").warnings
