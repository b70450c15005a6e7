"""mlx-lm: its options, and the command line that runs a plan."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, ClassVar, Final

from hwcalc.engines.engine import BY_MODEL
from hwcalc.engines.general import GeneralEngine
from hwcalc.engines.mlx.deployment import BITS_OF_DTYPE, GROUPS, MlxDeployment, MlxOccupancy
from hwcalc.engines.mlx.layers import RULES, as_read
from hwcalc.engines.options import Choices, CommandInput, EngineOption, check_one_replica, integer_option
from hwcalc.errors import UnsupportedError, UsageError
from hwcalc.formulas import LayerKind, SlidingAttention
from hwcalc.model import Definition, ModelSpec
from hwcalc.text import brief

if TYPE_CHECKING:
    from hwcalc.engines.deployment import Deployment, Occupancy
    from hwcalc.engines.setup import Request

_FLAGS: Final[Mapping[str, str]] = {
    "kv_bits": "--kv-bits",
    "kv_group_size": "--kv-group-size",
    "quantized_kv_start": "--quantized-kv-start",
    "prefill_step_size": "--prefill-step-size",
    "decode_concurrency": "--decode-concurrency",
    "prompt_cache_size": "--prompt-cache-size",
    "max_kv_size": "--max-kv-size",
}
_OF_SERVER: Final = frozenset({"decode_concurrency", "prompt_cache_size"})


def _one_of(*allowed: int) -> Callable[[str, str], int]:
    def check(name: str, value: str) -> int:
        number = integer_option(0)(name, value)
        if number not in allowed:
            raise UsageError(
                f"engine option {name}={brief(value, 40)} is not known.", hint=f"Allowed: {', '.join(map(str, allowed))}."
            )
        return number

    return check


_OPTIONS: Final[Mapping[str, EngineOption]] = MappingProxyType(
    {
        name: EngineOption(name=name, help=text, default=default, check=check)
        for name, text, default, check in (
            ("kv_bits", "bits of a quantized cache", "not quantized", _one_of(2, 3, 4, 5, 6, 8)),
            ("kv_group_size", "numbers that share a scale and a bias", "64", _one_of(*GROUPS)),
            ("quantized_kv_start", "tokens from which on the cache is quantized", "5000", integer_option(0)),
            ("max_kv_size", "tokens that a rotating cache keeps of every layer", "every token", integer_option(5)),
            ("prefill_step_size", "tokens of a prompt that are read at once", "2048", integer_option(1)),
            ("decode_concurrency", "sequences that the server generates at once", "32", integer_option(1)),
            ("prompt_cache_size", "caches of earlier requests that the server keeps", "0, no server", integer_option(0, 4096)),
        )
    }
)


class Mlx(GeneralEngine):
    """The caches of mlx-lm. Bytes are those of their arrays; the slots behind the last token are allocated and still empty."""

    deployment: ClassVar[type[Deployment]] = MlxDeployment
    occupancy: ClassVar[type[Occupancy]] = MlxOccupancy
    name: ClassVar[str] = "mlx"
    title: ClassVar[str] = "mlx-lm, the caches of MLX"
    label: ClassVar[str] = "MLX"
    definition: ClassVar[Definition] = Definition.ENGINE
    cache_is: ClassVar[str] = "arrays at their largest, while a prompt is read or behind it"
    versions: ClassVar[tuple[str, ...]] = ("0.32.2",)
    source: ClassVar[str] = "mlx-lm 0.32.2, models/cache.py and generate.py"
    kinds: ClassVar[frozenset[type[LayerKind]] | None] = frozenset(RULES)
    unbounded: ClassVar[Mapping[type[LayerKind], str]] = MappingProxyType({SlidingAttention: BY_MODEL})
    has_command: ClassVar[bool] = True
    stores_prompts_apart: ClassVar[bool] = True
    weight_choices: ClassVar[tuple[str | None, ...]] = (None, "mlx_8bit", "mlx_6bit", "mlx_4bit")
    choices: ClassVar[Choices | None] = Choices(weights=("bf16", "mlx_8bit", "mlx_4bit"))
    options: ClassVar[Mapping[str, EngineOption]] = _OPTIONS

    def flag(self, name: str, value: object) -> str:
        """How mlx-lm spells an option of kvplan or an engine option; empty if it has no flag for it."""
        if name == "dtype" and str(value) in BITS_OF_DTYPE:
            return f"--kv-bits {BITS_OF_DTYPE[str(value)]}"
        return f"{_FLAGS[name]} {value}" if name in _FLAGS else ""

    def command(self, planned: CommandInput) -> list[str]:
        """``mlx_lm.server``, or ``mlx_lm.generate`` with ``max_kv_size``, which the server does not know.

        Raises :class:`~hwcalc.errors.UnsupportedError` for what has no flag.
        """
        check_one_replica(planned, "mlx-lm")
        if planned.revision is not None:
            raise UnsupportedError("mlx_lm.server has no flag for a revision.", hint="Download it and give its folder.")
        if planned.weights is not None:
            bits = "".join(letter for letter in planned.weights if letter.isdigit()) or "4"
            message = f"mlx_lm.server runs a model as it is stored, and not in {planned.weights}."
            raise UnsupportedError(message, hint=f"Convert it first: mlx_lm.convert --hf-path {planned.model} -q --q-bits {bits}")
        if planned.lora is not None:
            raise UnsupportedError("--lora names no adapter that mlx-lm could load.", hint="Leave out --lora.")
        alone = "max_kv_size" in planned.options
        refused = sorted(_OF_SERVER & planned.options.keys()) if alone else []
        if refused:
            raise UnsupportedError(f"mlx_lm.generate has max_kv_size, and mlx_lm.server has {refused[0]}.", hint="Leave out one.")
        machines = planned.parallel.tp * planned.parallel.pp
        words = ["mlx.launch", "-n", str(machines)] if machines > 1 else []
        words += ["mlx_lm.generate" if alone else "mlx_lm.server", "--model", planned.path or planned.model]
        if planned.parallel.pp > 1:
            words.append("--pipeline")
        if planned.draft is not None:
            words += ["--draft-model", planned.draft]
        if planned.kv_dtype_named:
            words += self.flag("dtype", planned.kv_dtype).split()
        for name, value in planned.options.items():
            words += self.flag(name, value).split()
        return [*words, *planned.flags]

    def prepared(self, model: ModelSpec, request: Request) -> tuple[ModelSpec, Request]:
        return as_read(model), request
