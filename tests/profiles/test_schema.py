"""The forms of fact files: what the error for another form says, and that the forms are what the programs read."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, ClassVar, Final

import pytest
from msgspec import Meta
from msgspec.json import schema_components

from hwcalc.profiles.catalog import ProfileError
from hwcalc.profiles.form import Estimate, FactFile, Facts, GpuId, Whole, Words
from hwcalc.profiles.hardware_file import GpuFile, InstanceFile
from hwcalc.profiles.schema import HardwareFile, check, parse_yaml
from scripts.build_profiles import FORMS


class Part(Facts):
    """A mapping within a file."""

    size: Whole
    name: Words | None = None


class Sample(FactFile):
    """A file with a value of every kind."""

    place: ClassVar[str] = "folder/sample.yaml"
    parts: tuple[Part, ...] | None = None
    estimates: Mapping[Words, Estimate] | None = None
    counts: Annotated[tuple[Whole, ...], Meta(max_length=2, description="up to two numbers")] | None = None
    part: Part | None = None


GOOD: Final = "schema_version: 1\n"


@pytest.mark.parametrize(
    ("text", "line", "key", "said"),
    [
        ("", None, "schema_version", "is missing: it must be 1"),
        ("schema_version: 1.0", 1, "schema_version", "must be 1"),
        ("schema_version: true", 1, "schema_version", "must be 1"),
        (GOOD + "count: [1]", 2, "count", "is not known. Allowed: schema_version, parts, estimates, counts, part"),
        # The key that is misspelled, not the one that is missing for it; one of the file before one within.
        (GOOD + "part: {sise: 1}", 2, "part.sise", "is not known. Allowed: size, name"),
        (GOOD + "part: {sise: 1}\ncount: 1", 3, "count", "is not known. Allowed: schema_version, parts, estimates, counts, part"),
        (GOOD + "part:\n  name: x", 2, "part.size", "is missing: it must be a positive whole number"),
        (GOOD + "part: 3", 2, "part", "must be a mapping with size, name"),
        (GOOD + "part:\n  size: 1\n  name: ' '", 4, "part.name", "must be words"),
        (GOOD + "parts:\n- size: 1\n- {size: 0}", 4, "parts.1.size", "must be a positive whole number"),
        (GOOD + "parts:\n- size: 1\n- 7", 4, "parts.1", "must be a mapping with size, name"),
        (GOOD + "counts: [1, x]", 2, "counts.1", "must be a positive whole number"),
        (GOOD + "counts: [1, 2, 3]", 2, "counts", "must be up to two numbers"),
        (GOOD + "counts: 1", 2, "counts", "must be up to two numbers"),
        (GOOD + "part: {size: 99999999999999999999}", 2, "part.size", "must be a positive whole number"),
        (
            GOOD + "estimates: {a: {low: 1, expected: .nan, high: 2, source: x}}",
            2,
            "estimates.a.expected",
            "a number of at least 0",
        ),
        (GOOD + "estimates: {a: {low: 1, expected: 1, high: 2}}", 2, "estimates.a.source", "is missing: it must be words"),
        (GOOD + "estimates: {a: {low: 1, expected: 3, high: 2, source: x}}", 2, "estimates.a", "0 <= low <= expected <= high"),
        (GOOD + "estimates: {' ': {low: 1, expected: 1, high: 2, source: x}}", 2, "estimates. ", "must be"),
    ],
)
def test_what_an_error_says(text: str, line: int | None, key: str, said: str) -> None:
    """The line and the key of the first thing that is wrong, and what is allowed there."""
    with pytest.raises(ProfileError) as caught:
        check(parse_yaml(text or "{}", Path("folder/sample.yaml")), Sample)

    assert (caught.value.line, caught.value.key) == (line, key)
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("path", "place"),
    [("folder/other.yaml", "folder/other.yaml"), ("sample.yaml", "sample.yaml"), ("x/sample.yaml", "x/sample.yaml")],
)
def test_a_file_belongs_where_its_id_says(path: str, place: str) -> None:
    """The error names both places."""
    check(parse_yaml(GOOD, Path("any/folder/sample.yaml")), Sample)
    with pytest.raises(ProfileError, match=rf"belongs in folder/sample\.yaml, but the file is {place}$"):
        check(parse_yaml(GOOD, Path(path)), Sample)


def test_an_alias_names_an_id() -> None:
    """Both in the form of an id."""
    check(parse_yaml("h100: h100-sxm5-80gb", Path("gpu_aliases.yaml")), Mapping[GpuId, GpuId])
    for text in ("h100: H100", "H100: h100-sxm5-80gb", "h100: 3"):
        with pytest.raises(ProfileError, match="must be small letters, digits and hyphens"):
            check(parse_yaml(text, Path("gpu_aliases.yaml")), Mapping[GpuId, GpuId])


@pytest.mark.parametrize("form", [GpuFile, InstanceFile, HardwareFile, *FORMS.values()])
def test_every_form_wants_a_source(form: type[Facts]) -> None:
    """No file of numbers, and no estimate in one, may be without."""
    _, mappings = schema_components([form])
    for name, mapping in mappings.items():
        assert mapping["additionalProperties"] is False, name
        kinds = {
            key: {kind.get("type") for kind in (value, *value.get("anyOf", ()))} for key, value in mapping["properties"].items()
        }
        numbers = [key for key, of in kinds.items() if of & {"integer", "number"} and "null" not in of]
        if set(numbers) - {"schema_version"} and name not in {"Reading", "Step"}:
            assert "source" in mapping["required"], name


@pytest.mark.parametrize(
    "text", ["source:\n" + "".join(f"  k{i}: 3\n" for i in range(30_000)), "".join(f"k{i}: 3\n" for i in range(30_000))]
)
def test_a_file_with_many_errors(text: str) -> None:
    """One of them is said."""
    with pytest.raises(ProfileError) as caught:
        check(parse_yaml(text, Path("x.yaml")), GpuFile)
    assert len(str(caught.value)) < 1000


def test_a_key_has_words_of_its_own() -> None:
    """They say more than those of its type: the id of an instance is words too."""
    with pytest.raises(ProfileError, match=r"id: is missing: it must be its name, as its cloud spells it$"):
        check(parse_yaml("schema_version: 1", Path("aws/x.yaml")), InstanceFile)
