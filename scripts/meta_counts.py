"""Compare kvplan's parameter counts of catalog models with those of the classes of transformers, built on the meta device.

::

    python scripts/meta_counts.py                       # every model of the catalog that transformers knows
    python scripts/meta_counts.py google/gemma-3-4b-it  # these models

Needs torch and transformers. Exit 1 if a count differs. Models of more than 300 billion parameters are left out unless they are named,
because their thousands of experts take long to build. A count of a model with towers is one of the class that has them.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from typing import Any

from hwcalc import load_model
from hwcalc.profiles.catalog import list_models

LARGE = 300 * 10**9


def built(config: dict[str, Any]) -> int:
    """The parameters of the class that transformers has for this config, shared ones counted once."""
    import torch
    from transformers import AutoConfig, AutoModel, AutoModelForCausalLM, AutoModelForImageTextToText

    plain = {key: value for key, value in config.items() if key not in {"model_type", "quantization_config"}}
    loaded = AutoConfig.for_model(config["model_type"], **plain)
    kind: Any = AutoModelForImageTextToText if "vision_config" in config else AutoModelForCausalLM
    if all(str(name).endswith("Model") for name in config.get("architectures") or ["CausalLM"]):
        kind = AutoModel
    with torch.device("meta"):
        model = kind.from_config(loaded)
    model.tie_weights()
    return sum(parameter.numel() for parameter in {id(parameter): parameter for parameter in model.parameters()}.values())


def main(words: list[str] | None = None) -> int:
    """Compare, and print a line a model."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("model", nargs="*", help="ids of the catalog (default: all)")
    ids = parser.parse_args(words).model
    warnings.simplefilter("ignore")
    different = equal = 0
    for model_id in ids or list_models():
        counted = load_model(model_id, offline=True)
        if counted.counted is None or (counted.counted.total > LARGE and not ids):
            continue
        try:
            count = built(dict(counted.config))
        except Exception as error:
            print(f"{model_id}: not built ({type(error).__name__}: {str(error)[:80]!r})")
            continue
        if count == counted.counted.total:
            equal += 1
            continue
        different += 1
        print(f"{model_id}: transformers {count:,}, kvplan {counted.counted.total:,}")
    print(f"{equal} counts are equal, {different} differ", file=sys.stderr)
    return int(different > 0)


if __name__ == "__main__":
    raise SystemExit(main())
