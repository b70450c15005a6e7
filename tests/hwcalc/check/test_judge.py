"""Requirements against a plan: each at its limit and one beyond, and what an estimate leaves open."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any

import pytest
from msgspec.structs import replace

from hwcalc import Plan, check, load_model, plan
from hwcalc.check.changes import number_edit
from hwcalc.check.fields import REQUIREMENTS
from hwcalc.check.file import NoVerdictError, parse_check_file
from hwcalc.check.judge import _JUDGES, judge, with_unit
from hwcalc.check.result import Checked, Judged, figures_of, verdict_in_words, verdict_of
from hwcalc.engines.pool import Try
from hwcalc.errors import UnsupportedError, UsageError
from hwcalc.library.plan import plan_loaded
from hwcalc.planner.result import FitInfo
from hwcalc.planner.verdict import Verdict
from tests.hwcalc.check.files import PER_TOKEN, TINY, WEIGHTS

GIB = 2**30
SEQ = 1024


def fit(**changes: Any) -> FitInfo:
    """20 GiB usable, 18 needed, exact."""
    known: dict[str, Any] = {
        "gpu": "l4",
        "gpus": 1,
        "usable_bytes": 20 * GIB,
        "needed_bytes": 18 * GIB,
        "needed_low_bytes": 18 * GIB,
        "needed_high_bytes": 18 * GIB,
        "fits": True,
        "verdict": Verdict.FITS,
        "headroom_bytes": 2 * GIB,
        "max_seq": 4096,
        "expected_max_seq": 4096,
        "max_batch": 8,
        "expected_max_batch": 8,
        "min_gpus": 2,
        "min_layout": None,
        "sure_min_layout": None,
        "limiting": None,
        "limiting_seq": None,
        "message": "",
        "suggestions": (),
        "budget": None,
    }
    return FitInfo(**known | changes)


def short(**changes: Any) -> FitInfo:
    """18 GiB usable, 20 needed."""
    sizes = dict.fromkeys(("needed_bytes", "needed_low_bytes", "needed_high_bytes"), 20 * GIB)
    wrong = {"fits": False, "verdict": Verdict.NO, "message": "because.", "usable_bytes": 18 * GIB, "headroom_bytes": -2 * GIB}
    return fit(**{**sizes, **wrong, **changes})


def made(found: FitInfo | None = None) -> Plan:
    """The plan of a tiny model, with this verdict in the place of its own."""
    return replace(plan(TINY, seq=SEQ), fit=found)


def again(*, settings: Mapping[str, str | None] = MappingProxyType({}), **change: Any) -> Plan:
    """The plan of the tiny model with this change."""
    return plan(TINY, **{"seq": SEQ, **change, **settings})


def refused(**change: Any) -> Plan:
    """No change is allowed."""
    raise UsageError(str(change))


def judged(required: str, of: Plan, replan: Callable[..., Plan] | None = None) -> Judged:
    """One requirement, as a check file has it."""
    text = f"schema_version: 1\ndefaults: {{fits: null}}\nchecks: [{{model: m, gpu: l4, {required}}}]"
    (check,) = parse_check_file(text, "f").checks
    (found,) = judge(check.required, of, replan or refused, check.places)
    return found


@pytest.mark.parametrize(
    ("name", "limit"),
    [
        ("max_cache", SEQ * PER_TOKEN),
        ("max_weights", WEIGHTS),
        ("max_total", SEQ * PER_TOKEN + WEIGHTS),
        ("max_bytes_per_token", PER_TOKEN),
    ],
)
def test_bytes_at_most(name: str, limit: int) -> None:
    """The figure itself is allowed, one byte less is not."""
    at, below = judged(f"{name}: {limit}", made()), judged(f"{name}: {limit - 1}", made(), again)

    assert (at.holds, at.got, at.limit, at.unit) == (True, limit, limit, "bytes")
    assert (below.holds, below.certain) == (False, True)
    assert f"{limit:,} B" in below.message
    assert f"at most {with_unit(limit - 1, 'bytes')} required" in below.message


@pytest.mark.parametrize(
    ("required", "holds", "got"),
    [
        ("min_concurrency: 8", True, 8),
        ("min_concurrency: 9", False, 8),
        ("min_seq: 4k", True, 4096),
        ("min_seq: 4097", False, 4096),
        ("max_gpus: 2", True, 2),
        ("max_gpus: 1", False, 2),
        ("headroom: 2GiB", True, 2 * GIB),
        ("headroom: 2147483649", False, 2 * GIB),
        ("headroom: 10%", True, 2 * GIB),
        ("headroom: 10.0001%", False, 2 * GIB),
    ],
)
def test_of_a_verdict(required: str, holds: bool, got: int) -> None:
    """Limits of what fits: 20 GiB usable, 18 needed, 8 sequences, 4,096 tokens, two GPUs."""
    found = judged(required, made(fit()), lambda **_: made(fit()))

    assert (found.holds, found.certain, found.got) == (holds, True, got)


@pytest.mark.parametrize(
    ("wanted", "verdict", "fits", "holds", "certain"),
    [
        ("true", Verdict.FITS, True, True, True),
        ("true", Verdict.NO, False, False, True),
        ("true", Verdict.PROBABLY, True, True, False),
        ("true", Verdict.PROBABLY_NOT, False, False, False),
        ("false", Verdict.FITS, True, False, True),
        ("false", Verdict.NO, False, True, True),
        ("false", Verdict.PROBABLY_NOT, False, True, False),
    ],
)
def test_fits(wanted: str, verdict: Verdict, fits: bool, holds: bool, certain: bool) -> None:
    """The expected value decides; where the ends disagree it is not certain."""
    ends = {"needed_low_bytes": 17 * GIB, "needed_high_bytes": 21 * GIB} if not verdict.certain else {}
    found = judged(
        f"fits: {wanted}", made((fit if fits else short)(verdict=verdict, fits=fits, message="because", **ends)), again
    )

    assert (found.holds, found.certain) == (holds, certain)
    assert found.message.startswith(f"{verdict.text}: {18 if fits else 20}.00 GiB needed")
    assert ("because" in found.message) is not fits


def test_what_would_help_is_said() -> None:
    """The plan's own suggestions, where it was to fit."""
    tries = (
        Try(flag="--tp 8", effect="8 x l4 (tp 8); holds 79 instead of 26", settings={"gpus": "8"}),
        Try(flag="--e", effect="no graphs; holds 27 instead of 26", settings={"engine_options.eager": "true"}),
        Try(flag="", effect="26 at once instead of 50", settings={"batch": "26"}),
        Try(flag="", effect="17,472 tokens instead of 32,768", settings={"seq": "17472"}),
        Try(flag="", effect="a larger one", settings={"gpu": "h100"}),
        Try(flag="", effect="another", settings={"gpu": "h200"}),
    )
    share = Try(flag="", effect="the default", settings={"memory_utilization": None, "dtype": "fp8"})
    of = made(short(suggestions=tries))
    found = judged("fits: true, concurrency: 50", of, lambda **_: made(fit()))

    assert found.message.endswith("; because")
    # The largest number of each is looked for. Here all that are smaller fit: of 1,024 tokens, and of one sequence none is.
    assert [(one.yaml, one.effect) for one in found.edits] == [
        ("seq: 1023", ""),
        ("gpus: 8", "holds 79"),
        ("engine_options: {eager: true}", "no graphs; holds 27"),
        ("gpu: h100", ""),
        ("gpu: h200", ""),
    ]
    assert judged("fits: false", of).edits == ()
    # What is taken back is left out of the file, where null is not what people write.
    back = made(short(suggestions=(share,)))
    fp8 = judged("fits: true", back, lambda settings, **_: back if "seq" in settings else made(fit()))
    assert [one.yaml for one in fp8.edits] == ["dtype: fp8\nwithout memory_utilization"]


