"""The reference engine: the formulas alone, without the pages and padding of any real engine."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, ClassVar

from hwcalc.engines.facts import Facts
from hwcalc.engines.general import GeneralDeployment, GeneralEngine, GeneralOccupancy
from hwcalc.engines.models import known_dtype, model_dtype
from hwcalc.engines.options import Choices, is_auto, parse_kv_dtype
from hwcalc.engines.stored import Dtypes, StoredTensor, Support, check_dealt, store_all
from hwcalc.engines.subjects import LayerByLayer, Traits
from hwcalc.errors import UnsupportedError, UsageError
from hwcalc.formulas import LatentAttention, LayerKind, Role, SparseIndexer
from hwcalc.model import Definition, Note, Noted
from hwcalc.profiles.dtypes import PackedDType
from hwcalc.text import brief

if TYPE_CHECKING:
    from hwcalc.engines.deployment import Deployment
    from hwcalc.engines.devices import Saving
    from hwcalc.policies.base import Chosen

_DEFAULT_STATE_DTYPE = "fp32"
_INDEX_DTYPE = "fp8_scaled_128"
_FP8 = "fp8"
_PLAIN_FP8 = ("fp8_e4m3", "fp8_e5m2")
_LLAMA_CPP = ("consumer", "laptop", "unified")
"""Categories of GPUs whose owners mostly load GGUF files."""
_FEWER_BITS = ("q3_k_m", "q2_k")
_SPARSE_LATENT_FP8 = "fp8_ds_mla"


class ReferenceDeployment(GeneralDeployment):
    """A server that keeps what it must, and adds nothing."""

    traits = Traits(deals_experts=True, sizes_by_token=True)

    @cached_property
    def dtypes(self) -> Noted[Dtypes]:
        model, setup = self.model, self.setup
        default, notes = model_dtype(model, setup.dtype)
        if is_auto(setup.dtype):
            spelled = default.name
        else:
            spelled, notes = (setup.dtype or "").strip().lower(), ()
            kinds = {type(group.kind) for group in model.stack.groups}
            # DeepSeek-V3.2 and its kin (latent attention with an indexer) have an fp8 cache of their own, which is not one byte for each number.
            if kinds >= {LatentAttention, SparseIndexer} and spelled in (_FP8, *_PLAIN_FP8):
                if spelled == _FP8:
                    spelled = _SPARSE_LATENT_FP8
                    message = (
                        f"KV dtype fp8: this model's own format, {_SPARSE_LATENT_FP8}, which keeps its rotary keys in bf16 and a scale "
                        f"for each 128 numbers. For one byte each: --dtype {_PLAIN_FP8[0]}."
                    )
                else:
                    message = (
                        f"KV dtype {spelled}: one byte each. This model's own fp8 format is {_SPARSE_LATENT_FP8}: --dtype fp8."
                    )
                notes = (Note(code="own-fp8", message=message),)
        parsed = parse_kv_dtype(spelled)
        roles = {
            Role.INDEX: known_dtype(_INDEX_DTYPE),
            Role.STATE: known_dtype(model.state_dtype or _DEFAULT_STATE_DTYPE),
            Role.CONV: default,
        }
        if isinstance(parsed, PackedDType):
            roles |= dict(parsed.roles)
        else:
            key, value = parsed
            roles |= {Role.KEY: key, Role.VALUE: value, Role.LATENT: key, Role.ROPE: key}
        return Noted(Dtypes(kv=spelled, roles=MappingProxyType(roles)), notes)


class ReferencePolicies(LayerByLayer):
    """Every policy."""

    def support(self, chosen: Chosen) -> Support:
        """The formulas have every policy: they are what its own code leaves."""
        return Support(offered=True, how="the formulas: what the policy's own code leaves, in tensors that shrink with it.")


class ReferenceOccupancy(GeneralOccupancy):
    """What must be kept, to the token."""

    policy_class = ReferencePolicies

    @cached_property
    def sharing_support(self) -> Support:
        """The least that any engine must keep."""
        return Support(offered=True, how="the ideal: what sequences have in common is kept once, to the token")

    def check(self) -> None:
        roles, parallel = self.dtypes.roles, self.setup.parallel
        for group in self.deployment.plain_stack.groups:
            check_dealt(group.kind, parallel.tp, parallel.dcp)
            missing = [tensor.name for tensor in group.kind.tensors() if tensor.role not in roles]
            if missing:
                raise UnsupportedError(
                    f"--dtype {self.dtypes.kv} packs a latent and its rotary key; {group.kind.title} has {missing[0]}.",
                    hint="Use a plain dtype such as fp8 for this model. See: kvplan dtypes",
                )
        latent = any(tensor.role is Role.LATENT for group in self.model.stack.groups for tensor in group.kind.tensors())
        if latent and Role.KEY in roles and roles[Role.KEY] != roles[Role.VALUE]:
            raise UsageError(
                f"--dtype {brief(self.dtypes.kv, 40)} names two dtypes, but a latent is key and value at once.",
                hint=f"Give one: --dtype {roles[Role.KEY].name}",
            )

    def tensors(self, kind: LayerKind) -> tuple[StoredTensor, ...]:
        return store_all(self, kind.tensors())

    def savings(self, short_bytes: int) -> Iterator[Saving]:
        """Formats that some engine has on this GPU: eight bits, and then four."""
        from hwcalc.engines.devices import Cost, Saving, computes_fp4, computes_fp8

        gpu = self.setup.hardware.gpu
        eight = _FP8 if computes_fp8(gpu) else "q8_0"
        yield Saving(Cost.CACHE, f"{eight} cache", {"dtype": eight})
        native, few_native = computes_fp8(gpu), computes_fp4(gpu)
        named = (self.setup.weights or "").lower().startswith(("q", "iq"))
        gguf = named or (gpu is not None and gpu.category in _LLAMA_CPP)
        weights = "q8_0" if named or (gguf and not native) else _FP8 if native else "int8"
        few = "q4_k_m" if named or (gguf and not few_native) else "nvfp4" if few_native else "int4"
        fewer = ((Cost.FEWER_BITS, form) for form in _FEWER_BITS if gguf)
        for cost, form in ((Cost.WEIGHTS, weights), (Cost.FEW_BITS, few), *fewer):
            yield Saving(cost, f"{form} weights", {"weights": form})
        yield Saving(Cost.FEW_CACHE_BITS, "q4_0 cache", {"dtype": "q4_0"})


class Reference(GeneralEngine):
    """The sum of the formulas over the layers."""

    deployment: ClassVar[type[Deployment]] = ReferenceDeployment
    occupancy = ReferenceOccupancy
    name = "reference"
    title = "the formulas: what must be kept, nothing an engine adds"
    label = "reference"
    definition = Definition.EXACT
    facts = Facts(
        cache_is="what must be kept, to the token",
        choices=Choices(dtypes=("fp8", "q8_0", "q4_0"), weights=("bf16", "fp8", "int4")),
        beams_and_samples=True,
        mixes_prompts=False,
    )
    versions = ()
    source = "formulas/"
    kinds = None
