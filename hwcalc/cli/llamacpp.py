"""llama-server's own flags on a line of kvplan, read as llama-server reads them (``common/arg.cpp`` of 0c1e57098).

They are taken where the line names the engine or a GGUF file. ``-c`` is the context of all slots together, and ``--seq`` that of one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from hwcalc.errors import UsageError
from hwcalc.model import OLLAMA
from hwcalc.text import brief

_ENGINE: Final = re.compile(r"ollama|llama[._-]?(?:cpp|server|cli)", re.IGNORECASE)
_CONTEXT: Final = ("-c", "--ctx-size")
_SLOTS: Final = ("-np", "--parallel")
_LAYERS: Final = ("-ngl", "--gpu-layers", "--n-gpu-layers")
_FLASH: Final = ("-fa", "--flash-attn")
_FILE: Final = ("-hff", "--hf-file")
_REPOSITORY: Final = ("-hf", "-hfr", "--hf-repo")
MODEL_FLAGS: Final = ("-m", "--model", *_REPOSITORY, *_FILE)
"""Flags that name the model."""
WITH_VALUE: Final[Mapping[str, str]] = {
    **dict.fromkeys(("-b", "--batch-size"), "n_batch"),
    **dict.fromkeys(("-ub", "--ubatch-size"), "n_ubatch"),
    **dict.fromkeys(("-ctk", "--cache-type-k"), "type_k"),
    **dict.fromkeys(("-ctv", "--cache-type-v"), "type_v"),
    **dict.fromkeys(("-ctkd", "--spec-draft-type-k", "--cache-type-k-draft"), "type_k_draft"),
    **dict.fromkeys(("-ctvd", "--spec-draft-type-v", "--cache-type-v-draft"), "type_v_draft"),
    **dict.fromkeys(_FLASH, "flash_attn"),
    **dict.fromkeys(_LAYERS, "n_gpu_layers"),
    **dict.fromkeys(("-ncmoe", "--n-cpu-moe"), "n_cpu_moe"),
    **dict.fromkeys(("-ts", "--tensor-split"), "tensor_split"),
    **dict.fromkeys(("-sm", "--split-mode"), "split_mode"),
    **dict.fromkeys(("-mg", "--main-gpu"), "main_gpu"),
    **dict.fromkeys(("-ot", "--override-tensor"), "override_tensor"),
    **dict.fromkeys(("-fit", "--fit"), "fit"),
    **dict.fromkeys(("-fitt", "--fit-target"), "fit_target"),
    **dict.fromkeys(("-fitc", "--fit-ctx"), "fit_ctx"),
}
"""Flag with a value -> the engine option."""
_SWITCHES: Final[Mapping[str, tuple[str, str]]] = {
    "-kvu": ("kv_unified", "true"),
    "--kv-unified": ("kv_unified", "true"),
    "-no-kvu": ("kv_unified", "false"),
    "--no-kv-unified": ("kv_unified", "false"),
    "--swa-full": ("swa_full", "true"),
    **dict.fromkeys(("-nkvo", "--no-kv-offload"), ("no_kv_offload", "true")),
    **dict.fromkeys(("-nr", "--no-repack"), ("no_extra_bufts", "true")),
    **dict.fromkeys(("-cmoe", "--cpu-moe"), ("cpu_moe", "true")),
}
WITHOUT_EFFECT: Final[Mapping[str, int]] = {
    **dict.fromkeys(
        (
            "--jinja", "--metrics", "-cb", "--cont-batching", "--no-mmap", "--mmap", "--mlock", "--no-webui", "--slots", "--props", "--no-warmup",
            "--verbose", "--log-timestamps", "--context-shift", "--no-context-shift", "--escape", "--color", "-cnv", "--no-perf", "--no-slots",
        ),
        0,
    ),
    **dict.fromkeys(
        (
            "-a", "--alias", "-n", "--predict", "-tb", "--threads-batch", "--top-k", "--top-p", "--min-p", "--repeat-penalty", "--temperature",
            "--presence-penalty", "--chat-template-file", "--reasoning-format", "--reasoning-budget", "--timeout", "-to", "-lv", "--verbosity",
            "--log-file", "--cache-reuse", "--defrag-thold", "-dt", "--prio", "-p", "--prompt", "--numa", "--rope-freq-base", "--slot-save-path",
        ),
        1,
    ),
}  # fmt: skip
"""Flags of llama-server that change no bytes -> how many values follow."""
_SPECULATION: Final = ("--spec-type", "--spec-draft-n-max")
_SECOND: Final = ("-md", "--model-draft", "--spec-draft-model")
FOLLOWED: Final = frozenset(
    {
        *WITH_VALUE,
        *_SPECULATION,
        *_SECOND,
        *_CONTEXT,
        *_SLOTS,
        *MODEL_FLAGS,
        *(flag for flag, values in WITHOUT_EFFECT.items() if values),
    }
)
"""Flags of llama-server that a value follows."""
SERVER_FLAGS: Final = frozenset({*FOLLOWED, *_SWITCHES, *WITHOUT_EFFECT})
"""All flags of llama-server that are read."""
_LIKE_ON: Final = frozenset({"on", "off", "auto", "1", "0", "true", "false", "enabled", "disabled", "-1"})
_ALL: Final[Mapping[str, str]] = {"-1": "auto", "-2": "all"}


def runs_llamacpp(words: Sequence[str]) -> bool:
    """Whether a line is about llama.cpp or Ollama: its engine is, or it names no engine and a GGUF file."""
    engines = [value for word, value in zip(words, [*words[1:], ""], strict=True) if word == "--engine"]
    engines += [word.partition("=")[2] for word in words if word.startswith("--engine=")]
    if engines:
        return any(_ENGINE.match(each.strip()) for each in engines)
    if any(word in _REPOSITORY for word in words):
        return True
    named = (word for word in words if not word.startswith("-"))
    return any(word.lower().endswith(".gguf") or "-gguf" in word.lower() or word.startswith(OLLAMA) for word in named)


class LlamacppWords:
    """The flags of llama-server on a line, and kvplan's own words for them."""

    def __init__(self) -> None:
        self.options: dict[str, str] = {}
        self.context: int | None = None
        self.slots: int | None = None
        self.repository = self.file = ""
        self.model = ""
        self.drafting = self.second = ""
        self.drafts: int | None = None
        self.dropped: list[str] = []

    def read(self, flag: str, value: str | None, words: list[str]) -> None:
        """Read a flag, and its value from the words that follow. Raises :class:`~hwcalc.errors.UsageError` for a value that is missing."""
        if flag in WITHOUT_EFFECT:
            self.dropped.append(flag)
            del words[: WITHOUT_EFFECT[flag] if value is None else 0]
            return
        if flag in _SWITCHES:
            if value is not None:
                raise UsageError(f"{flag} takes no value.", hint=f"Write: {flag}")
            name, value = _SWITCHES[flag]
            self.options[name] = value
            return
        # Until b6325 the flag was a switch.
        bare = flag in _FLASH and (not words or words[0].lower() not in _LIKE_ON)
        if value is None and bare:
            value = "on"
        if value is None:
            if not words or (words[0].startswith("-") and not words[0][1:2].isdigit()):
                raise UsageError(f"{flag} has no value.", hint=f"Write: {flag} {'FILE' if flag in MODEL_FLAGS else 'N'}")
            value = words.pop(0)
        value = value.strip()
        # The last value of a flag counts, as for llama-server; patterns of ``-ot`` are all kept.
        if flag in _CONTEXT:
            self.context = _number(flag, value)
        elif flag in _SLOTS:
            self.slots = None if value == "-1" else _number(flag, value, least=1)
        elif flag in _REPOSITORY:
            self.repository = value
        elif flag in _SECOND:
            self.second = value
        elif flag == _SPECULATION[0]:
            self.drafting = value
        elif flag == _SPECULATION[1]:
            self.drafts = _number(flag, value)
        elif flag in _FILE:
            self.file = value
        elif flag in MODEL_FLAGS:
            self.model = value
        elif flag in _LAYERS and _ALL.get(value, value) == "auto":
            self.options.pop("n_gpu_layers", None)
        else:
            name = WITH_VALUE[flag]
            before = f"{self.options[name]}," if name == "override_tensor" and name in self.options else ""
            self.options[name] = before + (_ALL.get(value, value) if flag in _LAYERS else value)

    def named(self) -> str:
        """The model that the flags name; empty if they name none."""
        if self.repository:
            repository = self.repository.partition(":")[0]
            return f"{repository}:{self.file}" if self.file else self.repository
        return self.model

    def words(self, given: Iterable[str]) -> list[str]:
        """The words of kvplan's options for the flags.

        ``given`` are the names of options that the line has in kvplan's own words.
        """
        own, slots = set(given), self.slots or 1
        out: list[str] = []
        if self.slots is not None and "batch" in own:
            raise UsageError("-np and --batch are the same option, and it takes one value.", hint="Give one of them.")
        if self.context is not None and "seq" in own:
            # The server has a context of its own, and its users send sequences of the other length.
            self.options["n_ctx"] = str(self.context)
        elif self.context is not None:
            if self.context % slots:
                self.options |= {"n_ctx": str(self.context), "n_seq_max": str(slots)}
            if self.context:
                out += ["--seq", str(max(1, self.context // slots))]
            else:
                self.options["n_ctx"] = "0"
        if self.slots is not None:
            out += ["--batch", str(slots)]
        if self.drafting == "draft-mtp":
            self.options |= {"load_mtp": "true"} | ({} if self.drafts is None else {"n_rs_seq": str(self.drafts)})
        elif self.drafting not in ("", "none", "draft-simple") and not self.drafting.startswith("ngram"):
            drafting = brief(self.drafting, 40)
            raise UsageError(
                f"--spec-type {drafting} is not planned.", hint="Plan a second model of the same vocabulary as --draft MODEL."
            )
        out += ["--draft", self.second] if self.second else []
        for name, value in self.options.items():
            out += ["--engine-option", f"{name}={value}"]
        return out

    def remarks(self) -> Iterable[str]:
        """The remarks on what llama-server does otherwise than the plan of this line."""
        if self.context and self.slots is None:
            yield f"-c {self.context:,} is planned for one slot, -np 1; llama-server by itself opens four that share it: -np 4 -kvu."


def _number(flag: str, value: str, least: int = 0) -> int:
    if not (value.isascii() and value.isdigit() and len(value) < 13) or int(value) < least:
        message = f"{flag} {brief(value, 40)} is not a number as llama.cpp writes it."
        raise UsageError(message, hint=f"Write: {flag} 32768, or --seq 32k")
    return int(value)
