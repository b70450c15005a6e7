"""Puts the sources of the page and a payload into one HTML file that makes no request.

The modules in ``page/`` are written to be read, and checked as modules. Here they become one script: each after those that it imports,
without ``import`` lines and the word ``export``. The Content-Security-Policy lets exactly this script and this style run, by their hashes.
"""

from __future__ import annotations

import json
import re
from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping
from hashlib import sha256
from html import escape
from importlib.resources import files
from typing import Any, Final

from hwcalc.formulas.record import Record

__all__ = ["MAIN", "Html", "assemble", "bundle", "html_of", "json_text", "page_files"]

MAIN: Final = "main.js"
"""The module that starts the page. All others are found from its imports."""
_IMPORT: Final = re.compile(r'^import \{ ([\w$, ]+) \} from "\./([\w-]+\.js)";$')
_EXPORT: Final = re.compile(r"^export (?=(?:async function|function|const|class)\b)")
_DECLARED: Final = re.compile(r"^(?:async function\*?|function\*?|const|let|var|class) ([\w$]+)")
_HOLE: Final = re.compile(r"\{\{(\w+)\}\}")
_WHERE: Final = {
    False: "Everything is in this file: it asks nobody.",
    True: "It asks nobody but <code>kvplan explore --serve</code> on this machine, for further models.",
}
_ESCAPED: Final = {ord(letter): f"\\u{ord(letter):04x}" for letter in "<>&"}
"""What could end the element of the payload, as JSON writes it."""


class Html(Record):
    """A page: its text, and the policy that it states, for a server to send as a header too."""

    text: str
    policy: str


def page_files() -> dict[str, str]:
    """The sources of the page by name, those of others as ``vendor/NAME``."""
    found: dict[str, str] = {}
    folder = files("hwcalc.explore") / "page"
    for prefix, place in (("", folder), ("vendor/", folder / "vendor")):
        entries = place.iterdir() if place.is_dir() else ()
        found |= {f"{prefix}{entry.name}": entry.read_text(encoding="utf-8") for entry in entries if entry.is_file()}
    return dict(sorted(found.items()))


def html_of(payload: Mapping[str, Any], title: str) -> Html:
    """The page with this payload."""
    return assemble(page_files(), payload, title)


def assemble(sources: Mapping[str, str], payload: Mapping[str, Any], title: str) -> Html:
    """The page made of these sources."""
    own_style = "".join(text for name, text in sources.items() if "/" not in name and name.endswith(".css"))
    script = _ascii(_vendored(sources, ".js") + bundle(sources), lambda letter: json.dumps(letter)[1:-1])
    style = _ascii(_vendored(sources, ".css") + own_style, lambda letter: f"\\{ord(letter):06x}")
    for name, text, end in (("script", script, r"</script|<!--"), ("style", style, "</style")):
        if re.search(end, text, re.IGNORECASE):
            raise ValueError(f"the {name} of the page has what would end its element: {end}")
    policy = _policy(script, style, live=bool(payload["live"]))
    holes = {
        "title": escape(title),
        "where": _WHERE[bool(payload["live"])],
        "version": escape(str(payload["kvplan"])),
        "csp": escape(policy),
        "style": style,
        "payload": json_text(payload),
        "script": script,
    }
    text = _HOLE.sub(lambda hole: holes[hole[1]], sources["page.html"])
    return Html(text=text.encode("ascii", "xmlcharrefreplace").decode("ascii"), policy=policy)


def _ascii(code: str, escaped: Callable[[str], str]) -> str:
    """Code with escapes for letters beyond ASCII, so that its hash is the same whatever a terminal or a server makes of the file."""
    return re.sub(r"[^\x00-\x7f]", lambda letter: escaped(letter[0]), code)


def json_text(document: object) -> str:
    """JSON that may stand in an HTML file: in ASCII, and without any letter that ends an element."""
    return json.dumps(document, separators=(",", ":"), allow_nan=False).translate(_ESCAPED)


def bundle(sources: Mapping[str, str]) -> str:
    """The modules as one script. Raises :class:`ValueError` if two of them declare the same name, or import each other."""
    declared: dict[str, str] = {}
    out = ['(() => {\n"use strict";\n']
    for name in _in_order(sources, MAIN, []):
        lines = []
        for line in sources[name].split("\n"):
            if _IMPORT.match(line):
                continue
            kept = _EXPORT.sub("", line)
            if kept.startswith(("import ", "import{", "export ")):
                raise ValueError(f"{name}: write an import or export in one line with names: {line}")
            if (found := _DECLARED.match(kept)) and declared.setdefault(found[1], name) != name:
                raise ValueError(f"{name} and {declared[found[1]]} both declare {found[1]}")
            lines.append(kept)
        out.append(f"\n// {name}\n" + "\n".join(lines).strip("\n") + "\n")
    return "".join((*out, "})();\n"))


def _in_order(sources: Mapping[str, str], name: str, above: list[str]) -> Iterator[str]:
    """A module behind all that it imports, each once."""
    if name in above:
        raise ValueError(f"modules of the page import each other: {' -> '.join((*above, name))}")
    if name not in sources:
        raise ValueError(f"{above[-1] if above else 'the page'} imports {name}, which is not there")
    told: dict[str, None] = {}
    for line in sources[name].split("\n"):
        if found := _IMPORT.match(line):
            told.update(dict.fromkeys(_in_order(sources, found[2], [*above, name])))
    told[name] = None
    yield from told


def _vendored(sources: Mapping[str, str], suffix: str) -> str:
    """The code of others of one kind, with their licences."""
    code = [text for name, text in sources.items() if name.startswith("vendor/") and name.endswith(suffix)]
    licences = [text for name, text in sources.items() if name.startswith("vendor/") and "LICENSE" in name] if code else []
    return "".join(
        [f"/*!\n{text.strip().replace('*/', '* /')}\n*/\n" for text in licences] + [f"{text.strip()}\n" for text in code]
    )


def _policy(script: str, style: str, *, live: bool) -> str:
    """Nothing is loaded from anywhere, and no other script or style runs; a live page asks the server that it came from."""
    rules = [
        "default-src 'none'",
        f"script-src {_hash(script)}",
        f"style-src {_hash(style)}",
        "base-uri 'none'",
        "form-action 'none'",
    ]
    return "; ".join([*rules, *(["connect-src 'self'"] if live else [])])


def _hash(text: str) -> str:
    return f"'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'"
