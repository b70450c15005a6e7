"""Draw the pictures of the concepts that the documentation explains, as SVG. Their numbers are those of plans.

python scripts/drawings.py           # writes docs/drawings/*.svg
python scripts/drawings.py --check   # exit status 1 if a file is not what would be drawn now
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Final, NamedTuple

import hwcalc
from hwcalc.units import human_bytes

FOLDER: Final = Path(__file__).resolve().parents[1] / "docs" / "drawings"
WIDTH: Final = 760
MODEL: Final = "Qwen/Qwen3-8B"
PLOTTED: Final = ("Qwen/Qwen3-32B", "google/gemma-3-27b-it", "openai/gpt-oss-20b")
STYLE: Final = """\
text{font:13px system-ui,sans-serif;fill:#222}.small{font-size:11px}.bold{font-weight:600}.quiet{fill:#595959}.mid{text-anchor:middle}
.on{fill:#fff}.line{stroke:#8a8a8a;fill:none}.box{stroke:#595959}.key{fill:#0072b2}.value{fill:#56b4e9}.latent{fill:#cc79a7}.query{fill:#e69f00}
.gone{fill:#e8e8e8}.weights{fill:#9db4c0}.overhead{fill:#cfcfcf}.activations{fill:#f0c987}.cache{fill:#0072b2}.free{fill:none;stroke-dasharray:4 3}
.a{fill:#0072b2}.b{fill:#d55e00}.c{fill:#009e73}.d{fill:#cc79a7}
@media(prefers-color-scheme:dark){text{fill:#ddd}.quiet{fill:#aaa}.gone{fill:#444}.box{stroke:#aaa}.on{fill:#fff}}"""


class Drawing(NamedTuple):
    """The elements of a picture, from its top to ``height``. ``about`` says in words what it shows."""

    about: str
    height: float
    parts: Sequence[str]

    def svg(self) -> str:
        """The file."""
        head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {self.height:g}" role="img">'
        return "\n".join([head, f"<title>{escape(self.about)}</title>", f"<style>{STYLE}</style>", *self.parts, "</svg>", ""])


def box(x: float, y: float, width: float, height: float, look: str) -> str:
    """A rectangle."""
    return f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="2" class="box {look}"/>'


def words(x: float, y: float, text: str, look: str = "") -> str:
    """A line of text whose foot is at ``y``."""
    return f'<text x="{x:g}" y="{y:g}" class="{look}">{escape(text)}</text>'


def line(x1: float, y1: float, x2: float, y2: float) -> str:
    """A thin line."""
    return f'<line x1="{x1:g}" y1="{y1:g}" x2="{x2:g}" y2="{y2:g}" class="line"/>'


def kv_per_token() -> Drawing:
    """A drawing of what one token leaves in the cache: a key and a value in every layer."""
    plan = hwcalc.plan(MODEL, seq=1)
    (layers,) = plan.model.layers
    heads, head_dim = layers.dims["num_key_value_heads"], layers.dims["head_dim"]
    each = plan.cache.bytes_per_token // layers.count
    parts = [words(10, 24, "one token", "bold"), box(20, 40, 34, 150, "query"), words(37, 120, "T", "mid bold")]
    rows = ["layer 0", "layer 1", "...", f"layer {layers.count - 1}"]
    for place, name in enumerate(rows):
        y = 40 + 40 * place
        if name == "...":
            parts.append(words(250, y + 20, "...", "mid"))
            continue
        parts += [line(54, 115, 130, y + 15), words(136, y + 20, name, "small")]
        for start, look, label in ((200, "key", "key"), (390, "value", "value")):
            parts += [box(start + 22 * head, y, 20, 30, look) for head in range(heads)]
            parts.append(words(start, y - 4, f"{label}: {heads} heads x {head_dim} numbers", "small quiet") if not place else "")
        parts.append(words(575, y + 20, f"{each:,} B in bf16", "small"))
    total = f"{layers.count} layers x 2 x {heads} heads x {head_dim} numbers x 2 B = {plan.cache.bytes_per_token:,} B"
    parts.append(words(136, 222, f"{MODEL}: {total} = {human_bytes(plan.cache.bytes_per_token)} a token", "bold"))
    return Drawing("What one token leaves in the KV cache: a key and a value in every layer", 236, parts)


def heads() -> Drawing:
    """Multi-head, grouped-query, multi-query and latent attention, with what each keeps for a token in one layer."""
    parts: list[str] = []
    queries, head_dim = 8, 128
    for place, (name, kept) in enumerate((("MHA", 8), ("GQA", 2), ("MQA", 1), ("MLA", 0))):
        x = 10 + 188 * place
        parts += [words(x + 82, 20, name, "mid bold"), words(x, 46, "query heads", "small quiet")]
        parts += [f'<circle cx="{x + 10 + 20.5 * head:g}" cy="62" r="8" class="box query"/>' for head in range(queries)]
        centres = [x + 82 + (index - (max(1, kept) - 1) / 2) * 164 / max(1, kept) for index in range(max(1, kept))]
        for head in range(queries):
            parts.append(line(x + 10 + 20.5 * head, 70, centres[head * len(centres) // queries], 104))
        if kept:
            for centre in centres:
                half = min(16, 150 / kept / 2)
                parts += [box(centre - half, 104, half, 26, "key"), box(centre, 104, half, 26, "value")]
            size, what = 2 * kept * head_dim * 2, f"2 x {kept} x {head_dim} x 2 B"
        else:
            parts += [box(x + 32, 104, 88, 26, "latent"), box(x + 120, 104, 12, 26, "key")]
            size, what = (512 + 64) * 2, "(512 + 64) x 2 B"
        label = "a latent, and a key with positions" if not kept else f"{kept} key/value head{'s' if kept > 1 else ''}"
        parts += [
            words(x + 82, 150, label, "mid small quiet"),
            words(x + 82, 172, what, "mid small"),
            words(x + 82, 192, f"{size:,} B", "mid bold"),
        ]
    parts.append(
        words(
            10,
            220,
            "Bytes of one token in one layer: 8 query heads of 128 numbers in bf16; the latent is DeepSeek-V3's.",
            "small quiet",
        )
    )
    return Drawing("MHA, GQA, MQA and MLA: which heads share what is kept", 232, parts)


def windows() -> Drawing:
    """A drawing of the tokens of 16 that a layer still keeps."""
    tokens = 16
    kinds: Sequence[tuple[str, str, Callable[[int], bool]]] = (
        ("full attention", "every token", lambda _: True),
        ("sliding window of 4", "the last 4", lambda token: token >= tokens - 4),
        ("chunks of 6", "the newest chunk", lambda token: token // 6 == (tokens - 1) // 6),
        ("2 sinks + window of 4", "the first 2 and the last 4", lambda token: token < 2 or token >= tokens - 4),
    )
    parts = [words(190, 20, "tokens 0 to 15, the newest at the right", "small quiet")]
    for place, (name, what, keeps) in enumerate(kinds):
        y = 30 + 40 * place
        parts.append(words(10, y + 19, name, "bold"))
        parts += [box(190 + 24 * token, y, 22, 28, "key" if keeps(token) else "gone") for token in range(tokens)]
        parts.append(words(584, y + 19, f"{what}: {sum(map(keeps, range(tokens)))}", "small"))
    y = 30 + 40 * len(kinds)
    parts += [words(10, y + 19, "recurrent state", "bold"), box(190, y, 60, 28, "latent")]
    parts.append(words(584, y + 19, "one state, whatever the length", "small"))
    return Drawing("What a layer keeps of 16 tokens: full attention, a window, a chunk, sinks, a state", y + 44, parts)


def blocks() -> Drawing:
    """A block table: the blocks of two sequences in one pool."""
    size, pool, sequences = 4, 8, (("a", 6, (1, 4)), ("b", 9, (2, 5, 6)))
    parts = [
        words(10, 22, "sequences", "bold"),
        words(300, 22, "block table", "bold"),
        words(520, 22, "the pool on the GPU", "bold"),
    ]
    held: dict[int, tuple[str, int]] = {}
    for place, (name, tokens, table) in enumerate(sequences):
        y = 40 + 84 * place
        parts.append(words(10, y + 12, f"{tokens} tokens", "small quiet"))
        parts += [
            box(10 + 20 * token + 6 * (token // size), y + 20, 18, 24, name if token < tokens else "free")
            for token in range(len(table) * size)
        ]
        for logical, physical in enumerate(table):
            filled = min(size, tokens - logical * size)
            held[physical] = (name, filled)
            parts.append(
                words(300, y + 20 + 18 * logical, f"block {logical} is number {physical}, {filled} of {size} filled", "small")
            )
    for physical in range(pool):
        x, y = 520 + 112 * (physical % 2), 36 + 42 * (physical // 2)
        name, filled = held.get(physical, ("", 0))
        parts.append(words(x, y + 18, str(physical), "small quiet"))
        parts += [box(x + 14 + 20 * slot, y, 18, 26, name if slot < filled else "free") for slot in range(size)]
    unused = sum(len(table) * size - tokens for _, tokens, table in sequences)
    note = f"Blocks of {size} tokens. A sequence holds whole blocks: {unused} places of its last blocks are held and not used."
    return Drawing(
        "A block table: two sequences in one pool of blocks of four tokens", 236, [*parts, words(10, 222, note, "small quiet")]
    )


def equation() -> Drawing:
    """The memory of a GPU as one bar, by a plan."""
    plan = hwcalc.plan(MODEL, seq="8k", batch=2, engine="vllm", gpu="l4")
    assert plan.fit is not None
    sizes = plan.memory.per_gpu
    parts = [words(10, 22, f"{MODEL} in vLLM on one L4: 2 sequences of 8,192 tokens", "bold")]
    # What the GPU shows to a program, and the part that vLLM leaves.
    total = plan.fit.usable_bytes * 100 / 92
    scale, x = 740 / total, 10.0
    for name in ("weights", "overhead", "activations", "cache"):
        size = getattr(sizes, name)
        middle = x + size * scale / 2
        level = {"weights": 106, "overhead": 124, "activations": 142, "cache": 106}[name]
        parts += [box(x, 36, size * scale, 48, name), line(middle, 84, middle, level - 12)]
        # Left of the lines of its neighbours, and not across them.
        aside = {"overhead": -62, "activations": -68}.get(name, 0)
        parts.append(words(middle + aside, level, f"{name} {human_bytes(size)}", "mid small"))
        x += size * scale
    usable = 10 + plan.fit.usable_bytes * scale
    parts += [box(x, 36, usable - x, 48, "free"), box(usable, 36, 750 - usable, 48, "gone"), line(usable, 28, usable, 150)]
    parts.append(
        words(750, 162, f"0.92 of the GPU may be used: {human_bytes(plan.fit.usable_bytes)}", "small").replace(
            "<text ", '<text text-anchor="end" '
        )
    )
    parts.append(words(10, 190, "usable - weights - activations - overhead = what is left for the cache", "bold"))
    return Drawing("The memory equation: what a GPU holds beside the cache", 204, parts)


def layouts() -> Drawing:
    """Four GPUs: what each holds of a model under four ways to share it."""
    parts: list[str] = []
    ways: Mapping[str, tuple[str, Sequence[str], Sequence[str]]] = {
        "tp 4": (
            "every layer, a quarter of its heads",
            ("a", "b", "c", "d"),
            ("heads 0-7", "heads 8-15", "heads 16-23", "heads 24-31"),
        ),
        "pp 4": (
            "a quarter of the layers, whole",
            ("a", "b", "c", "d"),
            ("layers 0-8", "layers 9-17", "layers 18-26", "layers 27-35"),
        ),
        "dp 4": ("a whole copy, other sequences", ("a", "a", "a", "a"), ("users 1, 5", "users 2, 6", "users 3, 7", "users 4, 8")),
        "ep 4": (
            "attention as without it, a quarter of the experts",
            ("a", "b", "c", "d"),
            ("experts 0-31", "32-63", "64-95", "96-127"),
        ),
    }
    for place, (name, (what, looks, labels)) in enumerate(ways.items()):
        y = 10 + 62 * place
        parts += [words(10, y + 24, name, "bold"), words(64, y + 24, what, "small")]
        for gpu, (look, label) in enumerate(zip(looks, labels, strict=True)):
            x = 350 + 102 * gpu
            parts += [box(x, y, 96, 48, "free")]
            if name == "tp 4":
                parts += [box(x + 4 + 22 * gpu, y + 4, 22, 24, look)]
            elif name == "pp 4":
                parts += [box(x + 4, y + 4 + 6 * gpu, 88, 6, look)]
            else:
                parts += [box(x + 4, y + 4, 88, 24, look)]
            parts.append(words(x + 48, y + 43, label, "mid small"))
    return Drawing("Tensor, pipeline, data and expert parallelism: what each of four GPUs holds", 10 + 62 * len(ways), parts)


DRAWINGS: Final[Mapping[str, Callable[[], Drawing]]] = {
    "kv-per-token": kv_per_token,
    "heads": heads,
    "windows": windows,
    "blocks": blocks,
    "memory-equation": equation,
    "layouts": layouts,
}


def main() -> int:
    """Write the files, or compare them."""
    differ = []
    for name, draw in DRAWINGS.items():
        path, text = FOLDER / f"{name}.svg", draw().svg()
        if sys.argv[1:] != ["--check"]:
            path.parent.mkdir(exist_ok=True)
            path.write_text(text, encoding="utf-8")
        elif not path.is_file() or path.read_text(encoding="utf-8") != text:
            differ.append(path.name)
    if sys.argv[1:] != ["--check"]:
        # Another release of matplotlib draws other bytes: these are not compared.
        hwcalc.plot(PLOTTED, engine="vllm", gpu="h100", seq="1k..64k").save(FOLDER / "plot.svg")
        nodes = ("meta-llama/Llama-3.3-70B-Instruct", "openai/gpt-oss-120b", "deepseek-ai/DeepSeek-V3")
        hwcalc.plot(nodes, kind="nodes", engine="vllm", gpu="4xh100,8xh200,2xl40s", seq="16k", batch=50).save(
            FOLDER / "nodes.svg"
        )
    if differ:
        print(f"not as drawn now: {', '.join(differ)}; run: python scripts/drawings.py")
    return 1 if differ else 0


if __name__ == "__main__":
    sys.exit(main())
