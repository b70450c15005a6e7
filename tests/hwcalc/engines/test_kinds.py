"""Every engine has a rule for every kind of layer, or refuses it in a sentence. Engines and kinds are found: a new one is here at once."""

from __future__ import annotations

import types
import typing
from collections.abc import Mapping
from functools import cache
from typing import Any, Final

import pytest

from hwcalc import ModelSpec, load_model
from hwcalc.engines import DEFAULT, ENGINES, find_engine
from hwcalc.engines.deployment import Occupancy
from hwcalc.engines.engine import BY_MODEL, EVERY_TOKEN, NO, YES, Engine
from hwcalc.engines.setup import Request
from hwcalc.engines.stored import bytes_of
from hwcalc.errors import UnsupportedError
from hwcalc.formulas import KINDS, FullAttention, LayerKind, Stack
from hwcalc.profiles.catalog import list_models

PAIRS: Final = [(engine, kind) for engine in ENGINES for kind in KINDS]
SEQ: Final = 2**20
PROMPT: Final = 1024


def example(kind: type[LayerKind], rest: int | None = None) -> LayerKind:
    """A layer of this kind: every number that it needs is 64, and every other one ``rest``."""
    hints = typing.get_type_hints(kind)
    optional = {name for name, hint in hints.items() if isinstance(hint, types.UnionType)}
    numbers = {name: rest if name in optional else True if hints[name] is bool else 64 for name in kind.__struct_fields__}
    return kind(**numbers | {"kept": None})


def toy(*layers: LayerKind) -> ModelSpec:
    """A model of such layers, of no class, and of a model type that every engine knows."""
    return ModelSpec(
        id="toy",
        source="python",
        location="",
        revision=None,
        model_type="llama",
        architecture=None,
        stack=Stack(tuple((layer,) for layer in layers)),
        dtype="bf16",
        hidden_size=4096,
        vocab_size=1000,
        encoder_tokens=64,
    )


@cache
def catalog() -> Mapping[str, tuple[ModelSpec, ...]]:
    """The models of the catalog by the kinds of layers that they have: one of each model type with these kinds."""
    found: dict[str, dict[Any, ModelSpec]] = {}
    for model_id in list_models():
        model = load_model(model_id)
        kinds = frozenset(group.kind.name for group in model.stack.groups)
        for kind in kinds:
            found.setdefault(kind, {}).setdefault((model.model_type, kinds), model)
    return {kind: tuple(models.values()) for kind, models in found.items()}


def opened(engine: str, model: ModelSpec, seq: int = SEQ) -> Occupancy | None:
    """The model in an engine; ``None`` if it is refused, with a hint. No other error comes."""
    try:
        return find_engine(engine)[0].open(model, Request.of(seq=seq, prompt=PROMPT))
    except UnsupportedError as error:
        hint = error.hint
    assert hint
    return None


def planned(engine: str, kind: type[LayerKind]) -> tuple[Occupancy, LayerKind]:
    """A model that the engine plans, with a layer of this kind."""
    full = example(FullAttention)
    for model in (toy(full, example(kind)), toy(example(kind), example(kind)), *catalog().get(kind.name, ())):
        one = opened(engine, model)
        found = () if one is None else [group.kind for group in one.deployment.plain_stack.groups if type(group.kind) is kind]
        if one is not None and found:
            return one, found[0]
    raise AssertionError(f"{engine} plans no model with {kind.name}")


@pytest.mark.parametrize(("engine", "kind"), PAIRS)
def test_a_pair_has_a_rule_or_a_refusal(engine: str, kind: str) -> None:
    """With a rule there are bytes wherever the layer keeps something; without one, the sentence names the engine and the kind."""
    one = find_engine(engine)[0]
    if one.stores(KINDS[kind]) != NO:
        request, layer = planned(engine, KINDS[kind])
        stored = request.kind_tensors[layer]
        assert bytes_of(stored) > 0 or not layer.tensors()
        assert request.needed_bytes > 0 or not layer.tensors()
        return
    layers = toy(example(FullAttention), example(KINDS[kind]))
    assert opened(engine, layers) is None
    with pytest.raises(UnsupportedError, match=rf"there is no rule for {kind} layers .* in {one.label}\.") as refused:
        one.refuse_kinds(layers.stack)
    assert refused.value.hint == "Use: --engine reference"


@pytest.mark.parametrize("engine", ENGINES)
def test_an_engine_says_every_fact(engine: str) -> None:
    """What every engine must say of itself, and some command will ask."""
    one = find_engine(engine)[0]
    asked = set(vars(Engine)["__annotations__"])
    assert {name for name in asked if not hasattr(one, name)} == set()


def test_a_draft_has_kinds_too() -> None:
    """Its cache is counted, so that a kind without a rule is not left out silently."""
    wanted = Request.of(seq=4096, draft=load_model("RWKV/rwkv-5-world-3b"))
    with pytest.raises(UnsupportedError, match="no rule for rwkv_matrix layers"):
        find_engine("vllm")[0].open(load_model("Qwen/Qwen3-8B"), wanted)


def test_the_formulas_alone_have_every_kind() -> None:
    """A real engine lists what it has a rule for, so that a new kind is refused until it has one."""
    assert [name for name in ENGINES if find_engine(name)[0].kinds is None] == [DEFAULT]


def _is_bounded(kind: type[LayerKind]) -> bool:
    """Whether it keeps a window or a chunk, and nothing that grows beside."""
    hints = typing.get_type_hints(kind)
    required = {name for name in ("window", "chunk") if hints.get(name) is int}
    least, most = (sum(tensor.span.positions(seq) for tensor in example(kind, rest=64).tensors()) for seq in (SEQ, 2 * SEQ))
    return bool(required) and least == most


BOUNDED: Final = [name for name, kind in KINDS.items() if _is_bounded(kind)]


def _keeps_all(engine: str, model: ModelSpec, kind: type[LayerKind]) -> bool | None:
    """Whether the layers of this kind take more bytes for a longer sequence; ``None`` if the engine does not run the model."""
    sizes = []
    for seq in (SEQ, 2 * SEQ):
        one = opened(engine, model, seq)
        if one is None:
            return None
        own = [layer for layer in one.deployment.plain_stack.groups if type(layer.kind) is kind]
        if not own:
            return True
        sizes.append(sum(bytes_of(one.kind_tensors[group.kind]) for group in own))
    return sizes[0] < sizes[1]


@pytest.mark.parametrize("kind", BOUNDED)
@pytest.mark.parametrize("engine", ENGINES)
def test_what_is_said_of_windows(engine: str, kind: str) -> None:
    """Of all models of the catalog: the layers of every one, of some, or of none keep the tokens outside the window too."""
    one = find_engine(engine)[0]
    seen = {_keeps_all(engine, model, KINDS[kind]): model.id for model in catalog().get(kind, ())}
    said = {YES: {False}, EVERY_TOKEN: {True}, BY_MODEL: {False, True}, NO: set()}[one.stores(KINDS[kind])]
    assert seen.keys() - {None} in (said, set()), seen