def test_the_longest_that_a_limit_allows() -> None:
    """Bytes of the cache grow with the tokens: a limit for 1,000 of them is held by 1,000. The bytes of a token do not."""
    cache, token = f"max_cache: {1000 * PER_TOKEN + 1}", f"max_bytes_per_token: {PER_TOKEN - 1}"

    assert [one.yaml for one in judged(cache, made(), again).edits] == ["seq: 1000"]
    # 128 tokens are an eighth of 1,024, which is no offer; one more is.
    assert [one.yaml for one in judged(f"max_cache: {129 * PER_TOKEN}", made(), again).edits] == ["seq: 129"]
    # In half the bytes there is room for 257, and in half of that for 128 again.
    assert [one.yaml for one in judged(f"max_cache: {129 * PER_TOKEN - 1}", made(), again).edits] == ["dtype: fp8\nseq: 257"]
    less = judged(f"max_cache: {129 * PER_TOKEN // 2 - 1}", made(), again)
    assert (less.edits, less.message.partition("; ")[2]) == ((), "no single change was found with which the check passes")
    assert [one.yaml for one in judged(token, made(), again).edits] == ["dtype: fp8"]
    assert judged(f"max_bytes_per_token: {PER_TOKEN // 2 - 1}", made(), again).edits == ()


