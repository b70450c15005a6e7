"""A plan as the command line of the engine it was planned for."""

from __future__ import annotations

import shlex

from hwcalc.errors import UsageError
from hwcalc.planner.result import Plan

__all__ = ["EMITTERS", "emitted"]

EMITTERS = ("vllm",)

# Options of the plan that are flags of ``vllm serve`` under the same words; others have flags of their own below.
_VLLM_SWITCHES = {
    "enable_prefix_caching": ("--enable-prefix-caching", "--no-enable-prefix-caching"),
    "async_scheduling": ("--async-scheduling", "--no-async-scheduling"),
    "disable_hybrid_kv_cache_manager": ("--disable-hybrid-kv-cache-manager", "--no-disable-hybrid-kv-cache-manager"),
}


def emitted(plan: Plan, engine: str) -> str:
    """The full command. Raises :class:`~hwcalc.errors.UsageError` if the plan is not of that engine."""
    if engine not in EMITTERS:
        raise UsageError(f"--emit {engine[:40]!r} is not known.", hint=f"Known: {', '.join(EMITTERS)}.")
    if plan.request.engine != engine:
        raise UsageError(f"the plan is of engine {plan.request.engine}, not {engine}.", hint=f"Add: --engine {engine}")
    request = plan.request
    words = ["vllm", "serve", plan.model.id, "--max-model-len", str(request.seq)]
    if plan.model.revision is not None:
        words += ["--revision", plan.model.revision]
    if request.kv_dtype not in ("auto", plan.model.dtype):
        words += ["--kv-cache-dtype", request.kv_dtype]
    for flag, size in (
        ("--tensor-parallel-size", request.tp),
        ("--pipeline-parallel-size", request.pp),
        ("--data-parallel-size", request.dp),
        ("--decode-context-parallel-size", request.dcp),
    ):
        if size > 1:
            words += [flag, str(size)]
    if request.ep > 1:
        words.append("--enable-expert-parallel")
    if request.memory_utilization is not None:
        words += ["--gpu-memory-utilization", str(request.memory_utilization)]
    if request.kv_memory is not None:
        words += ["--kv-cache-memory-bytes", str(request.kv_memory)]
    for name, value in request.options.items():
        words += _option(name, value)
    for required in () if plan.pool is None else plan.pool.requires:
        words += required.flag.split()
    return shlex.join(words)


def _option(name: str, value: str) -> list[str]:
    if name in _VLLM_SWITCHES:
        on, off = _VLLM_SWITCHES[name]
        return [on if value.lower() in ("1", "true", "on", "yes") else off]
    if name == "speculative":
        method, _, rest = value.partition(":")
        import json

        if method in ("eagle", "draft"):
            document: dict[str, object] = {"method": "eagle" if method == "eagle" else "draft_model", "model": rest}
        else:
            document = {"method": method, "num_speculative_tokens": int(rest)}
        return ["--speculative-config", json.dumps(document)]
    return [f"--{name.replace('_', '-')}", value]
