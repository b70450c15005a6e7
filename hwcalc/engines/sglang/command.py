"""The command line of SGLang, written for a plan and read back: the flags of ``server_args.py``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Final

from hwcalc.engines.facts import Command, Told
from hwcalc.engines.options import AUTO, is_on, parse_lora
from hwcalc.engines.sglang.settings import LONGER, MAX_LENGTH, eagle_of
from hwcalc.errors import UnsupportedError, UsageError
from hwcalc.profiles.engine_flags import engine_flags

if TYPE_CHECKING:
    from hwcalc.engines.options import CommandInput
    from hwcalc.engines.setup import Load, Setup

_FLAGS: Final = engine_flags("sglang")
_AS_LOADED: Final = {"fp8": ("quantization", "fp8"), "bf16": ("dtype", "bfloat16"), "fp16": ("dtype", "float16")}
"""Formats that SGLang makes of any model as it loads it."""
_TARGETS: Final = {
    "all": ("all",),
    "attention": ("q_proj", "k_proj", "v_proj", "o_proj"),
    "mlp": ("gate_proj", "up_proj", "down_proj"),
}
"""What ``--lora`` calls a group of layers -> the layers, which SGLang must be told where no adapter is there from the start."""
_LONG_NAMES: Final = {"fp8": "fp8_e4m3", "fp16": AUTO}


class SglangCommand(Command):
    """``python -m sglang.launch_server`` for a plan."""

    known: ClassVar[bool] = True
    joins_nodes: ClassVar[bool] = True

    def asked(self, said: Told) -> Mapping[str, Any]:
        """With attention data parallelism the replicas lie inside the ranks of tensor parallelism, and a draft is said by several flags.

        The length that a server allows bounds its requests at once, so that it is more than the length of a plan.

        Raises :class:`~hwcalc.errors.UsageError` for ranks that the nodes do not share evenly (``check_server_args`` of ``server_args.py``).
        """
        changed: dict[str, Any] = {}
        knobs: dict[str, Any] = {MAX_LENGTH: said.options["seq"]} if "seq" in said.options else {}
        tp, dp = said.options.get("tp", 1), said.options.get("dp", 1)
        nodes, ranks = said.extra.get("nnodes"), tp * said.options.get("pp", 1)
        if isinstance(nodes, int) and nodes > 0 and ranks % nodes:
            message = f"SGLang gives all nodes equally many ranks: {ranks:,} of tp x pp are not divisible by nnodes {nodes:,}."
            raise UsageError(message, hint="Use another --tp or --nnodes.")
        if said.extra.get("enable_dp_attention") and dp > 1 and tp % dp == 0:
            changed["tp"] = tp // dp
        draft, lora = said.settings.get("speculative"), said.settings.get("lora")
        if isinstance(draft, Mapping):
            method = str(draft.get("algorithm", "")).upper()
            if method == "STANDALONE":
                changed["draft"] = draft.get("draft_model_path")
            elif method:
                knobs["speculative"] = f"eagle:1:{draft.get('num_draft_tokens', 4)}"
        if isinstance(lora, Mapping) and (lora.get("enable") or "paths" in lora):
            modules = lora.get("target_modules")
            targets = next((name for name, each in _TARGETS.items() if modules is not None and set(each) == set(modules)), "all")
            rank, count = lora.get("max_lora_rank", 16), lora.get("max_loras_per_batch", 8)
            loaded = f",loaded={lora['max_loaded_loras']}" if lora.get("max_loaded_loras") else ""
            changed["lora"] = f"rank={rank},count={count},targets={targets}{loaded}"
        return said.changed(**changed, engine_options=said.knobs(**knobs) or None)

    def flag(self, name: str, value: object) -> str:
        """SGLang's spelling of one option of kvplan or one engine option; empty if it has no flag for it, or needs none."""
        text = str(value)
        if _FLAGS.is_switch(name):
            return _FLAGS.written[name] if is_on(text) else ""
        if name == "weights":
            return " ".join(_FLAGS.words(*_AS_LOADED[text])) if text in _AS_LOADED else ""
        if name == "speculative":
            tokens = eagle_of(name, text)[1]
            parts = {"algorithm": "EAGLE", "num_steps": max(1, tokens - 1), "eagle_topk": 1, "num_draft_tokens": tokens}
            return " ".join(word for part, each in parts.items() for word in _FLAGS.words(f"speculative.{part}", each))
        if text == AUTO:
            return ""
        if name == "dsa_backend":
            return " ".join([*_FLAGS.words("dsa_prefill_backend", text), *_FLAGS.words("dsa_decode_backend", text)])
        if name == "dtype":
            name, text = "kv_cache_dtype", _LONG_NAMES.get(text, text)
        return _FLAGS.text(name, text)

    def settings(self, changed: Mapping[str, Any], setup: Setup, load: Load) -> Mapping[str, Any]:
        """The server is not told the length of the sequences that users send: its pools are the same."""
        return {name: each for name, each in changed.items() if name != "seq"}

    def on_nodes(self, planned: CommandInput, nodes: int) -> str:
        """Flags that every node of a server is given (``server_args.py``)."""
        return f"On each: --nnodes {nodes} --node-rank RANK (from 0) --dist-init-addr ADDRESS:PORT of the first."

    def words(self, planned: CommandInput) -> list[str]:
        """The words of ``python -m sglang.launch_server`` for a plan, with the further flags that its pools require."""
        parallel, replicated = planned.parallel, is_on(planned.options.get("enable_dp_attention"))
        of = _FLAGS.words
        words = [*_FLAGS.program, *of("model", planned.model)]
        if MAX_LENGTH not in planned.options and LONGER in planned.environment:
            words += of("seq", planned.seq)
        if planned.revision is not None:
            words += of("revision", planned.revision)
        if planned.kv_dtype_named:
            words += of("kv_cache_dtype", _LONG_NAMES.get(planned.kv_dtype, planned.kv_dtype))
        # Replicas that divide attention alone are ranks of one group.
        sizes = {
            "tp": parallel.tp * parallel.dp if replicated else parallel.tp,
            "pp": parallel.pp,
            "dp": parallel.dp,
            "ep": parallel.ep,
        }
        for name, size in sizes.items():
            if size > 1:
                words += of(name, size)
        if planned.memory_utilization is not None and "mem_fraction_static" not in planned.options:
            words += of("memory_utilization", planned.memory_utilization)
        if planned.kv_memory is not None:
            message = "SGLang has no flag for the bytes of its pools."
            raise UnsupportedError(message, hint="Leave out --kv-memory, or name the tokens: --engine-option max_total_tokens=N")
        if planned.weights is not None:
            if planned.weights not in _AS_LOADED:
                from hwcalc.quantization.planned import format_name, unmade

                raise unmade("SGLang", format_name(planned.weights) or "", planned.model, *_AS_LOADED)
            words += of(*_AS_LOADED[planned.weights])
        if planned.lora is not None:
            lora = parse_lora(planned.lora)
            words += [*of("lora.enable"), *of("lora.max_loras_per_batch", lora.count), *of("lora.max_lora_rank", lora.rank)]
            words += of("lora.target_modules", *_TARGETS[lora.targets])
            words += [] if lora.loaded is None else of("lora.max_loaded_loras", lora.loaded)
        if planned.draft is not None:
            if "speculative" in planned.options:
                raise UnsupportedError(
                    "SGLang drafts by one method at once.", hint="Leave out --draft, or the engine option speculative."
                )
            words += [*of("speculative.algorithm", "STANDALONE"), *of("speculative.draft_model_path", planned.draft)]
        for name, value in planned.options.items():
            words += self.flag(name, value).split()
        for required in planned.requires:
            words += required.flag.split()
        return [*words, *planned.flags]
