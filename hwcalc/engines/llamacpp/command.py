"""The command line of llama-server, and the Modelfile of Ollama, for a plan.

Flags were read in ``common/arg.cpp`` of llama.cpp 0c1e57098.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any, Final

from hwcalc.engines.facts import Told
from hwcalc.engines.options import CommandInput, EmittedFile, is_on
from hwcalc.errors import UsageError
from hwcalc.profiles.engine_flags import engine_flags
from hwcalc.profiles.engines import ollama_name, published_copy
from hwcalc.quantization.ggml import KEPT_EXPERTS
from hwcalc.quantization.planned import HUB_MODELS, REPOSITORY, format_name, named_format
from hwcalc.text import brief, shell_word

_FLAGS: Final = engine_flags("llamacpp")
_SPELLED: Final = {"fp16": "f16", "float16": "f16", "fp32": "f32", "float32": "f32", "bfloat16": "bf16"}


def cache_type(name: str) -> str:
    """A cache format as llama.cpp spells it.

    >>> cache_type("fp16"), cache_type("q8_0")
    ('f16', 'q8_0')
    """
    return _SPELLED.get(name, name)


_DEFAULT_TYPE: Final = "f16"
_WRITTEN: Final = (
    "n_batch", "n_ubatch", "n_gpu_layers", "n_cpu_moe", "split_mode", "tensor_split", "main_gpu", "override_tensor", "fit", "fit_target",
    "fit_ctx",
)  # fmt: skip
"""Engine options that are flags with the same value."""
_FLOATS: Final = frozenset({"BF16", "F16", "F32", "MXFP4"})
"""Formats of files beside the mixes, whose names begin with Q, IQ or TQ and a digit."""
_SWITCHES: Final = ("cpu_moe", "no_kv_offload", "no_extra_bufts")
"""Engine options that are switches of llama-server."""


def serve(planned: CommandInput) -> list[str]:
    """The words of ``llama-server`` for a plan. Raises :class:`~hwcalc.errors.UsageError` for what the server cannot be told."""
    options = planned.options
    if "MTP" in options.get("ctx_type", "").upper():
        raise UsageError(
            "llama-server opens the context of drafting layers by itself.", hint="Leave out the engine option ctx_type."
        )
    is_file = planned.draft is not None and planned.draft.lower().endswith(".gguf")
    if planned.lora is not None or (planned.draft is not None and not is_file):
        name = "lora" if planned.lora is not None else "draft"
        raise UsageError(f"--{name} names no GGUF file that llama-server could load.", hint=f"Leave out --{name}.")
    slots = int(options.get("n_seq_max", planned.batch))
    context = int(options.get("n_ctx", planned.seq * planned.batch))
    of = _FLAGS.words
    words = [*_FLAGS.program, *_model(planned), *of("n_ctx", context), *of("n_seq_max", slots)]
    words += of("kv_unified") if is_on(options.get("kv_unified")) else []
    for name, kind in zip(("type_k", "type_v"), _types(planned), strict=True):
        words += of(name, kind) if kind != _DEFAULT_TYPE else []
    words += _flash_attention(options.get("flash_attn"))
    words += of("swa_full") if is_on(options.get("swa_full", str(options.get("defaults") == "api"))) else []
    for name in _WRITTEN:
        if name in options and options[name] != "auto":
            words += of(name, options[name])
    # Devices that are there would still take part in long prompts, with no layer on them.
    words += of("device", "none") if planned.on_host else []
    words += [_FLAGS.written[name] for name in _SWITCHES if is_on(options.get(name))]
    # The model's own layers draft, with a rollback snapshot for each drafted token.
    snapshots = int(options.get("n_rs_seq", "0"))
    if snapshots and planned.draft is None and not is_on(options.get("load_mtp")):
        raise UsageError(
            "llama-server keeps snapshots (n_rs_seq) for tokens that it drafts.", hint="Add: --engine-option load_mtp=true"
        )
    words += of("speculative.type", "draft-mtp") if is_on(options.get("load_mtp")) else []
    words += of("speculative.n_max", snapshots) if snapshots else []
    words += of("speculative.draft_model", planned.draft) if planned.draft is not None else []
    for name in ("type_k_draft", "type_v_draft"):
        words += of(name, cache_type(options[name])) if name in options else []
    return [*words, *planned.flags]


def _model(planned: CommandInput) -> list[str]:
    """The file on this machine, the file on the Hub, one that others publish there, or the one that llama.cpp's own tools make of what is here."""
    if planned.made:
        return _FLAGS.words("model", _made(planned)) if _is_here(planned) else _FLAGS.words("repository", _published(planned))
    if planned.path is not None:
        return _FLAGS.words("model", planned.path)
    repository, _, name = planned.model.partition(":")
    if name.lower().endswith(".gguf"):
        return [*_FLAGS.words("repository", repository), *_FLAGS.words("file", name)]
    return _FLAGS.words("repository", planned.model)


