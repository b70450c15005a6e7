"""Laws that hold for every policy."""

from __future__ import annotations

from typing import Any, Final

from hypothesis import given
from hypothesis import strategies as st

from hwcalc import keep
from hwcalc.errors import UsageError
from hwcalc.library.keep import Kept
from hwcalc.policies.base import LayerShape, Role, Setting, Start
from hwcalc.policies.counting import CutAtLengths, CutEachStep, even_split, kept, searched_ratio
from hwcalc.policies.parse import policies
from hwcalc.policies.scorers import whole_chunks
from hwcalc.policies.wrappers import adaptive_mask
from tests.hwcalc.policies.tiny import tiny

RATIOS: Final = st.floats(0, 1, exclude_max=True, allow_nan=False)
TOKENS: Final = st.integers(1, 3000)
SCORERS: Final = sorted(
    one.name for one in policies().values() if one.role is Role.SCORER and one.name != "criticalkv" and one.needs is None
)
WRAPPERS: Final = (
    "keyrerotation",
    "merging",
    "criticalkv",
    "chunk",
    "chunkkv",
    "block",
    "entropygatedchunkkv",
    "adakv",
    "criticaladakv",
)


def outcome(policy: Any, tokens: int, steps: int = 0) -> Kept | None:
    """What is kept; ``None`` where the policy cannot work with so few tokens."""
    try:
        return keep(tiny(), policy, prompt=tokens, decode=steps)
    except UsageError:
        return None


@given(tokens=TOKENS, ratio=RATIOS)
def test_a_share_is_at_least_one_and_at_most_all(tokens: int, ratio: float) -> None:
    """And one token more never keeps less."""
    assert 1 <= kept(tokens, ratio) <= tokens
    assert kept(tokens, ratio) <= kept(tokens + 1, ratio)


@given(tokens=TOKENS, ratio=RATIOS, more=RATIOS)
def test_a_higher_ratio_keeps_no_more(tokens: int, ratio: float, more: float) -> None:
    """The share falls with the ratio."""
    low, high = sorted((ratio, more))

    assert kept(tokens, high) <= kept(tokens, low)


@given(tokens=TOKENS, target=TOKENS)
def test_a_cut_goes_to_its_target(tokens: int, target: int) -> None:
    """The ratio that is searched for keeps just so many."""
    stays = kept(tokens, searched_ratio(tokens, target)) if tokens > target else tokens

    assert stays == min(tokens, target)


@given(name=st.sampled_from(SCORERS), tokens=TOKENS, ratio=RATIOS, more=RATIOS)
def test_scorers(name: str, tokens: int, ratio: float, more: float) -> None:
    """No layer keeps more than the prompt, bytes follow the tokens, and a higher ratio stores no more in all."""
    low, high = sorted((ratio, more))
    first = outcome([name, {"compression_ratio": low}], tokens, 3)
    second = outcome([name, {"compression_ratio": high}], tokens, 3)
    if first is None or second is None:
        return

    for one in (first, second):
        assert all(1 <= stored <= tokens for stored in one.per_layer)
        assert one.storage_bytes == one.cache_bytes == sum(one.per_layer) * 256 <= one.full_bytes == tokens * 1024
        assert one.frees_memory is (one.storage_bytes < one.full_bytes)
        assert one.after_decode_per_layer == [stored + 3 for stored in one.per_layer]
    # PyramidKV rounds each layer, so that sums may differ by half a token a layer.
    assert sum(second.per_layer) <= sum(first.per_layer) + 4 * (name == "pyramidkv")


@given(name=st.sampled_from(WRAPPERS), scorer=st.sampled_from(SCORERS), tokens=TOKENS, ratio=RATIOS)
def test_wrappers(name: str, scorer: str, tokens: int, ratio: float) -> None:
    """A wrapper keeps no more than the prompt; one that masks stores all, and masks what its scorer would drop of each layer."""
    found = outcome([name, {"press": [scorer, {"compression_ratio": ratio}]}], tokens)
    if found is None:
        return

    assert all(1 <= low <= high <= tokens for low, high in zip(found.per_layer_low, found.per_layer, strict=True))
    if name in {"adakv", "criticaladakv"}:
        assert found.per_layer == [tokens] * 4
        if ratio:
            assert found.masked_per_layer_head is not None
            assert [sum(heads) for heads in found.masked_per_layer_head] == [2 * (tokens - kept(tokens, ratio))] * 4


@given(tokens=TOKENS, first=RATIOS, second=RATIOS)
def test_one_after_the_other(tokens: int, first: float, second: float) -> None:
    """The share of the share."""
    found = outcome(["composed", {"presses": [["knorm", {"compression_ratio": one}] for one in (first, second)]}], tokens)

    assert found is not None
    assert found.per_layer == [kept(kept(tokens, first), second)] * 4


@given(name=st.sampled_from(SCORERS), tokens=TOKENS)
def test_nothing_dropped_is_everything_kept(name: str, tokens: int) -> None:
    """A ratio of 0 is no policy."""
    found, whole = outcome(name, tokens, 5), outcome(None, tokens, 5)

    assert found is not None
    assert whole is not None
    assert (found.per_layer, found.cache_bytes, found.series) == (whole.per_layer, whole.cache_bytes, whole.series)
    assert whole.frees_memory is False


