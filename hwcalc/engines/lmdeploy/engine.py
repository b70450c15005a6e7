"""LMDeploy as an engine, and the command line that serves a plan.

Source of the command line: lmdeploy/cli/serve.py and cli/utils.py of 0.14.0 and 0.18.0.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from hwcalc.engines.engine import BY_MODEL, EVERY_TOKEN, Engine
from hwcalc.engines.facts import Command, Facts, IdleRules, Rest, Told, WeightFormats
from hwcalc.engines.lmdeploy.deployment import LmdeployDeployment, LmdeployOccupancy
from hwcalc.engines.lmdeploy.layout import FORMATS, KINDS, NONE, OPTIONS, PYTORCH, cache_formats, parse_policy, read_format
from hwcalc.engines.options import is_on
from hwcalc.errors import UnsupportedError, UsageError
from hwcalc.formulas import ChunkedAttention, SlidingAttention
from hwcalc.model import Definition
from hwcalc.profiles.engine_flags import engine_flags

if TYPE_CHECKING:
    from hwcalc.engines.deployment import Occupancy
    from hwcalc.engines.options import CommandInput


class LmdeployCommand(Command):
    """``lmdeploy serve api_server`` for a plan."""

    known = True

    def asked(self, said: Told) -> Mapping[str, Any]:
        """Its ``--tp`` counts the ranks of all replicas, and a count of entries above 1 is one of blocks."""
        tp, dp = said.options.get("tp", 1), said.options.get("dp", 1)
        changed: dict[str, Any] = {"tp": tp // dp} if dp > 1 and tp % dp == 0 else {}
        entries = str(said.options.get("memory_utilization"))
        if entries.isascii() and entries.isdecimal() and entries not in ("0", "1"):
            changed |= {"memory_utilization": None, "engine_options": said.knobs(cache_max_entry_count=entries)}
        return said.changed(**changed)

    def flag(self, name: str, value: object) -> str:
        """LMDeploy's spelling of one option; empty if it has no flag for it."""
        if name in _FLAGS.switches:
            return _FLAGS.written[name] if is_on(str(value)) else ""
        if name == "dtype":
            name, value = "quant_policy", read_format(str(value), None, PYTORCH).policy
        elif name == "quant_policy":
            value = parse_policy(name, str(value))
        elif name == "weights" and value != "fp8":
            return ""
        return _FLAGS.text(name, value)

    def words(self, planned: CommandInput) -> list[str]:
        """The words of ``lmdeploy serve api_server`` for a plan. Raises an error for what has no flag."""
        if planned.kv_memory is not None:
            message = "LMDeploy has no flag for the bytes of its cache."
            raise UnsupportedError(message, hint="Leave out --kv-memory, or use: --engine-option cache_max_entry_count=0.8")
        if planned.weights is not None and planned.weights != "fp8":
            from hwcalc.quantization.planned import format_name, unmade

            raise unmade("LMDeploy", format_name(planned.weights) or "", planned.model, "fp8")
        if planned.lora is not None:
            what = "LMDeploy names adapters by their paths: --adapters NAME=PATH."
            raise UnsupportedError(what, hint="Leave out --lora.")
        options = dict(planned.options)
        backend = options.pop("backend", PYTORCH)
        if planned.model.startswith("-"):
            raise UsageError("LMDeploy takes no model whose name begins with a hyphen.", hint=f"Use: ./{planned.model}")
        of = _FLAGS.words
        words = [*_FLAGS.program, planned.model, *of("backend", backend), *of("seq", planned.seq)]
        if planned.revision is not None:
            words += of("revision", planned.revision)
        # Its ``--tp`` counts the ranks of all replicas.
        ranks = planned.parallel.tp * planned.parallel.dp
        for name, size in (("tp", ranks), ("dp", planned.parallel.dp), ("ep", planned.parallel.ep)):
            words += of(name, size) if size > 1 else []
        policy = options.pop("quant_policy", None)
        format_ = read_format(planned.kv_dtype if planned.kv_dtype_named else None, policy, backend)
        if format_ != NONE:
            words += of("quant_policy", FORMATS[format_.policy].policy)
        if planned.weights is not None:
            words += of("weights", planned.weights)
        if planned.memory_utilization is not None and "cache_max_entry_count" not in options:
            words += of("memory_utilization", f"{planned.memory_utilization:g}")
        for name, value in options.items():
            if name in _FLAGS.switches:
                words += of(name) if is_on(value) else []
            elif name not in _FLAGS.written and name not in _NO_FLAG:
                raise UnsupportedError(
                    f"{name} has no flag: only Python's PytorchEngineConfig takes it.", hint=f"Leave out: --engine-option {name}"
                )
            else:
                words += [] if name in _NO_FLAG else of(name, value)
        return [*words, *planned.flags]


class LmdeployIdle(IdleRules):
    """Sleep of the PyTorch engine: modules move to host memory (level 1) or lose their weights (level 2), and graphs are captured again.

    TurboMind's ``Sleep`` does nothing. Source: LMDeploy 0.16, pytorch/engine/model_agent/agent.py, src/turbomind/turbomind.cc.
    """

    ways = (
        Rest(name="level 1", how="POST /sleep?level=1; POST /wakeup", copied=True),
        Rest(
            name="level 2",
            how="POST /sleep?level=2; POST /wakeup?tags=weights, POST /update_weights with all weights, POST /wakeup?tags=kv_cache",
        ),
    )
    source = "LMDeploy 0.16 pytorch/engine/model_agent/agent.py"

    def ways_of(self, occupancy: Occupancy) -> tuple[Rest, ...]:
        if occupancy.setup.options.get("backend", PYTORCH) != PYTORCH:
            raise UnsupportedError("TurboMind does not sleep.", hint="Use: --engine-option backend=pytorch")
        return self.ways


_VERSIONS: Final = ("0.18", "0.17", "0.16", "0.15", "0.14")


class Lmdeploy(Engine):
    """A pool of blocks of all layers, and slots of recurrent states, by the rules of LMDeploy."""

    deployment = LmdeployDeployment
    occupancy = LmdeployOccupancy
    name = "lmdeploy"
    title = "LMDeploy: its PyTorch back end, and TurboMind"
    label = "LMDeploy"
    definition = Definition.ENGINE
    facts = Facts(
        cache_formats=cache_formats(_VERSIONS[0]),
        idle=LmdeployIdle(),
        # QuantizationConfig of pytorch/config.py, and turbomind/converter.py.
        foreign_formats=(),
        users_option="max_batch_size",
        int8_cache="int8",
        chunk_option="max_prefill_token_num",
        cache_is="blocks of the planned sequences, and all slots of states",
        pool_is="num_gpu_blocks x block_size",
        pooled=True,
        # _get_max_session_len in pytorch/engine/engine.py; TurboMind cuts session_len.
        short_pool="ends longer sessions",
        counts_copies=True,
        scatters=True,
        assumed_gpu="h100-sxm5-80gb",
        unbounded=MappingProxyType({SlidingAttention: BY_MODEL, ChunkedAttention: EVERY_TOKEN}),
        planned_on=("5.0+", "rubin-288gb"),
    )
    weights = WeightFormats(None, "fp8", "awq")
    command = LmdeployCommand()
    versions = _VERSIONS
    source = "LMDeploy 0.14.0 to 0.18.0, pytorch/engine/cache_engine, executor/base.py"
    kinds = KINDS
    options = OPTIONS


_FLAGS: Final = engine_flags("lmdeploy")
_NO_FLAG: Final = frozenset({"fp32_mamba_ssm_dtype", "flash_mla"})
"""Options that say what is installed, or that a variable sets."""
