"""The builds of llama.cpp, how they are spelled, and one table of the rules of a context's memory that changed between them.

llama.cpp numbers its builds by commits (``b6900``); since the summer of 2026 it names releases as well (``v0.5.0``). Each row of the table was read in the
history of its sources, with the pull request that changed it, and held against what builds on both sides of the change allocate
(``tests/golden/llamacpp_builds.json``). The newest entry of a rule is what the rest of this package describes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from itertools import pairwise
from typing import Any, Final, NamedTuple

from hwcalc.errors import UnknownNameError
from hwcalc.formulas.record import Record
from hwcalc.text import brief

RELEASE: Final = "v0.5.0"
"""The newest release that was read: commit 0c1e57098."""
OLDEST: Final = 4400
"""The first build whose rules were read, of January 2025."""
NEWEST: Final = 11549
"""The last build that was run, of October 2026."""
HISTORY_ENDS: Final = 10465
"""The last build whose history was read. Of later ones, b11063 and v0.5.0 were run: their rules are the same."""
_RELEASES: Final = ("0.5.0", "0.5", "0.4.0", "0.4")


class BuildRules(Record):
    """What holds in one build. The fields are the rules of :data:`TABLE`."""

    cells: str
    """What is rounded to whole groups of cells: the ``context`` before and after it is divided, ``nothing``, or each ``cache`` (256 with
    flash attention, 32 without)."""
    divides: str
    """Whether the cells of a sequence of several are rounded ``up`` or ``down`` when the context is divided."""
    streams: bool
    """Whether sequences have buffers of their own unless the cache is unified. Before, all sequences share one."""
    hybrid_streams: bool
    """Whether the attention of hybrids divides the context as well. Before, each sequence has as many cells as the whole context."""
    windows: str
    """How many cells layers with a window have: ``ubatch`` is the window and a physical batch, ``batch`` the window of each sequence and a
    logical batch, and before all tokens are kept (``all``)."""
    latent_values: bool
    """Whether latents are stored a second time, as values."""
    outputs_limited: bool
    """Whether llama-server reserves logits for a token of each slot, and not for a whole batch."""
    wide_masks: str
    """The masks that have 32 bits an element with flash attention, of which the device makes a copy of 16: of ``all`` attention, or of
    attention ``without cache``, or of ``none``."""
    mask_rows: int
    """The multiple to which the tokens of a mask are rounded up."""
    indexed_values: bool
    """Whether values without flash attention are stored by an index for each of their numbers."""
    host_embeddings: int
    """The embeddings of a batch that the host's buffer has: those of tokens, and those that a caller may give."""
    flash_auto: bool
    """Whether flash attention is used where nothing is said."""
    default_layers: str
    """The layers that lie on GPUs where nothing is said: as many as ``fit``, ``all``, or ``none``."""
    copies_reserved: bool
    """Whether CUDA's copies of a cache in 16 bits are a part of the compute buffer. Before, they come from a pool of the process."""
    drafts: bool
    """Whether there is a context of multi-token prediction."""


class Rule(NamedTuple):
    """A field of :class:`BuildRules`: its values, each from a build on, newest first, and where they were read."""

    name: str
    entries: tuple[tuple[int, Any], ...]
    source: str


TABLE: Final[tuple[Rule, ...]] = (
    Rule(
        "cells",
        ((6975, "context"), (6868, "nothing"), (0, "cache")),
        "src/llama-context.cpp, #17046; src/llama-kv-cache.cpp, #16812",
    ),
    Rule("divides", ((6925, "down"), (0, "up")), "src/llama-context.cpp, #16736"),
    Rule("streams", ((6071, True), (0, False)), "src/llama-kv-cache-unified.cpp, #14363; on by default since #14959"),
    Rule("hybrid_streams", ((8025, True), (0, False)), "src/llama-model.cpp create_memory, #19559"),
    Rule(
        "windows",
        ((5554, "ubatch"), (5429, "batch"), (0, "all")),
        "src/llama-kv-cache-unified.cpp, #13833; src/llama-kv-cache.cpp, #13194",
    ),
    Rule("latent_values", ((7832, False), (0, True)), "src/llama-kv-cache.cpp, #19067"),
    Rule("outputs_limited", ((9460, True), (0, False)), "tools/server/server-context.cpp server_n_outputs_max, #23861"),
    Rule("wide_masks", ((9952, "none"), (9410, "without cache"), (0, "all")), "src/llama-graph.cpp, #23764, #25370"),
    Rule("mask_rows", ((7256, 1), (4617, 64), (0, 32)), "ggml/include/ggml.h GGML_KQ_MASK_PAD, #17505, #11583"),
    Rule("indexed_values", ((6071, True), (0, False)), "src/llama-kv-cache-unified.cpp, #14285; on by default since #14959"),
    Rule("host_embeddings", ((7819, 2), (0, 1)), "src/llama-graph.cpp build_inp_embd, #18898"),
    Rule("flash_auto", ((6325, True), (0, False)), "common/common.h, #15434"),
    Rule("default_layers", ((7407, "fit"), (6325, "all"), (0, "none")), "common/common.h, #16653, #15434"),
    Rule("copies_reserved", ((9489, True), (0, False)), "ggml/src/ggml-cuda/fattn.cu, #23907"),
    Rule("drafts", ((9180, True), (0, False)), "include/llama.h llama_context_type, #22673"),
)


