"""The examples of the README and of ``docs`` print what the pages show, and what the pages link to is there."""

from __future__ import annotations

import doctest
import io
import os
import re
import shlex
from pathlib import Path
from typing import Final

import pytest

from scripts import drawings, picture, reference, screenshots
from scripts.examples import Example, agree, environment, examples, main, pages, printed, together
from tests.hwcalc.command import Capture, run
from tests.paths import ROOT

PAGES: Final = pages()
EXAMPLES: Final = [example for page in PAGES for example in examples(page)]
LINK: Final = re.compile(r"(?<!`)\]\(([^)\s]+)\)")
HEADING: Final = re.compile(r"^#+ (.*)$", re.MULTILINE)


def printed_here(capsys: Capture, monkeypatch: pytest.MonkeyPatch, command: str) -> str:
    """What a command prints, from the repository's root, under the variables of examples."""
    settled = environment()
    for name in os.environ.keys() - settled.keys():
        monkeypatch.delenv(name)
    for name, value in settled.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO()))
    return together(command, *run(capsys, *shlex.split(command)[1:]))


@pytest.mark.parametrize("example", EXAMPLES, ids=[f"{example.page}:{example.command}" for example in EXAMPLES])
def test_example(capsys: Capture, monkeypatch: pytest.MonkeyPatch, example: Example) -> None:
    """A command prints what the page shows below it. To renew a page: python scripts/examples.py --write.

    Those of the README run in processes of their own, all others in this one.
    """
    now = printed(example.command) if example.page == "README.md" else printed_here(capsys, monkeypatch, example.command)

    assert agree(example.shown, now), (example.shown, now)


@pytest.mark.parametrize(
    "page", [page for page in PAGES if ">>> " in page.read_text(encoding="utf-8")], ids=lambda page: page.name
)
def test_python_examples(page: Path) -> None:
    """What follows ``>>>`` gives what stands below it."""
    results = doctest.testfile(str(page), module_relative=False, optionflags=doctest.ELLIPSIS)

    assert results.attempted > 0
    assert results.failed == 0


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links(page: Path) -> None:
    """A link inside the repository leads to a file, and to a heading that it has."""
    for target in LINK.findall(page.read_text(encoding="utf-8")):
        if target.startswith("https://"):
            continue
        place, _, anchor = target.partition("#")
        path = (page.parent / place).resolve() if place else page
        assert path.exists(), target
        if anchor and path.suffix == ".png":
            # The theme of the site shows it on a ground of this kind alone.
            assert anchor in {f"gh-{scheme}-mode-only" for scheme in screenshots.PICTURES}, target
        elif anchor:
            titles = HEADING.findall(path.read_text(encoding="utf-8"))
            assert anchor in {re.sub(r"[^\w\- ]", "", title).lower().replace(" ", "-") for title in titles}, target


@pytest.mark.parametrize("scheme", screenshots.PICTURES)
def test_the_picture_of_the_page(scheme: str) -> None:
    """The documentation shows the page that ``kvplan explore`` writes, in a picture that loads fast: on a light ground and on a dark one."""
    picture_of = screenshots.PICTURES[scheme]
    data = picture_of.read_bytes()

    assert f"]({picture_of.name}#gh-{scheme}-mode-only)" in (ROOT / "docs" / "explore.md").read_text(encoding="utf-8")
    assert data.startswith(b"\x89PNG")
    assert len(data) < 200_000


def test_the_picture_shows_what_the_command_prints() -> None:
    """To draw it anew: python scripts/picture.py. It asks no other host for a font."""
    svg = picture.PICTURE.read_text(encoding="utf-8")

    assert picture.words(svg) == picture.words(picture.drawn())
    assert not re.search(r"url\((?!#)|href|@import", svg)


def test_every_page_is_in_the_navigation() -> None:
    """A page that nobody finds is not read. Each stands in the navigation of the site once."""
    site = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:\n")[2]

    assert sorted(re.findall(r"(\S+\.md)$", site, re.MULTILINE)) == [page.name for page in PAGES[1:]]


def test_the_readme_is_short() -> None:
    """It is read to its end."""
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 100


def test_the_reference_is_that_of_the_tables() -> None:
    """To write it anew: python scripts/reference.py."""
    assert reference.PAGE.read_text(encoding="utf-8") == reference.page()


@pytest.mark.parametrize("name", drawings.DRAWINGS)
def test_drawings_are_what_is_drawn_now(name: str) -> None:
    """Their numbers are those of plans, and a page shows each. To draw them anew: python scripts/drawings.py."""
    assert (drawings.FOLDER / f"{name}.svg").read_text(encoding="utf-8") == drawings.DRAWINGS[name]().svg()
    assert any(f"](drawings/{name}.svg)" in page.read_text(encoding="utf-8") for page in PAGES)


def test_a_page_is_renewed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What differs is shown with its place, and written if that is asked for; text around it is kept."""
    page = tmp_path / "page.md"
    page.write_text(
        "# A\n\n```console\n$ kvplan --version\nkvplan 0\n\n$ kvplan dtypes q8_0 --json\n```\n\nEnd.\n", encoding="utf-8"
    )

    assert main([str(page)]) == 1
    assert "page.md:4: kvplan --version" in capsys.readouterr().out
    assert main([str(page), "--write"]) == 0
    assert main([str(page)]) == 0

    text = page.read_text(encoding="utf-8")
    assert text.startswith("# A\n\n```console\n$ kvplan --version\nkvplan 0.")
    assert text.endswith("}\n```\n\nEnd.\n")