def _last_name(path: str) -> str:
    """The last part of a path, as ``PurePath(path).name``, without the import of that module, which takes two milliseconds."""
    return next((part for part in reversed(path.replace(os.sep, "/").split("/")) if part not in ("", ".")), "")


def _stem(planned: CommandInput) -> str:
    """The name of a file that is made of the model, without its folder, format and suffix."""
    name = _last_name((planned.path or planned.model).partition(":")[0]).removesuffix(".gguf")
    for place, sign in enumerate(name):
        # The format at the end is another one now: model-Q4_K_M, model.f16. In large letters the sharp s is two that a format may have.
        word = name[place + 1 :]
        large = word.upper() if sign in "-._" and word.isascii() else ""
        mix = large[1:] if large[:1] in ("I", "T") else large
        if large in _FLOATS or (mix[:1] == "Q" and "1" <= mix[1:2] <= "8" and mix.replace("_", "").isalnum()):
            return name[:place]
    return name


def _file_format(planned: CommandInput) -> str:
    """The format of the model's file, as names of files and tags have it."""
    return cache_type(planned.weights or planned.published).upper()


def _made(planned: CommandInput) -> str:
    """The name that ``convert_hf_to_gguf.py`` and ``llama-quantize`` give a file."""
    return f"./{_stem(planned)}-{_file_format(planned)}.gguf"


def _is_here(planned: CommandInput) -> bool:
    """True for a folder or a file on this machine, of which nobody need have published another."""
    return planned.path is not None or planned.model.startswith(("/", "."))


def _copy(planned: CommandInput, in_parts: bool) -> str | None:
    """A repository of the Hub with the model in the planned format; ``None`` if none is known. Ollama loads no file that is ``in_parts``."""
    return published_copy("llamacpp", planned.model, format_name(planned.weights or planned.published) or "", in_parts=in_parts)


def _published(planned: CommandInput, in_parts: bool = True) -> str:
    """The name of a file that others publish; where no repository is known that has it, the user chooses one."""
    form = _file_format(planned)
    known = _copy(planned, in_parts)
    # Publishers name a file of kept experts by their format.
    alone = next((kept for kept, made in KEPT_EXPERTS.items() if made == form.lower()), form).upper()
    return f"{known or REPOSITORY}:{alone if known or form == planned.published else form}"


def where_it_comes_from(planned: CommandInput, in_parts: bool = True) -> str:
    """A sentence: how the file is made of a folder or a file that is here, or where repositories with it are; empty if the command names one."""
    if not _is_here(planned):
        if _copy(planned, in_parts):
            return ""
        # GGUF files of a checkpoint in another format are named without it.
        name, of = _stem(planned), named_format(planned.model)
        name = name if of is None else name.partition(of[0])[0].rstrip("-_.")
        return f"for {REPOSITORY} write the name of one of {HUB_MODELS}?library=gguf&search={name}"
    file, form = _made(planned), _file_format(planned)
    if planned.path is not None:
        return f"llama-quantize --allow-requantize {shell_word(planned.path)} {shell_word(file)} {form} makes the file."
    convert = f"convert_hf_to_gguf.py {shell_word(planned.model)}"
    made = f"{convert} --outtype {form.lower()} --outfile {shell_word(file)}"
    if form not in _FLOATS:
        made = f"{convert} --outfile F.gguf, then llama-quantize F.gguf {shell_word(file)} {form}"
    return f"{made}, both of https://github.com/ggml-org/llama.cpp"


def _types(planned: CommandInput) -> tuple[str, str]:
    """The formats of keys and of values, in llama.cpp's names."""
    key, _, value = planned.kv_dtype.partition(":")
    keys, values = planned.options.get("type_k", key), planned.options.get("type_v", value or key)
    return cache_type(keys), cache_type(values)


def _flash_attention(value: str | None) -> list[str]:
    if value is None or value in ("auto", "-1"):
        return []
    return _FLAGS.words("flash_attn", "on" if is_on(value) else "off")


