"""The options of a request, each in one row: its name, its type, the commands that take it, and its help.

The command line, check files and their schema, :func:`hwcalc.plan` and its siblings, receipts and reconcile all follow this table. A new
option is a row of :data:`OPTIONS`, a field of :class:`~hwcalc.planner.asked.Asked` and a keyword of :func:`hwcalc.plan`, all with the
same name, and the code that uses it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from hwcalc.planner.values import TYPES

if TYPE_CHECKING:
    from hwcalc.policies.base import Chosen

GROUPS: Final = ("model", "workload", "engine", "hardware")
"""What an option is about: the groups of the help, in their order."""


class PlanOption(NamedTuple):
    """One option of a plan.

    ``name`` is its keyword in Python and its key in a check file. ``type`` is a key of :data:`~hwcalc.planner.values.TYPES`.
    ``help`` is the help of the command line; ``helps`` has other texts for single commands. ``lists`` names the commands that
    take several values, separated by commas. ``check`` is the help in a check file: empty if it is the same text, ``None`` if
    check files lack the option. ``document`` is the key under ``request`` in the JSON document of a plan. ``complete`` names the
    command line's function that completes values, and ``completes`` another one for single commands.
    """

    name: str
    type: str
    metavar: str
    help: str
    flags: tuple[str, ...] = ()
    default: str | int | None = None
    complete: str | None = None
    completes: Mapping[str, str] = MappingProxyType({})
    helps: Mapping[str, str] = MappingProxyType({})
    lists: tuple[str, ...] = ()
    not_in: tuple[str, ...] = ()
    also_in: tuple[str, ...] = ()
    check: str | None = ""
    document: str | None = None
    in_receipt: bool = True
    in_reconciliation: bool = False
    """Whether reconcile shows it among the planned values."""
    of_budget: bool = False
    """Whether it changes only the memory that a GPU has left for the cache."""
    in_cache_if: str | None = None
    """The trait of an engine (:class:`~hwcalc.engines.traits.Traits`) with which it changes the cache as well."""
    reads_model: bool = False
    """Whether it says how models are read, and not what is planned."""
    group: str = "model"
    """One of :data:`GROUPS`."""

    @property
    def spellings(self) -> tuple[str, ...]:
        """The flags of the command line."""
        return self.flags or (f"--{self.name.replace('_', '-')}",)

    def read(self, value: Any) -> Any:
        """Parse a value from text or Python. Raises :class:`~hwcalc.errors.UsageError`."""
        return TYPES[self.type].read(value, self.name)


OF_POLICY: Final = ("policy_rules", "compaction")
"""Options that say something of the policy, and need one."""

POLICY_OPTIONS: Final[tuple[PlanOption, ...]] = (
    PlanOption(
        "prompt",
        "tokens",
        "N",
        "Tokens of the prompt, of those of --seq; the rest is generated. Default: all.",
        helps={"strategies": "Tokens of the prompt, of those of --seq; the rest is generated. Default: 1."},
        check="Tokens of the prompt, of those of seq. Default: all.",
        document="prompt",
        in_reconciliation=True,
        group="workload",
        also_in=("strategies",),
    ),
    PlanOption(
        "policy",
        "policy",
        "P",
        "Cache policy: snapkv:compression_ratio=0.5. See: kvplan policies. Default: none, every token is kept.",
        complete="policies",
        helps=dict.fromkeys(
            ("compare", "sweep"),
            "Cache policies: snapkv:compression_ratio=0.5,knorm:compression_ratio=0.5,none. See: kvplan policies.",
        ),
        lists=("compare", "sweep"),
        check="Cache policy: snapkv:compression_ratio=0.5. See: kvplan policies.",
        document="policy",
        in_reconciliation=True,
        group="workload",
    ),
    PlanOption(
        "policy_rules",
        "policy rules",
        "R",
        "Whose rules a policy follows where they differ: kvpress or paper. Default: kvpress.",
        complete="policy_rules",
        check="Whose rules a policy follows where they differ: kvpress or paper.",
        document="policy_rules",
        in_reconciliation=True,
        group="workload",
    ),
    PlanOption(
        "compaction",
        "compaction",
        "C",
        "What a policy does with the blocks of a paged cache: repack, fill or none. Default: repack.",
        complete="compactions",
        check="What a policy does with the blocks of a paged cache: repack, fill or none.",
        document="compaction",
        in_reconciliation=True,
        group="workload",
    ),
    PlanOption(
        "shared_prefix",
        "from zero",
        "N",
        "Tokens that all sequences begin with, kept once where the engine can. Default: 0.",
        check="Tokens that all sequences begin with, kept once where the engine can.",
        document="shared_prefix",
        in_reconciliation=True,
        group="workload",
    ),
    PlanOption(
        "lengths",
        "lengths",
        "N,N",
        "Sequences of unlike lengths in place of --seq: 1k,2k,8k. Each has its share of --batch. Default: all are alike.",
        check="Unlike lengths in place of seq: 1k,2k,8k. Each has its share of batch.",
        document="lengths",
        group="workload",
    ),
    *(
        PlanOption(
            name,
            "count",
            "N",
            f"{words} of each sequence of --batch, behind one prompt. Default: 1.",
            default=1,
            check=f"{words} of each sequence, behind one prompt.",
            document=name,
            group="workload",
        )
        for name, words in {"samples": "Parallel samples", "beams": "Beams"}.items()
    ),
)


def with_policy(options: Mapping[str, Any], policy: Chosen | None, axis: Sequence[Chosen | None]) -> dict[str, Any]:
    """The options of one plan of several that differ in their policy. A plan without a policy has no options of policies."""
    if policy is not None:
        return {**options, "policy": policy}
    return {name: value for name, value in options.items() if name not in OF_POLICY or not any(axis)}


COMMANDS: Final = ("plan", "explain", "diff", "compare", "sweep", "plot", "recommend", "reconcile", "probe")
"""Commands that take every option, except where ``not_in`` of the option names them."""


DIMENSIONS: Final[Mapping[str, str]] = {
    "layers": "Number of layers.",
    "heads": "Query heads of a layer.",
    "kv_heads": "Key/value heads of a layer. Default: as many as query heads.",
    "head_dim": "Width of a head.",
    "hidden_size": "Width of the hidden states.",
    "intermediate_size": "Width of the MLP.",
    "vocab_size": "Size of the vocabulary.",
    "parameters": "Parameters for the weights: 70B.",
}
"""The options that describe a model by its dimensions, with their help. Without a MODEL they are the bare equation."""


OPTIONS: Final[tuple[PlanOption, ...]] = (
    PlanOption(
        "seq",
        "tokens",
        "N",
        "Tokens per sequence, prompt and output: 32768, 32k. Default: the model's own maximum.",
        helps={
            "compare": "Tokens per sequence: 32k, or several. Default: the smallest maximum of the models.",
            "sweep": "Tokens per sequence: 1k,4k; 1k..128k doubles, 1k..128k:1k goes by steps. Default: each model's own maximum.",
            "plot": "Longest sequence that is drawn: 32k; of layers the planned one. Default: each model's own maximum.",
            "fit": "Tokens per sequence: 16k. Default: 8k, or what a model is made for.",
            "strategies": "Most tokens per sequence: 32k. Default: the longest of --lengths, or the model's own maximum.",
        },
        lists=("compare", "sweep"),
        document="seq",
        in_reconciliation=True,
        group="workload",
        also_in=("fit", "strategies", "explore"),
    ),
    PlanOption(
        "batch",
        "count",
        "N",
        "Sequences alive at once. Default: 1.",
        flags=("--batch", "--concurrency"),
        default=1,
        helps={
            "compare": "Sequences alive at once, or several numbers. Default: 1.",
            "sweep": "Sequences alive at once, as a list like that of --seq. Default: 1.",
            "reconcile": "Sequences alive at once, where the log does not state it. Default: 1.",
        },
        lists=("compare", "sweep"),
        check="Sequences alive at once; concurrency is the same. Default: 1.",
        document="batch",
        in_reconciliation=True,
        group="workload",
        also_in=("fit", "strategies", "explore"),
    ),
    PlanOption(
        "dtype",
        "text",
        "D",
        "KV-cache dtype: auto, fp8, bf16, q8_0; K:V for two. See: kvplan dtypes. Default: the model's dtype.",
        complete="dtypes",
        helps={
            "compare": "KV-cache dtypes: bf16,fp8. See: kvplan dtypes. Default: the model's dtype.",
            "sweep": "KV-cache dtypes: bf16,fp8. See: kvplan dtypes. Default: each model's dtype.",
        },
        lists=("compare", "sweep"),
        check="KV-cache dtype: auto, fp8, bf16, q8_0; K:V for two.",
        document="kv_dtype",
        in_reconciliation=True,
        group="engine",
        also_in=("fit", "strategies", "explore"),
    ),
    PlanOption(
        "weights",
        "text",
        "W",
        "Weight format: bf16, fp8, awq, q4_k_m, ...; auto is the best that fits the GPU. Default: as published.",
        complete="weight_formats",
        helps={
            "compare": "Weight formats: bf16,fp8. Default: as published.",
            "fit": "One format for all: q4_k_m. Default: for each model the best that fits.",
        },
        lists=("compare",),
        check="Weight format: bf16, fp8, awq, ... Default: as published.",
        document="weights",
        in_reconciliation=True,
        also_in=("fit", "strategies", "explore"),
    ),
    PlanOption(
        "engine",
        "text",
        "E",
        "Whose rules: reference (the formulas), vllm, llamacpp, transformers@5.14. See: kvplan engines. Default: reference; llamacpp for GGUF files.",
        complete="engines",
        completes=dict.fromkeys(("plan", "compare"), "engines_or_all"),
        helps={
            "plan": "Whose rules: reference (the formulas), vllm, llamacpp, transformers@5.14; all: a row for each. See: kvplan engines. Default: reference; llamacpp for GGUF files.",
            "compare": "Whose rules: reference,vllm, or all. See: kvplan engines. Default: reference.",
            "reconcile": "Engine and version, where the log does not state it: vllm@0.11.",
            "fit": "Whose rules: llamacpp, reference, vllm. See: kvplan engines. Default: llamacpp.",
        },
        lists=("compare",),
        check="Whose rules: reference, vllm, vllm@0.25.1, ... Default: reference; llamacpp for GGUF files.",
        document="engine",
        group="engine",
        also_in=("fit", "strategies", "explore"),
    ),
    PlanOption(
        "gpu",
        "text",
        "G",
        "Accelerator: l4, h100-sxm5-80gb; without one: cpu-32gb. Default: none, and no verdict.",
        complete="gpus",
        helps={
            "compare": "Accelerators: l4,h100-sxm5-80gb. Default: none, and no verdict.",
            "sweep": "Accelerators: l4,h100-sxm5-80gb. Default: none, and no verdict.",
            "explore": "Accelerators to choose from, the first one chosen: l4,h100-sxm5-80gb. Default: eight usual ones.",
            "fit": "Accelerator: rtx-4060-ti, m4-24gb, local; without one: cpu-32gb. Default: this machine's.",
        },
        lists=("compare", "sweep", "explore"),
        not_in=("recommend",),
        check="Accelerator: l4, h100-sxm5-80gb.",
        in_reconciliation=True,
        group="hardware",
        also_in=("fit", "strategies", "explore"),
    ),
    PlanOption(
        "gpus",
        "count",
        "N",
        "How many, shared by tensor parallelism. Default: 1.",
        not_in=("recommend",),
        check="How many.",
        in_receipt=False,
        group="hardware",
        also_in=("fit", "explore"),
    ),
    PlanOption(
        "instance",
        "text",
        "I",
        "Cloud instance: p5.48xlarge. Its accelerators, all of them.",
        complete="instances",
        not_in=("recommend",),
        check="A cloud instance type, instead of gpu and gpus.",
        in_receipt=False,
        group="hardware",
    ),
    PlanOption(
        "tp",
        "count",
        "N",
        "Tensor parallel size. Default: 1.",
        default=1,
        helps={
            "compare": "Tensor parallel sizes: 1,2,4. Default: 1.",
            "sweep": "Tensor parallel sizes: 1,2,4,8. Default: 1.",
        },
        lists=("compare", "sweep"),
        not_in=("recommend",),
        check="Tensor parallel size.",
        document="tp",
        in_reconciliation=True,
        group="hardware",
        also_in=("explore",),
    ),
    *(
        PlanOption(
            name,
            "count",
            "N",
            f"{words} parallel size. Default: 1.",
            default=1,
            not_in=("recommend",),
            check=f"{words} parallel size.",
            document=name,
            in_reconciliation=True,
            group="hardware",
        )
        for name, words in {"pp": "Pipeline", "dp": "Data", "dcp": "Decode context", "ep": "Expert"}.items()
    ),
    PlanOption(
        "memory_utilization",
        "utilization",
        "F",
        "Share of the GPU for the engine. Default: the engine's.",
        check="Share of the GPU that the engine may use.",
        document="memory_utilization",
        in_reconciliation=True,
        of_budget=True,
        group="engine",
        also_in=("fit", "explore"),
    ),
    PlanOption(
        "kv_memory",
        "size",
        "B",
        "Bytes per GPU for the cache, given directly: 60GiB.",
        not_in=("recommend",),
        document="kv_memory",
        in_reconciliation=True,
        group="engine",
    ),
    PlanOption(
        "margin",
        "share",
        "F",
        "Share of the GPU to leave alone: 5%. Default: 5%, none for an engine with a share of its own.",
        not_in=("reconcile",),
        check="Share of the GPU to leave alone: 5%.",
        document="margin",
        of_budget=True,
        group="hardware",
        also_in=("fit", "explore"),
    ),
    PlanOption(
        "lora",
        "lora",
        "K=V,...",
        "Adapters held beside the model: rank=16,count=8.",
        document="lora",
        of_budget=True,
    ),
    PlanOption(
        "draft",
        "model",
        "MODEL",
        "Draft model for speculative decoding, loaded beside the model.",
        complete="models",
        check="Draft model of speculative decoding: an id or a path.",
        document="draft",
        of_budget=True,
        in_cache_if="drafts_in_cache",
    ),
    PlanOption(
        "encoder_seq",
        "from zero",
        "N",
        "Encoder tokens for cross attention. Default: the model's own.",
        check="Encoder tokens for cross attention.",
        document="encoder_seq",
        group="workload",
        also_in=("strategies", "explore"),
    ),
    PlanOption(
        "engine_options",
        "pairs",
        "K=V",
        "An engine's own knob by its own name; repeatable. See: kvplan engines NAME.",
        flags=("--engine-option",),
        complete="engine_options",
        check="The engine's own knobs by their own names.",
        document="options",
        group="engine",
        also_in=("fit", "strategies"),
    ),
    *POLICY_OPTIONS,
    PlanOption(
        "assume",
        "text",
        "TYPE",
        "Read an unknown architecture as a known type or as kinds of layers: gqa, deepseek_v32, mamba2+gqa. "
        "See: kvplan models --types. Every number is marked as assumed.",
        complete="assumptions",
        check="Read an unknown architecture as a known type or as kinds of layers: gqa, deepseek_v32, mamba2+gqa.",
        reads_model=True,
        also_in=("strategies", "explore"),
    ),
    *(
        PlanOption(
            name,
            "parameters" if name == "parameters" else "count",
            "N",
            f"{words} Without MODEL: the bare equation." if name == "parameters" else f"{words} With MODEL: what if.",
            not_in=("diff", "reconcile", "probe"),
            check=None,
            in_receipt=False,
            reads_model=True,
            also_in=("strategies", "explore"),
        )
        for name, words in DIMENSIONS.items()
    ),
    PlanOption(
        "revision",
        "text",
        "R",
        "Branch, tag or commit of the model.",
        in_receipt=False,
        reads_model=True,
        also_in=("strategies", "explore"),
    ),
    PlanOption(
        "offline",
        "flag",
        "",
        "Use no network (HF_HUB_OFFLINE=1 does the same).",
        also_in=("check", "strategies", "explore"),
        check=None,
        in_receipt=False,
        reads_model=True,
    ),
    PlanOption(
        "token",
        "secret",
        "T",
        "Token for the Hub. Default: HF_TOKEN, or the login that hf auth login stored.",
        also_in=("check", "strategies", "explore"),
        check=None,
        in_receipt=False,
        reads_model=True,
    ),
    PlanOption(
        "endpoint",
        "text",
        "URL",
        "Address of the Hub. Default: HF_ENDPOINT, or https://huggingface.co.",
        also_in=("check", "strategies", "explore"),
        check=None,
        in_receipt=False,
        reads_model=True,
    ),
)
"""All options of a plan, in the order of the help."""


def options_of(command: str) -> tuple[PlanOption, ...]:
    """The options that a command takes."""
    return tuple(row for row in OPTIONS if command in row.also_in or (command in COMMANDS and command not in row.not_in))
