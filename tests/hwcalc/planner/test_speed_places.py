"""The bound on speed where a part of the model lies in host memory."""

from __future__ import annotations

from typing import Any, Final

import pytest

from hwcalc import compare, explain, plan, sweep
from hwcalc.errors import UsageError
from hwcalc.planner.result import Plan

MEASURED: Final = [
    # Layers on the card swept on an RTX 5060 Ti with a host whose memory is not named (inventivehq.com, "The VRAM Cliff"): two channels
    # of DDR4-3200 are more than its Core i7-8700 takes.
    *(
        ("Qwen/Qwen2.5-Coder-14B-Instruct", "rtx-5060-ti-16gb", {"n_gpu_layers": layers, "host_bandwidth": "51.2"}, speed)
        for layers, speed in (("0", 2.89), ("8", 3.58), ("16", 4.24), ("24", 5.61), ("32", 7.26), ("40", 12.5), ("99", 43.18))
    ),
    # An RTX 2080 beside a Core i9-10900X whose four channels were measured at 102 GB/s (github.com/AlexsJones/llmfit, pull requests 755,
    # 774 and 778), Q4_K_M.
    *(
        (model, "rtx-2080", {**options, "host_bandwidth": "102.4"}, speed)
        for model, options, speed in (
            ("Qwen/Qwen3-30B-A3B-Instruct-2507", {"n_cpu_moe": "36", "n_gpu_layers": "all"}, 36.7),
            ("deepseek-ai/DeepSeek-Coder-V2-Lite-Instruct", {"n_cpu_moe": "16", "n_gpu_layers": "all"}, 49.6),
            ("google/gemma-2-9b-it", {"n_gpu_layers": "36"}, 23.7),
            ("Qwen/Qwen2.5-14B-Instruct", {"n_gpu_layers": "42"}, 20.8),
            ("google/gemma-3-12b-it", {"n_gpu_layers": "44"}, 26.1),
            ("Qwen/Qwen3-14B", {"n_gpu_layers": "32"}, 16.9),
            ("microsoft/phi-4", {"n_gpu_layers": "32"}, 16.7),
        )
    ),
]
DENSE: Final = "Qwen/Qwen3-8B"
MIXTURE: Final = "Qwen/Qwen3-30B-A3B"


def planned(model: str = DENSE, gpu: str = "rtx-4090", **options: str) -> Plan:
    """A plan of 4-bit weights for 32k tokens, with these options of the engine."""
    return plan(model, engine="llamacpp", gpu=gpu, weights="q4_k_m", seq=32768, engine_options=options)


def speed(model: str = DENSE, gpu: str = "rtx-4090", **options: str) -> float:
    """Tokens per second."""
    found = planned(model, gpu, **options).speed
    assert found is not None
    assert found.decode_tokens_per_s_bound is not None
    return found.decode_tokens_per_s_bound


def codes(found: Plan) -> set[str]:
    """The codes of the notes."""
    return {note.code for note in found.notes}


@pytest.mark.parametrize(("model", "gpu", "options", "measured"), MEASURED)
def test_nobody_measured_more(model: str, gpu: str, options: dict[str, str], measured: float) -> None:
    """A short context, so that the bound is the highest; it is never more than three times what was reached."""
    found = plan(model, engine="llamacpp", gpu=gpu, weights="q4_k_m", seq=256, engine_options=options).speed
    assert found is not None
    assert found.decode_tokens_per_s_bound is not None
    assert measured <= found.decode_tokens_per_s_bound <= 3 * measured


def test_each_device_reads_its_part() -> None:
    """19 of 36 blocks on the card: what memory.devices lists there, at 1,008 and 89.6 GB/s; the host's embeddings are looked up alone."""
    found = planned(n_gpu_layers="20")
    gpu, host = found.to_dict()["memory"]["devices"]
    table = planned(n_gpu_layers="all").to_dict()["memory"]["devices"][1]["weights"]
    seconds = (gpu["weights"] + gpu["cache"]) / 1008e9 + (host["weights"] - table + host["cache"]) / 89.6e9
    assert found.speed is not None
    assert found.speed.decode_step_s_bound == pytest.approx(seconds, rel=1e-4)
    assert found.speed.bound_by == "host memory bandwidth"


