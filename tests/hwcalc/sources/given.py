"""A config, a cache that holds it, and the check that every refusal passes."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, Final

import pytest

from hwcalc.errors import KvplanError
from hwcalc.model import RawModel
from hwcalc.sources import resolve

CONFIG: Final[dict[str, Any]] = {"model_type": "llama", "num_hidden_layers": 2}
TEXT: Final = json.dumps(CONFIG)
COMMIT: Final = "0123456789abcdef0123456789abcdef01234567"
OTHER: Final = "01ff" + "0" * 36


def cached(
    hub: Path, model_id: str = "org/name", commit: str = COMMIT, branch: str | None = "main", text: str | None = TEXT
) -> Path:
    """Put a model into the cache as huggingface_hub does: a blob, a link to it, a branch that names the commit."""
    folder = hub / f"models--{model_id.replace('/', '--')}"
    config = folder / "snapshots" / commit / "config.json"
    config.parent.mkdir(parents=True)
    if text is not None:
        blob = folder / "blobs" / commit
        blob.parent.mkdir(exist_ok=True)
        blob.write_text(text, encoding="utf-8")
        config.symlink_to(Path("..") / ".." / "blobs" / commit)
    if branch is not None:
        reference = folder / "refs" / branch
        reference.parent.mkdir(parents=True, exist_ok=True)
        reference.write_text(commit, encoding="utf-8")
    return config


def planned(model: str = "org/name", **options: Any) -> RawModel:
    """The model with the headers of its weights."""
    return resolve(model, weights=True, **options)


def refused(model: str | os.PathLike[str], **options: Any) -> KvplanError:
    """The error with which a model is refused; its words fit any terminal."""
    with pytest.raises(KvplanError) as raised:
        resolve(model, **options)
    for text in (raised.value.message, raised.value.hint):
        assert text.isprintable()
        assert len(text) < 1200
        text.encode("utf-8")
    assert raised.value.hint
    return raised.value
