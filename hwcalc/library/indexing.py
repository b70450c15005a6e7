"""Models of the catalog as the index has them: what their contexts and weights take under llama.cpp, worked out before.

``scripts/build_model_index.py`` writes the index with :func:`shape_of`, and ``kvplan fit`` reads it: :class:`Quick` has the figures of plans
on one GPU with the default settings of llama.cpp from the index alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property, lru_cache
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from msgspec.structs import asdict, fields

from hwcalc import formulas
from hwcalc.engines.llamacpp.engine import Llamacpp, LlamacppDeployment
from hwcalc.engines.llamacpp.layers import ON_HOST, Unit, cache_bytes, weigh
from hwcalc.engines.llamacpp.layout import host_room, rooms_of
from hwcalc.engines.llamacpp.settings import CELLS, ContextOptions, dtypes_of, place_options
from hwcalc.engines.llamacpp.tensors import groups_key, loaded_groups, weight_groups
from hwcalc.engines.memory import Section
from hwcalc.engines.setup import Parallel, Request, Setup
from hwcalc.formulas import Stack
from hwcalc.formulas.arithmetic import last_good
from hwcalc.model import ModelSpec
from hwcalc.parsers.gguf.hparams import HPARAMS, Hparams, hparams_of
from hwcalc.planner.forecast import Quantity, quantity_of
from hwcalc.planner.layouts import has_experts
from hwcalc.planner.measured_speed import is_measured
from hwcalc.planner.speed_result import SPEED_COLUMNS
from hwcalc.planner.speed_work import Use, WeightShare, Workload, weight_shares
from hwcalc.planner.step_time import steps_alone
from hwcalc.planner.values import is_auto
from hwcalc.planner.verdict import UNLIMITED
from hwcalc.profiles import model_index as index
from hwcalc.quantization.gguf import published_formats, usual_beside_host
from hwcalc.quantization.planned import format_name

if TYPE_CHECKING:
    from hwcalc.engines.llamacpp.layout import Layout
    from hwcalc.engines.llamacpp.tensors import WeightGroup
    from hwcalc.formulas.hybrid import Layer
    from hwcalc.planner.fitting import Hosting

WORDS: Final = ("expert", "mtp", "lazy", "copy")
"""Words of the index on a tensor beside its role, by their fields."""


class Sizes(NamedTuple):
    """Bytes of a model's tensors with all layers on one GPU: those there, and those that stay on the host."""

    gpu: int
    host: int


class Formats(NamedTuple):
    """The formats of a shape, the largest first: their names, and the :class:`Sizes` of each."""

    names: Sequence[str]
    gpu: Sequence[int]
    host: Sequence[int]

    def sizes(self, name: str) -> Sizes:
        """The bytes of a format."""
        place = self.names.index(name)
        return Sizes(self.gpu[place], self.host[place])


@lru_cache(maxsize=4096)
def _model_at(placed: int) -> ModelSpec:
    """A model with what llama.cpp needs to lay out a context, and without tensors."""
    model = ModelSpec(
        id="", source="catalog", location="built-in catalog", revision=None, model_type="", architecture=None, stack=Stack(())
    )
    read = _indexed_hparams(index.placing(placed)["hparams"])
    model.once(HPARAMS, lambda: read)
    model.once(groups_key(None), lambda: None)
    return model


def formats_at(number: int) -> Formats:
    """The formats of a shape."""
    shape = index.shapes()[number]
    return Formats(index.format_names(number), shape["gpu"], shape["host"])


def shares_at(number: int, name: str) -> tuple[WeightShare, ...]:
    """The weights of a shape in the format ``name``, by their use."""
    return tuple(
        WeightShare(format=form, use=Use(use), parameters=parameters, bytes=size, copies=copies, active=active)
        for form, use, parameters, size, copies, active in index.weights(number, name)
    )


def stack_at(number: int) -> Stack:
    """The layers of a shape."""
    made = index.details(number)["stack"]
    kinds = [getattr(formulas, name)(**dims) for name, dims in made["kinds"]]
    different: list[Layer] = [tuple(kinds[place] for place in places) for places in made["different"]]
    return Stack(tuple(different[place] for place in index.unpacked(made["layers"])))