@pytest.mark.parametrize("model", [DENSE, MIXTURE])
def test_more_layers_on_the_card_are_never_slower(model: str) -> None:
    """Nor are more experts there, nor faster memory of the host."""
    layers = [speed(model, n_gpu_layers=str(count)) for count in (0, 1, 10, 20, 30, 99)]
    assert layers == sorted(layers)
    experts = [speed(model, n_gpu_layers="all", n_cpu_moe=str(count)) for count in (48, 24, 1, 0)]
    assert experts == sorted(experts)
    hosts = [speed(model, n_gpu_layers="10", host_bandwidth=str(gbps)) for gbps in (20, 51.2, 89.6, 460)]
    assert hosts == sorted(hosts)


def prompt(model: str = DENSE, seq: int = 32768, **options: str) -> tuple[float | None, str | None]:
    """Seconds of a prompt, and what bounds it."""
    found = plan(model, engine="llamacpp", gpu="rtx-4090", weights="q4_k_m", seq=seq, engine_options=options).speed
    assert found is not None
    return found.prefill_s_bound, found.prefill_bound_by


def test_a_prompt_waits_for_the_weights_of_the_host() -> None:
    """Every pass of 512 tokens copies them; where computing takes longer, it is the same wherever the layers lie."""
    assert prompt(seq=31, n_gpu_layers="1")[1] == "host memory bandwidth"
    few, many = prompt(seq=512, n_gpu_layers="1"), prompt(seq=1024, n_gpu_layers="1")
    assert few[1] == many[1] == "host link"
    assert few[0] is not None
    assert many[0] is not None
    # The first pass has no output, so that it may do without the last layer and the head.
    assert 1.8 * few[0] < many[0] < 2 * few[0]
    larger, _ = prompt(seq=1024, n_gpu_layers="1", n_ubatch="1024")
    assert larger is not None
    assert larger < many[0]
    assert prompt(n_gpu_layers="34") == prompt(n_gpu_layers="all")


def test_a_cache_on_the_host_is_read_there() -> None:
    """All weights on the card, the whole cache beside it."""
    assert speed(n_gpu_layers="all", no_kv_offload="true") < speed(n_gpu_layers="all") / 2


def test_one_memory_has_one_bandwidth() -> None:
    """A machine whose GPU uses the memory of the host reads as fast wherever a layer is counted."""
    whole, partly = planned(gpu="m4-24gb", n_gpu_layers="all"), planned(gpu="m4-24gb", n_gpu_layers="10")
    assert whole.speed is not None
    assert partly.speed is not None
    assert partly.speed.decode_step_s_bound == pytest.approx(whole.speed.decode_step_s_bound)
    assert "host-bandwidth-assumed" not in codes(partly)


def test_the_assumed_bandwidth_is_said() -> None:
    """Only where it matters, and where the user does not say it."""
    assert "host-bandwidth-assumed" in codes(planned(n_gpu_layers="10"))
    assert "host-bandwidth-assumed" not in codes(planned(n_gpu_layers="10", host_bandwidth="60"))
    assert "host-bandwidth-assumed" not in codes(planned(n_gpu_layers="all"))


def test_several_cards_decode_as_one() -> None:
    """Layers run one after another, so a second card makes a token no faster."""
    one = speed(n_gpu_layers="all")
    two = plan(
        DENSE, engine="llamacpp", gpu="rtx-4090", gpus=2, weights="q4_k_m", seq=32768, engine_options={"n_gpu_layers": "all"}
    )
    assert two.speed is not None
    assert two.speed.decode_tokens_per_s_bound == pytest.approx(one)


