"""Names of options that are not kvplan's own: vLLM's, which are taken as well, and others', which are answered with ours.

A line is translated before Typer reads it, so that Typer knows kvplan's options alone. Names and values of vLLM are read
as vLLM reads them (``FlexibleArgumentParser`` and ``human_readable_int`` in ``utils/argparse_utils.py``, ``engine/arg_utils.py``).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from hwcalc.cli.options import Option
from hwcalc.planner.options import options_of

__all__ = ["FOREIGN", "NO_EFFECT", "SWITCHES", "VLLM", "VLLM_OPTIONS", "Alias", "aliases", "aliases_of", "meant"]

VLLM: Final[Mapping[str, tuple[str, ...]]] = {
    "seq": ("--max-model-len",),
    "dtype": ("--kv-cache-dtype",),
    "weights": ("--quantization",),
    "tp": ("--tensor-parallel-size", "-tp"),
    "pp": ("--pipeline-parallel-size", "-pp"),
    "dp": ("--data-parallel-size", "-dp"),
    "dcp": ("--decode-context-parallel-size", "-dcp"),
    "ep": ("--enable-expert-parallel", "-ep"),
    "memory_utilization": ("--gpu-memory-utilization",),
    "kv_memory": ("--kv-cache-memory-bytes",),
}
"""Option of kvplan -> vLLM's names for it. Its short ``-q`` is missing: that is ``--quiet`` here."""

VLLM_OPTIONS: Final = (
    "max_num_seqs",
    "max_num_batched_tokens",
    "block_size",
    "num_gpu_blocks_override",
    "cpu_offload_gb",
    "kv_offloading_size",
    "mamba_cache_dtype",
    "mamba_ssm_cache_dtype",
    "gdn_prefill_backend",
    "all2all_backend",
)
"""Engine options of vLLM with a value; the flag has the same name."""

SWITCHES: Final = ("enable_prefix_caching", "enforce_eager", "async_scheduling", "disable_hybrid_kv_cache_manager")
"""Engine options of vLLM that are switches: ``--no-...`` turns them off."""


def _same(answer: str, *names: str) -> dict[str, str]:
    return dict.fromkeys(names, answer)