def placed_model(row: index.IndexedModel, name: str | None) -> ModelSpec | None:
    """The model of a row with what llama.cpp needs to place its layers; ``None`` in a format of which the index has no tensors."""
    assert row.placed is not None
    made = index.placing(row.placed)
    if name not in made["formats"]:
        return None
    assert row.shape is not None
    model = ModelSpec(
        id=row.id,
        source="catalog",
        location="built-in catalog",
        revision=None,
        model_type=row.model_type,
        architecture=row.architecture,
        stack=stack_at(row.shape),
        max_position_embeddings=row.max_position_embeddings,
        **index.details(row.shape)["spec"],
    )
    read = _indexed_hparams(made["hparams"])
    model.once(HPARAMS, lambda: read)
    groups = tuple(_indexed_group(*group) for group in made["formats"][name])
    model.once(groups_key(name), lambda: groups)
    return model


def _indexed_hparams(made: dict[str, Any]) -> Hparams:
    read: dict[str, Any] = {
        key: tuple(index.unpacked(value)) if isinstance(value, list) else value for key, value in made.items()
    }
    return Hparams(**read)


def _indexed_group(stem: str, runs: Sequence[int], type_: str, size: int, elements: int, columns: int, words: str) -> WeightGroup:
    """A group of tensors as the index has it: ``runs`` are pairs of first layer and end, ``words`` the role and the flags that are set."""
    from hwcalc.engines.llamacpp.tensors import WeightGroup, WeightTensor
    from hwcalc.quantization.ggml import whole_name

    role, *said = words.split()
    flags: dict[str, Any] = dict.fromkeys(said, True)
    if runs:
        loaded_with = runs[0]
    elif role == "layer":
        # What stands outside the layers is loaded with the first, unless it is for input or output.
        loaded_with = 0
    else:
        loaded_with = -1
    first = WeightTensor(
        name=whole_name(stem, runs[0] if runs else -1),
        layer=loaded_with,
        type=type_,
        bytes=size,
        elements=elements,
        role=role,
        columns=columns,
        **flags,
    )
    layers = chain.from_iterable(map(range, runs[::2], runs[1::2]))
    return WeightGroup(stem=stem, first=first, layers=tuple(layers))


_USUAL: Final = frozenset({"seq", "batch", "dtype", "weights", "engine", "gpu", "gpus", "margin", "memory_utilization", "ram"})
"""Options that leave a context as the index has it, with one sequence, one GPU and the default format of the cache."""
_SIXTEEN: Final = (None, "auto", "f16", "fp16")


class Whole(NamedTuple):
    """A model that surely fits as a whole, in the format that is planned."""

    weights: str
    weights_bytes: int
    cache_bytes: int
    needed_bytes: int
    host_bytes: int


