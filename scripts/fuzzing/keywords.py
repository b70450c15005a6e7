"""Calls of the library's functions with values that nobody means: numbers of other libraries, containers, objects that fail."""

from __future__ import annotations

import array
import datetime as dt
import decimal
import enum
import fractions
import io
import itertools
import math
import pathlib
import random
import types
import uuid
from collections import ChainMap, Counter, OrderedDict, UserDict, UserList, UserString, defaultdict, deque
from collections.abc import Callable, Mapping
from functools import lru_cache
from inspect import signature
from typing import Any, Final

from hwcalc.engines import ENGINES

CONFIG: Final[Mapping[str, Any]] = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "intermediate_size": 128, "vocab_size": 1000, "max_position_embeddings": 1000, "torch_dtype": "bfloat16",
}  # fmt: skip
"""A model that every function reads soon."""


class _Broken:
    """An object of which nothing can be asked. It has no name of a path, which is asked for by who hands one in."""

    def __repr__(self) -> str:
        raise RuntimeError

    __str__ = __index__ = __int__ = __float__ = __bool__ = __len__ = __iter__ = __repr__


class _Color(enum.Enum):
    RED = 1


class _Number(enum.IntEnum):
    ONE = 1


class _Word(enum.StrEnum):
    VLLM = "vllm"


class _Text(str):
    __slots__ = ()


class _Whole(int):
    pass


def _nested() -> list[Any]:
    value: list[Any] = []
    for _ in range(3000):
        value = [value]
    return value


def _nested_keys() -> dict[str, Any]:
    value: dict[str, Any] = {}
    for _ in range(3000):
        value = {"a": value}
    return value


def _endless() -> list[Any]:
    value: list[Any] = []
    value.append(value)
    return value


def _endless_keys() -> dict[str, Any]:
    value: dict[str, Any] = {}
    value["a"] = value
    return value


def _numpy(make: str) -> Callable[[], Any]:
    def made() -> Any:
        import numpy as np

        return eval(make, {"np": np, "decimal": decimal})  # noqa: S307 - the texts below

    return made


_PLAIN: Final[tuple[Any, ...]] = (
    None, True, False, 0, 1, -1, 7, 2**31, 2**53 + 1, 2**62, 2**63, 2**64, 2**100, -(2**63), 10**400, 10**5000, -(10**5000),
    0.0, -0.0, 0.5, 1.0, 1.5, -2.5, 1e9, 1e308, 5e-324, math.nan, math.inf, -math.inf, 1j, complex(math.nan, 1),
    "", " ", "0", "1", "-1", "8", "1k", "1e400", "nan", "inf", "0x10", "٣٢", "1_000", "1,5", "50%", "9" * 5000, "x" * 1000, "x" * 100_000,
    "auto", "none", "all", "bf16", "fp8", "vllm", "vllm@0", "l4", "l4,h100", "a=b", "k=v,k=v", "[", "{}", "..", "/dev/null", "~", "~nobody/x", "-",
    "a\x00b", "a\nb", "\ud800", "\udcff", "\x1b[2J", "\u202ea", "::error::x", "=1+1", "$(id)",
    b"", b"l4", b"\xff", bytearray(b"l4"), memoryview(b"l4"), (), (1,), ("l4",), [], [0], [None], ["l4", "l4"], ["vllm", None], [[1]], [1.5], [10**5000],
    ["1"] * 70, {}, {"a": 1}, {"block_size": 10**5000}, {1: 2}, {None: None}, {("a", 1): 2}, {"a": {"b": [{}]}}, {"x": math.nan},
    frozenset(), frozenset({1}), range(0), range(3), range(10**18), slice(1, 2), ..., NotImplemented, int, object, print, len, types, ValueError("x"),
)  # fmt: skip
_MADE: Final[tuple[Callable[[], Any], ...]] = (
    object, set, lambda: {1, 2}, _Broken, lambda: [_Broken()], lambda: {"a": _Broken()}, _nested, _nested_keys, _endless,
    _endless_keys, lambda: iter([1]), lambda: (number for number in (1, 2)), lambda: iter(()), lambda: map(int, ["x"]),
    lambda: _Color.RED, lambda: _Number.ONE, lambda: _Word.VLLM, lambda: _Text("l4"), lambda: _Whole(8),
    lambda: decimal.Decimal(1), lambda: decimal.Decimal("0.9"), lambda: decimal.Decimal("NaN"), lambda: decimal.Decimal("sNaN"),
    lambda: decimal.Decimal("Infinity"), lambda: decimal.Decimal("1e400"), lambda: decimal.Decimal("1e999999"),
    lambda: fractions.Fraction(1, 2), lambda: fractions.Fraction(10**5000), lambda: dt.datetime(2026, 1, 1),  # noqa: DTZ001
    lambda: dt.timedelta(1), lambda: uuid.UUID(int=1), lambda: pathlib.Path("x"), pathlib.Path, lambda: pathlib.PurePosixPath("l4"),
    lambda: deque([1]), lambda: OrderedDict(a=1), lambda: defaultdict(int), lambda: Counter("a"), lambda: ChainMap({}), lambda: UserDict(a=1),
    lambda: UserList([1]), lambda: UserString("l4"), lambda: types.SimpleNamespace(a=1), lambda: types.MappingProxyType({"a": 1}),
    lambda: array.array("i", [1, 2]), lambda: io.StringIO("{}"), lambda: io.BytesIO(b"GGUF"), io.StringIO, lambda: itertools.islice("ab", 1),
    _numpy("np.int64(8)"), _numpy("np.int8(-1)"), _numpy("np.uint64(2**64 - 1)"), _numpy("np.float64(0.5)"), _numpy("np.float32(1)"),
    _numpy("np.float16('nan')"), _numpy("np.bool_(True)"), _numpy("np.bool_(False)"), _numpy("np.str_('l4')"), _numpy("np.bytes_(b'l4')"),
    _numpy("np.complex64(1)"), _numpy("np.datetime64('2026')"), _numpy("np.array([])"), _numpy("np.array(8)"), _numpy("np.array([1])"),
    _numpy("np.array([1, 2])"), _numpy("np.array([0.5])"), _numpy("np.array(['l4', 'h100'])"), _numpy("np.array([None])"), _numpy("np.zeros((2, 2))"),
    _numpy("np.ma.masked"), _numpy("np.dtype('float16')"), _numpy("np.float16"), _numpy("np.array([{}], dtype=object)"),
)  # fmt: skip