FOREIGN: Final[Mapping[str, str]] = {
    **_same(
        "--batch",
        "--users", "--num-users", "--requests", "--num-requests", "--sequences", "--num-seqs", "--parallel", "-np",
        "--max-running-requests", "--max-batch-size", "--batch-size", "-b", "--max-concurrent-requests", "--bs",
    ),
    **_same(
        "--seq",
        "--context", "--context-length", "--context-size", "--ctx", "--ctx-size", "--num-ctx", "--n-ctx", "-c", "--max-len",
        "--max-length", "--length", "--max-context", "--max-seq-len", "--max-seq-length", "--seq-len", "--seq-length",
        "--sequence", "--sequence-length", "--session-len", "--max-total-tokens", "--max-tokens", "--tokens", "--window",
        "--input-len", "--output-len", "--prompt-len", "--max-new-tokens", "--max-input-length", "--isl", "--osl",
    ),
    **_same("--weights", "--quant", "--quantize", "--quantise", "--weight-dtype", "--precision", "--load-format", "--wtype"),
    **_same("--weights bnb4", "--load-in-4bit"),
    **_same("--weights bnb8", "--load-in-8bit"),
    **_same("--dtype", "--kv-dtype", "--kv", "--cache-dtype", "--kv-quant", "--kv-type", "--kv-bits", "--quant-policy"),
    **_same("--dtype K:V", "--cache-type-k", "-ctk", "--cache-type-v", "-ctv"),
    **_same(
        "--memory-utilization",
        "--mem-fraction-static", "--free-gpu-memory-fraction", "--kv-cache-free-gpu-mem-fraction", "--gpu-memory-fraction",
        "--cuda-memory-fraction", "--cache-max-entry-count", "--utilization", "--gpu-utilization",
    ),
    **_same("--kv-memory", "--kv-cache-memory", "--kv-cache-size", "--cache-size"),
    **_same("--margin", "--fit-target", "--headroom", "--reserve"),
    **_same("--gpu", "--device", "--devices", "--card", "--accelerator", "--hardware", "--chip", "--vram"),
    **_same("--gpus", "--num-gpus", "--n-gpus", "--ngpu", "--gpu-count", "--gpus-per-node", "--nnodes"),
    **_same("--instance", "--machine", "--vm", "--instance-type"),
    **_same("--tp", "--tp-size", "--tensor-parallel", "--num-shard", "--world-size"),
    **_same("--pp", "--pp-size", "--pipeline-parallel"),
    **_same("--dp", "--dp-size", "--data-parallel", "--replicas"),
    **_same("--dcp", "--dcp-size", "--context-parallel-size", "--cp", "--cp-size"),
    **_same("--ep", "--ep-size", "--expert-parallel-size", "--expert-parallel", "--moe-ep-size"),
    **_same("--engine", "--backend", "--framework", "--runtime", "--server"),
    **_same(
        "--draft",
        "--draft-model", "--model-draft", "-md", "--speculative-model", "--speculative-draft-model-path", "--spec-model",
    ),
    **_same("--engine-option speculative=ngram:N", "--speculative-config", "-sc", "--speculative-algorithm", "--num-speculative-tokens"),
    **_same(
        "--lora rank=R,count=N", "--enable-lora", "--max-loras", "--max-lora-rank", "--lora-modules", "--lora-paths", "--adapter"
    ),
    **_same("--engine-option max_num_batched_tokens=N", "--chunked-prefill-size", "--max-num-tokens"),
    **_same("--engine-option block_size=N", "--page-size", "--kv-block-size", "--tokens-per-block", "--cache-block-seq-len"),
    **_same("--engine-option cpu_offload_gb=N", "--cpu-offload"),
    **_same("--engine llamacpp -ngl N", "-ngl", "--gpu-layers", "--n-gpu-layers", "--num-gpu", "--n-gpu"),
    **_same("--engine llamacpp -ub N", "--ubatch-size", "-ub", "--num-batch", "--n-ubatch"),
    **_same("--engine llamacpp -fa on", "-fa", "--flash-attn", "--flash-attention"),
    **_same("--engine llamacpp -ncmoe N", "-ncmoe", "--n-cpu-moe"),
    **_same("--engine llamacpp -cmoe", "-cmoe", "--cpu-moe"),
    **_same("--engine llamacpp -ts N,N", "-ts", "--tensor-split"),
    **_same("--engine llamacpp -ot PATTERN=CPU", "-ot", "--override-tensor"),
    **_same("--engine llamacpp --swa-full", "--swa-full"),
    **_same("--engine llamacpp -kvu", "-kvu", "--kv-unified"),
    **_same("--engine-option", "--option", "--options", "--set", "--extra-args"),
    **_same("--token", "--hf-token", "--api-key", "-hft"),
    **_same("--endpoint", "--hf-endpoint", "--hub", "--mirror"),
    **_same("--offline", "--no-network", "--local-files-only"),
    **_same("--revision", "--branch", "--commit", "--code-revision"),
    **_same("--format", "--output-format", "--fmt", "--as", "-f"),
    **_same("--format csv", "--csv"),
    **_same("--format markdown", "--markdown", "--md"),
    **_same("--quiet", "--silent", "-s"),
    **_same("kvplan --version", "--version", "-V"),
    **_same("kvplan writes to standard output: > FILE", "--output", "-o", "--out", "--outfile", "--save"),
    **_same("MODEL", "--model", "--models", "-m", "--model-id", "--model-path", "--model-name", "--hf-repo", "-hf", "-hfr", "--config", "--id"),
}  # fmt: skip
"""Names in other programs (vLLM, SGLang, llama.cpp, TGI, TensorRT-LLM, LMDeploy, Ollama, calculators) -> what kvplan calls it."""

_WITHOUT_VALUE: Final = (
    "--trust-remote-code", "--disable-log-requests", "--enable-log-requests", "--enable-log-outputs", "--disable-log-stats",
    "--enable-auto-tool-choice", "--enable-reasoning", "--disable-uvicorn-access-log", "--disable-fastapi-docs",
    "--disable-frontend-multiprocessing", "--enable-request-id-headers", "--enable-prompt-tokens-details", "--enable-force-include-usage",
    "--enable-server-load-tracking", "--return-tokens-as-token-ids", "--allow-credentials", "--headless", "--enable-ssl-refresh",
    "--use-tqdm-on-load",
)  # fmt: skip
NO_EFFECT: Final[Mapping[str, str]] = {
    **_same("", *_WITHOUT_VALUE, *(name.replace("--", "--no-", 1) for name in _WITHOUT_VALUE)),
    **_same(
        "1",
        "--host", "--port", "--uds", "--root-path", "--api-server-count", "--uvicorn-log-level", "--seed", "--tokenizer", "--tokenizer-mode",
        "--tokenizer-revision", "--chat-template", "--chat-template-content-format", "--response-role", "--tool-call-parser",
        "--tool-parser-plugin", "--reasoning-parser", "--reasoning-parser-plugin", "--download-dir", "--config-format",
        "--generation-config", "--override-generation-config", "--max-logprobs", "--allowed-origins", "--allowed-methods",
        "--allowed-headers", "--ssl-keyfile", "--ssl-certfile", "--ssl-ca-certs", "--scheduling-policy", "--stream-interval",
        "--max-log-len", "--log-config-file", "--otlp-traces-endpoint", "--shutdown-timeout", "--data-parallel-address",
        "--data-parallel-rpc-port", "--threads", "-t", "--n-predict", "--temp", "--log-level",
    ),
    **_same("+", "--served-model-name"),
}  # fmt: skip
"""Options of servers that change no bytes -> how many values follow: none, one, or ``+`` for one or more."""


