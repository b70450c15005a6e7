"""Where llama.cpp puts layers: against its own libllama, with GPUs that are RPC devices, and by laws."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from math import ceil, prod
from pathlib import Path
from typing import Any, Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from hwcalc import Plan, plan
from hwcalc.engines.llamacpp.layers import ON_HOST, Fitting, Runs, Weighed, divided, fitted, splits
from hwcalc.errors import UsageError
from hwcalc.planner.result import DeviceInfo, FitInfo
from hwcalc.planner.verdict import Verdict
from hwcalc.profiles.gpus import find_gpu, visible_memory
from hwcalc.report.table import plan_table
from hwcalc.report.verdict import host_line
from hwcalc.units import GIB, MIB
from tests.hwcalc.sources.gguf.given import TYPES, gguf_bytes
from tests.paths import GOLDEN

PLACES: Final[dict[str, Any]] = json.loads((GOLDEN / "llamacpp_places.json").read_text(encoding="utf-8"))
"""What ``load_tensors`` and ``llama_get_memory_breakdown`` say, row by row."""
FILES, ROWS = PLACES["files"], PLACES["rows"]
CARD: Final = "rtx-4060-ti-16gb"


def numbers(text: str) -> Iterator[int]:
    """Layer numbers from their short form."""
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        yield from range(int(first), int(last or first) + 1)


@pytest.fixture(scope="session")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The files of the rows: their headers, and holes in place of the tensors."""
    folder, out = tmp_path_factory.mktemp("places"), {}
    for name, file in FILES.items():
        tensors: dict[str, tuple[str, tuple[int, ...]]] = {}
        for pattern, form, shape, layers in file["tensors"]:
            tensors |= {pattern.format(layer): (form, tuple(shape)) for layer in (numbers(layers) if layers else [0])}
        architecture = file["architecture"]
        keys = {f"{architecture}.{key}": value for key, value in file["keys"].items()}
        header = gguf_bytes({"general.architecture": architecture, **keys}, tensors, data=False)
        size = sum(-(-prod(shape) // TYPES[form][1] * TYPES[form][2] // 32) * 32 for form, shape in tensors.values())
        out[name] = folder / f"{name}.gguf"
        out[name].write_bytes(header)
        os.truncate(out[name], len(header) + 32 + size)
    return out


def fit_of(made: Plan) -> FitInfo:
    """The verdict, which every plan here has."""
    assert made.fit is not None
    return made.fit


def planned(model: str | Path, gpus: int = 1, gpu: str = "h100", **options: Any) -> Plan:
    """A plan for llama.cpp."""
    return plan(str(model), engine="llamacpp", gpu=gpu, gpus=gpus, **options)


def held(one: DeviceInfo) -> dict[str, object]:
    """A device as the rows have it."""
    return {"layers": one.layers.text, "output": one.output, "weights": one.weights, "cache": one.cache}


@pytest.mark.parametrize("row", [row for row in ROWS if "file" in row], ids=lambda row: f"{row['file']} {row['options']}")
def test_every_byte_of_a_file_lies_where_it_lies(row: dict[str, Any], files: dict[str, Path]) -> None:
    """Layers, weights and cache of each device, to the byte; and the layers that the log counts as offloaded."""
    made = planned(files[row["file"]], row["gpus"], seq=8192, engine_options=row["options"])
    fit = fit_of(made)

    assert {one.device: held(one) for one in made.memory.devices} == row["devices"]
    assert [fit.gpu_layers, fit.all_layers] == row["offloaded"]


@pytest.mark.parametrize("row", [row for row in ROWS if "model" in row], ids=lambda row: f"{row['model']} {row['gpus']}")
def test_layers_and_caches_of_each_kind(row: dict[str, Any]) -> None:
    """Windows, latents, states, experts and prediction layers follow their layer too."""
    made = planned(row["model"], row["gpus"], seq=8192, weights="q4_k_m", engine_options=row["options"])
    fit, kept = fit_of(made), ("layers", "output", "cache")

    for one in made.memory.devices:
        assert {name: held(one)[name] for name in kept} == {name: row["devices"][one.device][name] for name in kept}
    assert [fit.gpu_layers, fit.all_layers] == row["offloaded"]


def test_a_tied_output_is_on_the_card_as_well(files: dict[str, Path]) -> None:
    """The token table stays on the host; the GPU has a copy of it for the output, unless the output is on the host too."""
    table = 151_936 * 4096 // 256 * 144
    everything, nothing = (
        planned(files["qwen3-8b"], seq=4096, engine_options={"n_gpu_layers": layers}) for layers in ("all", "0")
    )

    assert [one.weights for one in nothing.memory.devices] == [0, nothing.memory.weights.bytes]
    together = sum(one.weights for one in everything.memory.devices)
    assert everything.memory.weights.bytes == nothing.memory.weights.bytes == together - table


# --- laws -------------------------------------------------------------------------------------------------------------

SHARES = st.lists(st.integers(0, 9).map(float), min_size=1, max_size=5)
SIZES = st.lists(st.tuples(st.integers(0, 50), st.integers(1, 50)), min_size=1, max_size=40)


@given(blocks=st.integers(1, 90), layers=st.integers(0, 120), shares=SHARES)
def test_every_layer_lies_on_one_device(blocks: int, layers: int, shares: list[float]) -> None:
    """The last layers are on GPUs, in runs in the order of the GPUs; a GPU without a share has none."""
    made = divided(blocks, layers, splits(shares, len(shares))).assignment([False] * blocks)
    devices = [*made.blocks, made.output]

    assert made.gpu_layers == min(layers, blocks + 1)
    assert devices == sorted(devices)
    if any(shares):
        assert all(shares[device] for device in devices if device != ON_HOST)


@given(sizes=SIZES, layers=st.integers(0, 50), gpus=st.integers(1, 3), table=st.integers(1, 99), tied=st.booleans())
def test_devices_have_the_tensors_once_and_the_tied_output_twice(
    sizes: list[tuple[int, int]], layers: int, gpus: int, table: int, tied: bool
) -> None:
    """The sum over the devices is the file, and the copy of a tied table if the output is on a GPU."""
    weighed = Weighed(input=table, output=7, tied=table if tied else 0, copied=0, blocks=tuple(sizes))
    runs = divided(len(sizes), layers, splits((), gpus))
    together = weighed.on_host(runs) + sum(weighed.on_gpu(runs, gpu) for gpu in range(gpus))

    assert together == weighed.total + (table if tied and layers else 0)


@given(sizes=SIZES, gpus=st.integers(1, 3))
def test_more_layers_never_take_less_of_a_gpu(sizes: list[tuple[int, int]], gpus: int) -> None:
    """And never more of the host."""
    weighed = Weighed(input=3, output=7, tied=3, copied=1, blocks=tuple(sizes))
    made = [divided(len(sizes), layers, splits((), gpus)) for layers in range(len(sizes) + 3)]
    on_gpus = [sum(weighed.on_gpu(runs, gpu) for gpu in range(gpus)) for runs in made]
    on_host = [weighed.on_host(runs) for runs in made]

    assert on_gpus == sorted(on_gpus)
    assert on_host == sorted(on_host, reverse=True) or weighed.copied


@settings(max_examples=60)
@given(sizes=SIZES, gpus=st.integers(1, 4), room=st.integers(1, 900), experts=st.booleans())
def test_fitting_fits_and_cannot_do_more(sizes: list[tuple[int, int]], gpus: int, room: int, experts: bool) -> None:
    """Every GPU holds what it gets; on one GPU a layer or the experts of a layer more would be too much."""
    blocks = tuple((size if experts else 0, rest) for size, rest in sizes)
    weighed = Weighed(input=3, output=1, tied=0, copied=0, blocks=blocks)

    has_experts = [bool(size) for size, _ in blocks]

    def holds(runs: Runs, device: int) -> bool:
        return weighed.on_gpu(runs, device) <= room

    fitting = Fitting(blocks=len(blocks), ends=splits((), gpus), experts=any(has_experts), holds=holds)
    runs = fitted(fitting)
    made = runs.assignment(has_experts)

    assert fitting.all_hold(runs, range(gpus))
    assert list(made.blocks) == sorted(made.blocks)
    if gpus == 1 and not made.everything:
        if made.gpu_layers == len(blocks) + 1:
            first = max(made.experts_on_host)
            assert sum(size + rest for size, rest in blocks) + 1 - sum(size for size, _ in blocks[:first]) > room
        else:
            assert 1 + sum(rest for _, rest in blocks[-made.gpu_layers :]) > room


# --- plans ------------------------------------------------------------------------------------------------------------


def test_without_options_the_most_layers_lie_on_the_card() -> None:
    """As many as surely fit; one more, asked for, no longer surely does. The words say where the rest is."""
    made = planned("Qwen/Qwen3-32B", gpu=CARD, seq=16_384, weights="q4_k_m")
    fit = fit_of(made)
    assert fit.gpu_layers is not None
    more, same = (
        planned("Qwen/Qwen3-32B", gpu=CARD, seq=16_384, weights="q4_k_m", engine_options={"n_gpu_layers": str(count)})
        for count in (fit.gpu_layers + 1, fit.gpu_layers)
    )

    assert (fit.verdict, fit_of(same).verdict) == (Verdict.FITS, Verdict.FITS)
    assert fit_of(more).verdict is not Verdict.FITS
    assert same.memory.devices == made.memory.devices
    assert 0 < fit.gpu_layers < 65 == fit.all_layers
    assert f"{fit.gpu_layers} of 65 layers on the GPU, the others in host memory" in plan_table(made)
    assert fit.min_gpus == 2


def test_experts_leave_the_card_before_layers() -> None:
    """A model with experts keeps every layer on the GPU if that is enough, and then its flag does the same."""
    made = planned("Qwen/Qwen3-30B-A3B", gpu=CARD, seq=16_384, weights="q4_k_m")
    fit, host = fit_of(made), made.memory.devices[-1]
    first = len(host.experts)
    options = {"n_gpu_layers": "all", "n_cpu_moe": str(first)}
    same = planned("Qwen/Qwen3-30B-A3B", gpu=CARD, seq=16_384, weights="q4_k_m", engine_options=options)

    assert (fit.gpu_layers, fit.all_layers, host.layers.text) == (49, 49, "")
    assert host.experts.text == f"0-{first - 1}"
    assert same.memory.devices == made.memory.devices


def test_an_explicit_number_is_strict() -> None:
    """With everything asked for on the card the verdict is that of the card."""
    made = planned("Qwen/Qwen3-32B", gpu=CARD, seq=8192, weights="q4_k_m", engine_options={"n_gpu_layers": "99"})

    assert fit_of(made).verdict is Verdict.NO
    assert "does not fit on 1 x rtx-4060-ti-16gb with all 65 layers on the GPU" in plan_table(made)


def test_the_solvers_keep_the_layers_where_they_are() -> None:
    """The longest sequence is the longest with these layers; another length, planned anew, moves them."""
    made = planned("Qwen/Qwen3-32B", gpu=CARD, seq=16_384, weights="q4_k_m")
    longest = fit_of(made).max_seq
    assert longest is not None
    options = {"n_gpu_layers": str(fit_of(made).gpu_layers)}
    held_, not_held = (
        planned("Qwen/Qwen3-32B", gpu=CARD, seq=length, weights="q4_k_m", engine_options=options)
        for length in (longest, longest + 1)
    )

    assert (fit_of(held_).verdict, fit_of(not_held).verdict) == (Verdict.FITS, Verdict.PROBABLY)
    assert fit_of(planned("Qwen/Qwen3-32B", gpu=CARD, seq=40_960, weights="q4_k_m")).gpu_layers != fit_of(made).gpu_layers


def test_a_context_that_is_not_asked_for_shrinks() -> None:
    """In steps of 256 tokens until all layers fit on the card, and to 4,096 before any is left to the host."""
    small = planned("Qwen/Qwen3-8B", gpu="rtx-3060-12gb", weights="q4_k_m")
    large = planned("Qwen/Qwen3-32B", gpu=CARD, weights="q4_k_m")

    assert small.request.seq % 256 == 0
    assert 4096 < small.request.seq < 40_960
    assert fit_of(small).gpu_layers == fit_of(small).all_layers
    assert large.request.seq == 4096
    assert fit_of(large).gpu_layers != fit_of(large).all_layers
    assert {"shorter-context"} <= {note.code for note in small.notes} & {note.code for note in large.notes}


def test_several_gpus_have_runs_of_layers() -> None:
    """``--gpus 2`` is two stages; nothing else divides a model."""
    made = planned("Qwen/Qwen3-32B", 2, "rtx-3090", seq=8192, weights="q4_k_m")

    assert (made.request.tp, made.request.pp) == (1, 2)
    assert [one.layers.text for one in made.memory.devices] == ["0-32", "33-63", ""]
    for name in ("tp", "dp", "ep", "dcp"):
        with pytest.raises(UsageError) as raised:
            plan("Qwen/Qwen3-32B", engine="llamacpp", gpu="rtx-3090", **{name: 2, **({"tp": 2} if name in ("ep", "dcp") else {})})  # type: ignore[arg-type]
        assert "--gpus" in (raised.value.hint or "")


def test_memory_of_the_host() -> None:
    """What nobody knows is probable at most; a size that the user gives decides, and limits the length."""
    wanted: dict[str, Any] = {"gpu": "rtx-3060-12gb", "seq": 8192, "weights": "q4_k_m"}
    unknown = planned("meta-llama/Llama-3.1-70B", **wanted)
    enough, short = (
        planned("meta-llama/Llama-3.1-70B", **wanted, engine_options={"host_memory": size}) for size in ("64GiB", "16GiB")
    )

    assert [fit_of(one).verdict for one in (unknown, enough, short)] == [Verdict.PROBABLY, Verdict.FITS, Verdict.NO]
    assert "host-memory-unknown" in {note.code for note in unknown.notes}
    assert "host memory" in fit_of(short).message
    assert fit_of(short).limiting_seq == "host memory"


def test_a_machine_with_one_memory() -> None:
    """What the GPU of a Mac takes is not left for the rest: both together do not exceed the memory."""
    made = planned("Qwen/Qwen3-32B", gpu="m4-24gb", seq=16_384, weights="q4_k_m")
    fit = fit_of(made)

    assert fit.gpu_layers is not None
    assert fit.gpu_layers < 65
    assert fit.verdict is not Verdict.FITS or sum(one.total_high for one in made.memory.devices) <= 24 * 1024 * MIB * 7 // 8


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"tensor_split": "1,1"}, "--gpus 2"),
        ({"main_gpu": "1"}, "main_gpu"),
        ({"tensor_split": "x"}, "tensor_split"),
        ({"override_tensor": "ffn"}, "override_tensor"),
        ({"override_tensor": "ffn=CUDA3"}, "--gpus"),
        ({"n_gpu_layers": "-5"}, "n_gpu_layers"),
        ({"host_memory": "much"}, "host_memory"),
        ({"host_memory": "64"}, "64GiB"),
        ({"split_mode": "tensor"}, "split_mode"),
    ],
)
def test_options_that_make_no_sense(options: dict[str, str], word: str) -> None:
    """A clear error for each."""
    with pytest.raises(UsageError) as raised:
        planned("Qwen/Qwen3-8B", seq=4096, engine_options=options)
    assert word in f"{raised.value} {raised.value.hint}"