def test_fewer_of_the_other_number() -> None:
    """More sequences than fit are held if they are shorter: nine of 600 tokens are expected to fit, and of 500 it is sure."""

    def shorter(*, settings: Mapping[str, str], **_: Any) -> Plan:
        tokens = int(settings.get("seq", SEQ))
        return made(fit(max_batch=9 if tokens <= 500 else 8, expected_max_batch=9 if tokens <= 600 else 8))

    (found,) = judged("min_concurrency: 9", made(fit()), shorter).edits
    # A check passes by the expected value.
    assert (found.yaml, found.effect) == ("seq: 600", "probably")
    assert judged("min_seq: 8k", made(fit()), shorter).edits == ()


def test_an_edit_passes_the_whole_check() -> None:
    """1,000 tokens take the bytes that are allowed, and less is allowed beside. What no length mends fails still, and that is said."""
    both = f"max_cache: {1000 * PER_TOKEN}, max_total: {WEIGHTS + 900 * PER_TOKEN}"
    text = "schema_version: 1\nchecks: [{model: m, %s}]"

    def of(required: str) -> tuple[Judged, ...]:
        (check,) = parse_check_file(text % required, "f").checks
        return judge(check.required, made(), again, check.places, search=lambda: "kvplan recommend m")

    cache, total = of(both)
    assert ([one.yaml for one in cache.edits], total.edits) == (["seq: 900"], ())
    cache, weights = of(f"max_cache: {1000 * PER_TOKEN}, max_weights: {WEIGHTS // 4}")
    assert [(one.yaml, one.effect) for one in cache.edits] == [("seq: 1000", "then max_weights still fails")]
    # Other hardware does not make weights smaller.
    assert cache.message.endswith("; no single change was found with which the check passes")
    assert weights.edits == ()


def test_where_to_search_further() -> None:
    """What no single change mends may be mended by other hardware."""
    (check,) = parse_check_file("schema_version: 1\nchecks: [{model: m, gpu: l4}]", "f").checks
    (found,) = judge(check.required, made(short()), refused, check.places, search=lambda: "kvplan recommend m")

    assert found.message.endswith("; no single change was found with which the check passes. Search further: kvplan recommend m")


def test_what_is_too_small_is_named_where_memory_is_enough() -> None:
    """18 of 20 GiB are no reason: it is the number of sequences that the engine runs at once."""
    slots = "max_num_seqs lets 16 sequences run at once, not 40"
    found = judged("fits: true", made(fit(fits=False, verdict=Verdict.NO, message=slots)))

    assert found.message.startswith(f"{slots}. There is memory enough: 18.00 GiB needed of 20.00 GiB usable")