@pytest.mark.parametrize("given", ["0", "-1", "fast", "1e3", "99999", "", "nan"])
def test_a_bandwidth_is_a_number(given: str) -> None:
    """From 1 to 20,000 GB/s; the error shows an example."""
    with pytest.raises(UsageError, match="host_bandwidth") as caught:
        planned(host_bandwidth=given)
    assert "51.2" in caught.value.hint


def test_explain_shows_each_device() -> None:
    """The steps add up to the bound."""
    found: Any = explain(
        DENSE, engine="llamacpp", gpu="rtx-4090", weights="q4_k_m", seq=32768, engine_options={"n_gpu_layers": "20"}
    )
    (section,) = (one for one in found.sections if one.name == "speed")
    names = [figure.name for figure in section.figures]
    assert [name for name in names if name in ("gpu0_reading", "host_reading", "step_s", "decode_tokens_per_s", "prefill_s")] == [
        "gpu0_reading", "host_reading", "step_s", "decode_tokens_per_s", "prefill_s",
    ]  # fmt: skip


def test_a_model_for_embeddings_decodes_nothing() -> None:
    """Its name says so, by which fit leaves it out too. Of its prompt the operations are two for each weight and token, and more."""
    made = plan("Qwen/Qwen3-Embedding-0.6B", engine="vllm", gpu="h100-sxm5-80gb", seq=8192, batch=8)
    assert made.speed is not None
    decoding = (
        "decode_tokens_per_s",
        "decode_tokens_per_s_bound",
        "decode_step_s_bound",
        "tokens_per_s_each",
        "each_at_most",
        "itl_s",
    )
    assert [getattr(made.speed, name) for name in decoding] == [None] * len(decoding)
    # 440 million weights in 28 layers of 15,728,640: q 2 Mi, k and v 1 Mi each, o 2 Mi and three of 1,024 x 3,072; 989.4 Tflop/s.
    layers = 28 * (2 * 2**21 + 2 * 2**20 + 3 * 1024 * 3072)
    assert made.speed.prefill_s_bound is not None
    assert made.speed.prefill_s_bound > 2 * layers * 8192 / 989.4e12
    assert [note.code for note in made.notes if "embed" in note.code] == ["embeds"]
    assert "decod" not in str(made).partition("note")[0]
    with pytest.raises(UsageError, match="by its name: it decodes no tokens, and limits"):
        plan("Qwen/Qwen3-Embedding-0.6B", engine="vllm", gpu="h100-sxm5-80gb", seq=8192, ttft="1s")
    of_sweep = sweep("Qwen/Qwen3-Embedding-0.6B", engine="vllm", gpu="h100-sxm5-80gb", seq=[4096, 8192]).records()
    assert [row["decode_tokens_per_s"] for row in (*made.records(), *of_sweep)] == [None] * 3


def test_what_does_not_fit_has_no_speed_in_a_row() -> None:
    """Llama-3.1-405B needs 812 GB and an H100 has 80; of Llama-3.1-8B 8 sequences of 8,192 tokens take 8 GiB, and 100 take 100."""
    large, card = "meta-llama/Llama-3.1-405B", "h100-sxm5-80gb"
    names = ("decode_tokens_per_s", "decode_tokens_per_s_low", "decode_tokens_per_s_high")
    of_plan = plan(large, engine="vllm", gpu=card, seq=8192).records()[0]
    of_compare = compare([large, "meta-llama/Llama-3.1-8B"], engine="vllm", gpu=card, seq=8192).records()
    of_sweep = sweep("meta-llama/Llama-3.1-8B", engine="vllm", gpu=card, seq=[8192, 16384], batch=[8, 100]).records()
    rows = [of_plan, *of_compare, *of_sweep]
    assert [row["fits"] for row in rows] == ["no", "no", "fits", "fits", "no", "fits", "no"]
    assert [[row[name] is None for name in names] for row in rows] == [[row["fits"] == "no"] * 3 for row in rows]
