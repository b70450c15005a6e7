"""A config document in JSON, and documents of other formats translated to it. Everything else is an error with an explanation.

Some real files are not strict JSON. Therefore a byte-order mark, ``NaN``, ``Infinity`` and duplicate keys are accepted. Of
duplicate keys the last one counts, as in Python. ``params.json``, the format of Mistral's and Meta's own code, becomes the
equivalent config of transformers. ``hf_quant_config.json``, in which older exports of ModelOpt describe their quantisation, is
merged into the config.
"""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import IO, Any, Final

from hwcalc.errors import ConfigError, ModelNotFoundError, UnsupportedError
from hwcalc.model import Note
from hwcalc.text import is_manifest, printable, quoted, shown

GGUF_MAGIC: Final = b"GGUF"
"""First bytes of a GGUF file."""

LARGEST_DOCUMENT: Final = 16 * 1024**2
"""Most bytes of a document. The largest published config is under one MiB (quantised models that list every module)."""

MAX_DEPTH: Final = 100
"""Most levels of nesting. Real configs have up to six."""

MAX_VALUES: Final = 1_000_000
"""Most values of a document, keys and the commas and brackets inside strings included. Published configs have up to 1,300 values; one
that listed each expert of the largest models by name would have some 100,000. Each value takes Python 8 to 250 bytes."""

MAX_DIGITS: Final = 4_300
"""Most digits of a whole number: Python reads no more from a text."""

_MAX_BITS: Final = int(MAX_DIGITS * 3.3219)
"""Bits of the largest number with so many digits."""
_SURROGATE: Final = r"\\u[dD][89a-fA-F]"
_HALF_PAIR: Final = r"[\ud800-\udfff]"
_TOO_MANY: Final = f"has more than {MAX_VALUES:,} values: that is no config."
_TOO_LONG: Final = f"holds a number with too many digits: more than {MAX_DIGITS:,}."
_TOO_DEEP: Final = f"is nested more than {MAX_DEPTH} levels deep: that is no config."
_WRONG_KIND = "Give the model's config.json or the folder that holds it."


def read_document(path: str | os.PathLike[str], name: str | None = None) -> dict[str, Any]:
    """The object in a regular file of at most :data:`LARGEST_DOCUMENT` bytes. Messages call the file ``name``.

    Raises :class:`~hwcalc.errors.ModelNotFoundError` if there is no such file, and :class:`~hwcalc.errors.ConfigError` for everything
    else.
    """
    name = name or printable(str(path))
    return parse_document(_bytes_of(path, name), name)


