"""The dialects of logs: each is a module with a class that reads one."""

from __future__ import annotations

from typing import Final

from hwcalc.errors import UsageError
from hwcalc.reconcile.dialects.llamacpp import LlamacppLog
from hwcalc.reconcile.dialects.lmdeploy import LmdeployLog
from hwcalc.reconcile.dialects.mistral_rs import MistralRsLog
from hwcalc.reconcile.dialects.mlx import MlxLog
from hwcalc.reconcile.dialects.prometheus import PrometheusText
from hwcalc.reconcile.dialects.sglang import SglangLog
from hwcalc.reconcile.dialects.tensorrt_llm import TensorrtLog
from hwcalc.reconcile.dialects.tgi import TgiLog
from hwcalc.reconcile.dialects.transformers import TransformersLog
from hwcalc.reconcile.dialects.vllm import VllmLog
from hwcalc.reconcile.facts import Dialect
from hwcalc.text import shown

__all__ = ["DIALECTS", "Dialect", "find_dialect"]

DIALECTS: Final[tuple[type[Dialect], ...]] = (
    VllmLog, PrometheusText, TransformersLog, SglangLog, LlamacppLog, MlxLog, TensorrtLog, LmdeployLog, MistralRsLog, TgiLog,
)  # fmt: skip
"""If two dialects know equally many lines of a log, the first one reads it."""


def find_dialect(name: str) -> type[Dialect]:
    """The dialect with this name. Raises :class:`~hwcalc.errors.UsageError`."""
    for dialect in DIALECTS:
        if dialect.name == name.strip().lower():
            return dialect
    known = ", ".join(dialect.name for dialect in DIALECTS)
    raise UsageError(f"--dialect {shown(name, 40)} is not known.", hint=f"Known: {known}.")