@given(tokens=TOKENS, ratio=RATIOS, alpha=st.floats(0, 1), heads=st.integers(1, 8), protected=TOKENS)
def test_masks_add_up(tokens: int, ratio: float, alpha: float, heads: int, protected: int) -> None:
    """The split adds up to the total, each part lies in its bounds, and what is protected only narrows them."""
    mask = adaptive_mask(tokens, ratio, alpha, heads, min(protected, tokens))
    free = adaptive_mask(tokens, ratio, alpha, heads)

    assert free.heads[0].low <= mask.heads[0].low <= mask.heads[0].high <= free.heads[0].high

    assert sum(mask.split) == mask.total.high == heads * (tokens - kept(tokens, ratio))
    assert all(head.low <= part <= head.high for head, part in zip(mask.heads, mask.split, strict=True))
    assert sum(head.low for head in mask.heads) <= mask.total.low <= sum(head.high for head in mask.heads)


@given(total=st.integers(0, 10_000), heads=st.integers(1, 64))
def test_an_even_split(total: int, heads: int) -> None:
    """It adds up, and no part is more than one above another."""
    parts = even_split(total, heads)

    assert (sum(parts), len(parts)) == (total, heads)
    assert max(parts) - min(parts) <= 1


@given(tokens=TOKENS, ratio=RATIOS, chunk=st.integers(1, 400))
def test_whole_chunks(tokens: int, ratio: float, chunk: int) -> None:
    """Both ends are whole chunks, the low one with the short last one."""
    count = whole_chunks(tokens, ratio, chunk)

    assert 1 <= count.low <= count.high <= tokens
    assert count.high - count.low in (0, chunk - tokens % chunk)


@given(prompt=TOKENS, budget=st.integers(1, 500), every=st.integers(1, 200), steps=st.integers(1, 600), drop=st.integers(1, 500))
def test_cuts_hold_the_budget(prompt: int, budget: int, every: int, steps: int, drop: int) -> None:
    """A cache that is cut at each step never goes above its budget; one that is cut every so many tokens, never by as many."""
    setting = Setting(layers=(LayerShape(index=0, heads=1, kv_heads=1, head_dim=1),), depth=1)
    start = Start(length=min(prompt, budget), prompt=prompt, steps=steps, layer=0, setting=setting)
    each = [after for _, after in CutEachStep(start=start, budget=budget, drop=min(drop, budget))]
    sometimes = list(CutAtLengths(start=start, budget=budget, every=every))

    assert max(each) <= budget
    assert all(after <= budget + every - 1 for _, after in sometimes)
    assert all(before <= budget + every for before, _ in sometimes)
    assert len(each) == len(sometimes) == steps


@given(tokens=TOKENS, interval=st.integers(1, 60), target=st.integers(1, 400), steps=st.integers(1, 200))
def test_the_sawtooth(tokens: int, interval: int, target: int, steps: int) -> None:
    """From the first cut on, the length goes from the target to the target and an interval."""
    options = {"base_press": ["knorm", {}], "compression_interval": interval, "target_size": target}
    found = outcome(["decoding", options], tokens, steps)

    assert found is not None
    first = found.cuts[0][0] if found.cuts else steps
    assert found.series[: first - 1] == list(range(tokens + 1, tokens + first))
    if found.cuts:
        assert all(target <= length < target + interval or length == target for length in found.series[first - 1 :])


@given(name=st.sampled_from(SCORERS), tokens=TOKENS, ratio=RATIOS, more=RATIOS, heads=st.sampled_from([1, 2, 4]))
def test_the_peak_of_a_prefill(name: str, tokens: int, ratio: float, more: float, heads: int) -> None:
    """It holds at least what is kept, and falls or stays where more is dropped; eager attention never takes less than another kernel."""
    peaks = []
    for one in sorted((ratio, more)):
        try:
            kept = keep(tiny({"kv": heads}), [name, {"compression_ratio": one}], prompt=tokens)
            eager = keep(tiny({"kv": heads}), [name, {"compression_ratio": one}], prompt=tokens, attention="eager")
        except UsageError:
            return
        if kept.prefill_peak is None or eager.prefill_peak is None:
            return
        assert kept.cache_bytes < kept.prefill_peak.low <= kept.prefill_peak.high
        # A window is scored with what eager attention has made already.
        assert name in {"snapkv", "pyramidkv", "tova"} or kept.prefill_peak.high <= eager.prefill_peak.high
        peaks.append(kept.prefill_peak.high)
    if ratio and more and name != "pyramidkv":
        assert peaks[1] <= peaks[0]


@given(name=st.sampled_from(SCORERS), tokens=TOKENS, ratio=RATIOS)
def test_the_reported_ratio(name: str, tokens: int, ratio: float) -> None:
    """A press reports its own option; two of them, the share of the share."""
    found = outcome([name, {"compression_ratio": ratio}], tokens)
    if found is None:
        return

    assert found.reported_compression_ratio == ratio
    twice = outcome(["composed", {"presses": [["knorm", {"compression_ratio": ratio}]] * 2}], tokens)
    assert twice is not None
    assert twice.reported_compression_ratio == 1 - (1 - ratio) * (1 - ratio)


def test_what_is_masked_of_a_length_that_the_text_decides() -> None:
    """ChunkKV leaves 100 of 161 tokens, or the 61 of the short last chunk: Ada-KV then masks 8 x 48 pairs, or the 8 x 30 of kvpress's run."""
    chunks = ["ChunkKVPress", {"press": ["SnapKVPress", {"compression_ratio": 0.7}], "chunk_length": 100}]
    adaptive = ["AdaKVPress", {"press": ["KnormPress", {"compression_ratio": 0.476}], "alpha_safeguard": 0.5}]
    config = tiny({"heads": 8, "kv": 8, "layers": 1, "hidden": 512})

    found = keep(config, ["ComposedPress", {"presses": [chunks, ["CriticalAdaKVPress", adaptive[1]]]}], prompt=161)

    assert (found.per_layer_low, found.per_layer) == ([61], [100])
    assert found.masked is not None
    assert (found.masked.low, found.masked.high) == (240, 384)