class Alias(NamedTuple):
    """The kvplan option that a name of vLLM's stands for. For ``engine_options`` it also has the name of the engine option."""

    option: Option
    knob: str = ""
    value: str = ""
    """The value that a switch stands for; empty if the value follows."""


def aliases(options: Iterable[Option]) -> dict[str, Alias]:
    """VLLM's names for the options of a command, by spelling."""
    out: dict[str, Alias] = {}
    for option in options:
        for spelling in VLLM.get(option.name, ()) if option.flags else ():
            out[spelling] = Alias(option, value="on" if option.name == "ep" else "")
        if option.name == "ep":
            out["--no-enable-expert-parallel"] = Alias(option, value="off")
        if option.name == "engine_options":
            out |= {_flag(knob): Alias(option, knob) for knob in VLLM_OPTIONS}
            out |= {_flag(knob): Alias(option, knob, "true") for knob in SWITCHES}
            out |= {_flag(f"no_{knob}"): Alias(option, knob, "false") for knob in SWITCHES}
    return out


def aliases_of(option: Option) -> str:
    """VLLM's names for an option, as its help shows them."""
    if option.name == "engine_options":
        first = ", ".join(_flag(knob) for knob in VLLM_OPTIONS[:3])
        return f"vLLM's flags are taken too: {first}, {_flag(SWITCHES[0])}, ..."
    names = VLLM.get(option.name, ()) if option.flags else ()
    return f"vLLM: {', '.join(names)}." if names else ""


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def meant(flag: str, command: str, options: Iterable[Option]) -> str:
    """The hint for an option that a command does not have: kvplan's own name for it, or names that look like it; else empty."""
    rows = tuple(options)
    own = {spelling: option for option in rows for spelling in option.flags}
    name = flag.replace("_", "-") if flag.startswith("--") else flag
    if name in NO_EFFECT:
        return "It changes no bytes: leave it out."
    answer = FOREIGN.get(name, "")
    if answer == "MODEL":
        argument = next((option.metavar for option in rows if not option.flags), "")
        return f"kvplan takes it without an option: kvplan {command} {argument}" if argument else ""
    first = answer.partition(" ")[0]
    if first in own:
        value = f" {own[first].metavar}" if answer == first and own[first].metavar else ""
        return f"{_NOTES.get(name, 'kvplan calls it')} {answer}{value}"
    return answer if first == "kvplan" else _of_a_plan(name, own) or _near(name, rows, own)


def _of_a_plan(name: str, own: Mapping[str, Option]) -> str:
    """A hint that an option belongs to ``kvplan plan``, for a command that lacks it; else empty."""
    row = next((row for row in options_of("plan") if name in row.spellings), None)
    if row is None or "--seq" not in own:
        return ""
    return f"It is an option of a single plan: kvplan MODEL {' '.join(filter(None, (name, row.metavar)))}"


def _near(name: str, rows: tuple[Option, ...], own: Mapping[str, Option]) -> str:
    """A hint with options, vLLM's too, that resemble a mistyped name.

    If there are none, it has kvplan's name for a similar name of another program.
    """
    from difflib import get_close_matches

    near = get_close_matches(name.lower(), [*own, "--help", *aliases(rows)], n=2, cutoff=0.7)
    if not near:
        foreign = {spelling: said for spelling, said in FOREIGN.items() if said.partition(" ")[0] in own}
        near = [foreign[each] for each in get_close_matches(name.lower(), foreign, n=1, cutoff=0.8)]
    return f"Did you mean: {' or '.join(near)}" if near else ""


_NOTES: Final = {
    **_same(
        "kvplan takes prompt and output together:",
        "--input-len", "--output-len", "--isl", "--osl", "--prompt-len", "--max-new-tokens", "--max-tokens", "--max-input-length",
    ),
    **_same(
        "Weights in host memory are planned for vLLM, in GB:",
        "--cpu-offload",
    ),
    **dict.fromkeys(
        (flag for flag, answer in FOREIGN.items() if answer.startswith("--engine llamacpp")), "It is an option of llama.cpp:"
    ),
    "--nnodes": "kvplan takes the GPUs of all machines together:",
}  # fmt: skip
"""What to say before the answer, where the two do not mean the same."""
