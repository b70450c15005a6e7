"""libllama as the wheel of ``xllamacpp`` has it, called through ctypes: it makes contexts from metadata alone, and says their bytes.

``python -m tests.llamacpp.library`` reads one JSON object a line from standard input, ``{"path": FILE, "mtp": false, "contexts": [OPTIONS]}``,
and answers each with a line. Every model and every context has a process of its own, since llama.cpp aborts where a graph makes no sense.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

__all__ = ["GGML_TYPES", "Library", "wheel"]

GGML_TYPES: Final = {
    "f32": 0, "f16": 1, "q4_0": 2, "q4_1": 3, "q5_0": 6, "q5_1": 7, "q8_0": 8, "iq4_nl": 20, "bf16": 30,
}  # fmt: skip
"""``enum ggml_type`` (ggml/include/ggml.h)."""

_SWITCHES: Final = {"swa_full": 4, "kv_unified": 5}
_FLASH: Final = {"auto": -1, "off": 0, "on": 1}
_ROOM: Final = 1024
"""Bytes for a struct of parameters. Newer releases add fields at its end: what is behind those that are known here is left as it is."""
_ERROR: Final = 4
"""``GGML_LOG_LEVEL_ERROR``."""
_CRASHED: Final = {"status": "crashed"}


class ModelParams(ctypes.Structure):
    """``llama_model_params`` (include/llama.h), as far as it is set here."""

    _fields_ = (
        ("before", ctypes.c_byte * 76),
        ("no_alloc", ctypes.c_bool),
        ("load_mtp", ctypes.c_bool),
        ("behind", ctypes.c_byte * _ROOM),
    )


class ContextParams(ctypes.Structure):
    """``llama_context_params`` (include/llama.h), as far as it is set here."""

    _fields_ = (
        ("n_ctx", ctypes.c_uint32),
        ("n_batch", ctypes.c_uint32),
        ("n_ubatch", ctypes.c_uint32),
        ("n_seq_max", ctypes.c_uint32),
        ("n_rs_seq", ctypes.c_uint32),
        ("outputs", ctypes.c_uint32 * 2),
        ("threads", ctypes.c_int32 * 2),
        ("ctx_type", ctypes.c_int),
        ("kinds", ctypes.c_int * 3),
        ("flash_attn", ctypes.c_int),
        ("rope", ctypes.c_byte * 48),
        ("type_k", ctypes.c_int),
        ("type_v", ctypes.c_int),
        ("behind", ctypes.c_ubyte * _ROOM),
    )

    @property
    def switches(self) -> int:
        """Where the switches begin in :attr:`behind`: embeddings, offload_kqv, no_perf, op_offload, swa_full, kv_unified.

        Releases have fields before them that others lack. Of defaults that were just made, the four in the middle are on.
        """
        return bytes(self.behind).index(bytes((0, 1, 1, 1, 1, 0)))


class _Node(ctypes.Structure):
    """A node of a ``std::map`` of libstdc++ from buffer types to three sizes: model, context, compute."""


_Node._fields_ = (
    ("color", ctypes.c_long),
    ("parent", ctypes.c_void_p),
    ("left", ctypes.POINTER(_Node)),
    ("right", ctypes.POINTER(_Node)),
    ("key", ctypes.c_void_p),
    ("model", ctypes.c_size_t),
    ("context", ctypes.c_size_t),
    ("compute", ctypes.c_size_t),
)


class _Map(ctypes.Structure):
    _fields_ = (
        ("compare", ctypes.c_long),
        ("color", ctypes.c_long),
        ("root", ctypes.POINTER(_Node)),
        ("ends", ctypes.c_void_p * 2),
        ("count", ctypes.c_size_t),
        ("behind", ctypes.c_byte * 64),
    )


_LOG: Final = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)
_SET: Final = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)


class _GgufParams(ctypes.Structure):
    _fields_ = (("no_alloc", ctypes.c_bool), ("ctx", ctypes.c_void_p))


def wheel() -> Path | None:
    """The library in the wheel; ``None`` if it is not installed or does not say its sizes."""
    from importlib.util import find_spec

    spec = find_spec("xllamacpp")
    if spec is None or spec.origin is None:
        return None
    return next(Path(spec.origin).parent.glob("xllamacpp*.so"), None)


class Library:
    """The functions of libllama that make models and contexts."""

    def __init__(self, path: Path) -> None:
        self._lib = lib = ctypes.CDLL(str(path), mode=ctypes.RTLD_LOCAL)
        self.lines: list[str] = []
        self.errors: list[str] = []
        self._log = _LOG(self._logged)
        self._set = _SET(lambda _tensor, _data: None)
        for name, result, arguments in (
            ("gguf_init_from_file", ctypes.c_void_p, (ctypes.c_char_p, _GgufParams)),
            ("llama_model_default_params", ModelParams, ()),
            ("llama_context_default_params", ContextParams, ()),
            ("llama_model_init_from_user", ctypes.c_void_p, (ctypes.c_void_p, _SET, ctypes.c_void_p, ModelParams)),
            ("llama_init_from_model", ctypes.c_void_p, (ctypes.c_void_p, ContextParams)),
            ("llama_log_set", None, (_LOG, ctypes.c_void_p)),
            *(
                (f"llama_n_{name}", ctypes.c_uint32, (ctypes.c_void_p,))
                for name in ("ctx", "ctx_seq", "batch", "ubatch", "seq_max")
            ),
        ):
            function = getattr(lib, name)
            function.restype, function.argtypes = result, arguments
        self._breakdown = lib._Z26llama_get_memory_breakdownPK13llama_context
        self._breakdown.restype, self._breakdown.argtypes = _Map, (ctypes.c_void_p,)
        lib.llama_log_set(self._log, None)

    def _logged(self, level: int, text: bytes, _data: int) -> None:
        line = text.decode(errors="replace").strip()
        (self.errors if level == _ERROR else self.lines).append(line)

    def defaults(self) -> dict[str, int]:
        """The library's own defaults, which show that the fields lie where they are looked for."""
        params = self._lib.llama_context_default_params()
        names = ("n_ctx", "n_batch", "n_ubatch", "n_seq_max", "type_k", "type_v", "flash_attn", "n_rs_seq")
        return {name: int(getattr(params, name)) for name in names}

    def load(self, path: str, *, mtp: bool) -> int | None:
        """A model of the metadata in a file; its tensors are made up and take no memory."""
        lib = self._lib
        metadata = lib.gguf_init_from_file(path.encode(), _GgufParams(no_alloc=True, ctx=None))
        params = lib.llama_model_default_params()
        params.no_alloc, params.load_mtp = True, mtp
        model: int | None = lib.llama_model_init_from_user(metadata, self._set, None, params)
        return model

    def context(self, model: int, options: Mapping[str, Any]) -> dict[str, Any]:
        """The bytes and the settings of a context."""
        lib = self._lib
        params = lib.llama_context_default_params()
        words: dict[str, Mapping[str, int]] = {
            "type_k": GGML_TYPES, "type_v": GGML_TYPES, "flash_attn": _FLASH, "ctx_type": {"default": 0, "mtp": 1},
        }  # fmt: skip
        start = params.switches
        for name, value in options.items():
            if name in _SWITCHES:
                params.behind[start + _SWITCHES[name]] = bool(value)
            else:
                setattr(params, name, words[name][value] if name in words else value)
        made = lib.llama_init_from_model(model, params)
        if not made:
            return {"status": "refused", "why": self.errors[-1:] or self.lines[-1:]}
        names = ("ctx", "ctx_seq", "batch", "ubatch", "seq_max")
        settings = {f"n_{name}": getattr(lib, f"llama_n_{name}")(made) for name in names}
        return {"status": "made", "bytes": _sum(self._breakdown(made)), "settings": settings, "log": self.lines}


