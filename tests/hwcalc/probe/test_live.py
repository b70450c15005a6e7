"""Small real models beside their plans: the bytes of the cache object, and decoding against computing anew."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any, Final

import pytest
from msgspec.structs import replace

from hwcalc import load_model
from hwcalc.engines.deployment import Occupancy
from hwcalc.errors import UsageError
from hwcalc.model import ModelSpec
from hwcalc.probe import live_model
from hwcalc.probe.live import AGREES, DIFFERS, NOT_RUN, run_live
from tests.effort import sample
from tests.hwcalc.engines.test_live_transformers import CASES, Case

CHOSEN: Final = {case.model_type: case for case in CASES}
FULL_SIZE: Final = ("google/gemma-3-1b-it", "Qwen/Qwen3-1.7B", "state-spaces/mamba-1.4b-hf", "tiiuae/Falcon-H1-1.5B-Base")
"""Models of the catalog that run with one layer of each kind at their own widths."""


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Threads that wait for each other take longer than these models."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def described(case: Case, **keys: Any) -> ModelSpec:
    """The model of a case as kvplan reads its few keys."""
    # An indexer with two heads rates many tokens exactly zero: which of those it selects is chance, unless it selects all.
    selected = {"index_topk": 64} if "index_topk" in case.keys else {}
    return load_model({"model_type": case.model_type, "architectures": [case.architecture], **case.keys, **selected, **keys})


@pytest.fixture
def _apart() -> Iterator[None]:
    """What is alive before the test is not searched: that is most of torch and transformers."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


def tensors_alive() -> int:
    """Tensors that the interpreter still has."""
    import torch

    gc.collect()
    return sum(issubclass(type(thing), torch.Tensor) for thing in gc.get_objects())


@pytest.mark.parametrize("model_type", sample(CHOSEN, 8))
def test_small_models_agree(model_type: str) -> None:
    """Byte for byte the planned cache, and the logits of computing anew, past every window."""
    result = run_live(described(CHOSEN[model_type]))

    assert (AGREES, "") == (result.status, result.reason)
    assert result.predicted_bytes == result.measured_bytes > 0
    assert result.logits_difference <= 1e-4 < result.control_difference


def test_enough_types() -> None:
    """At least 20 model types are run."""
    assert len(CHOSEN) >= 20


@pytest.mark.parametrize("model_type", ["llama", "gemma2", "deepseek_v3", "qwen3_next"])
def test_static_caches_agree(model_type: str) -> None:
    """A static cache has all its positions from the start."""
    result = run_live(described(CHOSEN[model_type]), cache="static", prompt=9, decode=3)

    assert (AGREES, "") == (result.status, result.reason)


@pytest.mark.parametrize("name", FULL_SIZE)
def test_models_at_their_own_width(name: str) -> None:
    """What a token takes is not made smaller where it is affordable."""
    result = run_live(load_model(name, offline=True), batch=1, decode=2)

    assert (AGREES, "", 1) == (result.status, result.reason, result.factor)


def test_a_window_closes() -> None:
    """Mistral with a window of 4,096, made 16: two sequences of 27 tokens keep 15 positions of 2 heads x 16 numbers, in keys and values."""
    result = run_live(described(CHOSEN["mistral"], sliding_window=4096), batch=2, prompt=23, decode=4)

    assert 2 * 15 * (2 * 16) * 2 * 4 == result.measured_bytes
    assert ("sliding_window", "4,096", "16") in {(one.key, one.was, one.now) for one in result.changes}


def test_layers_are_compared_one_by_one() -> None:
    """Gemma 2 alternates: 27 tokens in a full layer, 15 in a windowed one; 2 sequences, 2 heads x 32, keys and values, four bytes."""
    result = run_live(described(CHOSEN["gemma2"]), batch=2, prompt=23, decode=4)
    position = 2 * (2 * 32) * 2 * 4

    assert [(0, 15 * position), (1, 27 * position)] == [(one.layer, one.measured_bytes) for one in result.layers]
    assert ("layer 0: sliding_attention", 15 * position, 15 * position) == result.rows()[0]
    assert ("cache", 42 * position, 42 * position) == result.rows()[-1]


def test_widths_shrink_together() -> None:
    """Of 8 heads that share 2, half are 4 that share 1; the limit says when."""
    model = load_model(
        {
            "model_type": "llama",
            "hidden_size": 512,
            "num_attention_heads": 8,
            "num_key_value_heads": 2,
            "intermediate_size": 1024,
            "num_hidden_layers": 6,
            "vocab_size": 128,
        }
    )
    wide, narrow = run_live(model), run_live(model, most_weight_bytes=2**21)

    assert (1, AGREES) == (wide.factor, wide.status)
    assert (2, AGREES) == (narrow.factor, narrow.status)
    assert wide.measured_bytes == 2 * narrow.measured_bytes
    assert narrow.weight_bytes <= 2**21 < wide.weight_bytes
    heads = {one.key: (one.was, one.now) for one in narrow.changes}
    assert {
        "num_attention_heads": ("8", "4"),
        "num_key_value_heads": ("2", "1"),
        "hidden_size": ("512", "256"),
    }.items() <= heads.items()