@lru_cache(maxsize=64)
def rules_of(build: int) -> BuildRules:
    """The rules of a build.

    >>> rules_of(9459).outputs_limited, rules_of(9460).outputs_limited
    (False, True)
    """
    return BuildRules(**{rule.name: next(value for first, value in rule.entries if first <= build) for rule in TABLE})


def _first(name: str) -> int:
    return next(rule.entries[0][0] for rule in TABLE if rule.name == name)


COPIES_SINCE: Final = _first("copies_reserved")
DRAFTS_SINCE: Final = _first("drafts")
NEWEST_RULES: Final = rules_of(NEWEST)
VERSIONS: Final = (
    RELEASE,
    "v0.4.0",
    *(
        f"b{build}"
        for build in sorted({first for rule in TABLE for first, _ in rule.entries if first > OLDEST} | {OLDEST}, reverse=True)
    ),
)
"""Releases, and the builds from which on other rules hold; a build between two of them has those of the older one."""


def resolve(requested: str) -> str:
    """The build or release that a spelling names: ``b6900`` for ``6900``, and ``v0.5.0`` for ``0.5``.

    Raises :class:`~hwcalc.errors.UnknownNameError` for one whose rules were not read.
    """
    text = requested.strip().lower()
    if text.removeprefix("v") in _RELEASES:
        return f"v{'.'.join([*text.removeprefix('v').split('.'), '0'][:3])}"
    number = re.fullmatch(r"b?([0-9]{1,6})", text)
    if number is not None and OLDEST <= int(number[1]) <= NEWEST:
        return f"b{int(number[1])}"
    raise UnknownNameError(
        f"--engine llamacpp@{brief(requested, 20)}: no rules for that version.",
        option="engine",
        hint=f"Known: builds b{OLDEST} to b{NEWEST}, v0.4.0 and {RELEASE}. Use: --engine llamacpp@{nearest(text)}",
    )


def nearest(requested: str) -> str:
    """The known build next to another.

    >>> nearest("b3000"), nearest("b12000"), nearest("master")
    ('b4400', 'v0.5.0', 'v0.5.0')
    """
    number = re.fullmatch(r"b?([0-9]{1,6})", requested)
    return f"b{OLDEST}" if number is not None and int(number[1]) < OLDEST else RELEASE


def build_of(version: str) -> int:
    """The number of a build by its name, as :func:`resolve` gives it; a release has the rules of the last build that was run."""
    return int(version[1:]) if version.startswith("b") else NEWEST


OLLAMA_BUILDS: Final[Mapping[str, int]] = {
    "0.32.15": 10488, "0.32.14": 10434, "0.32.10": 10380, "0.32.8": 10353, "0.32.6": 10242, "0.32.3": 10091, "0.32.2": 10069,
    "0.31.2": 9888, "0.31.0": 9840, "0.30.11": 9781, "0.30.10": 9672, "0.30.9": 9626, "0.30.5": 9509, "0.30.4": 9493, "0.30.1": 9479,
    "0.30.0": 9452,
}  # fmt: skip
"""The release of Ollama -> the build of llama.cpp that it and those after it start (LLAMA_CPP_VERSION), newest first. 0.33 starts a later one."""
OLLAMA_VENDORED: Final[Mapping[str, int]] = {
    "0.13.5": 7437, "0.13.3": 7345, "0.13.2": 7209, "0.12.11": 6840, "0.12.6": 6752, "0.12.4": 6646, "0.11.5": 6121, "0.7.0": 5359,
    "0.6.8": 5237, "0.6.7": 5162, "0.6.6": 5125, "0.5.13": 4779, "0.5.8": 4419,
}  # fmt: skip
"""The release of Ollama before 0.30 -> the build whose code it has in itself (llama/build-info.cpp), for models that its Go engine does not run."""


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) if part.isdecimal() else 0 for part in version.removeprefix("v").split("-")[0].split("."))


