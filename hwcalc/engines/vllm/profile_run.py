"""The activation peak of vLLM's profile run: one forward pass of the largest batch, then the sampler on the logits of all requests.

The tensors of the sampler are derived from its code, version by version; ``profiles/engines/vllm.yaml`` lists them. While it samples, the
hidden states of the whole batch are alive, and so are the rows that were chosen of them. From 0.13 on the buffers of the expert kernels
stay allocated, too (``v1/worker/workspace.py``).
"""

from __future__ import annotations

from math import ceil
from typing import TYPE_CHECKING, Final

from hwcalc.engines.budget import BudgetPart, Section
from hwcalc.engines.families import kept
from hwcalc.engines.request import Parallel
from hwcalc.engines.steps import Step, step
from hwcalc.engines.vllm.defaults import batch_is_chunked, runs_v0
from hwcalc.engines.vllm.rules import rules_of
from hwcalc.engines.vllm.runner import runs_second_runner
from hwcalc.engines.vllm.shards import VllmRank
from hwcalc.engines.vllm.weights import VLLM
from hwcalc.engines.widths import encoder_width, expert_width, layer_width
from hwcalc.formulas.record import Record
from hwcalc.profiles.engines import planned_version, vllm_profile

if TYPE_CHECKING:
    from hwcalc.model import ModelSpec

__all__ = ["ProfileRun", "activation_parts"]

_LONGEST_EXPERT_BATCH: Final = {True: 32_768, False: 65_536}
"""Tokens that the expert kernels take at once (VLLM_FUSED_MOE_CHUNK_SIZE): by V0, and by V1."""
_UNCOUNTED_WIDTH: Final = 12
"""Width of the widest layer in hidden widths, if the weights are not counted: a gated MLP with an inner width of four."""
_WIDE: Final = 4
"""Bytes of a number in fp32."""

_FORWARD: Final = "element_bytes x forward_tokens x (hidden_copies x hidden_size + inner_width)"
_EXPERTS: Final = "element_bytes x expert_tokens x experts_per_token x expert_numbers x expert_share"
_SAMPLER: Final = (
    "element_bytes x hidden_size x (forward_tokens + hidden_rows) + logits x sampler_bytes + buffer_rows x vocab_size x 4"
)


class ProfileRun(Record):
    """What vLLM runs before it sizes the pool: ``tokens`` at once, then ``rows`` of logits. ``quantized`` says whether weights are."""

    version: str
    parallel: Parallel
    seq: int
    tokens: int
    rows: int
    element_bytes: int
    quantized: bool


def activation_parts(model: ModelSpec, run: ProfileRun) -> tuple[BudgetPart, ...]:
    """The peak above the weights, and what a tower adds to it. The model keeps it: formats of the cache and GPUs do not change it.

    1,024 rows of 128,256 logits take 14 bytes each from 0.17 on, and a buffer of 132 rows in fp32; beside 8,192 hidden states of 4,096
    and twice the chosen rows these are 1.885 GiB with the workspace of cuBLAS, and Llama-3.1-8B logs 1.89.
    """
    # Only V0 looks at the length. Hashed field by field, this takes a fraction of the time of the record.
    seq = run.seq if runs_v0(run.version) else 0
    key = (run.version, seq, run.tokens, run.rows, run.element_bytes, run.quantized, *VLLM.sizes(model, run.parallel))
    return kept(model, "activations of vLLM", key, lambda: _activation_parts(model, run))


