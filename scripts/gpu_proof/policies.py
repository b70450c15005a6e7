"""The step that runs cache policies on the device: bytes of cuts and of growing, and blocks that are moved."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Final

from msgspec.structs import replace

from hwcalc.documents import document_of
from hwcalc.engines.deployment import Occupancy
from hwcalc.library.plan import load_request
from hwcalc.planner.context import open_request
from hwcalc.planner.options import read_options
from hwcalc.probe.devices import Device
from hwcalc.probe.policy_run import run_policy
from scripts.gpu_proof.record import DIFFERS, CaseRecord, Figure, judged
from scripts.gpu_proof.run import Case, Run, cases

_CASES: Final = (
    ("Qwen/Qwen3-8B", "snapkv:compression_ratio=0.9", "reference", 8_192, 64),
    ("Qwen/Qwen3-8B", "pyramidkv:compression_ratio=0.5", "transformers", 8_192, 16),
    ("Qwen/Qwen3-0.6B", "rkv:budget=128", "reference", 100, 300),
    ("Qwen/Qwen3-0.6B", "h2o:budget=1024", "transformers", 4_096, 16),
    ("deepseek-ai/DeepSeek-V2-Lite", "knorm:compression_ratio=0.5", "reference", 8_192, 16),
    ("Qwen/Qwen3-8B", "triattention", "vllm", 100, 2_500),
    ("Qwen/Qwen3-8B", "knorm:compression_ratio=0.9", "vllm", 16_000, 16),
)
"""Model, policy, engine, tokens of the prompt and of the text behind it."""
_SMALLER: Final = 8
"""On a CPU prompts are as much shorter."""
_SECONDS: Final = 30.0


def policy_step(run: Run) -> Iterator[CaseRecord]:
    """Policies with real tensors: lengths and copies against the plan."""
    device = run.opened()
    usable = run.usable_bytes(device)

    def ran(case: str, model: str, policy: str, engine: str, prompt: int, output: int) -> CaseRecord:
        if device.kind == "cpu" and prompt > 1_000:
            prompt //= _SMALLER
        asked = {"seq": prompt + output, "prompt": prompt, "policy": policy, "engine": engine, "offline": True}
        spec, request = load_request(model, read_options(asked))
        return _record(case, open_request(spec, **request), device, usable)

    todo: list[Case] = []
    for model, policy, engine, prompt, output in _CASES:
        case = f"{model} {policy} {engine}"
        todo.append((case, partial(ran, case, model, policy, engine, prompt, output)))
    yield from cases(run, todo)


def _record(case: str, opened: Occupancy, device: Device, usable: int) -> CaseRecord:
    found = run_policy(opened, device, usable_bytes=usable, seconds=_SECONDS)
    figures = [
        Figure(name=one.name, predicted=one.predicted, measured=one.measured, least=one.least, most=one.most)
        for one in found.figures
    ]
    details = {name: value for name, value in document_of(found).items() if name not in {"figures", "agrees"}}
    record = judged(case, *figures, model=opened.model.id, **details)
    return record if found.in_place is not False else replace(record, status=DIFFERS, why="a survivor is not in its place")
