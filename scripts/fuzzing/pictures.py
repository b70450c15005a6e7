"""Pages and pictures of damaged configs, in files and folders whose names a browser, a shell or a terminal may take for more than names."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from typing import Any, Final

from scripts.fuzzing.case import Case
from scripts.fuzzing.mutate import HOSTILE, damaged, places
from scripts.fuzzing.words import picture_words

_FOLDERS: Final = (
    "folder", "$(touch owned)", "a'b\"c", "<img src=x onerror=alert(1)>", "</script><!--", "\x1b[2J", "a\nb", "-x", "~", "$x^2$",
    "__proto__", "constructor", "\u202egnp", "a\u2028b", "a b", "{{script}}", "x" * 200,
)  # fmt: skip


def picture(chance: random.Random, configs: Sequence[Mapping[str, Any]]) -> Case:
    """A page or a picture of one model or two, damaged less than the configs of plans: most must be drawn."""
    files = {}
    for folder in chance.sample(_FOLDERS, chance.choice((1, 1, 1, 2))):
        document = damaged(chance.choice(configs), chance, configs, chance.choice((0, 0, 1, 2)))
        if chance.random() < 0.3:
            document["_name_or_path"] = chance.choice(HOSTILE)
        if chance.random() < 0.3:
            _put_text(document, chance)
        files[f"{folder}/config.json"] = json.dumps(document).encode()
    if chance.random() < 0.2:
        return Case(family="picture", words=picture_words(chance, ("-",)), files={}, stdin=next(iter(files.values())))
    return Case(family="picture", words=picture_words(chance, tuple(f"./{name}" for name in files)), files=files)


def _put_text(document: dict[str, Any], chance: random.Random) -> None:
    """Hostile text in the place of some other."""
    spots = [(container, key) for container, key in places(document) if isinstance(container[key], str)]
    if spots:
        container, key = chance.choice(spots)
        container[key] = chance.choice(HOSTILE)
