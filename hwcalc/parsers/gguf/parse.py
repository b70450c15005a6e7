"""A GGUF header as a :class:`~hwcalc.model.ModelSpec`: layers from the metadata, parameters and weight bytes from the tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from hwcalc.errors import ConfigError
from hwcalc.formulas import Stack
from hwcalc.formulas.weights import Weights
from hwcalc.model import (
    GGUF_ARCHITECTURE,
    VOCABULARY,
    Definition,
    GgufFacts,
    GgufTensor,
    ModelFacts,
    ModelSpec,
    Parameters,
    RawModel,
    WeightFacts,
)
from hwcalc.parsers.gguf.hparams import read_hparams
from hwcalc.parsers.gguf.layers import cached_layers, published_layers
from hwcalc.parsers.gguf.weights import counted_weights
from hwcalc.parsers.limits import check_size
from hwcalc.quantization.file_types import stated_type
from hwcalc.quantization.ggml import FLOAT_TYPES

__all__ = ["parse_gguf"]

_READING: Final = "llamacpp"
_FLOATS: Final = {name: dtype for dtype, name in FLOAT_TYPES.items()}

_BEARING: Final = (GGUF_ARCHITECTURE, VOCABULARY)
"""Keys outside the architecture's own that cache and weights depend on."""


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
    counted = counted_weights(read, raw.tensors)
    spec = ModelSpec(
        id=raw.id,
        source=raw.source,
        location=raw.location,
        revision=raw.revision,
        model_type=read.arch,
        architecture=None,
        stack=Stack(published),
        dtype=_FLOATS.get(stated_type(keys) or ""),
        max_position_embeddings=read.n_ctx_train or None,
        hidden_size=read.n_embd,
        vocab_size=read.n_vocab or None,
        parameters=raw.parameters or _parameters(counted),
        weights=raw.weights or _weights(keys, raw.tensors),
        counted=counted,
        notes=raw.notes,
        readings={_READING: Stack(cached)} if published != cached else {},
        facts=ModelFacts(
            experts_per_token=read.n_expert_used,
            mtp_modules=read.n_layer_nextn or None,
            sliding_window=read.sliding_window or None,
        ),
        gguf=GgufFacts(keys=keys, tensors=raw.tensors),
        bearing={key: value for key, value in keys.items() if key.startswith(f"{read.arch}.") or key in _BEARING},
        config=keys,
    )
    check_size((spec,))
    return spec


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


def _parameters(counted: Weights | None) -> Parameters | None:
    if counted is None:
        return None
    return Parameters(total=counted.total, active=counted.active, mtp=counted.mtp or None, definition=Definition.EXACT)