def _sum(found: _Map) -> int:
    total, waiting = 0, [found.root] if found.count else []
    while waiting:
        node = waiting.pop().contents
        total += node.context
        waiting += [side for side in (node.left, node.right) if side]
    return total


def _apart(work: Callable[[], Any]) -> Any:
    """The result of ``work`` in a process of its own."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        with os.fdopen(os.open(os.devnull, os.O_WRONLY), "w") as nowhere, os.fdopen(writing, "w") as out:
            os.dup2(nowhere.fileno(), 2)
            out.write(json.dumps(work()))
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as answered:
        text = answered.read()
    os.waitpid(child, 0)
    return json.loads(text) if text else _CRASHED


def main() -> None:
    """Answer every line of standard input."""
    path = wheel()
    assert path is not None
    library = Library(path)
    _say(library.defaults())
    for line in sys.stdin:
        asked = json.loads(line)
        _say(_apart(partial(_contexts, library, asked)))


def _say(answer: Any) -> None:
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


def _contexts(library: Library, asked: Mapping[str, Any]) -> dict[str, Any]:
    model = library.load(asked["path"], mtp=asked["mtp"])
    if not model:
        return {"status": "refused", "why": library.errors}

    def one(options: Mapping[str, Any]) -> dict[str, Any]:
        library.lines.clear()
        library.errors.clear()
        return library.context(model, options)

    return {"status": "loaded", "contexts": [_apart(partial(one, options)) for options in asked["contexts"]]}


if __name__ == "__main__":
    main()
