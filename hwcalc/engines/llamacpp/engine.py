"""llama.cpp v0.5.0 (commit 0c1e57098): what ``llama_init_from_model`` allocates for a context.

A context allocates all of its cells when it is made. Their number follows from ``n_ctx``, which is shared by all sequences, and from the
number of sequences; a longer conversation takes no more memory, and one that fills its cells ends.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, ClassVar

from hwcalc.engines.engine import BY_MODEL, Engine
from hwcalc.engines.general import GeneralEngine
from hwcalc.engines.llamacpp.deployment import LlamacppDeployment
from hwcalc.engines.llamacpp.occupancy import LlamacppOccupancy
from hwcalc.engines.llamacpp.rules import RULES
from hwcalc.engines.llamacpp.settings import MAX_SEQUENCES, OPTIONS, PLACE_OPTIONS, read_settings
from hwcalc.engines.options import Choices, EngineOption, is_on
from hwcalc.engines.setup import Request
from hwcalc.errors import UnknownNameError, UsageError
from hwcalc.formulas import LayerKind, SlidingAttention
from hwcalc.model import Definition, ModelSpec
from hwcalc.parsers.gguf.hparams import hparams_of
from hwcalc.text import brief

if TYPE_CHECKING:
    from hwcalc.engines.deployment import Deployment, Occupancy
    from hwcalc.engines.engine import Turns
    from hwcalc.engines.options import CommandInput
    from hwcalc.profiles.hardware_file import Gpu


class Llamacpp(GeneralEngine):
    """The contexts of llama.cpp."""

    deployment: ClassVar[type[Deployment]] = LlamacppDeployment
    occupancy: ClassVar[type[Occupancy]] = LlamacppOccupancy
    name: ClassVar[str] = "llamacpp"
    title: ClassVar[str] = "llama.cpp: llama-server and bindings"
    label: ClassVar[str] = "llama.cpp"
    definition: ClassVar[Definition] = Definition.ENGINE
    cache_is: ClassVar[str] = "cells of the whole context, from the start"
    pool_is: ClassVar[str] = "n_ctx"
    versions: ClassVar[tuple[str, ...]] = ("v0.5.0",)
    source: ClassVar[str] = "llama.cpp 0c1e57098 (v0.5.0)"
    kinds: ClassVar[frozenset[str]] = frozenset(RULES)
    unbounded: ClassVar[Mapping[type[LayerKind], str]] = MappingProxyType({SlidingAttention: BY_MODEL})
    options: ClassVar[Mapping[str, EngineOption]] = MappingProxyType({**OPTIONS, **PLACE_OPTIONS})
    choices: ClassVar[Choices | None] = Choices(
        dtypes=("q8_0", "q4_0"),
        weights=("bf16", "q8_0", "q6_k", "q4_k_m"),
        # With layers left to the host, what is there follows from length and batch.
        options=MappingProxyType({"n_gpu_layers": "all"}),
    )
    has_command: ClassVar[bool] = True
    splits_layers: ClassVar[bool] = True
    file_remark: ClassVar[str] = (
        "The file is one that llama.cpp's converter and llama-quantize make, or that others publish under a like name."
    )

    def resolve_version(self, requested: str) -> str:
        """The release of a version: ``0.5``, ``v0.5.0`` and ``0.5.0`` name the release whose rules are known."""
        if requested.removeprefix("v") in ("0.5", "0.5.0"):
            return self.versions[0]
        raise UnknownNameError(
            f"--engine {self.name}@{brief(requested, 20)}: no rules for that version.",
            option="engine",
            hint=f"Known: {', '.join(self.versions)}. Builds shortly before and after it have the same rules: --engine {self.name}",
        )

    def weight_sizes(self, model: ModelSpec) -> Mapping[str | None, int]:
        from hwcalc.quantization.gguf import mix_sizes

        return mix_sizes(model, self.weight_choices_of(model), hparams_of(model).architecture.always_loaded)

    def length_named(self, model: ModelSpec, batch: int, options: Mapping[str, str]) -> int | None:
        """The tokens of each sequence that ``n_ctx`` leaves; ``None`` without ``n_ctx``."""
        if "n_ctx" not in options:
            return None
        self.check_options(options)
        named = read_settings(Request.of(seq=1, batch=max(1, batch), options=options), hparams_of(model))
        return min(named.n_ctx_asked, named.n_ctx_seq) or None

    def turns(self, model: ModelSpec, options: Mapping[str, str]) -> Turns:
        """The turns with those of llama.cpp: the most slots of a context, and the tokens of a batch, which a short trained length limits."""
        return super().turns(model, options).also(sequences=(MAX_SEQUENCES, hparams_of(model).n_ctx_train))

    def started_by(self, options: Mapping[str, str]) -> Engine:
        """Ollama, if the options say so: it is this engine with other defaults."""
        if self.name == "llamacpp" and is_on(options.get("ollama")):
            from hwcalc.engines import find_engine

            return find_engine("ollama")[0]
        return self

    def flag(self, name: str, value: object) -> str:
        from hwcalc.engines.llamacpp.command import flag_text

        return flag_text(name, value)

    def command(self, planned: CommandInput) -> list[str]:
        from hwcalc.engines.llamacpp.command import serve

        return serve(planned)

    def check_host(self, host: Gpu, options: Mapping[str, str], gpus: int) -> None:
        if gpus > 1:
            raise UsageError(f"--gpus {gpus:,}: {host.id} is a machine without a GPU.", hint="Leave out --gpus.")
        if host.torch_total_mib is None and "host_memory" not in options:
            from hwcalc.hardware.local import EXAMPLE, this_machine

            here = this_machine()
            also = "" if here is None else f" This machine: --gpu {here}"
            raise UsageError(f"--gpu {host.id}: how much memory does the machine have?", hint=f"Say it: --gpu {EXAMPLE}.{also}")