def _constant(value: Any) -> Callable[[], Any]:
    return lambda: value


VALUES: Final[tuple[Callable[[], Any], ...]] = (*map(_constant, _PLAIN), *_MADE)
"""Makers of values: some are used up, or changed, when they are read. As ``out``, none of them leads to a folder that is kept."""


CHECKS: Final = "schema_version: 1\nchecks:\n  - {model: Qwen/Qwen3-8B, seq: 1k, max_cache: 1GiB}\n"
"""The content of ``check.yaml`` in the current folder."""

Called = tuple[Callable[..., Any], tuple[Any, ...], Mapping[str, Any]]


@lru_cache(maxsize=1)
def functions() -> Mapping[str, Called]:
    """Name -> function of the library, positional arguments and keywords of a call that is answered soon."""
    import hwcalc
    from hwcalc.check.command import check
    from hwcalc.explore.build import explore
    from hwcalc.plot.build import plot
    from hwcalc.sweep.rows import sweep
    from hwcalc.workload.opening import workload

    here: Mapping[str, Any] = {"offline": True, "seq": 100}
    hosted = {**here, "gpu": "l4", "engine": "vllm"}
    return {
        "plan": (hwcalc.plan, (CONFIG,), hosted),
        "compare": (hwcalc.compare, ([CONFIG, CONFIG],), hosted),
        "explain": (hwcalc.explain, (CONFIG,), hosted),
        "explore": (explore, (CONFIG,), here),
        "fit": (hwcalc.fit, ("Qwen3-1.7B",), {"gpu": "l4"}),
        "fleet": (
            hwcalc.fleet,
            ({"models": [{"model": "Qwen/Qwen3-1.7B", "users": 2, "seq": 100}], "nodes": [{"gpu": "l4"}]},),
            {"offline": True},
        ),
        "free_blocks": (hwcalc.free_blocks, (100,), {"kept": 10}),
        "keep": (hwcalc.keep, (CONFIG, "snapkv:compression_ratio=0.5"), {"prompt": 100, "offline": True}),
        "load_model": (hwcalc.load_model, (CONFIG,), {"offline": True}),
        "plot": (plot, (CONFIG,), here),
        "read_launch": (hwcalc.read_launch, ("vllm serve org/name",), {}),
        "recommend": (hwcalc.recommend, (CONFIG,), {**here, "gpu": "l4"}),
        "simulate": (hwcalc.simulate, (CONFIG, [(0, 5, 5), (1, 9, 3)]), {"offline": True, "blocks": 64}),
        "speed": (hwcalc.speed, (CONFIG,), {"offline": True, "prompt": 100, "gpu": "l4", "engine": "vllm"}),
        "strategies": (hwcalc.strategies, (CONFIG,), here),
        "swap": (hwcalc.swap, ([CONFIG, CONFIG],), hosted),
        "sweep": (sweep, (CONFIG,), hosted),
        "tune": (
            hwcalc.tune,
            (CONFIG, [(0, 5, 5), (1, 9, 3)]),
            {
                "offline": True,
                "gpu": "l4",
                "ttft": 9,
                "dtype": "bf16",
                "engine_options": {"max_num_seqs": 8, "max_num_batched_tokens": 128},
            },
        ),
        "workload": (workload, ("prompt=5 output=5",), {"requests": 5}),
        "check": (check, ("check.yaml",), {"offline": True}),
    }


def call(name: str, keyword: str, value: Any, *, alone: bool = False, engine: str | None = None) -> None:
    """Call a function of the library with a value, and read the answer. Raises what the function raises.

    ``keyword`` is the name of any of its parameters. With ``alone`` the call has few other keywords. ``engine`` is that of a call which
    has any.
    """
    function, positional, keywords = functions()[name]
    places = list(signature(function).parameters)
    arguments = list(positional)
    given = {key: engine if key == "engine" and engine else kept for key, kept in keywords.items()}
    if alone and "offline" in given:
        given = {key: given[key] for key in ("offline", "seq", "prompt") if key in given}
    if keyword in places[: len(arguments)]:
        arguments[places.index(keyword)] = value
    else:
        given[keyword] = value
    answer = function(*arguments, **given)
    if name in ("sweep", "workload"):
        next(iter(answer), None)
    elif hasattr(answer, "to_dict"):
        answer.to_dict()
        repr(answer)


CALLBACKS: Final = frozenset({("simulate", "watch"), ("tune", "begin"), ("tune", "executor"), ("tune", "watch")})
"""Parameters that are functions of the caller's. What these raise passes through."""


def keyword_words(chance: random.Random) -> tuple[str, ...]:
    """The words of a case of the fuzzer: a function, the name of a parameter, two numbers that choose the value and the call, an engine."""
    name = chance.choice([*functions()])
    keyword = chance.choice([each for each in signature(functions()[name][0]).parameters if (name, each) not in CALLBACKS])
    engine = chance.choice([*ENGINES]) if "engine" in functions()[name][2] else ""
    return name, keyword, str(chance.randrange(len(VALUES))), str(chance.randrange(2)), engine