def test_nothing_that_probably_fits_is_said_to_fit() -> None:
    """The words are the verdict's own, and the range stands beside them."""
    of = made(fit(verdict=Verdict.PROBABLY, needed_low_bytes=17 * GIB, needed_high_bytes=21 * GIB))
    figures = figures_of(of)
    assert figures.fit is not None

    assert verdict_of(of) is Verdict.PROBABLY
    assert (
        verdict_in_words(Verdict.PROBABLY, figures.fit)
        == "probably fits: 18.00 GiB needed (17.00 GiB to 21.00 GiB) of 20.00 GiB usable"
    )


def test_headroom_at_the_ends() -> None:
    """3 GiB free at best, none at worst: 2 GiB are there by the expected value alone."""
    of = made(fit(verdict=Verdict.PROBABLY, needed_low_bytes=17 * GIB, needed_high_bytes=21 * GIB))

    assert (judged("headroom: 2GiB", of, again).holds, judged("headroom: 2GiB", of, again).certain) == (True, False)
    assert (judged("headroom: 4GiB", of, again).holds, judged("headroom: 4GiB", of, again).certain) == (False, True)
    assert (judged("headroom: 3GiB", of, again).holds, judged("headroom: 3GiB", of, again).certain) == (False, False)


@pytest.mark.parametrize(("limit", "holds", "certain"), [(5, True, True), (6, True, False), (8, True, False)])
def test_a_limit_between_the_sure_and_the_expected_number(limit: int, holds: bool, certain: bool) -> None:
    """Five sequences fit for sure and eight are expected: nothing is planned again."""
    found = judged(f"min_concurrency: {limit}", made(fit(max_batch=5, needed_high_bytes=19 * GIB)))

    assert (found.got, found.holds, found.certain) == (8, holds, certain)
    assert found.message == f"8 sequences (5 sequences to 8 sequences), at least {limit} sequences required"


@pytest.mark.parametrize(("verdict", "certain"), [(Verdict.NO, True), (Verdict.PROBABLY_NOT, False)])
def test_a_limit_that_fails_is_asked_about_at_the_ends(verdict: Verdict, certain: bool) -> None:
    """Nine sequences are planned again to see whether the high end of the budget holds them."""
    asked: list[dict[str, object]] = []

    def again(**change: object) -> Plan:
        asked.append(change)
        return made(fit(verdict=verdict))

    found = judged("min_concurrency: 9", made(fit(needed_high_bytes=19 * GIB)), again)

    assert asked[0] == {"batch": 9}
    assert (found.holds, found.certain) == (False, certain)


def test_every_requirement_has_a_judge() -> None:
    """What a file may demand can be judged."""
    assert list(_JUDGES) == list(REQUIREMENTS)


@pytest.mark.parametrize(
    ("count", "unit", "words"),
    [
        (1, "sequences", "1 sequence"),
        (2, "GPUs", "2 GPUs"),
        (2**40, "tokens", "any number of tokens"),
        (576, "bytes", "576 B"),
        (2**30, "bytes", "1.00 GiB (1,073,741,824 B)"),
        (15.55, "tokens/s", "15.6 tokens/s"),
    ],
)
def test_figures_in_words(count: float, unit: str, words: str) -> None:
    """One is not many, and what no search found an end of has none."""
    assert with_unit(count, unit) == words


def test_no_number_of_gpus_will_do() -> None:
    """Nothing was found: that is a failure, not an unknown."""
    found = judged("max_gpus: 64", made(fit(fits=False, verdict=Verdict.NO, min_gpus=None)))

    assert (found.holds, found.certain, found.got) == (False, True, None)


def test_the_speed_of_all_sequences_together_names_that_of_each() -> None:
    """With one sequence they are the same."""
    many = {
        batch: judged("min_decode_tokens_per_s: 9999999", plan(TINY, seq=64, batch=batch, gpu="l4")).message for batch in (1, 4)
    }

    assert (
        "required; that is of 4 sequences together while no prompt is read; min_rate is of each, with prompts in between"
        in many[4]
    )
    assert "min_rate" not in many[1]


