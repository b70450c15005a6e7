"""Contexts that draft in llama.cpp: of the model's own layers for multi-token prediction, or of a second model."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

import pytest
from msgspec.structs import replace

from hwcalc import Plan, load_model, plan
from hwcalc.engines import find_engine
from hwcalc.engines.llamacpp.graph import Buffers, HostPart, Part, fullest, gpu_moments, sizes_of
from hwcalc.engines.llamacpp.occupancy import LlamacppOccupancy
from hwcalc.engines.llamacpp.settings import Settings
from hwcalc.engines.options import parse_lora
from hwcalc.engines.setup import Request
from hwcalc.errors import UnsupportedError
from hwcalc.parsers.gguf.hparams import Hparams
from hwcalc.planner.context import open_request
from hwcalc.units import MIB
from tests.paths import GOLDEN

MEASURED: Final = json.loads((GOLDEN / "llamacpp_drafts.json").read_text(encoding="utf-8"))
NOT_OPTIONS: Final = {"model", "cpu", "gpu", "gpus", "host", "cache", "n_outputs"}
QWEN: Final = "Qwen/Qwen3.8-27B"


def measured(row: Mapping[str, Any]) -> tuple[LlamacppOccupancy, Settings, Hparams]:
    """A measured context as kvplan plans it, and its settings with the outputs that were asked for."""
    options = {name: str(value) for name, value in row.items() if name not in NOT_OPTIONS}
    options |= {"defaults": "api", "swa_full": "0", "load_mtp": "true", "ctx_type": "mtp"}
    found = find_engine("llamacpp")[0].open(
        load_model(MEASURED["models"][row["model"]]), Request.of(seq=row["n_ctx"], options=options)
    )
    assert isinstance(found, LlamacppOccupancy)
    return found, replace(found.settings, n_outputs=row["n_outputs"]), found.hparams


def test_caches_of_drafts_are_exact() -> None:
    """To the byte, of 19 models of 10 architectures."""
    for row in MEASURED["rows"]:
        if "gpus" not in row:
            assert measured(row)[0].stored_bytes == row["cache"], row


def test_buffers_of_drafts_lie_inside_the_ranges() -> None:
    """All of them do; the mask is not in the way of the feed-forward part."""
    fits: dict[str, list[bool]] = {"gpu": [], "cpu": [], "host": []}
    for row in MEASURED["rows"]:
        _, one, read = measured(row)
        for place in ("gpu", "cpu"):
            if place in row:
                sizes = sizes_of(gpu_moments(read, one, Part(alone=place == "cpu")), one)
                fits[place].append(fullest(sizes, "low") - MIB // 2 <= row[place] <= fullest(sizes, "high") + MIB // 2)
        if "host" in row:
            buffers = Buffers(read, one, sixteen_bit=False, once=lambda _, make: make())
            part = buffers.parts(HostPart(alone=False, partly=False, helped=True, copies=1))[0]
            fits["host"].append(part.low - MIB // 2 <= row["host"] <= part.high + MIB // 2)
    assert sum(map(len, fits.values())) == 722
    assert all(all(found) for found in fits.values())


def parts(made: Plan) -> dict[str, float]:
    """The parts of the budget by name, in MiB."""
    assert made.fit is not None
    assert made.fit.budget is not None
    return {part.name: part.expected / MIB for part in made.fit.budget.parts}


def test_the_context_of_a_log() -> None:
    """Qwen3.8-27B on Vulkan, 32k, -ub 2048: the context of its own layer logs 128.00 MiB of cache and 520.06 MiB of buffers."""
    options = {"n_ctx": "32768", "n_ubatch": "2048", "load_mtp": "true", "n_gpu_layers": "all"}
    made = plan(QWEN, engine="llamacpp", gpu="rtx-pro-6000", weights="q5_k_m", dtype="q8_0", seq=32768, engine_options=options)
    assert parts(made)["draft cache"] == 128
    assert abs(parts(made)["draft compute buffer"] / 520.06 - 1) < 0.05


def test_the_projection_of_a_log() -> None:
    """A log of llama-server projects 21,723 MiB of a card with all layers; two contexts, the one that drafts in 16 bits."""
    options = {"n_ctx": "200704", "type_k": "q4_0", "type_v": "q4_0", "n_rs_seq": "4", "load_mtp": "true", "n_gpu_layers": "all"}
    made = plan(QWEN, engine="llamacpp", gpu="rtx-3090", weights="q4_k_m", seq=200704, engine_options=options)
    found = parts(made)
    assert found["draft cache"] == 784
    needed = sum(found.values()) - found["process"] + made.cache.total_bytes / MIB
    assert abs(needed / 21_723 - 1) < 0.01


def test_layers_are_left_out_for_the_draft() -> None:
    """A card that just holds the model without its draft holds a layer less with it."""
    options = {"n_ctx": "200704", "type_k": "q4_0", "type_v": "q4_0", "n_rs_seq": "4", "fit_target": "1936"}
    drafting = plan(
        QWEN, engine="llamacpp", gpu="rtx-3090", weights="q4_k_m", seq=200704, engine_options=options | {"load_mtp": "true"}
    )
    assert drafting.fit is not None
    assert drafting.fit.gpu_layers is not None
    assert drafting.fit.gpu_layers < 66


def test_formats_of_a_draft() -> None:
    """They are 16-bit floats whatever those of the model are, unless they are named (-ctkd, -ctvd)."""
    options = {"load_mtp": "true", "ctx_type": "mtp"}
    plain = plan(QWEN, engine="llamacpp", dtype="q4_0", seq=200704, engine_options=options)
    assert plain.cache.total_bytes == 784 * MIB
    named = {"type_k_draft": "q8_0", "type_v_draft": "q8_0"}
    small = plan(QWEN, engine="llamacpp", dtype="q4_0", seq=200704, engine_options=options | named)
    assert small.cache.total_bytes == 784 * MIB * 34 // 64


def test_a_second_model_is_counted() -> None:
    """Its tensors, its cache in 16-bit floats, and the buffers of a context of its own, as a plan of it alone has them."""
    options = {"n_gpu_layers": "all"}
    model, draft = load_model("Qwen/Qwen3-8B"), load_model("Qwen/Qwen3-0.6B")
    given: dict[str, Any] = {"engine": "llamacpp", "gpu": "rtx-4060-ti-16gb", "seq": 16384, "engine_options": options}
    alone = parts(plan(draft, **given))
    both = parts(plan(model, draft=draft, weights="q4_k_m", dtype="q8_0", **given))
    assert both["draft weights"] == alone["weights"]
    assert both["draft cache"] == plan(draft, **given).cache.total_bytes / MIB
    assert both["draft compute buffer"] == alone["compute buffer"]


def test_what_cannot_draft() -> None:
    """A model without layers for it, and a second model of other tokens, are refused."""
    with pytest.raises(UnsupportedError, match="no layers for multi-token prediction"):
        plan("Qwen/Qwen3-8B", engine="llamacpp", seq=4096, engine_options={"load_mtp": "true"})
    with pytest.raises(UnsupportedError, match="262,144 tokens for a model with 151,936"):
        plan("Qwen/Qwen3-8B", engine="llamacpp", seq=4096, draft="google/gemma-3-1b-it")


def test_states_for_drafted_tokens() -> None:
    """llama-server drafts three tokens unless it is told otherwise, and keeps as many older states (common/common.h)."""
    bare = plan(QWEN, engine="llamacpp", seq=4096, engine_options={"load_mtp": "true"})
    three = plan(QWEN, engine="llamacpp", seq=4096, engine_options={"load_mtp": "true", "n_rs_seq": "3"})
    assert bare.cache.total_bytes == three.cache.total_bytes


def test_embeddings_of_each_layer() -> None:
    """Gemma 4 E4B in q8_0, 65,536 tokens on Vulkan: the log has 97.30 MiB of buffers on the host and 186.30 on the card."""
    opened = open_request(
        load_model("google/gemma-4-E4B-it"),
        engine="llamacpp",
        gpu="arc-pro-b70",
        weights="q4_k_m",
        dtype="q8_0",
        seq=65536,
        engine_options={"n_gpu_layers": "all"},
    )
    assert isinstance(opened, LlamacppOccupancy)
    card, host = (share.parts[0] for share in opened.layout.placement.devices)
    assert host.low <= 97.30 * MIB <= host.high + MIB // 2
    assert card.low <= 186.30 * MIB <= card.high + MIB // 2


def test_adapters_are_counted() -> None:
    """Eight adapters of rank 64 for Qwen3-8B: A and B of seven matrices in each of 36 layers, on the GPU that has the layer.

    64 x (4,096 + 4,096) + 2 x 64 x (4,096 + 1,024) + 64 x (4,096 + 4,096) + 3 x 64 x (4,096 + 12,288) numbers a layer, 2 bytes each.
    """
    layer = 8 * 2 * 64 * (2 * 8192 + 2 * 5120 + 3 * 16384)
    given: dict[str, Any] = {"engine": "llamacpp", "gpu": "rtx-4060-ti-16gb", "weights": "q4_k_m", "seq": 16384}
    made = plan("Qwen/Qwen3-8B", lora="rank=64,count=8", **given)
    assert parts(made)["adapters"] == 36 * layer / MIB
    # 1,024 MiB that stay free by default, and 2,664 of adapters.
    assert any("-fitt 3688" in note.message for note in made.notes)
    opened = open_request(
        load_model("Qwen/Qwen3-8B"),
        lora=parse_lora("rank=64,count=8"),
        engine="llamacpp",
        gpu="rtx-4060-ti-16gb",
        gpus=2,
        seq=16384,
    )
    assert isinstance(opened, LlamacppOccupancy)
    first, second, host = opened.layout.placement.devices
    sizes = [next(part.expected for part in share.parts if part.name == "adapters") for share in (first, second, host)]
    assert sizes == [19 * layer, 17 * layer, 0]
    assert len(first.layers) == 19


def test_forms_and_plans_agree_with_adapters_and_drafts() -> None:
    """What solvers and sweeps evaluate at many lengths is what a plan has at each."""
    for model, given in (
        ("Qwen/Qwen3-8B", {"lora": parse_lora("rank=64,count=8")}),
        (QWEN, {"engine_options": {"load_mtp": "true"}}),
        (QWEN, {"engine_options": {"load_mtp": "true", "n_gpu_layers": "all"}}),
    ):
        opened = open_request(load_model(model), engine="llamacpp", gpu="rtx-5090", weights="q4_k_m", seq=8192, **given)
        form = opened.form()
        assert form is not None
        assert isinstance(opened, LlamacppOccupancy)
        for tokens in (512, 8192, 100_000):
            one = opened.sized(seq=tokens)
            assert isinstance(one, LlamacppOccupancy)
            for end in ("low", "expected", "high"):
                needed = sum(getattr(part, end) for part in one.layout.placement.gpus[0].parts) + one.layout.weights_on(0)
                assert form.at(tokens, 1).parts_bytes(end) == needed


@pytest.mark.parametrize(
    ("model", "layers", "ubatch", "tokens", "card", "host"),
    [("Qwen/Qwen3.5-9B", 20, 2048, 8192, 189.31, 116.94), ("Qwen/Qwen3.6-27B", 26, 1024, 131_072, 3640.11, 4701.52)],
)
def test_files_without_layers_for_drafts(model: str, layers: int, ubatch: int, tokens: int, card: float, host: float) -> None:
    """Logs of files without them: 20 of 33 layers on the card, and 26 of 65; cache and states lie where the log has them."""
    opened = open_request(
        load_model(model),
        engine="llamacpp",
        gpu="rtx-5090",
        weights="q4_k_m",
        seq=tokens,
        engine_options={"mtp_layers": "0", "n_gpu_layers": str(layers), "n_ubatch": str(ubatch)},
    )
    assert isinstance(opened, LlamacppOccupancy)
    assert opened.hparams.n_layer_nextn == 0
    placed = [share.cache_bytes / MIB for share in opened.layout.placement.devices]
    assert placed == [pytest.approx(card, abs=0.01), pytest.approx(host, abs=0.01)]


def test_projectors() -> None:
    """A log of Qwen3-VL-4B estimates 1,177.90 MiB for its projector: on the first GPU, and out of what layers may take there."""
    given: dict[str, Any] = {"engine": "llamacpp", "gpu": "rtx-3060", "weights": "q4_k_m", "seq": 32768}
    model = "Qwen/Qwen3-VL-4B-Instruct"
    text = plan(model, **given)
    both = plan(model, engine_options={"mmproj": "1177.9MiB"}, **given)
    assert any("--mmproj" in note.message for note in text.notes)
    assert not any("--mmproj" in note.message for note in both.notes)
    assert abs(parts(both)["projector"] - 1177.9) < 0.001
    opened = open_request(
        load_model(model), engine="llamacpp", gpu="rtx-3060", gpus=2, seq=32768, engine_options={"mmproj": "1177.9MiB"}
    )
    assert isinstance(opened, LlamacppOccupancy)
    assert [any(part.name == "projector" for part in share.parts) for share in opened.layout.placement.devices] == [
        True,
        False,
        False,
    ]


def test_a_draft_of_unknown_tensors() -> None:
    """Metadata alone names no tensors: a note says that they are not counted, and the cache is."""
    keys = {"general.architecture": "llama", "llama.block_count": 4, "llama.context_length": 4096, "llama.embedding_length": 512}
    keys |= {"llama.attention.head_count": 8, "llama.feed_forward_length": 1024, "llama.vocab_size": 151_936}
    given: dict[str, Any] = {"engine": "llamacpp", "gpu": "rtx-4090", "weights": "q4_k_m", "seq": 8192}
    made = plan("Qwen/Qwen3-8B", draft=load_model(keys), **given)
    assert any(note.code == "draft-unknown" for note in made.notes)
    # 4 layers x 8,192 cells x 2 x 512 numbers of two bytes.
    assert parts(made)["draft cache"] == 64