def _activation_parts(model: ModelSpec, run: ProfileRun) -> tuple[BudgetPart, ...]:
    # Advice changes the number of sequences alone, which only the sampler sees.
    key = (run.version, run.tokens, run.element_bytes, run.quantized, *VLLM.sizes(model, run.parallel))
    steps = (*kept(model, "passes of vLLM", key, lambda: (_forward(model, run), _experts(model, run))), _sampling(model, run))
    forward, experts, sampled = ((each.low, each.expected, each.high) for each in steps)
    stay = rules_of(planned_version(run.version)).expert_buffers_kept
    peak = [
        int((buffers if stay else 0) + max(passed + (0 if stay else buffers), sampling))
        for passed, buffers, sampling in zip(forward, experts, sampled, strict=True)
    ]
    chunked = runs_v0(run.version) and batch_is_chunked(run.seq, run.tokens)
    if run.parallel.pp > 1 or chunked:
        # Only the last stage samples. V0 was seen to sample nothing where prompts go in chunks.
        peak[0] = int(forward[0] + (0 if stay else experts[0]))
    if chunked:
        peak[1] = int(forward[1] + experts[1])
    rows = 0 if chunked else run.rows
    copies = vllm_profile().estimate("activation.hidden_copies", run.version)
    ends = min(peak), min(peak[1], peak[2]), max(peak)
    main = BudgetPart(
        name="activations",
        section=Section.ACTIVATIONS,
        low=ends[0],
        expected=ends[1],
        high=ends[2],
        steps=_peak_steps(steps, ends, sampled=not chunked, kept=stay),
        source=f"{run.tokens:,} tokens, {rows:,} rows of logits; {_sampler_source(model, run)}; {copies.source}",
    )
    return (main, *_encoder(model, run, main))


def _peak_steps(steps: tuple[Step, Step, Step], ends: tuple[int, int, int], *, sampled: bool, kept: bool) -> tuple[Step, ...]:
    """The steps of the peak. A model without experts has no buffers for them."""
    forward, experts, sampler = steps
    used = tuple(each for each in (forward, experts if experts.high else None, sampler if sampled else None) if each is not None)
    passed = "forward_pass + expert_buffers" if experts.high else "forward_pass"
    formula = f"max({passed}, sampler)" if sampled else passed
    if sampled and kept and experts.high:
        formula = "expert_buffers + max(forward_pass, sampler)"
    return (
        *used,
        step("activations", formula, ends, unit="bytes", **{each.name: (each.low, each.expected, each.high) for each in used}),
    )


def _second_runner(model: ModelSpec, run: ProfileRun) -> bool:
    return runs_second_runner(model, run.version, quantized=run.quantized)


def _ends(name: str, version: str) -> tuple[float, float, float]:
    found = vllm_profile().estimate(name, version)
    return found.low, found.expected, found.high


def _forward(model: ModelSpec, run: ProfileRun) -> Step:
    """A forward pass: a few hidden vectors of each token, and once the inner width of the widest layer.

    8,192 tokens of CodeLlama-7B take 2 x 8,192 x (3.75 x 4,096 + 3 x 11,008) = 792,723,456 bytes.
    """
    rank = VllmRank(model, run.parallel)
    key = ("vllm", "width without experts", *VLLM.sizes(model, run.parallel))
    width = model.once(key, lambda: layer_width(model, rank, experts=False))
    hidden = model.hidden_size or 0
    inside = _UNCOUNTED_WIDTH * hidden // run.parallel.tp if width is None else width
    copies = _ends("activation.hidden_copies", run.version)
    low, expected, high = (int(run.element_bytes * run.tokens * (each * hidden + inside)) for each in copies)
    return step(
        "forward_pass",
        _FORWARD,
        (low, expected, high),
        element_bytes=run.element_bytes,
        forward_tokens=run.tokens,
        hidden_copies=copies,
        hidden_size=hidden,
        inner_width=inside,
    )