def test_one_gpu_of_several() -> None:
    """``split_mode=none`` leaves all but the main GPU empty."""
    made = planned("Qwen/Qwen3-8B", 2, seq=4096, weights="q4_k_m", engine_options={"split_mode": "none", "main_gpu": "1"})

    assert [one.layers.text for one in made.memory.devices] == ["", "0-35", ""]


def test_the_document() -> None:
    """Devices in the document; empty for an engine that places nothing."""
    document = planned("Qwen/Qwen3-8B", seq=4096, weights="q4_k_m").to_dict()
    other = plan("Qwen/Qwen3-8B", seq=4096, gpu="h100", engine="vllm").to_dict()

    assert [one["device"] for one in document["memory"]["devices"]] == ["gpu0", "host"]
    assert document["memory"]["total_bytes"] == sum(one["total"] for one in document["memory"]["devices"])
    assert (document["fit"]["gpu_layers"], document["fit"]["all_layers"]) == (37, 37)
    assert (other["memory"]["devices"], other["fit"]["gpu_layers"], other["fit"]["all_layers"]) == ([], None, None)


def test_inputs_for_several_batches() -> None:
    """A second GPU without layers, and overrides that find nothing: ``n_devices() > 1``, ``has_tensor_overrides()``."""

    def host(**options: str) -> int:
        given = {"n_gpu_layers": "all", "n_ctx": "8192"} | options
        made = plan("meta-llama/Llama-3.1-8B", engine="llamacpp", gpu="h100", gpus=2, weights="q4_k_m", engine_options=given)
        return made.memory.devices[-1].activations

    assert host(tensor_split="0,1") == host() > host(n_cpu_moe="3") == host(split_mode="none")


