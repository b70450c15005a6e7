"""Write ``hwcalc/parsers/class_defaults.json``: what each transformers config class assumes when a key is absent.

What encoders beside a language model assume goes to ``tower_defaults.json``: only a count of parameters reads that. Its
``parts`` says how a class builds each such nested config: its ``type`` (the file may name another where ``named``), what it
holds where the file has none (``absent``), or that there is none then (``optional``).

Run with the pinned transformers and torch of the ``test`` extra::

    python scripts/class_defaults.py            # rewrite the file
    python scripts/class_defaults.py --check    # exit 1 if it is out of date

For every model type that generates text, and every type nested in one as its language model, the file holds
``aliases`` (the class's ``attribute_map``), ``nested`` (the model type of each nested config that is not named in the
file) and ``defaults`` (the value of each field before the class derives anything from it: an absent key takes it, an
explicit null does not). ``built_by`` are classes of another type that the library builds this type with: EXAONE is a ``LlamaForCausalLM``. ``ties`` says which key ties the embeddings, as :func:`ties` measures it,
``filled`` what the class adds to a nested config that leaves it out, and ``absent`` what it puts in the place of a nested config that is not there.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import re
import sys
from itertools import product
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from scripts.live_classes import (  # noqa: E402 - after the path is known
    LANGUAGE_KEYS,
    built,
    config_class,
    few_layers,
    generating,
    language_level,
    language_path,
    parameters,
)

PARSERS = ROOT / "hwcalc" / "parsers"
TARGET = PARSERS / "class_defaults.json"
TOWERS = PARSERS / "tower_defaults.json"

# Encoders that documents may name although no class has them as its default.
MORE_TOWERS = ("clip_vision_model", "siglip_vision_model", "siglip2_vision_model", "pixtral", "internvl_vision")

# Fields that bear on neither cache nor weights: left out to keep the file small.
SKIPPED = re.compile(
    r"(_token_id|_token_ids|_token_index|_tokens?_ids?|dropout|_drop$|_pdrop|layerdrop|initializer|init_std|hidden_act|activation|_eps|epsilon|"
    r"^rope_|router_.*coef|loss|problem_type|id2label|label2id|use_cache|return_dict|^output_|architectures|chunk_size_feed|"
    r"is_decoder_prefix|mask_time|mask_feature|apply_spec|scale_embedding|summary_|gradient|_clip|temperature|"
    r"transformers_version|dtype|_name_or_path|base_model|keys_to_ignore|model_type|suppress_tokens)"
)

# Of those, what towers need: their widths.
KEPT_IN_TOWERS = re.compile(r"output_(dim|dims|channels|size|hidden)|output_proj_dims")


def jsonable(value: Any) -> bool:
    """True if a default can be written down as it is."""
    if value is None or isinstance(value, (bool, int, str)):
        return True
    if isinstance(value, float):
        return math.isfinite(value)
    if isinstance(value, (list, tuple)):
        return all(jsonable(v) for v in value)
    return isinstance(value, dict) and all(isinstance(k, str) and jsonable(v) for k, v in value.items())


def field_defaults(cls: type, tower: bool = False) -> dict[str, Any]:
    """Field defaults of a config class before ``__post_init__``."""
    from transformers import PreTrainedConfig

    inherited = {f.name for f in dataclasses.fields(PreTrainedConfig)} - {
        "is_encoder_decoder",
        "is_decoder",
        "add_cross_attention",
        "tie_word_embeddings",
    }
    out: dict[str, Any] = {}
    for field in dataclasses.fields(cls):
        kept = tower and KEPT_IN_TOWERS.search(field.name)
        if field.name.startswith("_") or field.name in inherited or (SKIPPED.search(field.name) and not kept):
            continue
        if field.default is not dataclasses.MISSING:
            value = field.default
        elif field.default_factory is not dataclasses.MISSING:
            value = field.default_factory()
        else:
            continue
        if jsonable(value):
            out[field.name] = list(value) if isinstance(value, tuple) else value
    return out


def nested_types(cls: type) -> dict[str, str]:
    """Model type of each nested config as the class builds it when the file does not name one."""
    try:
        config = cls()
    except Exception:
        config = None
    out: dict[str, str] = {}
    for key, sub in (getattr(cls, "sub_configs", None) or {}).items():
        built = getattr(config, key, None) if config is not None else None
        model_type = getattr(built, "model_type", None) or getattr(sub, "model_type", None)
        if model_type:
            out[key] = model_type
    return out


def filled(cls: Any) -> dict[str, Any]:
    """The keys that a class puts into a nested language model's config where the file has that config without them.

    Most classes put it there only where the file has no such config at all. Which do it is measured.
    """
    out: dict[str, Any] = {}
    for key, spec in (getattr(cls, "sub_configs_defaults", None) or {}).items():
        if key not in LANGUAGE_KEYS or not spec.init_kwargs:
            continue
        try:
            alone = getattr(cls(**{key: {"model_type": spec.model_type}}), key)
            bare = config_class(spec.model_type)()
        except Exception:  # noqa: S112  # a class may need more than that
            continue
        given = {name: value for name, value in spec.init_kwargs.items() if jsonable(value) and not SKIPPED.search(name)}
        new = {name: value for name, value in given.items() if getattr(bare, name, None) != value}
        if new and all(getattr(alone, name, None) == value for name, value in new.items()):
            out[key] = given
    return out


def absent(cls: Any) -> dict[str, Any]:
    """The values that a class gives a nested language model's config that the file lacks, beside the defaults of its type."""
    try:
        config = cls()
    except Exception:
        return {}
    out: dict[str, Any] = {}
    for key in LANGUAGE_KEYS:
        inner = getattr(config, key, None)
        try:
            bare = vars(type(inner)()) if inner is not None and getattr(inner, "model_type", None) else {}
        except Exception:  # noqa: S112  # a class may need more than that
            continue
        known = field_defaults(type(inner)) if bare else {}
        values = vars(inner) if bare else {}
        new = {name: value for name, value in values.items() if name in known and known[name] != value}
        # What the type derives from its own defaults is derived from the other values here.
        if any(bare.get(name) != value for name, value in new.items()) and all(jsonable(value) for value in new.values()):
            out[key] = new
    return out