def read_yaml(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The object in a YAML file, read as untrusted text (:mod:`hwcalc.yaml_tree`). Raises as :func:`read_document` does."""
    from hwcalc.yaml_tree import TreeError, plain_value, read_tree

    name = printable(str(path))
    try:
        text = _bytes_of(path, name).decode("utf-8-sig")
        if is_manifest(text):
            raise ConfigError(f"{name} is a manifest of servers, and no model.", hint="Plan its servers: kvplan launch FILE")
        value = plain_value(read_tree(text))
    except UnicodeDecodeError as error:
        raise ConfigError(f"{name} is not UTF-8.", hint=_WRONG_KIND) from error
    except TreeError as error:
        place = "" if error.line is None else f":{error.line}:{error.column}"
        raise ConfigError(f"{name}{place}: {error.problem}.", hint=error.hint or _WRONG_KIND) from error
    if not isinstance(value, dict):
        raise ConfigError(f"{name} is no description of a model: it is no mapping of keys.", hint=_WRONG_KIND)
    return value


def _bytes_of(path: str | os.PathLike[str], name: str) -> bytes:
    """The content of a regular file, or as much of it as shows that it is too large."""
    data = b""
    try:
        mode = os.stat(path).st_mode
        if stat.S_ISREG(mode):  # to open a pipe or a device may block for ever
            with open(path, "rb") as file:
                data = file.read(LARGEST_DOCUMENT + 1)
    except FileNotFoundError as error:
        broken = " (a link to a file that is gone)" if os.path.islink(path) else ""
        raise ModelNotFoundError(f"there is no file {name}{broken}.", hint=_WRONG_KIND) from error
    except PermissionError as error:
        raise ConfigError(f"{name} cannot be read: permission denied.", hint="Check who may read the file.") from error
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ConfigError(f"{name} cannot be read: {printable(reason)}.", hint=_WRONG_KIND) from error
    if stat.S_ISDIR(mode):
        raise ConfigError(f"{name} is a folder, not a file.", hint=_WRONG_KIND)
    if not stat.S_ISREG(mode):
        message = f"{name} is a pipe or a device, not a regular file."
        raise ConfigError(message, hint="Read from a pipe as standard input: kvplan -")
    return data


def read_start(stream: IO[str] | IO[bytes], name: str) -> bytes:
    """The first bytes of an open file, enough to know a GGUF file by. The text of a text file is one letter or more."""
    start = b""
    with _reading(name):
        while len(start) < len(GGUF_MAGIC) and (part := _part(stream, len(GGUF_MAGIC) - len(start))):
            start += part
    return start


def read_stream(stream: IO[str] | IO[bytes], name: str, start: bytes) -> dict[str, Any]:
    """The object in an open text or binary file or pipe, of which ``start`` is read already.

    At most :data:`LARGEST_DOCUMENT` + 1 bytes are read.
    """
    whole = bytearray(start)
    with _reading(name):
        while len(whole) <= LARGEST_DOCUMENT and (part := _part(stream, LARGEST_DOCUMENT + 1 - len(whole))):
            whole += part
    return parse_document(bytes(whole), name)


@contextmanager
def _reading(name: str) -> Iterator[None]:
    """Turn what an open file raises into an error of the program."""
    try:
        yield
    except UnicodeError as error:
        raise ConfigError(f"{name} is not UTF-8 text.", hint=_WRONG_KIND) from error
    except Exception as error:
        # The caller's object may raise anything in its read(). All of it means that the file cannot be read.
        raise ConfigError(f"{name} cannot be read: {printable(str(error))}.", hint="Give an open, readable file.") from error


def _part(stream: IO[str] | IO[bytes], size: int) -> bytes:
    part: object = stream.read(size)
    if isinstance(part, str):
        return part.encode()
    if isinstance(part, bytes):
        return part
    raise TypeError(f"it gives {type(part).__name__}, neither text nor bytes")


def parse_document(data: bytes, name: str) -> dict[str, Any]:
    """The object in ``data``. Messages call the document ``name`` and never repeat its content."""
    if len(data) > LARGEST_DOCUMENT:
        raise ConfigError(f"{name} is larger than {LARGEST_DOCUMENT // 1024**2} MiB: that is no config.", hint=_WRONG_KIND)
    if data[:4] == GGUF_MAGIC:
        raise ConfigError(f"{name} is a GGUF file, and here a JSON document belongs.", hint="Give it a name that ends in .gguf.")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        utf16 = data[:2] in (b"\xff\xfe", b"\xfe\xff")
        hint = "It looks like UTF-16, which some shells write on '>': save it as UTF-8." if utf16 else _WRONG_KIND
        raise ConfigError(f"{name} is not UTF-8 text (byte {error.start:,}).", hint=hint) from error
    # Counted before the document is read: a million empty lists are three megabytes of text and seventy in memory.
    if sum(data.count(sign) for sign in (b",", b":", b"[", b"{")) > MAX_VALUES:
        raise ConfigError(f"{name} {_TOO_MANY}", hint=_WRONG_KIND)
    if not text.strip():
        raise ConfigError(f"{name} is empty.", hint=_WRONG_KIND)
    try:
        document = json.loads(text)
    except json.JSONDecodeError as error:
        start, hint = text.lstrip()[:64], _WRONG_KIND
        if start.startswith("<"):
            hint = "It looks like a web page. Download the raw file: on the Hub its address has /resolve/, not /blob/."
        elif start.startswith("version https://git-lfs"):
            hint = "It is a Git LFS pointer, not the file itself: run git lfs pull."
        elif not start.startswith(("{", "[")) and not name.endswith(".json"):
            hint = f"{_WRONG_KIND} One that starts a server: kvplan launch FILE"
        message = f"{name} is not JSON: {error.msg} (line {error.lineno:,}, column {error.colno:,})."
        raise ConfigError(message, hint=hint) from error
    except RecursionError as error:
        raise ConfigError(f"{name} {_TOO_DEEP}", hint=_WRONG_KIND) from error
    except ValueError as error:
        raise ConfigError(f"{name} {_TOO_LONG}", hint=_WRONG_KIND) from error
    if not isinstance(document, dict):
        kind = {list: "a list", str: "a string", bool: "true or false", type(None): "null"}.get(type(document), "a number")
        raise ConfigError(f"{name} must be a JSON object, but is {kind}.", hint=_WRONG_KIND)
    if text.count("[") + text.count("{") > MAX_DEPTH or re.search(_SURROGATE, text):
        check_document(document, name)
    return document


_JSON: Final = (str, int, float, type(None), Mapping, list, tuple)
_PYTHON: Final = (
    "Give what json.load() makes of a config.json, or config.to_dict() of transformers; int() and float() make plain numbers."
)


def _foreign(value: object, level: Sequence[Any]) -> str:
    """A value in words, with its key in one of the objects of a level."""
    keys = (key for item in level if isinstance(item, Mapping) for key in item if isinstance(key, str) and item[key] is value)
    key = next(keys, None)
    return f"{quoted(value)} ({type(value).__module__}.{type(value).__qualname__})" + (
        "" if key is None else f" as {shown(key, 60)}"
    )


def check_document(document: object, name: str) -> None:
    """Raise :class:`ConfigError` for a document that is too deep or too large, or that contains half of a UTF-16 pair.

    The document may come from Python: it may hold one list many times, or itself, whole numbers of any length, and values that JSON
    does not have, such as a number of NumPy's, which compares unlike a number of Python's.
    """
    level: list[Any] = [document]
    left = MAX_VALUES
    for _ in range(MAX_DEPTH):
        left -= sum(len(item) * (1 + isinstance(item, Mapping)) for item in level)
        if left < 0:
            raise ConfigError(f"{name} {_TOO_MANY}", hint=_WRONG_KIND)
        inner: list[Any] = []
        for item in level:
            inner += (*item.keys(), *item.values()) if isinstance(item, Mapping) else item
        for value in inner:
            if isinstance(value, str):
                if not value.isascii() and re.search(_HALF_PAIR, value):
                    raise ConfigError(f"{name} holds half of a UTF-16 pair (\\ud8..), which is no character.", hint=_WRONG_KIND)
            elif isinstance(value, int) and value.bit_length() > _MAX_BITS:
                raise ConfigError(f"{name} {_TOO_LONG}", hint=_WRONG_KIND)
            if not isinstance(value, _JSON) or hasattr(value, "tolist"):
                raise ConfigError(f"{name} holds {_foreign(value, level)}, which JSON does not have.", hint=_PYTHON)
        level = [value for value in inner if isinstance(value, (Mapping, list, tuple))]
        if not level:
            return
    raise ConfigError(f"{name} {_TOO_DEEP}", hint=_WRONG_KIND)


_RENAMED: Final = {
    "dim": "hidden_size", "n_layers": "num_hidden_layers", "n_heads": "num_attention_heads",
    "n_kv_heads": "num_key_value_heads", "head_dim": "head_dim", "hidden_dim": "intermediate_size",
    "vocab_size": "vocab_size", "norm_eps": "rms_norm_eps", "rope_theta": "rope_theta",
    "tied_embeddings": "tie_word_embeddings", "max_position_embeddings": "max_position_embeddings",
    "max_seq_len": "max_position_embeddings", "model_max_length": "max_position_embeddings",
}  # fmt: skip
_EXPERTS: Final = {"num_experts": "num_local_experts", "num_experts_per_tok": "num_experts_per_tok"}

# These keys describe training, storage, longer contexts or an additional tower. They do not change the cache of a layer.
_HARMLESS: Final = frozenset(
    [
        "causal",
        "dropout",
        "ffn_dim_multiplier",
        "is_causal",
        "lora",
        "max_batch_size",
        "multiple_of",
        "quantization",
        "rope_scaling",
        "rope_scaling_factor",
        "use_biases",
        "use_scaled_rope",
        "vision_encoder",
        "yarn",
        "llama_4_scaling",
        "max_seq_len",
        "activation_dim",
        "multimodal",
        "ragged_attention",
        "use_qk_norm",
    ]
)
_NEEDED: Final = ("dim", "n_layers", "n_heads")


def config_from_params(params: Mapping[str, Any], name: str) -> dict[str, Any]:
    """The config that ``params`` describes: ``mixtral`` if it has experts, ``llama`` if it is Meta's, otherwise ``mistral``.

    >>> config = config_from_params({"dim": 64, "n_layers": 2, "n_heads": 4, "n_kv_heads": 2, "hidden_dim": 96}, "params.json")
    >>> config["model_type"], config["hidden_size"], config["num_key_value_heads"]
    ('mistral', 64, 2)

    The parser checks the values later. Raises :class:`~hwcalc.errors.ConfigError` if the file has another format, and
    :class:`~hwcalc.errors.UnsupportedError` if it describes something that these model types do not have. Messages call the file
    ``name``.
    """
    missing = [key for key in _NEEDED if params.get(key) is None]
    if missing:
        raise ConfigError(
            f"{name} is no description of a model in Mistral's format: it lacks {', '.join(missing)}.",
            hint="Give a repository or folder with a config.json.",
        )
    experts = params.get("moe")
    used = {*_RENAMED, *_HARMLESS, "sliding_window", "moe"}
    foreign = [key for key, value in params.items() if key not in used and value not in (None, False)]
    if isinstance(experts, Mapping):
        foreign += [f"moe.{key}" for key, value in experts.items() if key not in _EXPERTS and value not in (None, False)]
    if foreign:
        listed = ", ".join(printable(str(key))[:40] for key in sorted(foreign)[:8])
        raise UnsupportedError(
            f"{name} has keys that kvplan does not know in this format: {listed}.",
            hint="Give the same model with a config.json: most publishers have one beside it.",
        )
    config = {new: params[old] for old, new in _RENAMED.items() if params.get(old) is not None}
    heads = params["n_heads"]
    config.setdefault("num_key_value_heads", heads)
    if "head_dim" not in config and all(type(size) is int and size > 0 for size in (params["dim"], heads)):
        config["head_dim"] = params["dim"] // heads
    if params.get("vocab_size") == -1:  # Meta: only the tokenizer knows the size
        del config["vocab_size"]
    if "hidden_dim" not in params:
        return _meta_config(params, config)
    config["sliding_window"] = params.get("sliding_window")
    if isinstance(config["sliding_window"], list):
        raise UnsupportedError(
            f"{name} has a window of its own for each layer, which kvplan does not read in this format.",
            hint="Give the same model with a config.json: most publishers have one beside it.",
        )
    if not experts:
        return {"model_type": "mistral", "architectures": ["MistralForCausalLM"], **config}
    if not isinstance(experts, Mapping):
        raise ConfigError(f"{name} must have an object as moe.", hint="Give a repository or folder with a config.json.")
    config |= {new: experts[old] for old, new in _EXPERTS.items() if old in experts}
    return {"model_type": "mixtral", "architectures": ["MixtralForCausalLM"], **config}


def _meta_config(params: Mapping[str, Any], config: dict[str, Any]) -> dict[str, Any]:
    """The config of a Llama in Meta's format. The MLP width follows from a rule: 2/3 of 4 x dim, rounded up to a multiple.

    dim 4096, multiple_of 256: 8 x 4096 // 3 = 10,922, and the next multiple of 256 is 11,008.
    """
    dim, multiple, factor = params["dim"], params.get("multiple_of", 256), params.get("ffn_dim_multiplier")
    if type(dim) is int and type(multiple) is int and multiple > 0 and 0 < dim < 2**31:
        width = 8 * dim // 3
        if isinstance(factor, (int, float)) and not isinstance(factor, bool) and 0 < factor < 100:
            width = int(factor * width)
        config["intermediate_size"] = -(-width // multiple) * multiple
    return {"model_type": "llama", "architectures": ["LlamaForCausalLM"], **config}


QUANT_FILE: Final = "hf_quant_config.json"


def is_quantized(config: Mapping[str, Any]) -> bool:
    """True if the config itself says how the weights are quantised."""
    levels = (config, *(value for key in ("text_config", "llm_config") if isinstance(value := config.get(key), Mapping)))
    return any(level.get(key) for level in levels for key in ("quantization_config", "compression_config"))


def with_quantization(config: Mapping[str, Any], document: Mapping[str, Any]) -> tuple[dict[str, Any], tuple[Note, ...]]:
    """The config with the content of ``document`` as its ``quantization_config``. A config that has one stays unchanged.

    ``{"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "FP8", "exclude_modules": ["lm_head"]}}`` becomes
    ``{"quant_method": "modelopt", "quant_algo": "FP8", "exclude_modules": ["lm_head"], "producer": ...}``.
    """
    quantization = document.get("quantization")
    if is_quantized(config) or not isinstance(quantization, Mapping) or not quantization:
        return dict(config), ()
    merged: dict[str, Any] = {"quant_method": "modelopt", **quantization}
    if isinstance(document.get("producer"), Mapping):
        merged.setdefault("producer", document["producer"])
    note = Note(code="quantization", message=f"How the weights are quantised is taken from {QUANT_FILE}.")
    return {**config, "quantization_config": merged}, (note,)
