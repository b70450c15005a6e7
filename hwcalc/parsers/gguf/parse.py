"""A GGUF header as a :class:`~hwcalc.model.ModelSpec`: layers from the metadata, parameters and weight bytes from the tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from hwcalc.errors import ConfigError
from hwcalc.formulas import Layer, Stack
from hwcalc.model import Definition, GgufFacts, GgufTensor, ModelFacts, ModelSpec, Parameters, RawModel, WeightFacts
from hwcalc.parsers.gguf.hparams import Hparams, read_hparams
from hwcalc.parsers.gguf.layers import cached_layers, published_layers
from hwcalc.parsers.limits import check_size

__all__ = ["parse_gguf"]

_READING: Final = "llamacpp"
_FILE_TYPES: Final = {0: "fp32", 1: "fp16", 32: "bf16"}
"""``llama_ftype`` of files that are not quantised."""
_NOT_PARAMETERS: Final = ("rope_freqs.", "rope_factors_")
"""Tensors that a model computes and does not learn."""


def parse_gguf(raw: RawModel) -> ModelSpec:
    """Read a description whose config is the metadata of a GGUF file.

    Raises :class:`~hwcalc.errors.UnknownArchitectureError` for an architecture that llama.cpp does not know, and
    :class:`~hwcalc.errors.ConfigError` for a value that makes no sense.
    """
    keys = raw.config
    read = read_hparams(keys, raw.tensors)
    try:
        published, cached = published_layers(read), cached_layers(read)
    except ValueError as error:
        raise ConfigError(f"the metadata of {read.arch} do not make sense: {error}.") from error
    spec = ModelSpec(
        id=raw.id,
        source=raw.source,
        location=raw.location,
        revision=raw.revision,
        model_type=read.arch,
        architecture=None,
        stack=Stack(published),
        dtype=_FILE_TYPES.get(_number(keys, "general.file_type")),
        max_position_embeddings=read.n_ctx_train or None,
        hidden_size=read.n_embd,
        vocab_size=read.n_vocab or None,
        parameters=raw.parameters or _parameters(read, raw.tensors),
        weights=raw.weights or _weights(keys, raw.tensors),
        notes=raw.notes,
        readings={_READING: Stack(cached)} if _differ(published, cached) else {},
        facts=ModelFacts(
            experts_per_token=read.n_expert_used,
            mtp_modules=read.n_layer_nextn or None,
            sliding_window=read.sliding_window or None,
        ),
        gguf=GgufFacts(keys=keys, tensors=raw.tensors),
        config=keys,
    )
    check_size((spec,))
    return spec


def _differ(published: tuple[Layer, ...], cached: tuple[Layer, ...]) -> bool:
    return published != cached


def _number(keys: Mapping[str, Any], key: str) -> int:
    value = keys.get(key)
    return value if isinstance(value, int) and not isinstance(value, bool) else -1


def _elements(tensor: GgufTensor) -> int:
    count = 1
    for size in tensor.shape:
        count *= size
    return count


def _weights(keys: Mapping[str, Any], tensors: Sequence[GgufTensor]) -> WeightFacts | None:
    """Bytes and elements of the file by type."""
    if not tensors:
        return None
    sizes: dict[str, int] = {}
    elements: dict[str, int] = {}
    for tensor in tensors:
        sizes[tensor.type] = sizes.get(tensor.type, 0) + tensor.bytes
        elements[tensor.type] = elements.get(tensor.type, 0) + _elements(tensor)
    return WeightFacts(
        bytes_by_dtype=dict(sorted(sizes.items())),
        elements_by_dtype=dict(sorted(elements.items())),
        files=max(1, _number(keys, "split.count")),
        tensors=len(tensors),
        source="GGUF header",
    )


def _parameters(read: Hparams, tensors: Sequence[GgufTensor]) -> Parameters | None:
    """Parameters of the file. Of the experts of a layer, a token uses some: their tensors hold all of them side by side."""
    total = active = drafts = 0
    for tensor in tensors:
        if tensor.name.startswith(_NOT_PARAMETERS):
            continue
        count = _elements(tensor)
        if _layer(tensor.name) >= read.n_layer:
            drafts += count
            continue
        total += count
        active += count * read.n_expert_used // read.n_expert if "_exps." in tensor.name and read.n_expert else count
    return Parameters(total=total, active=active, mtp=drafts or None, definition=Definition.EXACT) if tensors else None


def _layer(name: str) -> int:
    """The number of the block that a tensor belongs to; -1 for a tensor beside the blocks."""
    parts = name.split(".", 2)
    return int(parts[1]) if parts[0] == "blk" and len(parts) > 1 and parts[1].isdecimal() and len(parts[1]) < 6 else -1
