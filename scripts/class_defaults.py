"""Write ``hwcalc/parsers/class_defaults.json``: what each transformers config class assumes when a key is absent.

Run with the pinned transformers and torch of the ``test`` extra::

    python scripts/class_defaults.py            # rewrite the file
    python scripts/class_defaults.py --check    # exit 1 if it is out of date

For every model type that generates text, and every type nested in one as its language model, the file holds
``aliases`` (the class's ``attribute_map``), ``nested`` (the model type of each nested config that is not named in the
file) and ``defaults`` (the value of each field before the class derives anything from it: an absent key takes it, an
explicit null does not).
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import re
import sys
from pathlib import Path
from typing import Any

TARGET = Path(__file__).parent.parent / "hwcalc" / "parsers" / "class_defaults.json"

# Fields that bear on neither cache nor weights: left out to keep the file small.
SKIPPED = re.compile(
    r"(_token_id|_token_ids|_token_index|_tokens?_ids?|dropout|_drop$|_pdrop|layerdrop|initializer|init_std|hidden_act|activation|_eps|epsilon|"
    r"^rope_|router_.*coef|loss|problem_type|id2label|label2id|use_cache|return_dict|output_|architectures|chunk_size_feed|"
    r"is_decoder_prefix|mask_time|mask_feature|apply_spec|scale_embedding|summary_|gradient|_clip|temperature|"
    r"transformers_version|dtype|_name_or_path|base_model|keys_to_ignore|model_type|suppress_tokens)"
)


def jsonable(value: Any) -> bool:
    """Whether a default can be written down as it is."""
    if value is None or isinstance(value, (bool, int, str)):
        return True
    if isinstance(value, float):
        return math.isfinite(value)
    if isinstance(value, (list, tuple)):
        return all(jsonable(v) for v in value)
    return isinstance(value, dict) and all(isinstance(k, str) and jsonable(v) for k, v in value.items())


def field_defaults(cls: type) -> dict[str, Any]:
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
        if field.name.startswith("_") or field.name in inherited or SKIPPED.search(field.name):
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


LANGUAGE_KEYS = ("text_config", "llm_config", "language_config", "thinker_config", "decoder_config", "decoder", "vlm_config")


def collect() -> dict[str, Any]:
    """The whole table."""
    import transformers
    from transformers.models.auto import modeling_auto as auto
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    wanted: list[str] = []
    architectures: dict[str, str] = {}
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
                architectures.setdefault(name, model_type)
    by_type = {cls.model_type: cls for cls in (CONFIG_MAPPING[t] for t in CONFIG_MAPPING)}
    # Nested classes are often reachable only through their parent.
    queue, types = list(dict.fromkeys(wanted)), {}
    while queue:
        model_type = queue.pop(0)
        if model_type in types:
            continue
        # The lazy mapping loads a class on [], never on get().
        cls = by_type.get(model_type) or (CONFIG_MAPPING[model_type] if model_type in CONFIG_MAPPING else None)  # noqa: SIM401
        if cls is None:
            continue
        nested = nested_types(cls)
        for key, sub in (getattr(cls, "sub_configs", None) or {}).items():
            if isinstance(getattr(sub, "model_type", None), str):
                by_type.setdefault(sub.model_type, sub)
            if key in LANGUAGE_KEYS and key in nested:
                queue.append(nested[key])
        entry: dict[str, Any] = {"defaults": field_defaults(cls)}
        if cls.attribute_map:
            entry["aliases"] = dict(cls.attribute_map)
        if nested:
            entry["nested"] = nested
        types[model_type] = entry
    return {
        "source": f"transformers {transformers.__version__} config classes, by scripts/class_defaults.py",
        "version": transformers.__version__,
        "architectures": dict(sorted(architectures.items())),
        "model_types": dict(sorted(types.items())),
    }


def main() -> int:
    """Write or check the file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="compare with the file instead of writing it")
    arguments = parser.parse_args()
    table = collect()
    lines = ",\n".join(
        f" {json.dumps(name)}: {json.dumps(entry, separators=(',', ':'), sort_keys=True)}"
        for name, entry in table["model_types"].items()
    )
    text = (
        f'{{"source": {json.dumps(table["source"])},\n"version": {json.dumps(table["version"])},\n'
        f'"architectures": {json.dumps(table["architectures"], separators=(",", ":"))},\n'
        f'"model_types": {{\n{lines}\n}}}}\n'
    )
    if arguments.check:
        same = TARGET.read_text(encoding="utf-8") == text
        print("up to date" if same else f"{TARGET.name} differs: run scripts/class_defaults.py", file=sys.stderr)
        return 0 if same else 1
    TARGET.write_text(text, encoding="utf-8")
    print(f"{TARGET.name}: {len(table['model_types'])} model types", file=sys.stderr)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
