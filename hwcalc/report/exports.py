"""Plans as Markdown and as CSV, for pull requests, wikis and spreadsheets."""

from __future__ import annotations

from hwcalc.planner.result import Plan
from hwcalc.planner.speed_result import COST_COLUMNS, cost_row
from hwcalc.report.policy import policy_lines, sharing_lines
from hwcalc.report.summary import (
    DEVICE_HEADER,
    advice_items,
    code,
    definition,
    device_rows,
    figures,
    is_room,
    model_lines,
    notes_of,
    request_lines,
    shares,
    start_lines,
)
from hwcalc.report.text import csv_text, escaped, exact, markdown_table, percent, plural
from hwcalc.report.verdict import first_lines, verdict
from hwcalc.units import human_bytes


def plan_markdown(plan: Plan, *, quiet: bool = False, detail: str = "usual", **_style: object) -> str:
    """A heading, the answer, the figures, the layer groups and the notes. ``detail`` is that of a table."""
    full = detail == "full"
    parts = head_markdown(plan)
    if plan.fit is not None:
        # Whether the plan fits, why, and what would help.
        lines = [f"- {label}: {escaped(text)}\n" for several in first_lines(plan, full=full) for label, text in several]
        for label, words, remark in start_lines(plan):
            lines.append(f"- {label}: {code(words) if words else ''}{' ' if words and remark else ''}{escaped(remark)}\n")
        advice = advice_items(plan.fit.suggestions, plan.request.engine)
        parts += [f"**{escaped(verdict(plan))}**\n", "".join(lines) + advice]
    if detail == "brief":
        return "\n".join([*parts, *_warnings(plan)])
    figure_rows = [(name, exact(size), human_bytes(size), meaning) for name, size, meaning in figures(plan)]
    parts.append(markdown_table(("KV cache", "bytes", "", ""), figure_rows, right=(1, 2)))
    # What the policy of the cache does, and what sequences have in common.
    for labelled in (policy_lines(plan, full=full), sharing_lines(plan)):
        parts += ["".join(f"- {label}: {escaped(text)}\n" for label, text in labelled)] if labelled else []
    devices = device_rows(plan, full=full)
    parts += [markdown_table(DEVICE_HEADER, devices, right=range(2, len(DEVICE_HEADER)))] if devices else []
    share_rows = []
    for share in shares(plan):
        which = (f"{share.count:,}" if share.count else "", share.layers.text, share.rule, share.dtypes)
        share_rows.append((share.title, *which, percent(share.bytes, plan.cache.total_bytes), exact(share.bytes)))
    parts.append(markdown_table(("layers", "count", "which", "kept", "dtype", "share", "bytes"), share_rows, right=(1, 5, 6)))
    if full:
        tensors = []
        for one in plan.cache.tensors:
            stored = ("x".join(map(str, one.shape)), "" if is_room(one) else one.dtype, f"{one.positions:,}", exact(one.bytes))
            tensors.append((one.name, one.kind, one.layers.text, *stored))
        header = ("tensor", "of", "layers", "shape", "dtype", "positions", "bytes")
        parts.append(markdown_table(header, tensors, right=(5, 6)))
    return "\n".join([*parts, *foot_markdown(plan, quiet=quiet, full=full)])


def head_markdown(plan: Plan) -> list[str]:
    """The model, what was asked, and the bytes of its cache."""
    name, about, shape = model_lines(plan)
    answer = f"**{human_bytes(plan.cache.total_bytes)}** = {exact(plan.cache.total_bytes)}, {definition(plan)}"
    said = "\\\n".join(map(escaped, (about, shape, *request_lines(plan))))
    return [f"### {escaped(name)}\n", f"{said}\n", f"KV cache {answer}\n"]


def foot_markdown(plan: Plan, *, quiet: bool, full: bool = True) -> list[str]:
    """Notes as a list, and warnings."""
    texts, more = ([], 0) if quiet else notes_of(plan, full=full)
    lines = [f"- {escaped(text)}\n" for text in texts] + ([f"- {plural(more, 'more note')}: -v\n"] if more else [])
    return [*(["".join(lines)] if lines else []), *_warnings(plan)]


def _warnings(plan: Plan) -> list[str]:
    lines = [f"- **warning:** {escaped(note.message)}\n" for note in plan.warnings]
    return ["".join(lines)] if lines else []


_COLUMNS = (
    "model", "engine", "engine_version", "seq", "batch", "kv_dtype", "definition",
    "kind", "layers", "count", "tensor", "role", "axes", "shape", "dtype", "span", "positions", "bytes",
    "cache_total_bytes", "weights_bytes", "total_bytes", "gpu", "gpus", "total_per_gpu_bytes", "total_per_gpu_low_bytes",
    "total_per_gpu_high_bytes", "usable_bytes", "fits",
    "prompt", "policy", "policy_offered", "without_policy_bytes", "policy_saved_bytes", "policy_loses", "sequences", "unshared_bytes",
    "users_within", "users_within_low", "limited_by", "ttft_s", "itl_s", "e2e_s", "most_rate", "most_rate_low",
    *COST_COLUMNS,
)  # fmt: skip


def plan_csv(plan: Plan, **_style: object) -> str:
    """One row for each cached tensor. The ``bytes`` column adds up to ``cache_total_bytes``.

    Each row names its plan, so files can be joined, and ends with the plan's sums and its verdict. A plan that caches nothing is one row
    without a tensor.
    """
    request, memory, fit, policy, sharing = plan.request, plan.memory, plan.fit, plan.policy, plan.sharing
    of_fit: tuple[object, ...] = (None,) * 7
    if fit is not None:
        needed = (memory.per_gpu.total, fit.needed_low_bytes, fit.needed_high_bytes, fit.usable_bytes)
        of_fit = (fit.gpu, fit.gpus, *needed, fit.verdict.value)
    of_policy: tuple[object, ...] = (request.prompt, request.policy, *(None,) * 4)
    if policy is not None:
        of_policy = (policy.prompt, request.policy, policy.offered, policy.full_bytes, policy.saved_bytes, policy.loses)
    of_sharing = (None, None) if sharing is None else (sharing.sequences, sharing.unshared_bytes)
    of_within = ({} if plan.within is None else plan.within.row()) | cost_row(plan.cost)
    sums = (plan.cache.total_bytes, memory.weights.bytes, memory.total_bytes, *of_fit, *of_policy, *of_sharing)
    sums += tuple(of_within.get(name) for name in _COLUMNS[_COLUMNS.index("users_within") :])
    engine = (request.engine, request.engine_version or "")
    common = (plan.model.id, *engine, request.seq, request.batch, request.kv_dtype, plan.cache.definition)
    rows = [
        (
            *common, one.kind, one.layers.text, one.count, one.name, one.role, " x ".join(one.axes), "x".join(map(str, one.shape)),
            "" if is_room(one) else one.dtype, one.span.text, one.positions, one.bytes, *sums,
        )
        for one in plan.cache.tensors
    ]  # fmt: skip
    nothing = (*common, *(None,) * (len(_COLUMNS) - len(common) - len(sums)), *sums)
    return csv_text(_COLUMNS, rows or [nothing])