@pytest.mark.parametrize("required", ["min_concurrency: 1", "min_seq: 1", "min_decode_tokens_per_s: 1"])
def test_an_unknown_figure_is_no_pass(required: str) -> None:
    """What cannot be checked is an error."""
    with pytest.raises(UnsupportedError, match="cannot be checked"):
        judged(required, made(fit(max_batch=None, max_seq=None)))


def test_a_verdict_that_nobody_gives_is_no_pass() -> None:
    """Neither is a plan without a verdict."""
    with pytest.raises(NoVerdictError, match="there is no verdict"):
        judged("fits: true", made())


def test_decoding_speed() -> None:
    """The bound of the plan's own roofline, at its value and above it."""
    of = plan(TINY, seq=SEQ, gpu="l4")
    assert of.speed is not None
    bound = of.speed.decode_tokens_per_s_bound
    assert bound is not None
    # A step reads all weights but the embedding table, and the cache, from 300 GB/s at most.
    assert bound <= 300e9 / (WEIGHTS - 2 * 1000 * 512 * 2)

    assert judged(f"min_decode_tokens_per_s: {int(bound)}", of).holds
    shorter = judged(f"min_decode_tokens_per_s: {int(bound) + 1}", of, partial(again, gpu="l4"))
    assert not shorter.holds
    assert [edit.yaml.partition(":")[0] for edit in shorter.edits] == ["seq"]


@pytest.mark.parametrize(
    ("verdict", "holds", "certain"),
    [
        (Verdict.FITS, True, True),
        (Verdict.PROBABLY, True, False),
        (Verdict.PROBABLY_NOT, False, False),
        (Verdict.NO, False, True),
    ],
)
def test_what_does_not_fit_has_no_speed(verdict: Verdict, holds: bool, certain: bool) -> None:
    """A gate for the speed does not pass a plan that cannot run, even where the file does not demand that it fits."""
    of = plan(TINY, seq=SEQ, gpu="l4")
    assert of.fit is not None
    found = judged(
        "min_decode_tokens_per_s: 1", replace(of, fit=replace(of.fit, verdict=verdict, fits=verdict in ("fits", "probably")))
    )

    assert (found.holds, found.certain) == (holds, certain)
    assert f"required{'' if verdict is Verdict.FITS else f'; {verdict.text}'}" in found.message


def test_an_estimate_of_weights_has_ends() -> None:
    """``max_total`` between the ends of the sum holds or not by the expected value, and says so."""
    of = plan(TINY, seq=SEQ, gpu="l4")
    assert of.memory.total_bytes is not None
    assert of.memory.activations is not None
    assert of.memory.overhead is not None
    parts = (of.memory.activations, of.memory.overhead)
    low, high = (of.memory.total_bytes + sum(getattr(part, end) - part.bytes for part in parts) for end in ("low", "high"))
    assert low < of.memory.total_bytes < high

    assert not judged(f"max_total: {of.memory.total_bytes}", of).certain
    assert judged(f"max_total: {high}", of).certain
    assert judged(f"max_total: {low - 1}", of, partial(again, gpu="l4")).certain


def planned_with(required: str, **options: Any) -> Judged:
    """One requirement of a real plan, with the real way to plan again."""
    options = {"seq": "100k", "batch": 2, "gpu": "l4", **options}
    return judged(
        required,
        plan("meta-llama/Llama-3.1-8B", **options),
        lambda settings=MappingProxyType({}), **change: plan("meta-llama/Llama-3.1-8B", **options | change | settings),
    )


@pytest.mark.parametrize(("limit", "certain"), [(2, False), (3, True)])
def test_max_gpus_speaks_of_the_number_that_it_takes(limit: int, certain: bool) -> None:
    """On one l4 it surely does not fit, on two it probably fits, on three it fits: two are uncertain, whatever one is."""
    found = planned_with(f"max_gpus: {limit}")

    assert (found.got, found.holds, found.certain) == (2, True, certain)
    assert [planned("probably", tp=2), planned("fits", tp=1, pp=3)] == [True, True]


