"""GGUF files on the Hub: only headers are asked for, once; files and headers that are here need no network."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from hwcalc import plan
from hwcalc.errors import ConfigError, HubAccessError, ModelNotFoundError, UnsupportedError
from hwcalc.model import RawModel
from hwcalc.report.emit import commands_to_start
from hwcalc.sources import resolve
from hwcalc.sources.gguf import hub as gguf_hub
from tests.hub.repositories import COMMIT, TEXT, File
from tests.hub.server import Hub
from tests.hwcalc.sources.gguf.given import KEYS, SHAPES, gguf_bytes
from tests.hwcalc.sources.given import cached, refused

REPOSITORY = "bartowski/Tiny-GGUF"
BYTES = gguf_bytes()
SPLIT = dict([*SHAPES.items()][:10]), dict([*SHAPES.items()][10:])


def parts(stem: str = "Tiny-BF16") -> dict[str, bytes]:
    """A model in two files, as gguf-split makes them: the second has no metadata of its own."""
    split = {"split.count": 2, "split.tensors.count": len(SHAPES)}
    return {
        f"{stem}-00001-of-00002.gguf": gguf_bytes({**KEYS, **split, "split.no": 0}, SPLIT[0]),
        f"{stem}-00002-of-00002.gguf": gguf_bytes({**split, "split.no": 1}, SPLIT[1]),
    }


FILES: dict[str, bytes | File] = {
    "README.md": b"",
    "mmproj-Tiny-f16.gguf": gguf_bytes({"general.architecture": "clip"}, {}),
    "Tiny-IQ4_XS.gguf": gguf_bytes({**KEYS, "general.name": "small"}),
    "Tiny-Q4_K_M.gguf": BYTES,
    "Tiny-Q8_0.gguf": gguf_bytes({**KEYS, "general.name": "large"}),
    **parts(),
}


def tensors_of(raw: RawModel) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Name, type and shape."""
    return {one.name: (one.type, one.shape) for one in raw.tensors}


@pytest.mark.parametrize(
    ("given", "file", "id"),
    [
        (f"{REPOSITORY}:Q4_K_M", "Tiny-Q4_K_M.gguf", f"{REPOSITORY}:Q4_K_M"),
        (f"{REPOSITORY}:q4_k_m", "Tiny-Q4_K_M.gguf", f"{REPOSITORY}:q4_k_m"),
        (f"{REPOSITORY}:Tiny-Q4_K_M.gguf", "Tiny-Q4_K_M.gguf", f"{REPOSITORY}:Tiny-Q4_K_M.gguf"),
        (f"{REPOSITORY}/Tiny-Q4_K_M.gguf", "Tiny-Q4_K_M.gguf", f"{REPOSITORY}:Tiny-Q4_K_M.gguf"),
        (f"hf.co/{REPOSITORY}:Q4_K_M", "Tiny-Q4_K_M.gguf", f"{REPOSITORY}:Q4_K_M"),
        (f"https://huggingface.co/{REPOSITORY}/resolve/main/Tiny-Q4_K_M.gguf?download=true", "Tiny-Q4_K_M.gguf",
         f"{REPOSITORY}:Tiny-Q4_K_M.gguf"),
        (f"https://huggingface.co/{REPOSITORY}/blob/main/Tiny-Q4_K_M.gguf", "Tiny-Q4_K_M.gguf", f"{REPOSITORY}:Tiny-Q4_K_M.gguf"),
        (REPOSITORY, "Tiny-Q4_K_M.gguf", f"{REPOSITORY}:Q4_K_M"),
        (f"{REPOSITORY}:latest", "Tiny-Q4_K_M.gguf", f"{REPOSITORY}:Q4_K_M"),
        (f"{REPOSITORY}:IQ4_XS", "Tiny-IQ4_XS.gguf", f"{REPOSITORY}:IQ4_XS"),
        (f"{REPOSITORY}:BF16", "Tiny-BF16-00001-of-00002.gguf", f"{REPOSITORY}:BF16"),
        (f"{REPOSITORY}:Tiny-BF16-00002-of-00002.gguf", "Tiny-BF16-00001-of-00002.gguf",
         f"{REPOSITORY}:Tiny-BF16-00002-of-00002.gguf"),
    ],
)  # fmt: skip
def test_a_file_on_the_hub(hub: Path, loopback: Hub, given: str, file: str, id: str) -> None:  # noqa: A002
    """By quantisation, by name, by address, or by llama.cpp's choice; the second time nothing is asked."""
    loopback.add(REPOSITORY, FILES)
    raw = resolve(given, weights=True)

    assert (raw.source, raw.id, raw.revision) == ("gguf", id, COMMIT)
    assert raw.config["general.architecture"] == "llama"
    assert not any(key.startswith("split.") for key in raw.config)
    assert tensors_of(raw) == dict(SHAPES)
    assert raw.weights is not None
    assert raw.weights.total_bytes == sum(one.bytes for one in raw.tensors)
    assert raw.weights.files == (2 if "BF16" in file else 1)
    assert [note.code for note in raw.notes] == ["gguf-file"]
    assert file in raw.notes[0].message

    asked = len(loopback.asked)
    again = resolve(given, weights=True, offline=True)
    assert (again.config, again.tensors, again.weights, again.id) == (raw.config, raw.tensors, raw.weights, raw.id)
    assert resolve(raw.location, offline=True).tensors == raw.tensors
    assert len(loopback.asked) == asked


