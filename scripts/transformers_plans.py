"""Write ``hwcalc/engines/transformers/plans.json``: which modules each transformers model cuts over tensor-parallel ranks.

Run by hand when the pinned transformers changes; it reads ``base_model_tp_plan`` and ``base_model_ep_plan`` of every config class and
``_tp_plan`` of every class with a head. ``out`` are modules cut by their outputs, ``in`` by their inputs; ``experts`` says whether the
matrices of experts are cut, ``dealt`` whether whole experts can be dealt out, ``heads`` whether keys stay on the rank that made them.
``whole_embeddings`` are types whose plan leaves out their embedding, which has another name than the one that is cut by rows unasked.

    python scripts/transformers_plans.py            # rewrite the file
    python scripts/transformers_plans.py --check    # exit 1 if it is out of date
"""

from __future__ import annotations

import argparse
import inspect
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import transformers
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES,
    MODEL_MAPPING_NAMES,
)

TARGET = Path(__file__).parent.parent / "hwcalc" / "engines" / "transformers" / "plans.json"
KEYS = ("k_proj", "qkv_proj", "query_key_value")
OUT = {"colwise", "colwise_gather_output", "colwise_rep", "packed_colwise", "embedding_rowwise"}
IN = {"rowwise", "rowwise_split_input", "rowwise_rep", "packed_rowwise", "embedding_colwise"}
WHOLE = {
    "all_reduce",
    "local_params",
    "mla_kv_a_proj",
    "moe_identity_expert",
    "moe_tp_experts",
    "replicate",
    "replicated_with_grad_allreduce",
}


def sorted_out(plan: Mapping[str, str], dealt: Mapping[str, str]) -> dict[str, Any]:
    """One plan as the modules that are cut, by the dimension that is."""
    strange = set(plan.values()) - OUT - IN - WHOLE
    if strange:
        raise SystemExit(f"styles without a rule: {', '.join(sorted(strange))}")
    inside = {module for module in plan if ".experts." in f".{module}."}
    cut = {module for module in plan if plan[module] in OUT | IN}
    return {
        "out": sorted({module.split("*.")[-1] for module in cut - inside if plan[module] in OUT}),
        "in": sorted({module.split("*.")[-1] for module in cut - inside if plan[module] in IN}),
        "experts": bool(cut & inside),
        "dealt": "grouped_gemm" in dealt.values(),
        "heads": any(plan[module] == "colwise" and module.rsplit(".", 1)[-1] in KEYS for module in plan),
    }


def leaves_its_embedding_whole(model_type: str) -> bool:
    """True if the base model of a type has no ``embed_tokens``, and its plan names no embedding either."""
    name = MODEL_MAPPING_NAMES.get(model_type)
    base = getattr(transformers, name, None) if isinstance(name, str) else None
    plan = getattr(CONFIG_MAPPING[model_type], "base_model_tp_plan", None) or {}
    return base is not None and "self.embed_tokens" not in inspect.getsource(base) and "embedding_rowwise" not in plan.values()


def collect() -> dict[str, Any]:
    """The table: equal plans once, with the model types that have them."""
    plans: dict[str, list[str]] = {}
    for model_type, config in CONFIG_MAPPING.items():
        tensor = getattr(config, "base_model_tp_plan", None) or {}
        experts = getattr(config, "base_model_ep_plan", None) or {}
        if tensor or experts:
            plans.setdefault(json.dumps(sorted_out(tensor, experts)), []).append(model_type)
    heads: dict[str, list[str]] = {"out": [], "in": []}
    for model_type, name in {**MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES, **MODEL_FOR_CAUSAL_LM_MAPPING_NAMES}.items():
        plan = getattr(getattr(transformers, name, None), "_tp_plan", None) or {}
        for module, style in plan.items():
            if module == "lm_head":
                heads["out" if style in OUT else "in"].append(model_type)
    return {
        "source": f"transformers {transformers.__version__} config classes, by scripts/transformers_plans.py",
        "whole_embeddings": sorted(name for types in plans.values() for name in types if leaves_its_embedding_whole(name)),
        "heads": {way: sorted(types) for way, types in heads.items()},
        "plans": [
            {"types": sorted(types), **json.loads(plan)} for plan, types in sorted(plans.items(), key=lambda item: item[1])
        ],
    }


def written(table: Mapping[str, Any]) -> str:
    """One line for each plan, so that a change is easy to see."""
    plans = ",\n".join(json.dumps(plan) for plan in table["plans"])
    head = ", ".join(f"{json.dumps(key)}: {json.dumps(table[key])}" for key in ("source", "whole_embeddings", "heads"))
    return f'{{{head}, "plans": [\n{plans}\n]}}\n'


def main() -> int:
    """Write or check the file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="compare with the file instead of writing it")
    text = written(collect())
    if not parser.parse_args().check:
        TARGET.write_text(text, encoding="utf-8")
        return 0
    same = TARGET.exists() and TARGET.read_text(encoding="utf-8") == text
    if not same:
        print(f"{TARGET.name} differs: run scripts/transformers_plans.py", file=sys.stderr)
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main())
