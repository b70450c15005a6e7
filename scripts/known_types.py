"""Write ``hwcalc/parsers/types.json``: what each known model type keeps, and which keys its parser asks for.

``kvplan models --types``, ``--assume FAMILY`` and the error for an unknown architecture read the file. Nothing in it is written by
hand: every type of ``index.json`` is read with its class's defaults, with the catalog's models of that type, and with the files of
models whose code lives with the model, and the parser's own questions are written down::

    python scripts/known_types.py            # rewrite the file
    python scripts/known_types.py --check    # exit 1 if it is out of date
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from hwcalc.errors import KvplanError  # noqa: E402
from hwcalc.formulas import Layer  # noqa: E402
from hwcalc.parsers.config import Config  # noqa: E402
from hwcalc.parsers.known_types import family_of  # noqa: E402
from hwcalc.parsers.registry import find_language_model, known_families  # noqa: E402
from hwcalc.profiles.catalog import built_in  # noqa: E402
from tests.hwcalc.parsers import remote_configs  # noqa: E402

TARGET: Final = ROOT / "hwcalc" / "parsers" / "types.json"

# What a file of any type may have. It makes a model of a type that has no class with defaults, and of which no file is at hand.
PLAIN: Final[Mapping[str, Any]] = {
    "num_hidden_layers": 4,
    "hidden_size": 256,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "intermediate_size": 512,
    "vocab_size": 1000,
    "head_dim": 32,
    "sliding_window_pattern": 2,
}

# Keys that say nothing about which layers a model has, though a parser asks for them.
NOISE: Final = re.compile(r"_act$|_function$|activation|norm|bias|^tie_|^vocab_size$|^max_position_embeddings$|^use_cache$")


def documents() -> Iterator[tuple[Mapping[str, Any], bool]]:
    """Every description at hand, and whether it is of a published model."""
    for path in sorted(Path(built_in("models")).glob("*/*.json")):
        yield json.loads(path.read_text(encoding="utf-8"))["config"], True
    for value in vars(remote_configs).values():
        if isinstance(value, dict) and "model_type" in value:
            yield value, False
    for model_type in known_families():
        yield {"model_type": model_type}, False
        yield {"model_type": model_type, **PLAIN}, False
        yield {"model_type": model_type, **PLAIN, "window_size": 64}, False


def entries() -> dict[str, dict[str, Any]]:
    """The whole file."""
    families: dict[str, dict[str, None]] = {}
    published: dict[str, int] = {}
    keys: dict[str, set[str]] = {}
    for document, in_catalog in documents():
        found = find_language_model(Config(document))
        if found is None:
            continue
        family, config = found
        name = config.model_type or ""
        if not in_catalog and document.get("num_hidden_layers") == PLAIN["num_hidden_layers"] and name in families:
            continue
        layers = layers_of(family, config)
        if layers:
            families.setdefault(name, {})[family_of(layers)] = None
            keys.setdefault(name, set()).update(config.asked_keys())
            published[name] = published.get(name, 0) + in_catalog
    # The bits of the number of models: one more model of a common type changes nothing.
    return {
        name: {
            "families": sorted(families[name]),
            "published": published[name].bit_length(),
            "keys": sorted(key for key in keys[name] if not NOISE.search(key)),
        }
        for name in sorted(families)
    }


def layers_of(family: Any, config: Config) -> tuple[Layer, ...]:
    """The layers, with the weights asked for as well; none where the type refuses the file."""
    try:
        reading = family.read(config)
    except (KvplanError, ValueError):
        return ()
    with suppress(KvplanError, ValueError):
        family.weigh(reading.config, config, reading)
    return tuple(reading.layers)


def written() -> str:
    """The file's text: a line for each type."""
    rows = ",\n".join(f"{json.dumps(name)}: {json.dumps(entry)}" for name, entry in entries().items())
    return f"{{\n{rows}\n}}\n"


def main() -> int:
    """Write or check the file."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="only say whether the file is up to date")
    text = written()
    if parser.parse_args().check:
        same = TARGET.is_file() and TARGET.read_text(encoding="utf-8") == text
        print(f"{TARGET.name} is {'up to date' if same else 'out of date: run python scripts/known_types.py'}")
        return 0 if same else 1
    TARGET.write_text(text, encoding="utf-8")
    print(f"{TARGET.name}: {text.count(chr(10)) - 2} types")
    return 0


if __name__ == "__main__":
    sys.exit(main())
