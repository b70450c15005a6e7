"""The ``quantization_config`` of a model, read to a scheme.

Every quantiser names the weights that it leaves out in its own way; :mod:`hwcalc.quantization.scheme` reads these names. If any
part of the config is not understood, the whole scheme is unknown.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any, Final

from msgspec.structs import replace

from hwcalc.formulas import formats
from hwcalc.formulas.formats import WeightFormat
from hwcalc.formulas.weights import WeightRole
from hwcalc.quantization.scheme import MOST_NAMES, QUANTISED_ROLES, Names, Rule, Scheme, read_names

_NAMED_ROLES: Final = (*QUANTISED_ROLES, WeightRole.HEAD)
_MOST_FORMATS: Final = 16
"""The most changes of the format from one group to the next; published configs have up to two groups."""
# With static activations, a scale of the inputs lies beside that of the weights. ModelOpt always keeps one for fp8.
_STATIC_FP8: Final = replace(formats.FP8, tensor_bytes=8)
_FP8_EXPERTS: Final = (None, "fp8", "float8_e4m3fn")


def read_scheme(config: Mapping[str, Any], expert_dtype: Any = None) -> Scheme | None:
    """Read a ``quantization_config`` (or the ``quantization`` of an ``hf_quant_config.json``); ``None`` if it is not understood.

    ``expert_dtype`` is the config key of that name: DeepSeek-V4 keeps its routed experts in formats.MXFP4 and the rest in fp8.
    """
    inner = config.get("quantization")
    if isinstance(inner, Mapping) and "quant_method" not in config:
        config = {"quant_method": "modelopt", **inner}
    method = str(config.get("quant_method", "")).lower().replace("_", "-")
    never = _never(config)
    if never is None:
        return None
    if method in ("compressed-tensors", "modelopt") or "config_groups" in config or "quant_algo" in config:
        return _grouped(config, never, expert_dtype)
    if method == "bitsandbytes" and not config.get("load_in_8bit") and not config.get("load_in_4bit"):
        return Scheme(name=method, rules=())
    if method == "bitnet":
        linear, mode = config.get("linear_class", "bitlinear"), config.get("quantization_mode", "offline")
        if linear not in ("bitlinear", "autobitlinear") or mode not in ("online", "offline"):
            return None
        # Packed in the files, but for a checkpoint that is quantised ``online``, whose files have 16-bit weights.
        automatic = linear == "autobitlinear"
        packed = () if automatic and mode == "online" else (Rule(format=formats.TERNARY, never=never),)
        return Scheme(name="bitnet", rules=packed, unpacked_by_transformers=automatic)
    reader = _METHODS.get(method)
    rule = reader(config) if reader is not None else None
    if rule is None:
        return None
    rules = (replace(rule, never=never),)
    if method != "fp8" or expert_dtype in _FP8_EXPERTS:
        return Scheme(name=method, rules=rules)
    if expert_dtype != "fp4":
        return None
    experts = Rule(format=formats.MXFP4, roles=(WeightRole.EXPERT,), never=never)
    return Scheme(name="fp8, experts mxfp4", rules=(experts, *rules))


def _never(config: Mapping[str, Any]) -> Names | None:
    """The modules that stay unquantised, collected from every key that lists them; ``None`` if one is not understood."""
    names: list[str] = []
    for key in ("modules_to_not_convert", "ignore", "exclude_modules", "llm_int8_skip_modules", "ignored_layers"):
        value = config.get(key)
        if value is None:
            continue
        if not isinstance(value, (list, tuple)) or len(value) > MOST_NAMES or not all(isinstance(item, str) for item in value):
            return None
        names += value
    dynamic = config.get("dynamic") or {}
    # In GPTQModel, "-:" leaves modules unquantised; "+:" or no sign changes their settings, which is not understood.
    if not isinstance(dynamic, Mapping) or not all(isinstance(key, str) and key.startswith("-:") for key in dynamic):
        return None
    return read_names([*names, *(f"re:{key[2:]}" for key in dynamic)])


def _fp8(config: Mapping[str, Any]) -> Rule | None:
    size = config.get("weight_block_size")
    if size is None:
        return Rule(format=_STATIC_FP8 if config.get("activation_scheme") == "static" else formats.FP8)
    if isinstance(size, (list, tuple)) and len(size) == 2 and all(_is_size(part) for part in size):
        return Rule(format=replace(formats.FP8_BLOCK, block=(size[0], size[1])))
    return None


def _gptq(config: Mapping[str, Any]) -> Rule | None:
    """The rule of a GPTQ config: integers, by default in groups of 128; of the modules it names, and of the head if it says so."""
    rule = _integers(formats.GPTQ, config.get("bits"), config.get("group_size", 128))
    inside = config.get("modules_in_block_to_quantize")
    if rule is None or (inside is not None and not isinstance(inside, (list, tuple))):
        return None
    if inside:
        named = [name for group in inside for name in (group if isinstance(group, (list, tuple)) else [group])]
        only = read_names(named) if all(isinstance(name, str) for name in named) else None
        rule = None if only is None else replace(rule, only=only)
    if rule is not None and config.get("lm_head") is True:
        rule = replace(rule, roles=(*QUANTISED_ROLES, WeightRole.HEAD))
    return rule


def _awq(config: Mapping[str, Any]) -> Rule | None:
    # AwqConfig of transformers has a default for bits; GPTQConfig has none.
    return _integers(
        formats.AWQ, config.get("bits", config.get("w_bit", 4)), config.get("group_size", config.get("q_group_size", 128))
    )


def _integers(form: WeightFormat, bits: Any, group: Any) -> Rule | None:
    if not _is_size(bits) or bits not in (2, 3, 4, 8):
        return None
    if not (_is_size(group) or (type(group) is int and group == -1)):
        return None
    return Rule(format=replace(form, bits=bits, zero_bits=bits, group=0 if group == -1 else group))


def _bitsandbytes(config: Mapping[str, Any]) -> Rule | None:
    if config.get("load_in_8bit"):
        return Rule(format=formats.BNB8)
    if config.get("load_in_4bit"):
        return Rule(format=formats.BNB4_DOUBLE if config.get("bnb_4bit_use_double_quant") else formats.BNB4)
    return None


_METHODS: Final[Mapping[str, Callable[[Mapping[str, Any]], Rule | None]]] = {
    "fp8": _fp8,
    "gptq": _gptq,
    "awq": _awq,
    "bitsandbytes": _bitsandbytes,
    # gpt-oss quantises only its experts.
    "mxfp4": lambda _: Rule(format=formats.MXFP4, roles=(WeightRole.EXPERT,)),
    "fbgemm-fp8": lambda _: Rule(format=replace(formats.FP8_CHANNEL, row_bytes=4)),
}


_ALGORITHMS: Final = {
    "FP8": _STATIC_FP8,
    "FP8_PB_WO": formats.FP8_BLOCK,
    "FP8_PER_CHANNEL_PER_TOKEN": replace(formats.FP8_CHANNEL, row_bytes=4),
    "MXFP8": formats.MXFP8,
    "NVFP4": formats.NVFP4,
    "W4A16_NVFP4": replace(formats.NVFP4, tensor_bytes=4),
    "W4A16_AWQ": formats.AWQ,
    "W4A8_AWQ": formats.AWQ,
}


def _grouped(config: Mapping[str, Any], never: Names, expert_dtype: Any) -> Scheme | None:
    """Read the config of compressed-tensors or ModelOpt: groups with a format and targets, or one algorithm."""
    algorithm = str(config.get("quant_algo") or "").upper()
    groups = config.get("config_groups")
    rules: list[Rule] = []
    if isinstance(groups, Mapping) and groups:
        group_rules = _groups(groups.values(), str(config.get("format") or ""))
        if group_rules is None:
            return None
        rules += (replace(rule, never=never) for rule in group_rules)
    elif algorithm in _ALGORITHMS:
        rules.append(Rule(format=_ALGORITHMS[algorithm], never=never))
    elif algorithm == "MIXED_PRECISION":
        module_rules = _by_module(config.get("quantized_layers"))
        if module_rules is None:
            return None
        rules += (replace(rule, never=never) for rule in module_rules)
    elif algorithm or config.get("quant_algo", "") is not None:
        return None
    method = str(config.get("quant_method") or "modelopt")
    if method == "fp8" and algorithm == "MIXED_PRECISION":
        # DeepSeek-V4 formats.NVFP4: the listed algorithms are those of the experts; the rest stays as in the fp8 checkpoint.
        # Experts that the list leaves out, those for multi-token prediction, stay as they were as well.
        rest = _fp8(config)
        if rest is None:
            return None
        kept = [Rule(format=formats.MXFP4, roles=(WeightRole.EXPERT,))] if expert_dtype == "fp4" else []
        rules = [*(replace(rule, roles=(WeightRole.EXPERT,)) for rule in rules), *kept, rest]
    return Scheme(name=method, rules=tuple(rules))


def _by_module(listed: Any) -> list[Rule] | None:
    """Read ``quantized_layers`` of ModelOpt, which maps modules to algorithms."""
    if not isinstance(listed, Mapping) or not listed or len(listed) > MOST_NAMES:
        return None
    modules: dict[str, list[str]] = {}
    for module, entry in listed.items():
        algorithm = entry.get("quant_algo") if isinstance(entry, Mapping) else None
        if not isinstance(module, str) or not isinstance(algorithm, str) or algorithm.upper() not in _ALGORITHMS:
            return None
        modules.setdefault(algorithm.upper(), []).append(module)
    rules = [(_ALGORITHMS[algorithm], read_names(names)) for algorithm, names in modules.items()]
    if any(names is None for _, names in rules):
        return None
    return [Rule(format=form, roles=_NAMED_ROLES, only=names) for form, names in rules]


def _groups(groups: Iterable[Any], outer: str) -> list[Rule] | None:
    """The rules of all groups. Groups of one format in a row are one rule, so that each module is looked up once."""
    read = [_group(group, outer) for group in groups]
    if not all(read):
        return None
    rules: list[Rule] = []
    runs = [(form, [targets for _, targets in run]) for form, run in groupby(filter(None, read), key=itemgetter(0))]
    if len(runs) > _MOST_FORMATS:
        return None
    for form, several in runs:
        targets = [target for each in several for target in each]
        named = [target for target in targets if target != "Linear"]
        # A capitalised name is a class of modules. Only "Linear" is supported, not "Embedding" and others.
        if len(targets) > MOST_NAMES or any(name[:1].isupper() and "." not in name for name in named):
            return None
        only = read_names(named)
        if only is None:
            return None
        rules += [Rule(format=form)] if not all(several) or len(named) < len(targets) else []
        rules += [Rule(format=form, roles=_NAMED_ROLES, only=only)] if named else []
    return rules


def _group(group: Any, outer: str) -> tuple[WeightFormat, Sequence[str]] | None:
    """The format of a group and its targets; no targets stand for all linear layers."""
    if not isinstance(group, Mapping):
        return None
    weights = group.get("weights")
    targets = group.get("targets", ["Linear"])
    if not isinstance(weights, Mapping) or not isinstance(targets, (list, tuple)):
        return None
    form = _tensor_format(weights, str(group.get("format") or outer))
    inputs = group.get("input_activations")
    if form == formats.FP8 and isinstance(inputs, Mapping) and inputs.get("dynamic") is False:
        form = _STATIC_FP8
    if form is None or not all(isinstance(target, str) for target in targets):
        return None
    return form, targets


def _tensor_format(weights: Mapping[str, Any], outer: str) -> WeightFormat | None:
    """The format of one group of compressed-tensors; ``None`` if it is not known. ``outer`` is the name of the packing."""
    bits, kind, size = weights.get("num_bits"), weights.get("type", "int"), weights.get("group_size")
    strategy = weights.get("strategy")
    if not _is_size(bits):
        return None
    if kind == "float" and bits == 8:
        if strategy == "channel":
            return formats.FP8_CHANNEL
        block = weights.get("block_structure")
        if strategy == "block" and isinstance(block, (list, tuple)) and len(block) == 2 and all(map(_is_size, block)):
            return replace(formats.FP8_BLOCK, block=(block[0], block[1]))
        return formats.FP8 if strategy in (None, "tensor") else None
    if kind == "float" and bits == 4:
        return formats.MXFP4 if outer.startswith("mxfp4") or size == 32 else formats.NVFP4
    if kind == "int" and bits in (4, 8):
        base = replace(formats.INT4, bits=bits)
        if strategy == "channel" or size in (None, -1):
            return replace(base, group=0)
        # An asymmetric group also keeps a zero point of ``bits`` bits.
        zero = 0 if weights.get("symmetric", True) else bits
        return replace(base, group=size, zero_bits=zero) if _is_size(size) else None
    return None


def _is_size(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 < value <= 65_536