def test_a_pattern_that_says_what_cpu_moe_says_is_the_same_plan() -> None:
    """llama.cpp makes this pattern of ``--cpu-moe`` (common/common.h): bytes of every device, and what the card copies to multiply."""
    pattern = r"\.ffn_(up|down|gate|gate_up)_(ch|)exps=CPU"
    given: dict[str, Any] = {"engine": "llamacpp", "gpu": "rtx-3060", "seq": 8192, "weights": "q4_k_m"}
    by_flag = plan("Qwen/Qwen3-30B-A3B", engine_options={"n_gpu_layers": "all", "cpu_moe": True}, **given)
    found = plan("Qwen/Qwen3-30B-A3B", engine_options={"n_gpu_layers": "all", "override_tensor": pattern}, **given)
    assert [replace(one, moved=0) for one in found.memory.devices] == list(by_flag.memory.devices)
    assert found.memory.devices[-1].moved > 16 * 2**30
    assert "the experts of 48 in host memory" in found.places


def test_other_weights_that_a_pattern_moves_are_told() -> None:
    """Feed-forward parts of a dense model: the card has room for one of them, and the verdict says how much lies on the host."""
    given: dict[str, Any] = {"engine": "llamacpp", "gpu": "rtx-3060", "seq": 8192, "weights": "q4_k_m"}
    whole = plan("Qwen/Qwen3-8B", engine_options={"n_gpu_layers": "all"}, **given)
    found = plan("Qwen/Qwen3-8B", engine_options={"n_gpu_layers": "all", "override_tensor": r"blk\.[0-9]\.ffn=CPU"}, **given)
    assert found.memory.devices[0].weights + found.memory.devices[-1].moved == whole.memory.devices[0].weights
    assert found.memory.devices[0].activations > whole.memory.devices[0].activations
    assert "of their weights in host memory" in found.places
    assert "weights" in host_line(found)