def _experts(model: ModelSpec, run: ProfileRun) -> Step:
    """Buffers of the expert kernels. 8,192 tokens x 8 experts x (2,048 + 2,048) x 2 bytes are 0.5 GiB for Qwen3-30B-A3B."""
    key = ("vllm", "expert width", *VLLM.sizes(model, run.parallel))
    chosen, inner, hidden = model.once(key, lambda: expert_width(model, VllmRank(model, run.parallel)))
    if not chosen:
        return step("expert_buffers", "0", 0)
    if rules_of(planned_version(run.version)).expert_buffers_kept:
        tokens, numbers = run.tokens, max(inner, hidden) + max(2 * inner, hidden)
    else:
        tokens = min(run.tokens, _LONGEST_EXPERT_BATCH[runs_v0(run.version)])
        numbers = max(2 * inner, hidden) + inner
    share = "activation.quantized_expert_share" if run.quantized else "activation.expert_share"
    size = run.element_bytes * tokens * chosen * numbers
    shares = _ends(share, run.version)
    low, expected, high = (int(size * part) for part in shares)
    return step(
        "expert_buffers",
        _EXPERTS,
        (low, expected, high),
        element_bytes=run.element_bytes,
        expert_tokens=tokens,
        experts_per_token=chosen,
        expert_numbers=numbers,
        expert_share=shares,
    )


def _sampling(model: ModelSpec, run: ProfileRun) -> Step:
    """The sampler, and the hidden states that are alive beside it."""
    hidden, logits = model.hidden_size or 0, run.rows * (model.vocab_size or 0)
    second = _second_runner(model, run)
    # The first runner also makes random rows, so that the sampler sees no infinities.
    chosen_rows = run.rows * (1 if second else 2)
    alive = run.element_bytes * hidden * (run.tokens + chosen_rows)
    wider = run.element_bytes - 2
    # The Triton kernel works in as many rows as it has programs, rounded up to a power of two.
    most = 1 << max(0, run.rows - 1).bit_length()
    buffers = (0.0, 0.0, 0.0) if second else _ends("sampler.buffer_rows", run.version)
    each, rows = (
        tuple(size + wider for size in _ends(_logit_name(model, run), run.version)),
        tuple(min(count, most) for count in buffers),
    )
    low, expected, high = (
        int(alive + logits * size + count * (model.vocab_size or 0) * _WIDE) for size, count in zip(each, rows, strict=True)
    )
    return step(
        "sampler",
        _SAMPLER,
        (low, expected, high),
        element_bytes=run.element_bytes,
        hidden_size=hidden,
        forward_tokens=run.tokens,
        hidden_rows=chosen_rows,
        logits=logits,
        sampler_bytes=(each[0], each[1], each[2]),
        buffer_rows=(rows[0], rows[1], rows[2]),
        vocab_size=model.vocab_size or 0,
    )


def _logit_name(model: ModelSpec, run: ProfileRun) -> str:
    if _second_runner(model, run):
        return "sampler.runner2_logit_bytes"
    return "sampler.few_logit_bytes" if run.rows < vllm_profile().few_rows else "sampler.logit_bytes"


def _sampler_source(model: ModelSpec, run: ProfileRun) -> str:
    return vllm_profile().estimate(_logit_name(model, run), run.version).source


def _encoder(model: ModelSpec, run: ProfileRun, main: BudgetPart) -> tuple[BudgetPart, ...]:
    """What a tower adds: its inputs, which stay alive, and its own pass as far as that takes more than the decoder's."""
    tp = run.parallel.tp
    width = model.once(("vllm", "encoder width", tp), lambda: encoder_width(model, VllmRank(model, Parallel(tp=tp))))
    if not width:
        return ()
    patches = _ends("activation.encoder_patches", run.version)
    numbers = _ends("activation.patch_numbers", run.version)
    mains = (main.low, main.expected, main.high)
    low, expected, high = (
        ceil(2 * run.tokens * count * size) + max(0, int(2 * run.tokens * count * width) - beside)
        for count, size, beside in zip(patches, numbers, mains, strict=True)
    )
    source = vllm_profile().estimate("activation.encoder_patches", run.version).source
    part = BudgetPart(
        name="encoder profile",
        section=Section.ACTIVATIONS,
        low=low,
        expected=max(low, expected),
        high=max(low, expected, high),
        source=source,
    )
    return (part,)