def flag_text(name: str, value: object) -> str:
    """llama-server's spelling of an option of kvplan or an engine option; empty where it has no flag, as for other weights."""
    text = str(value)
    if name == "dtype":
        key, _, kept = text.partition(":")
        return " ".join([*_FLAGS.words("type_k", cache_type(key)), *_FLAGS.words("type_v", cache_type(kept or key))])
    if name in ("swa_full", *_SWITCHES):
        return _FLAGS.written[name] if is_on(text) else ""
    if _FLAGS.is_switch(name):
        return _FLAGS.written[name] if is_on(text) else _FLAGS.negated(name)
    if name == "flash_attn":
        return " ".join(_flash_attention(text))
    if name.startswith("type_"):
        text = cache_type(text)
    return _FLAGS.text(name, text)


_AUTOMATIC: Final = ("0", "-1")
"""Numbers of slots that leave it to the server."""


def asked(said: Told) -> Mapping[str, Any]:
    """The options of a plan for what llama-server was told.

    ``-c`` is the context of all slots together, and the length of a sequence is that of one slot. It takes all GPUs that it sees.
    """
    options = dict(said.options.get("engine_options", {}))
    context, slots = options.pop("n_ctx", None), options.pop("n_seq_max", None)
    changed: dict[str, Any] = {}
    many = 1
    if slots is not None and slots.isdecimal() and int(slots):
        many = changed["batch"] = int(slots)
    elif slots not in (None, *_AUTOMATIC):
        options["n_seq_max"] = slots
    if context is not None and context.isdecimal() and int(context):
        size = int(context)
        changed["seq"] = max(1, size // many)
        if size % many:
            options |= {"n_ctx": str(size), "n_seq_max": str(many)}
    elif context is not None:
        options["n_ctx"] = context
    if options.get("n_gpu_layers") in ("auto", "-1"):
        del options["n_gpu_layers"]
    elif options.get("n_gpu_layers") == "-2":
        options["n_gpu_layers"] = "all"
    draft = said.settings.get("speculative")
    if isinstance(draft, Mapping):
        kind, tokens = str(draft.get("type", "")), draft.get("n_max")
        if kind in ("draft-mtp", "mtp"):
            options |= {"load_mtp": "true"} | ({} if tokens is None else {"n_rs_seq": str(tokens)})
        elif draft.get("draft_model"):
            changed["draft"] = draft["draft_model"]
        elif kind not in ("", "none", "draft-simple") and not kind.startswith("ngram"):
            message = f"--spec-type {brief(kind, 40)} is not planned."
            raise UsageError(message, hint="Plan a second model of the same vocabulary as --draft MODEL.")
    gpus = said.settings.get("gpus_per_replica")
    if isinstance(gpus, int) and gpus > 1 and options.get("split_mode") != "none":
        changed["gpus"] = gpus
    return said.changed(**changed, engine_options=options)


def asked_of_ollama(said: Told) -> Mapping[str, Any]:
    """The options of a plan for what ``ollama serve`` and a Modelfile say. ``num_ctx`` is the context of one slot."""
    options = dict(said.options.get("engine_options", {}))
    context, slots, kind = options.pop("num_ctx", None), options.pop("num_parallel", None), options.pop("kv_cache_type", None)
    changed: dict[str, Any] = {"seq": context, "batch": slots, "dtype": kind}
    gpus = said.settings.get("gpus_per_replica")
    if isinstance(gpus, int) and gpus > 1:
        changed["gpus"] = gpus
    return said.changed(**changed, engine_options=options)


# --- Ollama -----------------------------------------------------------------------------------------------------------

_VARIABLES: Final[Mapping[str, str]] = {
    "batch": "OLLAMA_NUM_PARALLEL={}",
    "n_seq_max": "OLLAMA_NUM_PARALLEL={}",
    "dtype": "OLLAMA_KV_CACHE_TYPE={}",
    "type_k": "OLLAMA_KV_CACHE_TYPE={}",
    "seq": "num_ctx {}",
    "n_ctx": "num_ctx {}",
    "n_gpu_layers": "num_gpu {}",
    "n_batch": "num_batch {}",
    "n_ubatch": "num_batch {}",
}
_ALL_LAYERS: Final = "999"
_NOT_OLLAMAS: Final = ("n_rs_seq", "load_mtp", "fit_target", "ctx_type", "main_gpu", "type_k_draft", "type_v_draft")
"""Options of llama.cpp that a Modelfile and the variables of ``ollama serve`` have no word for."""


def in_library(planned: CommandInput) -> str | None:
    """The name of the model in Ollama's library, which ``ollama run`` fetches; ``None`` if it has none in the planned format."""
    return ollama_name(planned.model, planned.weights) if planned.made else planned.library


def modelfile(planned: CommandInput) -> EmittedFile:
    """The Modelfile of a plan, with the variables of ``ollama serve`` that it needs beside it."""
    for name in ("lora", "draft"):
        if getattr(planned, name) is not None:
            raise UsageError(f"--{name} names no file that Ollama could load.", hint=f"Leave out --{name}.")
    for name in _NOT_OLLAMAS:
        if name in planned.options:
            raise UsageError(
                f"Ollama has no setting for {name}.", hint=f"Leave out: --engine-option {name}, or use: --engine llamacpp"
            )
    options = {**planned.options, "n_gpu_layers": "0"} if planned.on_host else planned.options
    slots = int(options.get("n_seq_max", planned.batch))
    context = int(options["n_ctx"]) // slots if "n_ctx" in options else planned.seq
    # A model of Ollama's library, a file here, or a repository of GGUF files on the Hub.
    library = in_library(planned)
    of_hub = None if _is_here(planned) else f"hf.co/{_published(planned, in_parts=False) if planned.made else planned.model}"
    run = library or of_hub
    source = run or (_made(planned) if planned.made else planned.path)
    own = []
    layers, batch = options.get("n_gpu_layers", "auto"), options.get("n_ubatch", options.get("n_batch"))
    if layers not in ("auto", "-1"):
        own.append(f"PARAMETER num_gpu {_ALL_LAYERS if layers in ('all', '-2') else layers}")
    if batch is not None:
        own.append(f"PARAMETER num_batch {batch}")
    own += [f"PARAMETER {flag}" for flag in planned.flags]
    keys, values = _types(planned)
    if keys != values:
        message = f"Ollama keeps keys and values in one format, not {keys} and {values}."
        raise UsageError(message, hint=f"Use: --dtype {values}, or --engine llamacpp")
    variables = [f"OLLAMA_KV_CACHE_TYPE={keys}"] if keys != _DEFAULT_TYPE else []
    flash = _flash_attention(options.get("flash_attn"))
    variables += [f"OLLAMA_FLASH_ATTENTION={int(flash[-1] == 'on')}"] if flash else []
    variables += [f"OLLAMA_NUM_PARALLEL={slots}"] if slots > 1 else []
    name = library or _last_name(planned.path or planned.model.partition(":")[0])
    name = re.sub(r"[^a-z0-9._-]+", "-", name.lower().removesuffix(".gguf")).strip("-.") or "model"
    made = f"{name}-{context if context % 1024 else f'{context // 1024}k'}"
    return EmittedFile(
        name="Modelfile",
        text="".join(f"{line}\n" for line in (f"FROM {source}", f"PARAMETER num_ctx {context}", *own)),
        environment=tuple(variables),
        command=("ollama", "create", made, "-f", "Modelfile"),
        run=("ollama", "run", made),
        as_is=None if own or run is None else ("ollama", "run", run),
        context=f"{_CONTEXT}{context}",
    )


_CONTEXT: Final = "OLLAMA_CONTEXT_LENGTH="
_FAQ: Final = "https://docs.ollama.com/faq#how-do-i-configure-ollama-server"


def ollama_server(variables: tuple[str, ...]) -> tuple[tuple[str, ...], str]:
    """``ollama serve`` with these variables, and what to do where a server runs already, or no shell takes such a line.

    Source: docs/faq of Ollama, "How do I configure Ollama server?".
    """
    if all(one.startswith(_CONTEXT) for one in variables):
        elsewhere = "Add --emit ollama > Modelfile, which needs no variable"
    else:
        elsewhere = f"Set each variable as {_FAQ} says"
    return (*variables, "ollama", "serve"), f"leave it running. Port in use, or Windows? {elsewhere}"


def ollama_flag(name: str, value: object) -> str:
    """Ollama's spelling of an option: a variable of ``ollama serve`` or a parameter of the model; empty where it has neither."""
    text = str(value)
    if name == "dtype":
        text = cache_type(text.partition(":")[0])
    if name == "n_gpu_layers" and text == "all":
        text = _ALL_LAYERS
    return _VARIABLES[name].format(text) if name in _VARIABLES else ""
