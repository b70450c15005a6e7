"""The builds of llama.cpp, how they are spelled, and one table of the rules of a context's memory that changed between them.

llama.cpp numbers its builds by commits (``b6900``); since the summer of 2026 it names releases as well (``v0.5.0``). Each row of the table was read in the
history of its sources, with the pull request that changed it, and held against what builds on both sides of the change allocate
(``tests/golden/llamacpp_builds.json``). The newest entry of a rule is what the rest of this package describes.
"""

import re
from functools import lru_cache
from typing import Annotated, Final

from hwcalc.engines.versions import Rule, changed_in, rules_at, rules_in, unknown_version
from hwcalc.formulas.record import Record
from hwcalc.profiles.engines import llamacpp_builds

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
    """The rules of one build. Each rule annotates its field."""

    cells: Annotated[
        str,
        Rule(
            (("6975", "context"), ("6868", "nothing"), ("0", "cache")),
            "src/llama-context.cpp, #17046; src/llama-kv-cache.cpp, #16812",
        ),
    ]
    """The count that is rounded to whole groups of cells: the ``context`` before and after it is divided, ``nothing``, or each ``cache`` (256 with
    flash attention, 32 without)."""
    divides: Annotated[str, Rule((("6925", "down"), ("0", "up")), "src/llama-context.cpp, #16736")]
    """The direction, ``up`` or ``down``, in which the cells of a sequence of several are rounded when the context is divided."""
    streams: Annotated[
        bool, Rule((("6071", True), ("0", False)), "src/llama-kv-cache-unified.cpp, #14363; on by default since #14959")
    ]
    """True if sequences have buffers of their own unless the cache is unified. Before, all sequences share one."""
    hybrid_streams: Annotated[bool, Rule((("8025", True), ("0", False)), "src/llama-model.cpp create_memory, #19559")]
    """True if the attention of hybrids divides the context as well. Before, each sequence has as many cells as the whole context."""
    windows: Annotated[
        str,
        Rule(
            (("5554", "ubatch"), ("5429", "batch"), ("0", "all")),
            "src/llama-kv-cache-unified.cpp, #13833; src/llama-kv-cache.cpp, #13194",
        ),
    ]
    """The cells of layers with a window: ``ubatch`` is the window and a physical batch, ``batch`` the window of each sequence and a
    logical batch, and before all tokens are kept (``all``)."""
    latent_values: Annotated[bool, Rule((("7832", False), ("0", True)), "src/llama-kv-cache.cpp, #19067")]
    """True if latents are stored a second time, as values."""
    outputs_limited: Annotated[
        bool, Rule((("9460", True), ("0", False)), "tools/server/server-context.cpp server_n_outputs_max, #23861")
    ]
    """True if llama-server reserves logits for a token of each slot, and not for a whole batch."""
    wide_masks: Annotated[
        str, Rule((("9952", "none"), ("9410", "without cache"), ("0", "all")), "src/llama-graph.cpp, #23764, #25370")
    ]
    """The masks that have 32 bits an element with flash attention, of which the device makes a copy of 16: of ``all`` attention, or of
    attention ``without cache``, or of ``none``."""
    mask_rows: Annotated[
        int, Rule((("7256", 1), ("4617", 64), ("0", 32)), "ggml/include/ggml.h GGML_KQ_MASK_PAD, #17505, #11583")
    ]
    """The multiple to which the tokens of a mask are rounded up."""
    indexed_values: Annotated[
        bool, Rule((("6071", True), ("0", False)), "src/llama-kv-cache-unified.cpp, #14285; on by default since #14959")
    ]
    """True if values without flash attention are stored by an index for each of their numbers."""
    host_embeddings: Annotated[int, Rule((("7819", 2), ("0", 1)), "src/llama-graph.cpp build_inp_embd, #18898")]
    """The embeddings of a batch that the host's buffer has: those of tokens, and those that a caller may give."""
    flash_auto: Annotated[bool, Rule((("6325", True), ("0", False)), "common/common.h, #15434")]
    """True if flash attention is used where nothing is said."""
    default_layers: Annotated[str, Rule((("7407", "fit"), ("6325", "all"), ("0", "none")), "common/common.h, #16653, #15434")]
    """The layers that lie on GPUs where nothing is said: as many as ``fit``, ``all``, or ``none``."""
    copies_reserved: Annotated[bool, Rule((("9489", True), ("0", False)), "ggml/src/ggml-cuda/fattn.cu, #23907")]
    """True if CUDA's copies of a cache in 16 bits are a part of the compute buffer. Before, they come from a pool of the process."""
    drafts: Annotated[bool, Rule((("9180", True), ("0", False)), "include/llama.h llama_context_type, #22673")]
    """True if there is a context of multi-token prediction."""


@lru_cache(maxsize=64)
def rules_of(build: int) -> BuildRules:
    """The rules of a build.

    >>> rules_of(9459).outputs_limited, rules_of(9460).outputs_limited
    (False, True)
    """
    return rules_at(BuildRules, (build,))


COPIES_SINCE: Final = int(changed_in(BuildRules, "copies_reserved"))
DRAFTS_SINCE: Final = int(changed_in(BuildRules, "drafts"))
NEWEST_RULES: Final = rules_of(NEWEST)
VERSIONS: Final = (
    RELEASE,
    "v0.4.0",
    *(
        f"b{build}"
        for build in sorted(
            {OLDEST, *(int(first) for rule in rules_in(BuildRules).values() for first, _ in rule.entries if int(first) > OLDEST)},
            reverse=True,
        )
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
    known = f"Known: builds b{OLDEST} to b{NEWEST}, v0.4.0 and {RELEASE}."
    raise unknown_version("llamacpp", requested, hint=f"{known} Use: --engine llamacpp@{nearest(text)}")


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
    return next((build for first, build in llamacpp_builds().ollama.items() if _numbers(first) <= numbers), 0)


def known_since(architecture: str, *, latent: bool) -> int:
    """The first build that knows an architecture; 0 for one that all builds know. ``latent``: whether its file keeps latents.

    >>> known_since("gpt-oss", latent=False), known_since("deepseek2", latent=True), known_since("llama", latent=False)
    (6096, 5137, 0)
    """
    builds = llamacpp_builds()
    return max(builds.architectures.get(architecture, 0), builds.latents if latent else 0)