def test_a_wrong_plan_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """One byte too many is a difference."""
    right: Any = vars(Occupancy)["stored_bytes"]
    monkeypatch.setattr(Occupancy, "stored_bytes", property(lambda opened: right.func(opened) + 1))

    result = run_live(described(CHOSEN["llama"]))

    assert (DIFFERS, -1) == (result.status, result.measured_bytes - result.predicted_bytes)
    assert "the cache holds 13,824 bytes, planned were 13,825" in result.reason


def test_a_lost_cache_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Logits of a token with nothing before it are not those of the sequence."""
    import torch

    right = live_model.feed

    def forgetful(*given: Any, **named: Any) -> live_model.RunOutput:
        fed = right(*given, **named)
        return replace(fed, cached=torch.cat([fed.cached[:, :-1], fed.alone], 1))

    monkeypatch.setattr(live_model, "feed", forgetful)

    result = run_live(described(CHOSEN["llama"]))

    assert DIFFERS == result.status
    assert result.reason.startswith("logits with the cache differ by")


def test_a_blind_comparison_is_no_agreement(monkeypatch: pytest.MonkeyPatch) -> None:
    """If even a lost cache changed nothing, equal logits prove nothing."""
    right = live_model.feed
    monkeypatch.setattr(live_model, "feed", lambda *given, **named: _blind(right(*given, **named)))

    result = run_live(described(CHOSEN["llama"]))

    assert (DIFFERS, "a lost cache would not be seen in the logits") == (result.status, result.reason)


def _blind(fed: live_model.RunOutput) -> live_model.RunOutput:
    return replace(fed, alone=fed.anew[:, -1:])


def test_types_that_the_library_lacks() -> None:
    """Code of a repository is never run: such a type is not run, and the result says why."""
    result = run_live(load_model("baichuan-inc/Baichuan-7B", offline=True))

    assert NOT_RUN == result.status
    assert "'baichuan', and code of a repository is never run" in result.reason
    assert () == result.rows()


def test_too_large_for_the_limit() -> None:
    """Nothing is built that is larger than allowed; the result says how large it would be."""
    result = run_live(described(CHOSEN["mamba"]), most_weight_bytes=10)

    assert NOT_RUN == result.status
    assert "more than the 10 that are allowed" in result.reason


def test_library_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without transformers there is a result that says what to install."""
    monkeypatch.setitem(__import__("sys").modules, "transformers", None)

    result = run_live(described(CHOSEN["llama"]))

    assert (NOT_RUN, "transformers is not installed; type: pip install torch transformers") == (result.status, result.reason)


def test_config_that_the_library_refuses() -> None:
    """An activation that nobody knows is the library's error, in its words."""
    result = run_live(described(CHOSEN["llama"], hidden_act="no such thing"))

    assert NOT_RUN == result.status
    assert "no such thing" in result.reason


def test_names_of_code_and_kernels_are_dropped() -> None:
    """A config cannot make the library fetch kernels or build a list of 10^12 labels."""
    hostile = {
        "auto_map": {"AutoModelForCausalLM": "evil.Model"},
        "_attn_implementation": "evil/kernels",
        "attn_implementation": "evil/kernels",
        "num_labels": 10**12,
        "quantization_config": None,
    }

    assert AGREES == run_live(described(CHOSEN["llama"], **hostile)).status


@pytest.mark.parametrize(
    "wrong",
    [
        {"dtype": "fp8"},
        {"attention": "flash"},
        {"cache": "paged"},
        {"batch": 0},
        {"prompt": 10**6},
        {"decode": 0},
        {"most_weight_bytes": 0},
    ],
    ids=str,
)
def test_arguments_out_of_range(wrong: dict[str, Any]) -> None:
    """Said before anything is built."""
    with pytest.raises(UsageError):
        run_live(described(CHOSEN["llama"]), **wrong)


@pytest.mark.usefixtures("_apart")
def test_nothing_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a run, and after an interrupted one, no tensor of it is left, and torch's random numbers go on as before."""
    import torch

    model = described(CHOSEN["llama"])
    run_live(model)
    before, state = tensors_alive(), torch.random.get_rng_state()

    run_live(model)

    assert before + 1 == tensors_alive()
    assert torch.equal(state, torch.random.get_rng_state())

    def interrupted(*given: Any, **named: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(live_model, "feed", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run_live(model)
    assert before + 1 == tensors_alive()


def test_a_full_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights that the device has no memory for are a result, as everything is that goes wrong there."""
    plain = live_model.make

    def make(config: Any, *, device: str, **named: Any) -> Any:
        if device == "meta":
            return plain(config, device=device, **named)
        raise RuntimeError("CUDA error: out of memory")

    monkeypatch.setattr(live_model, "make", make)
    result = run_live(described(CHOSEN["llama"]))

    assert result.status == NOT_RUN
    assert "out of memory" in result.reason


def test_no_shorter_numbers_on_the_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU would round to TF32 in convolutions: not here, and afterwards as before."""
    import torch

    seen: list[bool] = []
    plain, backends = live_model._scores, torch.backends

    def scores(output: Any) -> Any:
        seen.append(backends.cudnn.allow_tf32 or backends.cuda.matmul.allow_tf32)
        return plain(output)

    monkeypatch.setattr(live_model, "_scores", scores)
    before = backends.cudnn.allow_tf32
    run_live(described(CHOSEN["llama"]))

    assert seen
    assert not any(seen)
    assert backends.cudnn.allow_tf32 == before