def own_type(architecture: str, types: set[str]) -> str | None:
    """The type that a class belongs to, among those that use it: LlamaForCausalLM is llama's, though internlm3 has it too."""
    if len(types) == 1:
        return next(iter(types))
    named = [name for name in types if architecture.lower().startswith(re.sub(r"[-_.]", "", name))]
    return max(named, key=len, default=None)


# Types whose class cannot be built from its defaults alone, read in its code.
# Pi0 reads actions from its second stack, and has no head over words.
TIES_BY_HAND = {"hunyuan_vl": "either", "pi0": "always", "shieldgemma2": "either"}


def ties(model_type: str) -> str | None:
    """The key that ties input and output embeddings, measured on models that are built with every pair of values.

    ``whole`` is the document's key, ``text`` the language model's, ``either`` one of them; ``never`` is a class that has two tensors
    whatever they say. ``None`` where that cannot be measured, or where the keys do something else.
    """
    if model_type not in generating():
        return None
    cls = config_class(model_type)
    path, counts = language_path(cls), {}
    for whole, text in product((None, True, False), (None, True, False) if path else (None,)):
        document = few_layers(cls)
        for level, value in ((document, whole), (language_level(document, path) if path else document, text)):
            if value is not None:
                level["tie_word_embeddings"] = value
        try:
            counts[whole, text] = parameters(built(model_type, document))
        except Exception:
            return None
    sizes = sorted(set(counts.values()))
    if len(sizes) == 1:
        return "never" if claims_a_head(model_type) else None
    try:
        config = cls()
    except Exception:
        return None
    inner = config
    for key in path:
        inner = getattr(inner, key)
    defaults = (bool(getattr(config, "tie_word_embeddings", False)), bool(getattr(inner, "tie_word_embeddings", False)))
    for name in ("whole", "text", "either"):
        tied = []
        for pair in counts:
            by_whole, by_text = (own if own is not None else default for own, default in zip(pair, defaults, strict=True))
            tied.append({"whole": by_whole, "text": by_text, "either": by_whole or by_text}[name])
        if len(sizes) == 2 and tied == [count == sizes[0] for count in counts.values()]:
            return name
    return None