class Quick:
    """The hardware and the length that were asked for, and which models of the index fit there."""

    def __init__(self, host: Hosting, setup: Setup, named: str | None) -> None:
        self._host = host
        # Without a GPU, the buffers of a GPU and its host are a bound on those of the host alone.
        self._setup = Setup() if host.gpu.is_host else setup
        self._named = named
        options = place_options(setup.options)
        self._rooms = rooms_of(setup.hardware, options)
        self._likely_host = host_room(setup, options, "expected")
        self._sure_host = host_room(setup, options, "low")
        self._room = self._rooms["low"] or 0
        self._most_room = self._rooms["high"] or 0
        self.usable_bytes = self._rooms["expected"] or 0
        """Bytes of the GPU that may be used, by the expected value."""
        self.dtypes = dtypes_of(*ContextOptions.of(setup).types)
        """The format of the cache."""
        self.without_gpu = host.gpu.is_host
        """True if everything lies in the memory of the host, of which the index knows bounds alone: :meth:`hosted`."""
        self._speeds: dict[tuple[int, str, int], Mapping[str, Any]] = {}
        self._whole: dict[tuple[object, int], Whole | None] = {}
        self._deployments: dict[int, LlamacppDeployment] = {}
        self._layouts: dict[tuple[int, int], Layout] = {}
        """The deployments, and their layouts by tokens, by the number of the :func:`placing` of their model."""

    def knows(self, row: index.IndexedModel) -> bool:
        """True if the index has what is asked for."""
        if row.shape is None or self._rooms["low"] is None:
            return False
        return self._named is None or self._named in formats_at(row.shape).names

    def layout(self, row: index.IndexedModel, tokens: int) -> Layout:
        """A context of one sequence with all layers on the GPU, without the bytes of the weights."""
        assert row.placed is not None
        placed = row.placed
        if (placed, tokens) not in self._layouts:
            if placed not in self._deployments:
                self._deployments[placed] = LlamacppDeployment(Llamacpp(), _model_at(placed), self._setup)
            self._layouts[placed, tokens] = self._deployments[placed].layout_at(tokens, 1)
        return self._layouts[placed, tokens]

    def whole(self, row: index.IndexedModel, tokens: int) -> Whole | None:
        """The model in the largest format that surely fits as a whole; ``None`` if none does."""
        assert row.shape is not None
        key = ((row.shape, row.placed), tokens)
        if key in self._whole:
            return self._whole[key]
        self._whole[key] = None
        for name, gpu, host in zip(*formats_at(row.shape), strict=True):
            # No context is laid out of a model that is too large by its weights alone.
            if self._named not in (None, name) or gpu > self._room or gpu + self.layout(row, tokens).cache_on(0) > self._room:
                continue
            made = self.layout(row, tokens).with_file({0: gpu, ON_HOST: host})
            if self._surely_holds(made):
                self._whole[key] = Whole(
                    weights=name,
                    weights_bytes=gpu,
                    cache_bytes=made.cache_on(0),
                    needed_bytes=made.needed_on(0, "expected"),
                    host_bytes=host,
                )
                break
        return self._whole[key]

    def _surely_holds(self, made: Layout) -> bool:
        return made.hold(made.main, self._room, "low") and made.host_holds("low")

    def longest(self, row: index.IndexedModel, whole: Whole, tokens: int) -> int:
        """The most tokens with which a model surely fits as a whole, as it does with ``tokens``."""
        bound, sizes = max(tokens, row.max_position_embeddings or UNLIMITED), {0: whole.weights_bytes, ON_HOST: whole.host_bytes}
        low, high = tokens // CELLS, -(-bound // CELLS)

        def holds(cells: int) -> bool:
            return self._surely_holds(self.layout(row, cells * CELLS).with_file(sizes))

        if holds(high):
            return bound
        more: int = last_good(high - 1 - low, lambda more: holds(low + more))
        return min(bound, (low + more) * CELLS)

    def reads_as_planned(self, row: index.IndexedModel, whole: Whole) -> bool:
        """True if what the index says a pass reads is what is loaded: a file may keep tensors in a smaller format of the checkpoint."""
        assert row.shape is not None
        read = sum(share.bytes for share in shares_at(row.shape, whole.weights) if share.use is not Use.ROW)
        return read <= whole.weights_bytes

    def speed(self, row: index.IndexedModel, whole: Whole, tokens: int) -> Mapping[str, Any]:
        """The tokens per second of a model that fits as a whole, by the names of a row's columns, and what bounds them."""
        assert row.shape is not None
        key = (row.shape, whole.weights, tokens)
        if key not in self._speeds:
            load = Workload(seq=tokens, batch=1, roles=self.dtypes.roles, engine=self._host.engine.name)
            stack, shares = stack_at(row.shape), shares_at(row.shape, whole.weights)
            step = steps_alone(stack, shares, load, self._host.gpu, self.layers(row) - 1).decode(1, tokens)
            rates = quantity_of(step).per_s(1) if step.bound else Quantity(None, None, None, None)
            by = "memory bandwidth" if step.reading >= step.computing else "compute"
            ends = (rates.expected, rates.low, rates.high, rates.bound)
            self._speeds[key] = {**dict(zip(SPEED_COLUMNS, ends, strict=True)), "bound_by": by if step.bound else None}
        return self._speeds[key]

    @cached_property
    def is_measured(self) -> bool:
        """True if the user's own measurements say how fast models are."""
        return is_measured(self._host.gpu, self._host.engine.name)

    def smallest(self, row: index.IndexedModel) -> str:
        """The format in which a part of the model stays on the host."""
        assert row.shape is not None
        return self._named or formats_at(row.shape).names[-1]

    def beside_host(self, row: index.IndexedModel, whole: Whole | None) -> str | None:
        """The format in which experts may lie in the memory of the host, if the model has experts and ``whole`` has fewer bits."""
        assert row.shape is not None
        formats, gpu = formats_at(row.shape), self._host.gpu
        name = usual_beside_host(formats.names)
        shared = self.without_gpu or gpu.shares_host_memory
        if self._named is not None or name is None or shared or not index.shapes()[row.shape].get("experts"):
            return None
        return name if whole is None or whole.weights_bytes < formats.sizes(name).gpu else None

    def layers(self, row: index.IndexedModel) -> int:
        """The layers of a model, the output counted as one."""
        assert row.shape is not None
        return int(index.shapes()[row.shape]["layers"])

    def weights_bytes(self, row: index.IndexedModel, name: str) -> int:
        """Bytes of a format, with all layers on the GPU."""
        assert row.shape is not None
        return formats_at(row.shape).sizes(name).gpu

    def hosted(self, row: index.IndexedModel, tokens: int) -> tuple[tuple[str, int, bool], ...]:
        """The formats that may fit without a GPU, the largest first, with about what each needs and whether it surely does: the last one or none.

        The index counts a table twice that is the embedding and the output.
        """
        assert row.shape is not None
        made, found = self.layout(row, tokens), list[tuple[str, int, bool]]()
        cache = made.cache_on(0)
        for name, gpu, host in zip(*formats_at(row.shape), strict=True):
            if self._named not in (None, name) or gpu + cache > self._most_room:
                continue
            needed = gpu + host + cache + _buffers(made)
            found.append((name, needed, needed <= self._room))
            if found[-1][-1]:
                break
        return tuple(found)

    def apart(self, row: index.IndexedModel, tokens: int, name: str) -> bool | None:
        """True if it runs in this format with a part on the host; ``None`` if only a plan can say."""
        assert row.shape is not None
        host, room = self._likely_host, self._most_room
        sizes = formats_at(row.shape).sizes(name)
        if sizes.gpu > room + host:
            return False
        made = self.layout(row, tokens)
        if sizes.gpu + made.cache_on(0) > room + host:
            return False
        if self._host.gpu.shares_host_memory:
            return None
        # With nothing at all on the GPU, or with as much as it has room for.
        alone = sizes.gpu + sizes.host + made.cache_on(0) + _buffers(made)
        if alone > host and sizes.gpu + made.cache_on(0) > room:
            step = int(index.details(row.shape)["steps"][index.format_names(row.shape).index(name)])
            alone -= self._held_apart(step, made)
        return True if alone <= host else None

    def surely_apart(self, row: index.IndexedModel, tokens: int, name: str) -> bool:
        """True if GPU and host surely have room for it in this format, by what all of it takes."""
        assert row.shape is not None
        made, sizes = self.layout(row, tokens), formats_at(row.shape).sizes(name)
        return sizes.gpu + sizes.host + made.cache_on(0) + _buffers(made) <= self._room + self._sure_host

    def _held_apart(self, step: int, made: Layout) -> int:
        """A lower bound on the bytes of weights and cache on the GPU where not all of them fit: with a layer more, they would be too many.

        ``step`` is at most the bytes of the weights of a layer. Beside weights and cache the GPU has the buffers of a pass, and in these what
        it copies of a layer that lies on the host: taken twice, for the high end.
        """
        layers, settings = made.layers, made.settings
        caches = [
            cache_bytes({Unit(size): each for kind in layer for size, each in layers.units[kind].items()}, settings, settings)
            for layer in {*layers.stack.layers}
        ]
        layer = step + max(caches) + cache_bytes(layers.extras, settings, settings)
        process = made.part_bytes(0, "high", Section.OVERHEAD)
        other_bytes = process + _buffers(made) + made.part_bytes(0, "high", Section.ACTIVATIONS) + 2 * layer
        return max(0, self._room - other_bytes - layer)


