"""One file that makes no request, in which no string of a model is anything but text."""

from __future__ import annotations

import json
import re
from base64 import b64encode
from hashlib import sha256
from html import unescape
from typing import Any

import pytest

from hwcalc.explore.build import assemble, bundle, json_text, page_files

_HOSTILE = (
    "<img src=x onerror=alert(1)>",
    "</script><script>alert(1)</script>",
    "<!--<script>",
    "\u2028alert(1)\u2029",
    "'\"`${alert(1)}\\",
    "\u202egnp.exe",
    "{{script}}{{payload}}",
    "\ud800",
    "]]>&lt;",
)


def _payload(**more: Any) -> dict[str, Any]:
    return {"live": False, "kvplan": "1", **more}


def _element(text: str, start: str, end: str) -> str:
    """What stands in an element of the page, as a browser takes it: up to the first end."""
    return text.split(start, 1)[1].split(end, 1)[0]


@pytest.fixture(scope="module")
def sources() -> dict[str, str]:
    """The sources of the page."""
    return page_files()


@pytest.mark.parametrize("hostile", _HOSTILE)
def test_no_string_of_a_model_leaves_its_element(sources: dict[str, str], hostile: str) -> None:
    """The page with it has the same elements as the page without, and its JSON gives it back."""
    harmless = assemble(sources, _payload(models=[{"id": "x"}]), "x").text
    text = assemble(sources, _payload(models=[{"id": hostile}]), hostile).text

    assert re.findall(r"<\W?\w+", harmless) == re.findall(r"<\W?\w+", text)
    payload = _element(text, '<script type="application/json" id="payload">', "</script>")
    assert hostile == json.loads(payload)["models"][0]["id"]
    assert payload.isascii()
    assert not set("<>&") & set(payload)


def test_only_the_scripts_and_styles_of_the_page_may_run(sources: dict[str, str]) -> None:
    """The policy names the hashes of what stands in the elements, and nothing else."""
    made = assemble(sources, _payload(), "x")
    policy = unescape(_element(made.text, 'Content-Security-Policy" content="', '"'))
    hashes = [
        f"'sha256-{b64encode(sha256(_element(made.text, f'<{name}>', f'</{name}>').encode()).digest()).decode()}'"
        for name in ("script", "style")
    ]

    assert made.policy == policy
    assert policy == (f"default-src 'none'; script-src {hashes[0]}; style-src {hashes[1]}; base-uri 'none'; form-action 'none'")
    assert "connect-src 'self'" in assemble(sources, _payload(live=True), "x").policy


def test_the_page_asks_for_nothing(sources: dict[str, str]) -> None:
    """No element of it names an address, and it has no code or style in attributes."""
    document = sources["page.html"]

    assert not re.search(r"\b(src|on\w+|style)=|href=\"(?!#)", document)
    for name, text in sources.items():
        if name.endswith(".js") and "/" not in name:
            assert not re.search(
                r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function|https?://(?!www\.w3\.org/)", text
            ), name


def test_the_script_has_every_module_once_and_none_of_their_imports(sources: dict[str, str]) -> None:
    """Those of others come first, with their licence."""
    script = _element(assemble(sources, _payload(), "x").text, "<script>", "</script>")

    assert script.startswith("/*!\n")
    assert "Permission is hereby granted" in script.split("*/", 1)[0]
    assert script.count("\n// main.js\n") == 1
    assert not re.search(r"(?m)^(import|export)\b", script)


def test_a_module_comes_after_those_that_it_imports() -> None:
    """And no line of it is lost."""
    main = 'import { a, b } from "./first.js";\nexport const c = a + b;\n'

    assert bundle({"main.js": main, "first.js": "export const a = 1;\nexport function b() {}\n", "unused.js": "?"}) == (
        '(() => {\n"use strict";\n\n// first.js\nconst a = 1;\nfunction b() {}\n\n// main.js\nconst c = a + b;\n})();\n'
    )


@pytest.mark.parametrize(
    ("sources", "why"),
    [
        (
            {"main.js": 'import { a } from "./b.js";\nconst a = 1;', "b.js": "export const a = 1;"},
            "main.js and b.js both declare a",
        ),
        ({"main.js": 'import { a } from "./b.js";', "b.js": 'import { c } from "./main.js";'}, "main.js -> b.js -> main.js"),
        ({"main.js": 'import { a } from "./b.js";'}, "main.js imports b.js, which is not there"),
        ({"main.js": 'import a from "./b.js";', "b.js": ""}, "import a from"),
        ({"main.js": "export default 1;"}, "export default"),
    ],
    ids=["twice", "circle", "missing", "import", "export"],
)
def test_what_no_one_script_can_be_is_refused(sources: dict[str, str], why: str) -> None:
    """It is a fault of the sources, and is found when a page is made."""
    with pytest.raises(ValueError, match=re.escape(why)):
        bundle(sources)


def test_json_of_a_page_is_json() -> None:
    """Escapes are those of JSON, for whatever text."""
    document = {"text": "".join(map(chr, range(0x3000))) + "\U0001f600", "none": None, "numbers": [1, 2.5, 2**53 - 1]}

    assert document == json.loads(json_text(document))