def claims_a_head(model_type: str) -> bool:
    """True if the class that never ties has a head beside its embedding, as far as it says where these are."""
    model = built(model_type, few_layers(config_class(model_type)))
    try:
        head, embedding = model.get_output_embeddings(), model.get_input_embeddings()
    except (AttributeError, NotImplementedError):
        return any(name.endswith("lm_head.weight") for name, _ in model.named_parameters())
    return head is not None and getattr(embedding, "weight", None) is not head.weight


def describe(cls: Any, tower: bool = False) -> dict[str, Any]:
    """One model type's entry."""
    entry: dict[str, Any] = {"defaults": field_defaults(cls, tower)}
    if cls.attribute_map:
        entry["aliases"] = dict(cls.attribute_map)
    nested = nested_types(cls)
    if nested:
        entry["nested"] = nested
    found = {} if tower else filled(cls)
    if found:
        entry["filled"] = found
    if not tower and (found := absent(cls)):
        entry["absent"] = found
    return entry


def parts(cls: Any) -> dict[str, Any]:
    """The way that a class builds each nested config but its language model: its type, and its source where it is absent."""
    out: dict[str, Any] = {}
    for key, spec in (getattr(cls, "sub_configs_defaults", None) or {}).items():
        if key in LANGUAGE_KEYS:
            continue
        entry: dict[str, Any] = {"type": spec.model_type or f"{cls.model_type}.{key}"}
        if spec.config_class.__name__ == "AutoConfig":
            entry["named"] = True
        if spec.optional:
            entry["optional"] = True
        absent = {name: value for name, value in spec.init_kwargs.items() if jsonable(value) and not SKIPPED.search(name)}
        if absent:
            entry["absent"] = absent
        out[key] = entry
    return out


def claimed() -> tuple[list[str], dict[str, set[str]]]:
    """The model types that have a model with a head for text, in the library's order, and the types that claim each architecture."""
    from transformers.models.auto import modeling_auto as auto

    wanted: list[str] = []
    claims: dict[str, set[str]] = {}
    for mapping in (
        auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
        auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES,
        auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES,
        auto.MODEL_FOR_MULTIMODAL_LM_MAPPING_NAMES,
        auto.MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING_NAMES,
    ):
        wanted.extend(mapping)
        for model_type, names in mapping.items():
            for name in [names] if isinstance(names, str) else names:
                claims.setdefault(name, set()).add(model_type)
    return wanted, claims


class Classes:
    """The library's config classes by model type. A nested class is often reachable only through its parent."""

    def __init__(self) -> None:
        from transformers.models.auto.configuration_auto import CONFIG_MAPPING

        self.mapping = CONFIG_MAPPING
        self.by_type = {cls.model_type: cls for cls in (CONFIG_MAPPING[t] for t in CONFIG_MAPPING)}

    def find(self, model_type: str) -> Any:
        """The class, or ``None``."""
        # The lazy mapping loads a class on [], never on get().
        return self.by_type.get(model_type) or (self.mapping[model_type] if model_type in self.mapping else None)  # noqa: SIM401

    def add_nested(self, cls: Any) -> dict[str, Any]:
        """Make a class's inner classes known, and give them by their keys."""
        nested = dict(getattr(cls, "sub_configs", None) or {})
        for sub in nested.values():
            if isinstance(getattr(sub, "model_type", None), str):
                self.by_type.setdefault(sub.model_type, sub)
        return nested