def _buffers(made: Layout) -> int:
    """Bytes of the buffers of a pass on GPU and host at most."""
    return made.part_bytes(0, "high", Section.ACTIVATIONS) + made.part_bytes(ON_HOST, "high", Section.ACTIVATIONS)


def quick(host: Hosting) -> Quick | None:
    """The quick way, where the request is one that the index has."""
    asked = host.asked
    usual = asked.given <= _USUAL and (asked.gpus or 1) == asked.batch == 1 and asked.dtype in _SIXTEEN
    if host.engine.name != index.ENGINE or not usual:
        return None
    # The hardware is the same for all models, and so is the format of the cache.
    request = host.request_for(host.seq, Parallel(), None)
    return Quick(host, request.setup, None if is_auto(asked.weights) else format_name(asked.weights))


_SPEC: Final = ("dtype", "state_dtype", "hidden_size", "vocab_size", "encoder_tokens")


def shape_of(model: ModelSpec) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]] | None:
    """The shape of a model, its details, and what it takes to place its layers; ``None`` if its weights are not known in any format.

    Raises the error of llama.cpp for a model that it refuses.
    """
    Llamacpp().open(model, Request.of(seq=2048))
    read = hparams_of(model)
    blocks = read.n_layer_all
    sizes, steps, used = dict[str, Sizes](), dict[str, int](), dict[str, Any]()
    for name in published_formats(model):
        if name is None:
            return None
        groups, shares = weight_groups(model, name), weight_shares(model, name)
        if groups is None or shares is None:
            continue
        # All layers are on one GPU; a step is at most the bytes of one layer.
        weighed = weigh(((one.first, one.blocks) for one in loaded_groups(groups)), blocks)
        each = [experts + rest for experts, rest in weighed.blocks]
        sizes[name] = Sizes(weighed.output + weighed.tied + weighed.copied + sum(each), weighed.input)
        steps[name] = max(weighed.output + weighed.tied, weighed.copied + max(each, default=0))
        used[name] = [
            [share.format, share.use.value, share.parameters, share.bytes, share.copies, share.active] for share in shares
        ]
    if not sizes:
        return None
    largest_first = sorted(sizes, key=lambda name: -sizes[name].gpu)
    gpu, host = ([sizes[name][end] for name in largest_first] for end in (0, 1))
    head: dict[str, Any] = {"layers": blocks + 1, "formats": largest_first, "gpu": gpu, "host": host}
    # The hyperparameters that are not as their defaults. Those by layer are packed.
    defaults = {each.name: each.default for each in fields(read)}
    given = {name: value for name, value in asdict(read).items() if value != defaults[name]}
    hparams = {name: index.packed(value) if isinstance(value, tuple) else value for name, value in given.items()}
    if experts := has_experts(model):
        head["experts"] = True
    # A part may lie on the host in the smallest format, and experts in the usual one.
    beside = usual_beside_host(largest_first) if experts else None
    placing = dict.fromkeys(name for name in (largest_first[-1], beside) if name is not None)
    tensors = {name: [*map(_group, weight_groups(model, name) or ())] for name in placing}
    placed = {"hparams": hparams, "formats": tensors}
    # Kinds, layers as lists of kinds, and which layers follow each other.
    kinds = [group.kind for group in model.stack.groups]
    different = list(dict.fromkeys(model.stack.layers))
    stack = {
        "kinds": [[type(kind).__name__, kind.dims()] for kind in kinds],
        "different": [[kinds.index(kind) for kind in layer] for layer in different],
        "layers": index.packed(map(different.index, model.stack.layers)),
    }
    spec = {name: getattr(model, name) for name in _SPEC}
    about = {"spec": spec, "stack": stack, "steps": [steps[name] for name in largest_first]}
    return head, {"about": about, "weights": [used[name] for name in largest_first]}, placed


def _group(group: WeightGroup) -> list[Any]:
    """The name of a group, where its layers start and end, the format, bytes, numbers and columns of each tensor, and in words what it is."""
    runs = list[int]()
    for number in group.layers:
        if runs and number == runs[-1]:
            runs[-1] += 1
        else:
            runs += (number, number + 1)
    one = group.first
    words = [one.role, *(name for name in WORDS if getattr(one, name))]
    return [group.stem, runs, one.type, one.bytes, one.elements, one.columns, " ".join(words)]