def test_only_the_header_is_asked_for(hub: Path, loopback: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    """In growing parts, each once; tensors of gigabytes are never read."""
    monkeypatch.setattr(gguf_hub, "FIRST", 4096)
    monkeypatch.setattr(gguf_hub, "FIRST_OF_MORE", 1024)
    large = {name: (kind, (shape[0] * 16, *(size * 16 for size in shape[1:]))) for name, (kind, shape) in SHAPES.items()}
    keys = {**KEYS, "tokenizer.ggml.tokens": [f"token{number}" for number in range(5000)], "tokenizer.ggml.scores": [0] * 200_000}
    start = gguf_bytes(keys, large, data=False)
    loopback.add(REPOSITORY, {"a-Q4_K_M.gguf": File(start, len(start) + 10**9)})
    raw = resolve(f"{REPOSITORY}:a-Q4_K_M.gguf")
    ranges = [tuple(map(int, asked.range.removeprefix("bytes=").split("-"))) for asked in loopback.asked if asked.range]

    assert tensors_of(raw) == large
    assert len(ranges) == len(loopback.asked) < 10
    assert all(one[1] < two[0] for one, two in pairwise(ranges))
    # The 800,000 bytes of scores are mostly not even asked for.
    assert sum(asked.sent for asked in loopback.asked) < len(start) - 400_000


def test_a_server_without_ranges(hub: Path, loopback: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    """It sends the file from its start; no more of it is taken than is needed."""
    monkeypatch.setattr(gguf_hub, "FIRST", 4096)
    loopback.add(REPOSITORY, FILES)
    loopback.fail(".gguf", ignore_range=True)

    assert tensors_of(resolve(f"{REPOSITORY}:Q4_K_M")) == dict(SHAPES)


def test_files_of_the_hugging_face_cache(hub: Path, loopback: Hub) -> None:
    """What was downloaded is read where it lies, in a folder of the repository too; the Hub is not asked."""
    snapshot = cached(hub, REPOSITORY, text=None).parent
    for name in ("Tiny-Q8_0.gguf", "BF16/Tiny-BF16-00001-of-00002.gguf", "BF16/Tiny-BF16-00002-of-00002.gguf"):
        (snapshot / name).parent.mkdir(parents=True, exist_ok=True)
        content = FILES[name.rpartition("/")[2]]
        assert isinstance(content, bytes)
        (snapshot / name).write_bytes(content)
    for given, id in (("Q8_0", "Q8_0"), ("bf16", "bf16"), ("Tiny-Q8_0.gguf", "Tiny-Q8_0.gguf")):  # noqa: A001
        raw = resolve(f"{REPOSITORY}:{given}", weights=True)
        assert (raw.source, raw.id, tensors_of(raw)) == ("gguf", f"{REPOSITORY}:{id}", dict(SHAPES))
        assert "Hugging Face cache" in raw.notes[0].message
    assert resolve(REPOSITORY).id == f"{REPOSITORY}:Q8_0"
    assert resolve(str(snapshot / "Tiny-Q8_0.gguf")).id == f"{REPOSITORY}:Tiny-Q8_0.gguf"

    assert loopback.asked == []


def test_a_config_comes_before_gguf_files(hub: Path, loopback: Hub) -> None:
    """A repository that has both is read by its config, unless a file is named."""
    loopback.add(REPOSITORY, {**FILES, "config.json": TEXT})

    assert resolve(REPOSITORY).source == "hub"
    assert resolve(f"{REPOSITORY}:Q8_0").source == "gguf"
    assert resolve(REPOSITORY).source == "hf-cache"


@pytest.mark.parametrize(
    ("given", "error", "words"),
    [
        (
            f"{REPOSITORY}:Q3_K_S",
            ModelNotFoundError,
            ["no GGUF file 'Q3_K_S'", "'Tiny-IQ4_XS.gguf'", "kvplan bartowski/Tiny-GGUF:"],
        ),
        (f"{REPOSITORY}:none.gguf", ModelNotFoundError, ["no GGUF file 'none.gguf'", "'Tiny-Q4_K_M.gguf'"]),
        (f"{REPOSITORY}:Tiny", ModelNotFoundError, ["may mean 4 files"]),
        (f"{REPOSITORY}:mmproj-Tiny-f16.gguf", UnsupportedError, ["mmproj", "no cache of its own", "file of the model itself"]),
        (f"{REPOSITORY}@v9:Q4_K_M", ModelNotFoundError, ["no revision v9"]),
        ("bartowski/None-GGUF:Q4_K_M", HubAccessError, ["there is no such model"]),
        ("bartowski/None-GGUF:a.gguf", HubAccessError, ["there is no such model"]),
    ],
)
def test_what_the_hub_does_not_have(hub: Path, loopback: Hub, given: str, error: type[Exception], words: list[str]) -> None:
    """What there is, and what to type."""
    loopback.add(REPOSITORY, FILES)
    raised = refused(given)

    assert type(raised) is error
    assert all(word in f"{raised.message} {raised.hint}" for word in words), (raised.message, raised.hint)


def test_damaged_files_on_the_hub(hub: Path, loopback: Hub) -> None:
    """A part of another model, a part that is not there, a file that ends within its header."""
    first, second = parts()
    loopback.add("org/a", {first: parts()[first], second: gguf_bytes({"split.no": 0, "split.count": 2}, SPLIT[1])})
    loopback.add("org/b", {first: parts()[first]})
    loopback.add("org/c", {"c.gguf": BYTES[:300]})

    assert "is part 1 of 2 by its own header, and part 2 of 2 by its name" in refused(f"org/a:{second}").message
    assert "lacks 'Tiny-BF16-00002-of-00002.gguf'" in refused("org/b:BF16").message
    error = refused("org/c:c.gguf")
    assert isinstance(error, ConfigError)
    assert "'c.gguf' of 'org/c' ends within its header" in error.message


def test_offline_and_never_read(hub: Path) -> None:
    """Exit 3, and what to do."""
    error = refused("org/unknown-model-GGUF:Q4_K_M", offline=True)

    assert (type(error), error.exit_code) == (ModelNotFoundError, 3)
    assert "'org/unknown-model-GGUF:Q4_K_M' is neither in" in error.message
    assert "header is kept" in error.hint


@pytest.mark.parametrize(
    ("given", "base", "form"),
    [
        ("bartowski/Meta-Llama-3.1-8B-Instruct-GGUF:Q4_K_M", "NousResearch/Meta-Llama-3.1-8B-Instruct", "q4_k_m"),
        ("bartowski/Qwen_Qwen3-8B-GGUF", "Qwen/Qwen3-8B", "q4_k_m"),
        ("lmstudio-community/Qwen3-8B-GGUF/Qwen3-8B-Q8_0.gguf", "Qwen/Qwen3-8B", "q8_0"),
    ],
)
def test_a_file_that_cannot_be_read_is_planned_as_its_model(hub: Path, given: str, base: str, form: str) -> None:
    """The catalog's config with the mix of that quantisation, and a note that says so."""
    raw = resolve(given, offline=True, weights=True)

    assert (raw.source, raw.weights, raw.weights_format) == ("catalog", None, form)
    assert raw.config == resolve(base, offline=True).config
    assert raw.notes[0].code == "gguf-not-read"
    assert all(word in raw.notes[0].message for word in (base, f"--weights {form}", "was not read"))


def test_a_base_of_the_catalog_is_planned_with_its_format(hub: Path) -> None:
    """The bytes are those of ``--weights``, which still may be given."""
    from hwcalc import plan

    given: dict[str, Any] = {"seq": 4096, "offline": True, "engine": "reference"}
    found = plan("bartowski/Qwen_Qwen3-8B-GGUF:Q4_K_M", **given).memory.weights.bytes
    smaller = plan("bartowski/Qwen_Qwen3-8B-GGUF:Q4_K_M", weights="q2_k", **given).memory.weights.bytes

    assert found == plan("Qwen/Qwen3-8B", weights="q4_k_m", **given).memory.weights.bytes
    assert found is not None
    assert smaller is not None
    assert smaller < found


def test_an_unknown_quantisation_is_no_guess(hub: Path) -> None:
    """The catalog's model is named, and not planned."""
    error = refused("bartowski/Qwen_Qwen3-8B-GGUF:UD-Q9_K_XXL", offline=True)

    assert isinstance(error, ModelNotFoundError)
    assert "Qwen/Qwen3-8B" in error.message


def test_kept_headers_that_are_damaged_are_read_again(hub: Path, loopback: Hub, tmp_path: Path) -> None:
    """A broken file of the cache is as none."""
    loopback.add(REPOSITORY, FILES)
    before = resolve(f"{REPOSITORY}:Q4_K_M")
    (kept,) = (tmp_path / "home" / ".cache" / "kvplan" / "headers").rglob("gguf/*.json")
    text = kept.read_text(encoding="utf-8")
    for broken in (
        "",
        "[",
        "{}",
        text.replace("q4_k", "q4_x"),
        text.replace("256", "-256"),
        text.replace('"files": 1', '"files": "1"'),
    ):
        kept.write_text(broken, encoding="utf-8")
        asked = len(loopback.asked)
        assert resolve(f"{REPOSITORY}:Q4_K_M").tensors == before.tensors
        assert len(loopback.asked) > asked


@pytest.mark.parametrize("given", ["ggml-org/gpt-oss-20b-GGUF:MXFP4", "ggml-org/gpt-oss-20b-GGUF"])
def test_the_repository_of_a_line_to_start_is_planned_again(given: str) -> None:
    """Its files are named MXFP4, and their experts alone are in it; without a word it is the checkpoint's own format."""
    options: dict[str, Any] = {"engine": "llamacpp", "gpu": "rtx-4070", "seq": 4096, "offline": True}
    made, own = plan(given, **options), plan("openai/gpt-oss-20b", **options)
    assert made.memory.per_gpu == own.memory.per_gpu
    assert commands_to_start(made)[0][1] == commands_to_start(own)[0][1]