def test_what_fit_leaves_free_is_the_same_at_both_ends_of_the_memory() -> None:
    """``--fit`` leaves 1,024 MiB (common/arg.cpp), however much of a Mac's memory Metal gives the GPU."""
    fit = plan("Qwen/Qwen3-8B", engine="llamacpp", gpu="m3-pro-18gb", weights="q4_k_m", seq=4096).fit
    assert fit is not None
    assert fit.budget is not None
    seen = find_gpu("m3-pro-18gb")
    memory = visible_memory(seen)
    assert memory is not None
    assert memory.low_bytes < memory.high_bytes
    low, high = (sum(getattr(part, end) for part in fit.budget.parts) for end in ("low", "high"))
    assert (fit.budget.low + high, fit.budget.high + low) == (memory.low_bytes - GIB, memory.high_bytes - GIB)


def test_the_system_keeps_a_part_of_the_hosts_memory() -> None:
    """What fills the memory of the host to the last byte is not sure to fit, and what leaves it an eighth is."""
    options: dict[str, Any] = {"engine": "llamacpp", "gpu": "rtx-4070", "seq": 16384}
    made = plan("openai/gpt-oss-120b", ram=96, **options)
    host = made.memory.devices[-1]
    ends = (
        (host.total_low, 1.0, Verdict.PROBABLY_NOT),
        (host.total, 15 / 16, Verdict.PROBABLY),
        (host.total_high, 7 / 8, Verdict.FITS),
    )
    for needed, share, verdict in ends:
        fit = plan("openai/gpt-oss-120b", ram=f"{ceil(needed / share)}B", **options).fit
        assert fit is not None
        assert fit.verdict is verdict
