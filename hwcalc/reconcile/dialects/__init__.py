"""The dialects of logs. Each is a module with the lines it looks for, a parser, and a function that compares its figures."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, Protocol

from msgspec.structs import replace

from hwcalc.errors import UsageError
from hwcalc.formulas.record import Record
from hwcalc.reconcile.dialects import (
    llamacpp,
    lmdeploy,
    mistral_rs,
    mlx,
    prometheus,
    sglang,
    tensorrt_llm,
    tgi,
    transformers,
    vllm,
    vllm_rows,
)
from hwcalc.text import shown

if TYPE_CHECKING:
    from hwcalc.model import Note
    from hwcalc.reconcile.facts import Facts, Row

__all__ = ["DIALECTS", "Dialect", "Parser", "find_dialect"]


class Parser(Protocol):
    """Reads a log line by line. ``facts`` is what the log states, ``starts`` how often the engine started."""

    facts: Facts
    starts: int

    def feed(self, number: int, text: str) -> None:
        """Read one line."""


class Dialect(Record):
    """How to read the logs of one program, and how to compare them with a plan.

    ``sought`` lists lines by which a log is recognised. ``inputs`` returns the plan's keywords and engine options that a log states,
    ``compare`` the rows and notes about what could not be compared, ``overheads`` the bytes that a calibration saves, and
    ``batch_shape`` the tokens and rows of a forward pass for which they hold. ``online_format`` is the weight format into which the
    engine converts unquantized weights; ``states_version`` says whether the log names the engine's version.
    """

    name: str
    title: str
    engine: str
    sought: tuple[str, ...]
    parser: Callable[[], Parser]
    inputs: Callable[[Facts], tuple[dict[str, object], dict[str, str]]]
    compare: Callable[[Facts, Any, float], tuple[list[Row], list[Note]]]
    overheads: Callable[[Facts, Any], dict[str, int]]
    batch_shape: Callable[[Any], tuple[int, int]]
    online_format: Callable[[Facts], str | None] = lambda _: None
    states_version: bool = False


_VLLM: Final = Dialect(
    name=vllm.NAME,
    title=vllm.TITLE,
    engine="vllm",
    sought=vllm.SOUGHT,
    parser=vllm.VllmParser,
    inputs=vllm.plan_inputs,
    compare=vllm_rows.compare,
    overheads=vllm_rows.overheads,
    batch_shape=vllm_rows.batch_shape,
    online_format=vllm.online_format,
    states_version=True,
)
DIALECTS: Final = (
    _VLLM,
    # The metrics of a running vLLM server: the same figures under other names.
    replace(
        _VLLM,
        name=prometheus.NAME,
        title=prometheus.TITLE,
        sought=prometheus.SOUGHT,
        parser=prometheus.PrometheusParser,
        inputs=prometheus.plan_inputs,
    ),
    Dialect(
        name=transformers.NAME,
        title=transformers.TITLE,
        engine="transformers",
        sought=transformers.SOUGHT,
        parser=transformers.TransformersParser,
        inputs=transformers.plan_inputs,
        compare=transformers.compare,
        overheads=transformers.overheads,
        batch_shape=transformers.batch_shape,
    ),
    Dialect(
        name=sglang.NAME,
        title=sglang.TITLE,
        engine="sglang",
        sought=sglang.SOUGHT,
        parser=sglang.SglangParser,
        inputs=sglang.plan_inputs,
        compare=sglang.compare,
        overheads=sglang.overheads,
        batch_shape=sglang.batch_shape,
    ),
    Dialect(
        name=llamacpp.NAME,
        title=llamacpp.TITLE,
        engine="llamacpp",
        sought=llamacpp.SOUGHT,
        parser=llamacpp.LlamacppParser,
        inputs=llamacpp.plan_inputs,
        compare=llamacpp.compare,
        overheads=llamacpp.overheads,
        batch_shape=llamacpp.batch_shape,
    ),
    Dialect(
        name=mlx.NAME,
        title=mlx.TITLE,
        engine="mlx",
        sought=mlx.SOUGHT,
        parser=mlx.MlxParser,
        inputs=mlx.plan_inputs,
        compare=mlx.compare,
        overheads=mlx.overheads,
        batch_shape=mlx.batch_shape,
    ),
    Dialect(
        name=tensorrt_llm.NAME,
        title=tensorrt_llm.TITLE,
        engine="tensorrt-llm",
        sought=tensorrt_llm.SOUGHT,
        parser=tensorrt_llm.TensorrtParser,
        inputs=tensorrt_llm.plan_inputs,
        compare=tensorrt_llm.compare,
        overheads=tensorrt_llm.overheads,
        batch_shape=tensorrt_llm.batch_shape,
    ),
    Dialect(
        name=lmdeploy.NAME,
        title=lmdeploy.TITLE,
        engine="lmdeploy",
        sought=lmdeploy.SOUGHT,
        parser=lmdeploy.LmdeployParser,
        inputs=lmdeploy.plan_inputs,
        compare=lmdeploy.compare,
        overheads=lmdeploy.overheads,
        batch_shape=lmdeploy.batch_shape,
    ),
    Dialect(
        name=mistral_rs.NAME,
        title=mistral_rs.TITLE,
        engine="mistral-rs",
        sought=mistral_rs.SOUGHT,
        parser=mistral_rs.MistralRsParser,
        inputs=mistral_rs.plan_inputs,
        compare=mistral_rs.compare,
        overheads=mistral_rs.overheads,
        batch_shape=mistral_rs.batch_shape,
    ),
    Dialect(
        name=tgi.NAME,
        title=tgi.TITLE,
        engine="tgi",
        sought=tgi.SOUGHT,
        parser=tgi.TgiParser,
        inputs=tgi.plan_inputs,
        compare=tgi.compare,
        overheads=tgi.overheads,
        batch_shape=tgi.batch_shape,
    ),
)
"""If two dialects know equally many lines of a log, the first one reads it."""


def find_dialect(name: str) -> Dialect:
    """The dialect with this name. Raises :class:`~hwcalc.errors.UsageError`."""
    for dialect in DIALECTS:
        if dialect.name == name.strip().lower():
            return dialect
    known = ", ".join(dialect.name for dialect in DIALECTS)
    raise UsageError(f"--dialect {shown(name, 40)} is not known.", hint=f"Known: {known}.")
