"""Weights that llama.cpp lays out anew for the processor (ggml/src/ggml-cpu/repack.cpp of llama.cpp 0c1e57098, its ``CPU_REPACK`` buffers).

It does so where no GPU is used: beside one, what stays on the host lies in a buffer of the GPU's driver (``make_cpu_buft_list`` of
src/llama-model.cpp). Each tensor is needed once: the pages of the file that it came from are not read again, and the system drops them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from hwcalc.engines.budget import BudgetPart, Section
from hwcalc.model import Note
from hwcalc.units import human_bytes

if TYPE_CHECKING:
    from collections.abc import Iterable

    from hwcalc.engines.llamacpp.deployment import LlamacppDeployment
    from hwcalc.engines.llamacpp.tensors import WeightTensor

PROCESSORS: Final = {
    "x86 with AVX2": {"Q4_0": 8, "Q4_K": 8, "IQ4_NL": 8, "MXFP4": 8},
    "x86 with AVX-512": {"Q4_0": 8, "Q4_K": 8, "IQ4_NL": 8, "MXFP4": 8, "Q2_K": 8},
    "ARM": {"Q4_0": 4, "Q4_K": 8, "Q5_K": 8, "Q6_K": 8, "IQ4_NL": 4, "MXFP4": 4, "Q8_0": 4, "Q1_0": 4},
}
"""The formats that ``ggml_repack_get_optimal_repack_type`` has a layout for, and what the rows of a matrix must be a multiple of."""


_BY_HEAD: Final = (".attn_k_b.", ".attn_v_b.")
"""A matrix for each head in one tensor, which is none of experts: ``extra_buffer_type::supports_op`` has no layout for it."""


def _sizes(tensors: Iterable[WeightTensor], experts: int) -> dict[str, int]:
    """Bytes of the matrices that each kind of processor has a layout for. Tables that are looked up are none."""
    sizes = dict.fromkeys(PROCESSORS, 0)
    for one in tensors:
        if (
            one.role == "input"
            or one.tower
            or one.buffer is not None
            or not one.columns
            or any(name in one.name for name in _BY_HEAD)
        ):
            continue
        rows = one.elements // one.columns // (experts if one.expert else 1)
        for processor, multiples in PROCESSORS.items():
            sizes[processor] += 0 if rows % multiples.get(one.type.upper(), rows + 1) else one.bytes
    return sizes


def repacked_bytes(deployment: LlamacppDeployment, *, copies: bool = False) -> dict[str, int]:
    """Bytes of the tensors that are laid out anew, by kind of processor; ``copies``: of second copies of a table alone."""
    if deployment.options.no_repack or deployment.weight_tensors is None:
        return dict.fromkeys(PROCESSORS, 0)
    from hwcalc.engines.llamacpp.tensors import loaded

    mtp, experts = deployment.context.load_mtp, max(1, deployment.hparams.n_expert)
    return _sizes((one for one in loaded(deployment.weight_tensors, mtp=mtp) if one.copy or not copies), experts)


def repacked_output(deployment: LlamacppDeployment) -> tuple[BudgetPart, ...]:
    """The embedding a second time, where it is the output as well and is laid out anew for that."""
    sizes = tuple(repacked_bytes(deployment, copies=True).values())
    if not any(sizes):
        return ()
    low, high = min(sizes), max(sizes)
    source = "ggml/src/ggml-cpu/repack.cpp: a tied output in a layout for the processor, if that has one for its format"
    return (BudgetPart(name="repacked output", section=Section.OVERHEAD, low=low, expected=sizes[0], high=high, source=source),)


def repacked_note(deployment: LlamacppDeployment) -> tuple[Note, ...]:
    """What the process seems to take beside what it needs."""
    if deployment.gpus:
        return ()
    sizes = repacked_bytes(deployment)
    if not any(sizes.values()):
        return ()
    most = human_bytes(max(sizes.values()))
    each = ", ".join(f"{human_bytes(size)} on {processor}" for processor, size in sizes.items())
    message = (
        f"llama.cpp lays weights out anew for the processor (CPU_REPACK in its log: {each}), so the process can seem to take up to {most} "
        "more: pages of the file, which the system drops when memory is short. Not with --engine-option no_extra_bufts=true."
    )
    return (Note(code="cpu-repack", message=message),)