def ollama_build(version: str) -> int:
    """The build that a release of Ollama starts, or has in itself; 0 if that is not known. A line of releases stands for its last.

    >>> ollama_build("0.30.0"), ollama_build("0.31"), ollama_build("0.33"), ollama_build("0.12.5"), ollama_build("0.4.0")
    (9452, 9888, 11549, 6646, 0)
    """
    numbers = _numbers(version)
    if len(numbers) < 3:
        numbers = (*numbers, 10**6)
    if numbers >= (0, 33):
        return NEWEST
    both = {**OLLAMA_BUILDS, **OLLAMA_VENDORED}
    return next((build for first, build in both.items() if _numbers(first) <= numbers), 0)


SINCE: Final[Mapping[int, tuple[str, ...]]] = {
    4415: ("cohere2",), 4453: ("phimoe",), 4457: ("rwkv6qwen2",), 4875: ("gemma3",), 4907: ("rwkv7", "arwkv7"), 4977: ("plm",),
    5002: ("bailingmoe",), 5074: ("llama4",), 5092: ("qwen3", "qwen3moe"), 5115: ("glm4",), 5215: ("nomic-bert-moe",), 5668: ("dots1",),
    5674: ("arcee",), 5682: ("neo-bert",), 5763: ("gemma3n",), 5771: ("ernie4_5",), 5812: ("mamba2",), 5843: ("hunyuan-moe",),
    5847: ("smollm3",), 5851: ("falcon-h1",), 5856: ("jamba",), 5868: ("granitehybrid",), 5873: ("lfm2",), 5899: ("plamo2",),
    5912: ("dream",), 5924: ("ernie4_5-moe",), 5931: ("exaone4",), 6012: ("smallthinker",), 6042: ("llada",), 6058: ("hunyuan-dense",),
    6085: ("glm4moe",), 6096: ("gpt-oss",), 6257: ("seed_oss",), 6309: ("jina-bert-v3",), 6315: ("nemotron_h",),
    6384: ("gemma-embedding",), 6483: ("llada-moe",), 6586: ("grovemoe",), 6671: ("apertus",), 6709: ("lfm2moe",), 6810: ("bailingmoe2",),
    6885: ("cogvlm",), 6887: ("qwen3vl", "qwen3vlmoe"), 6906: ("minimax-m2",), 6955: ("pangu-embedded",), 7061: ("afmoe",),
    7140: ("rnd1",), 7186: ("qwen3next",), 7216: ("mistral3",), 7418: ("nemotron_h_moe",), 7515: ("modern-bert",), 7531: ("llama-embed",),
    7534: ("mimo2",), 7563: ("plamo3",), 7614: ("maincoder",), 7727: ("exaone-moe",), 7957: ("kimi-linear",), 7964: ("step35",),
    7990: ("qwen35", "qwen35moe"), 8036: ("glm-dsa",), 8106: ("jais2",), 8110: ("paddleocr",), 8160: ("eurobert",), 8388: ("mistral4",),
    8530: ("deepseek2-ocr",), 8637: ("gemma4",), 8885: ("hunyuan_vl",), 9337: ("talkie",), 9411: ("deepseek32",), 9482: ("mellum",),
    9549: ("gemma4-assistant",), 9606: ("eagle3",), 9626: ("cohere2moe",), 9831: ("dflash",), 9840: ("deepseek4",), 9993: ("hy_v3",),
    10087: ("laguna",), 10135: ("minimax-m3",), 10153: ("nanbeige",), 10270: ("qwen3tts",), 10342: ("graniteswitch",),
    10349: ("muse-glimmer",), 10369: ("pockettts",), 10437: ("minimax-01",), 10448: ("kimi-k3",), 10460: ("bailingmoe3",),
    HISTORY_ENDS + 1: ("dots3note", "glm5-next", "granite_swa", "hrm_text", "hy_v4", "maple", "qwen4exp", "spark2_5"),
}  # fmt: skip
"""A build -> the architectures that it was the first to know (src/llama-arch.cpp ``LLM_ARCH_NAMES``). Older builds know all others."""
LATENT_SINCE: Final = 5137
"""The first build that keeps latents of multi-head latent attention, and reads the files that have them (#12801)."""
_FIRST: Final[Mapping[str, int]] = {name: build for build, names in SINCE.items() for name in names}


def known_since(architecture: str, *, latent: bool) -> int:
    """The first build that knows an architecture; 0 for one that all builds know. ``latent``: whether its file keeps latents.

    >>> known_since("gpt-oss", latent=False), known_since("deepseek2", latent=True), known_since("llama", latent=False)
    (6096, 5137, 0)
    """
    return max(_FIRST.get(architecture, 0), LATENT_SINCE if latent else 0)


assert all(newer[0] > older[0] for rule in TABLE for newer, older in pairwise(rule.entries))