def planned(verdict: str, **layout: int) -> bool:
    """Whether that layout has this verdict."""
    made = plan("meta-llama/Llama-3.1-8B", seq="100k", batch=2, gpu="l4", **layout)  # type: ignore[arg-type]
    return made.fit is not None and made.fit.verdict == verdict


def test_more_gpus_than_the_uncertain_one_are_certain() -> None:
    """What probably fits on one GPU and fits on two holds for certain where eight are allowed, and is open where one is."""
    assert planned_with("max_gpus: 8", seq="40k", batch=1).certain
    assert not planned_with("max_gpus: 1", seq="40k", batch=1).certain


def test_the_changes_of_a_plan_keep_how_the_model_was_read() -> None:
    """A config of an unknown type is planned with ``assume``, and so is what is offered instead."""
    config = {
        "model_type": "from_the_future", "num_hidden_layers": 80, "num_attention_heads": 64, "num_key_value_heads": 8, "hidden_size": 8192,
        "intermediate_size": 28_672, "vocab_size": 128_256, "torch_dtype": "bfloat16", "max_position_embeddings": 131_072,
    }  # fmt: skip
    given = {"seq": "128k", "batch": 4, "engine": "vllm", "kv_memory": "80GiB"}
    planned = plan_loaded(load_model(config, assume="llama"), given, advise=True, read_with={"assume": "llama", "revision": None})
    assert planned.fit is not None
    assert planned.fit.suggestions
    assert all("--assume llama" in one.command for one in planned.fit.suggestions)


def test_a_list_of_lengths_has_no_length_beside_it() -> None:
    """A ``seq`` beside ``lengths`` is refused: no edit offers it. Fewer sequences are one that can be written."""
    check = "- {model: m, gpu: l4, lengths: '4k,8k', batch: 20, max_total: 1GiB}"
    (read,) = parse_check_file(f"schema_version: 1\nchecks:\n{check}", "f").checks
    spec = load_model("Qwen/Qwen3-8B")

    def replan(*, settings: Mapping[str, str | None] = MappingProxyType({}), **change: Any) -> Plan:
        return plan_loaded(spec, {**read.options, **change, **settings}, None, advise=True)

    of = replan()
    assert of.fit is not None
    found = {item.name: item for item in judge(read.required, of, replan, read.places)}
    offered = [list(one.settings) for one in of.fit.suggestions]

    assert (found["fits"].holds, found["max_total"].holds) == (False, False)
    assert ["batch"] in offered
    assert not any("seq" in names for names in offered)
    assert found["max_total"].edits == ()
    assert number_edit("seq", 1, 2, read.places) == ()
    fewer = next(one.settings["batch"] for one in of.fit.suggestions if list(one.settings) == ["batch"])
    changed = replan(batch=int(fewer or 0)).fit
    assert changed is not None
    assert changed.fits


def test_how_sure_the_largest_length_is_and_of_how_many_a_speed() -> None:
    """The written length surely holds, and the one behind it by the expected value alone; a speed is that of the sequences which were asked for."""
    asked = {"model": "Qwen/Qwen3-8B", "engine": "vllm", "gpu": "l40s", "seq": "32k", "batch": 16}

    def of(seq: int | str) -> Checked:
        (found,) = check({"schema_version": 1, "checks": [{**asked, "seq": seq}]}, offline=True).checks
        return found

    edits = [edit for item in of("32k").requirements for edit in item.edits]
    (told,) = [edit for edit in edits if re.fullmatch("surely; at most [0-9,]+ tokens expected", edit.effect)]
    most = int(re.sub(r"\D", "", told.effect))
    lengths = (told.yaml.removeprefix("seq: "), most, most + 16)

    assert [of(seq).status for seq in lengths] == ["pass", "warning", "fail"]
    assert {int(many) for edit in edits for many in re.findall(r"tokens/s each of (\d+)", edit.effect)} == {16}
