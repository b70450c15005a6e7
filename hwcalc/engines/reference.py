"""The reference engine: the formulas alone, without the pages and padding of any real engine."""

from __future__ import annotations

from types import MappingProxyType
from typing import ClassVar

from hwcalc.engines.base import Opened
from hwcalc.engines.general import GeneralEngine
from hwcalc.engines.noted import Noted
from hwcalc.engines.options import parse_kv_dtype
from hwcalc.engines.stored import Dtypes, StoredTensor
from hwcalc.errors import UnsupportedError, UsageError
from hwcalc.formulas import DType, LayerKind, Role
from hwcalc.model import Definition, ModelSpec, Note
from hwcalc.profiles.dtypes import find_dtype, find_packed

__all__ = ["Reference", "known_dtype", "model_dtype"]

_DEFAULT_MODEL_DTYPE = "bf16"
_DEFAULT_STATE_DTYPE = "fp32"
_INDEX_DTYPE = "fp8_scaled_128"


def known_dtype(name: str) -> DType:
    """The format of this name. Raises :class:`KeyError` if there is none, which is a mistake in this program."""
    dtype = find_dtype(name)
    if dtype is None:
        raise KeyError(name)
    return dtype


def model_dtype(model: ModelSpec) -> Noted[DType]:
    """The dtype that the config names, or bf16 if it names none. A note says which."""
    if model.dtype is None:
        message = f"KV dtype {_DEFAULT_MODEL_DTYPE}: assumed, since the config names none that a cache has. Set it with --dtype."
    else:
        message = f"KV dtype {model.dtype}: the model's own. Set it with --dtype."
    return Noted(known_dtype(model.dtype or _DEFAULT_MODEL_DTYPE), (Note(code="default-dtype", message=message),))


class Reference(GeneralEngine):
    """The sum of the formulas over the layers."""

    name: ClassVar[str] = "reference"
    title: ClassVar[str] = "the formulas: what must be kept, nothing an engine adds"
    label: ClassVar[str] = "reference"
    definition: ClassVar[Definition] = Definition.EXACT
    versions: ClassVar[tuple[str, ...]] = ()
    source: ClassVar[str] = "formulas/"

    def dtypes(self, opened: Opened) -> Noted[Dtypes]:
        model, request = opened.model, opened.request
        default, notes = model_dtype(model)
        spelled = default.name if request.dtype is None else request.dtype
        parsed = parse_kv_dtype(spelled)
        roles = {
            Role.INDEX: known_dtype(_INDEX_DTYPE),
            Role.STATE: known_dtype(model.state_dtype or _DEFAULT_STATE_DTYPE),
            Role.CONV: default,
        }
        if isinstance(parsed, str):
            packed = find_packed(parsed)
            assert packed is not None
            roles |= dict(packed.roles)
        else:
            key, value = parsed
            roles |= {Role.KEY: key, Role.VALUE: value, Role.LATENT: key, Role.ROPE: key}
        return Noted(Dtypes(kv=spelled.lower(), roles=MappingProxyType(roles)), notes if request.dtype is None else ())

    def check(self, opened: Opened) -> None:
        roles = opened.dtypes.roles
        latent = any(tensor.role is Role.LATENT for group in opened.model.stack.groups for tensor in group.kind.tensors())
        if latent and Role.KEY in roles and roles[Role.KEY] != roles[Role.VALUE]:
            raise UsageError(
                f"--dtype {opened.dtypes.kv[:40]} names two dtypes, but a latent is key and value at once.",
                hint=f"Give one: --dtype {roles[Role.KEY].name}",
            )

    def tensors(self, kind: LayerKind, opened: Opened) -> tuple[StoredTensor, ...]:
        for tensor in kind.tensors():
            if tensor.role not in opened.dtypes.roles:
                raise UnsupportedError(
                    f"--dtype {opened.dtypes.kv} packs a latent and its rotary key; {kind.title} has {tensor.name}.",
                    hint="Use a plain dtype such as fp8 for this model. See: kvplan dtypes",
                )
        return opened.store_all(kind.tensors())
