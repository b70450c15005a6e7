"""Every catalog model's layers, against a table that was read line by line.

``catalog_layers.txt`` has one line a model: its layers, and how many keep what. A line that changes is a change of what
kvplan believes about that model, and its reason belongs into the commit that changes the line.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from hwcalc import load_model
from hwcalc.formulas import LayerKind
from hwcalc.profiles.catalog import list_models

TABLE: Final = Path(__file__).with_name("catalog_layers.txt")


def short(kind: LayerKind) -> str:
    """A kind with the numbers that decide its bytes: ``full_attention(8x128)`` is 8 key/value heads of 128."""
    dims = kind.dims()
    if "num_key_value_heads" in dims:
        heads = f"{dims['num_key_value_heads']}x{dims['head_dim']}"
        if dims["v_head_dim"] != dims["head_dim"]:
            heads += f"/{dims['v_head_dim']}"
        numbers = [heads] + [f"{key} {dims[key]:,}" for key in ("window", "chunk", "sink") if key in dims]
    elif kind.name == "latent_attention":
        numbers = [f"{dims['kv_lora_rank']}+{dims['qk_rope_head_dim']}"]
        numbers += [f"window {dims['window']:,}"] if "window" in dims else []
    else:
        numbers = [f"{key} {value}" for key, value in dims.items() if key != "num_attention_heads"]
    return f"{kind.name}({', '.join(numbers)})"


def line(model_id: str) -> str:
    """One line of the table."""
    stack = load_model(model_id).stack
    kinds = " + ".join(f"{group.count} {short(group.kind)}" for group in stack.groups)
    return f"{model_id}: {len(stack)} layers: {kinds}"


def reviewed() -> dict[str, str]:
    """The table by model id."""
    return {entry.partition(": ")[0]: entry for entry in TABLE.read_text(encoding="utf-8").splitlines() if entry}


def test_table_and_catalog_name_the_same_models() -> None:
    """No model without a reviewed line, no line without a model."""
    assert sorted(list_models()) == sorted(reviewed())


def test_layers() -> None:
    """Each model's layer list is what its family does."""
    assert [(entry, line(model_id)) for model_id, entry in reviewed().items() if entry != line(model_id)] == []
