"""Which files hold commands or manifests, by their names: asked of every line that names a file, so that nothing else is imported here."""

from __future__ import annotations

import re
from typing import Final

_SUFFIXES: Final = (
    ".yaml", ".yml", ".json", ".sh", ".bash", ".service", ".conf", ".ini", ".sbatch", ".slurm", ".job", ".txt", ".cmd", ".ps1",
    ".dockerfile", ".containerfile", ".modelfile",
)  # fmt: skip
_NAMES: Final = ("dockerfile", "containerfile", "modelfile", "compose", "docker-compose")
_JSON: Final = r"\"(?:recipe_id|apiVersion|services)\"\s*:"


def named_launch(path: str) -> bool:
    """True if files of this name hold commands or manifests, as a rule."""
    name = path.replace("\\", "/").rpartition("/")[2].lower()
    return name.endswith(_SUFFIXES) or name.startswith(_NAMES)


def is_json_manifest(text: str) -> bool:
    """True if a text of JSON has a key of a manifest: most of them are something else."""
    return bool(re.search(_JSON, text))
