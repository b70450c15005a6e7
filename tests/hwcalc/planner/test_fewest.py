"""The fewest GPUs that would do: for certain, and by the expected value; and hardware of which there is only one."""

from __future__ import annotations

import pytest

from hwcalc import plan
from hwcalc.planner.verdict import Layout, Verdict
from hwcalc.report.verdict import fit_lines

QWEN = "Qwen/Qwen3-8B"


def test_what_is_sure_comes_first() -> None:
    """Two T4 only probably hold it, and the line says so."""
    one = plan(QWEN, seq="32k", engine="vllm", gpu="t4")
    assert one.fit is not None
    sure, likely = one.fit.sure_min_layout, one.fit.min_layout

    assert (likely, sure, one.fit.min_gpus) == (Layout(tp=2), Layout(tp=4), 2)
    assert dict(fit_lines(one))["fewest"] == "4 x t4 (tp 4); probably 2 x t4 (tp 2)"
    for layout, verdict in ((likely, Verdict.PROBABLY), (sure, Verdict.FITS)):
        assert layout is not None
        held = plan(QWEN, seq="32k", engine="vllm", gpu="t4", gpus=layout.gpus).fit
        assert held is not None
        assert held.verdict is verdict


def test_a_plan_that_probably_fits_is_told_what_is_sure() -> None:
    """One more than is planned may be needed to be sure."""
    one = plan(QWEN, seq="32k", engine="vllm", gpu="t4", gpus=2)

    assert one.fit is not None
    assert one.fit.verdict is Verdict.PROBABLY
    assert dict(fit_lines(one))["fewest"] == "4 x t4 (tp 4); probably 2 x t4 (tp 2)"


@pytest.mark.parametrize("instance", ["aws/g6f.2xlarge", "azure/standard-nv18ads-a10-v5"])
def test_parts_of_an_accelerator_are_not_joined(instance: str) -> None:
    """An instance has one, and no plan is laid out over two."""
    one = plan("Qwen/Qwen3-32B", seq="32k", instance=instance)
    assert one.fit is not None

    assert not one.fit.fits
    assert one.fit.min_gpus is None


@pytest.mark.parametrize(
    ("gpu", "gpus", "told"), [("m4", 3, True), ("rtx-4090-laptop", 2, True), ("dgx-spark", 2, False), ("l4", 3, False)]
)
def test_machines_that_nothing_links_are_warned_of(gpu: str, gpus: int, told: bool) -> None:
    """Two DGX Spark can be linked; Macs and laptops are planned as asked, and called what they are."""
    one = plan(QWEN, seq="32k", gpu=gpu, gpus=gpus)

    assert ("not-joined" in {note.code for note in one.warnings}) is told


@pytest.mark.parametrize(("tp", "told"), [(1, False), (2, False), (3, True), (64, True)])
def test_heads_that_cannot_be_cut_evenly_are_warned_of(tp: int, told: bool) -> None:
    """The formulas take any number of ranks; engines refuse most of them."""
    one = plan(QWEN, seq="8k", gpu="l4", tp=tp)

    assert ("uneven-heads" in {note.code for note in one.warnings}) is told
