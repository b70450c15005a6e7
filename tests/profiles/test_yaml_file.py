"""Fact files from strangers: an error with path and line, and no crash of the parser in C."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from hwcalc.profiles.catalog import ProfileError
from hwcalc.profiles.schema import parse_yaml, read_yaml


@pytest.mark.parametrize(
    ("text", "line", "said"),
    [
        ("[" * 30_000, 1, "nested more than 12 levels"),
        ("a: 1\nb: " + "{a: " * 250_000, 2, "nested more than 12 levels"),
        ("- " * 500_000, 1, "nested more than 12 levels"),
        ("a: &x 1\nb: 2", 1, "an anchor"),
        ("a: 1\nb: *a", 2, "an alias"),
        ("a: !!python/object/apply:os.system [ls]", 1, "a tag"),
        ("a: 1\na: 2", 2, "the key 'a' stands twice"),
        ("a: 1\n---\nb: 2", 2, "a second document"),
        ('a: 1\nb: "x', 2, "not YAML"),
        ("- 1", 1, "must be a mapping"),
        ("", None, "is empty"),
    ],
)
def test_hostile(text: str, line: int | None, said: str) -> None:
    """Each is an error in words with its line."""
    with pytest.raises(ProfileError, match=re.escape(said)) as caught:
        parse_yaml(text, Path("own.yaml"))

    assert caught.value.line == line


def test_values_and_lines() -> None:
    """The values as they were written, and a line for each key and item."""
    file = parse_yaml("a: 1\nb: {c: 0.5, d: [x, '7']}\ne:\n  - null\n  - true\n", Path("own.yaml"))

    assert file.data == {"a": 1, "b": {"c": 0.5, "d": ["x", "7"]}, "e": [None, True]}
    assert [file.lines.get(key) for key in ("a", "b", "b.c", "b.d.1", "e.1", "f")] == [1, 2, 2, 2, 5, None]


def test_a_file_is_read_up_to_its_limit(tmp_path: Path) -> None:
    """Whatever its size is said to be."""
    large, odd = tmp_path / "large.yaml", tmp_path / "odd.yaml"
    large.write_bytes(b"a" * (1024**2 + 1))
    odd.write_bytes(b"\xff\xfea\x00")

    with pytest.raises(ProfileError, match="larger than 1 MiB"):
        read_yaml(large)
    with pytest.raises(ProfileError, match="not UTF-8"):
        read_yaml(odd)