def language_types(classes: Classes, wanted: list[str]) -> dict[str, Any]:
    """The defaults of each wanted type and of the language models inside them."""
    queue, types = list(dict.fromkeys(wanted)), {}
    while queue:
        model_type = queue.pop(0)
        cls = None if model_type in types else classes.find(model_type)
        if cls is None:
            continue
        entry = describe(cls)
        nested = entry.get("nested", {})
        queue.extend(nested[key] for key in classes.add_nested(cls) if key in LANGUAGE_KEYS and key in nested)
        found = TIES_BY_HAND.get(model_type) or ties(model_type)
        if found is not None:
            entry["ties"] = found
        types[model_type] = entry
    return types


def tower_types(classes: Classes, types: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The defaults of every other inner type, and the parts of each type that has any."""
    towers: dict[str, Any] = {}
    parents = {name: found for name in types if (found := parts(classes.find(name)))}
    queue = [*MORE_TOWERS, *(name for entry in types.values() for name in entry.get("nested", {}).values())]
    while queue:
        model_type = queue.pop(0)
        cls = None if model_type in types or model_type in towers else classes.find(model_type)
        if cls is None:
            continue
        classes.add_nested(cls)
        towers[model_type] = describe(cls, tower=True)
        queue.extend(towers[model_type].get("nested", {}).values())
        if found := parts(cls):
            parents[model_type] = found
    # Some nested classes have no model type: they go by their place.
    for name in list(parents):
        for key, spec in classes.find(name).sub_configs_defaults.items():
            if key in parents[name] and not spec.model_type:
                towers[parents[name][key]["type"]] = describe(spec.config_class, tower=True)
    return towers, parents


def collect() -> tuple[dict[str, Any], dict[str, Any]]:
    """The whole table, and the towers' one."""
    import transformers

    wanted, claims = claimed()
    classes = Classes()
    types = language_types(classes, wanted)
    owners = {name: owner for name, own in sorted(claims.items()) if (owner := own_type(name, own))}
    for name, own in sorted(claims.items()):
        for model_type in own & types.keys():
            if owners.get(name, model_type) != model_type:
                types[model_type].setdefault("built_by", []).append(name)
    towers, parents = tower_types(classes, types)
    main = {
        "source": f"transformers {transformers.__version__} config classes, by scripts/class_defaults.py",
        "version": transformers.__version__,
        "architectures": owners,
        "model_types": dict(sorted(types.items())),
    }
    return main, {
        "source": main["source"],
        "version": main["version"],
        "parts": dict(sorted(parents.items())),
        "model_types": dict(sorted(towers.items())),
    }


def written(table: dict[str, Any]) -> str:
    """The table as its file has it: one line for each model type."""
    lines = ",\n".join(
        f" {json.dumps(name)}: {json.dumps(entry, separators=(',', ':'), sort_keys=True)}"
        for name, entry in table["model_types"].items()
    )
    head = "".join(
        f"{json.dumps(key)}: {json.dumps(value, separators=(',', ':') if isinstance(value, dict) else None)},\n"
        for key, value in table.items()
        if key != "model_types"
    )
    return f'{{{head}"model_types": {{\n{lines}\n}}}}\n'


def main() -> int:
    """Write or check the file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="compare with the file instead of writing it")
    arguments = parser.parse_args()
    same = True
    for target, table in zip((TARGET, TOWERS), collect(), strict=True):
        text = written(table)
        if not arguments.check:
            target.write_text(text, encoding="utf-8")
            print(f"{target.name}: {len(table['model_types'])} model types", file=sys.stderr)
        elif not target.exists() or target.read_text(encoding="utf-8") != text:
            same = False
            print(f"{target.name} differs: run scripts/class_defaults.py", file=sys.stderr)
    return 0 if same else 1


if __name__ == "__main__":
    raise SystemExit(main())
