"""What a config's ``quantization_config`` does to each weight: which format it has, and which it is left alone.

Every quantiser names its exceptions in its own way: module names, endings, globs, or regular expressions behind ``re:``. Names
are compared with the layer number left out, and a name that lists layers one by one excludes that share of them. A regular
expression is never run: the few forms that occur are turned into globs, and another one makes the whole scheme unknown.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from itertools import product
from typing import Any, Final

from formulas.formats import (
    AWQ,
    BNB4,
    BNB4_DOUBLE,
    BNB8,
    FP8,
    FP8_BLOCK,
    FP8_CHANNEL,
    GPTQ,
    INT4,
    INT8,
    MXFP4,
    NVFP4,
    WeightFormat,
)
from formulas.frozen import frozen
from formulas.weights import Block, Weight, WeightRole

__all__ = ["FORMATS", "Rule", "Scheme", "read_scheme", "uniform_scheme"]

FORMATS: Final[Mapping[str, WeightFormat]] = {
    item.name: item for item in (FP8, FP8_BLOCK, FP8_CHANNEL, MXFP4, NVFP4, INT8, INT4, GPTQ, AWQ, BNB4, BNB4_DOUBLE, BNB8)
}
"""Quantised formats by the name that ``--weights`` takes."""

_QUANTISED_ROLES: Final = (WeightRole.LINEAR, WeightRole.EXPERT)
_LAYER = re.compile(r"(^|\.)(layers|blocks|h|block)\.([0-9]{1,5})(?=\.|\*|$)")
_FP8_EXPERTS: Final = (None, "fp8", "float8_e4m3fn")
_MOST_PATTERNS: Final = 100_000
_MOST_FORMS: Final = 64


@frozen
class Rule:
    """One format and the weights that get it.

    ``only`` limits it to modules that match one of these globs; ``never`` excludes: glob -> the layers it names, empty for
    all of them. ``head`` includes the output head.
    """

    format: WeightFormat
    roles: tuple[WeightRole, ...] = _QUANTISED_ROLES
    only: tuple[str, ...] = ()
    never: tuple[tuple[str, frozenset[int]], ...] = ()

    def share(self, module: str, weight: Weight, layers: int) -> tuple[int, int]:
        """How many of ``layers`` equal layers get this format, as (these, of all)."""
        if weight.role not in self.roles or len(weight.shape) < 2:
            return 0, layers
        if self.only and not any(_matches(module, glob) for glob in self.only):
            return 0, layers
        excluded: set[int] = set()
        for glob, named in self.never:
            if _matches(module, glob):
                if not named:
                    return 0, layers
                excluded |= named
        return max(0, layers - len(excluded)), layers


@frozen
class Scheme:
    """Rules in order: the first that takes a weight decides. What none takes stays in the model's dtype."""

    name: str
    rules: tuple[Rule, ...]

    def bytes(self, block: Block, weight: Weight, plain: WeightFormat) -> int:
        """Bytes of one tensor in all layers of its block."""
        module = weight.path.removesuffix(".weight")
        left, size = block.count, 0
        for rule in self.rules:
            taken, _ = rule.share(module, weight, block.count)
            taken = min(taken, left)
            size += taken * rule.format.bytes(weight)
            left -= taken
            if not left:
                break
        return size + left * plain.bytes(weight)


def uniform_scheme(name: str) -> Scheme | None:
    """``--weights NAME``: every matrix but embeddings, routers, norms and the head; ``None`` if there is no such format."""
    chosen = FORMATS.get(name)
    return None if chosen is None else Scheme(name=name, rules=(Rule(format=chosen),))


def read_scheme(config: Mapping[str, Any], expert_dtype: Any = None) -> Scheme | None:
    """A ``quantization_config`` (or the ``quantization`` of an ``hf_quant_config.json``) as a scheme.

    ``expert_dtype`` is the config's key of that name: DeepSeek-V4 keeps its routed experts in MXFP4 beside fp8. ``None`` is a
    scheme that is not understood; nothing is guessed about it.
    """
    inner = config.get("quantization")
    if isinstance(inner, Mapping) and "quant_method" not in config:
        config = {"quant_method": "modelopt", **inner}
    method = str(config.get("quant_method", "")).lower().replace("_", "-")
    names = _strings(config, "modules_to_not_convert", "ignore", "exclude_modules", "llm_int8_skip_modules", "ignored_layers")
    never = _never(names)
    if never is None:
        return None
    if method in ("compressed-tensors", "modelopt") or "config_groups" in config or "quant_algo" in config:
        return _grouped(config, never)
    reader = _METHODS.get(method)
    rule = reader(config) if reader is not None else None
    if rule is None:
        return None
    rules = (_with(rule, never),)
    if method != "fp8" or expert_dtype in _FP8_EXPERTS:
        return Scheme(name=method, rules=rules)
    if expert_dtype != "fp4":
        return None
    experts = Rule(format=MXFP4, roles=(WeightRole.EXPERT,), never=never)
    return Scheme(name="fp8, experts mxfp4", rules=(experts, *rules))


def _with(rule: Rule, never: tuple[tuple[str, frozenset[int]], ...]) -> Rule:
    return Rule(format=rule.format, roles=rule.roles, only=rule.only, never=never)


def _fp8(config: Mapping[str, Any]) -> Rule | None:
    size = config.get("weight_block_size")
    if size is None:
        return Rule(format=FP8)
    if isinstance(size, (list, tuple)) and len(size) == 2 and all(_is_size(part) for part in size):
        return Rule(format=_changed(FP8_BLOCK, block=(size[0], size[1])))
    return None


def _gptq(config: Mapping[str, Any]) -> Rule | None:
    return _integers(GPTQ, config.get("bits"), config.get("group_size", 128))


def _awq(config: Mapping[str, Any]) -> Rule | None:
    # transformers' AwqConfig has defaults, GPTQConfig has none for its bits.
    return _integers(AWQ, config.get("bits", config.get("w_bit", 4)), config.get("group_size", config.get("q_group_size", 128)))


def _integers(form: WeightFormat, bits: Any, group: Any) -> Rule | None:
    if not _is_size(bits) or bits not in (2, 3, 4, 8):
        return None
    if not (_is_size(group) or (type(group) is int and group == -1)):
        return None
    return Rule(format=_changed(form, bits=bits, zero_bits=bits, group=0 if group == -1 else group))


def _bitsandbytes(config: Mapping[str, Any]) -> Rule | None:
    if config.get("load_in_8bit"):
        return Rule(format=BNB8)
    if config.get("load_in_4bit"):
        return Rule(format=BNB4_DOUBLE if config.get("bnb_4bit_use_double_quant") else BNB4)
    return None


def _mxfp4(config: Mapping[str, Any]) -> Rule | None:
    # gpt-oss quantises its experts and nothing else.
    return Rule(format=MXFP4, roles=(WeightRole.EXPERT,))


def _fbgemm(config: Mapping[str, Any]) -> Rule | None:
    return Rule(format=_changed(FP8_CHANNEL, row_bytes=4))


_METHODS: Final = {
    "fp8": _fp8,
    "gptq": _gptq,
    "awq": _awq,
    "bitsandbytes": _bitsandbytes,
    "mxfp4": _mxfp4,
    "fbgemm-fp8": _fbgemm,
}


def _grouped(config: Mapping[str, Any], never: tuple[tuple[str, frozenset[int]], ...]) -> Scheme | None:
    """compressed-tensors and ModelOpt: groups, each with its format and its targets."""
    algorithm = str(config.get("quant_algo") or "").upper()
    groups = config.get("config_groups")
    rules: list[Rule] = []
    if isinstance(groups, Mapping) and groups:
        for group in groups.values():
            rule = _group(group, str(config.get("format") or ""))
            if rule is None:
                return None
            rules.append(_with(rule, never))
    elif algorithm == "FP8":
        rules.append(Rule(format=FP8, never=never))
    elif algorithm == "NVFP4":
        rules.append(Rule(format=NVFP4, never=never))
    elif algorithm in ("W4A16_AWQ", "W4A8_AWQ"):
        rules.append(Rule(format=AWQ, never=never))
    else:
        return None
    method = str(config.get("quant_method") or "modelopt")
    if method == "fp8" and algorithm == "MIXED_PRECISION":
        # DeepSeek-V4 NVFP4: the experts as the group says, the rest as the fp8 checkpoint had it.
        rest = _fp8(config)
        if rest is None:
            return None
        rules = [*(Rule(format=rule.format, roles=(WeightRole.EXPERT,)) for rule in rules), rest]
    return Scheme(name=method, rules=tuple(rules))


def _group(group: Any, outer: str) -> Rule | None:
    if not isinstance(group, Mapping):
        return None
    weights = group.get("weights")
    targets = group.get("targets", ["Linear"])
    if not isinstance(weights, Mapping) or not isinstance(targets, (list, tuple)) or len(targets) > _MOST_PATTERNS:
        return None
    form = _tensor_format(weights, str(group.get("format") or outer))
    if form is None:
        return None
    named = [target for target in targets if isinstance(target, str) and target != "Linear"]
    if not named:
        return Rule(format=form)
    globs = _never(named)
    if globs is None:
        return None
    return Rule(format=form, roles=(*_QUANTISED_ROLES, WeightRole.HEAD), only=tuple(dict.fromkeys(glob for glob, _ in globs)))


def _tensor_format(weights: Mapping[str, Any], outer: str) -> WeightFormat | None:
    bits, kind, size = weights.get("num_bits"), weights.get("type", "int"), weights.get("group_size")
    strategy = weights.get("strategy")
    if not _is_size(bits):
        return None
    if kind == "float" and bits == 8:
        if strategy == "channel":
            return FP8_CHANNEL
        block = weights.get("block_structure")
        if strategy == "block" and isinstance(block, (list, tuple)) and len(block) == 2 and all(map(_is_size, block)):
            return _changed(FP8_BLOCK, block=(block[0], block[1]))
        return FP8 if strategy in (None, "tensor") else None
    if kind == "float" and bits == 4:
        return MXFP4 if outer.startswith("mxfp4") or size == 32 else NVFP4
    if kind == "int" and bits in (4, 8):
        base = _changed(INT4, bits=bits)
        if strategy == "channel" or size in (None, -1):
            return _changed(base, group=0)
        # An asymmetric group keeps a zero point of as many bits.
        zero = 0 if weights.get("symmetric", True) else bits
        return _changed(base, group=size, zero_bits=zero) if _is_size(size) else None
    return None


def _changed(form: WeightFormat, **changes: Any) -> WeightFormat:
    from dataclasses import replace

    return replace(form, **changes)


def _is_size(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 < value <= 65_536


def _strings(config: Mapping[str, Any], *keys: str) -> list[str]:
    out: list[str] = []
    for key in keys:
        value = config.get(key)
        if isinstance(value, (list, tuple)):
            out += [item for item in value[:_MOST_PATTERNS] if isinstance(item, str) and len(item) <= 500]
    return out


def _never(names: Iterable[str]) -> tuple[tuple[str, frozenset[int]], ...] | None:
    """Names as globs without layer numbers, each with the layers it stood for; ``None`` if one is not understood."""
    found: dict[str, set[int]] = {}
    everywhere: set[str] = set()
    for name in names:
        globs = _from_regex(name[3:]) if name.startswith("re:") else [name]
        if globs is None:
            return None
        for glob in globs:
            match = _LAYER.search(glob)
            # Everything up to the layer number is the model's own prefix.
            rest = glob[match.end() :].removeprefix(".") if match else glob
            if match and rest in ("", "*"):
                rest = "*"
            if match and not glob[: match.start()].startswith(("mtp", "vision", "visual", "model.visual", "model.vision")):
                found.setdefault(rest, set()).add(int(match[3]))
            elif not match:
                everywhere.add(rest)
    return (
        *((glob, frozenset()) for glob in sorted(everywhere)),
        *((glob, frozenset(layers)) for glob, layers in sorted(found.items()) if glob not in everywhere),
    )


def _from_regex(pattern: str) -> list[str] | None:
    r"""The forms of regular expressions that quantisers write, as globs: ``.*``, ``\.``, ``(a|b)``, ``^`` and ``$``.

    >>> _from_regex(r".*mlp\.(gate|up)_proj.*")
    ['*mlp.gate_proj*', '*mlp.up_proj*']
    """
    text = pattern.strip().removeprefix("^").removesuffix("$")
    parts: list[list[str]] = []
    for piece in re.split(r"(\([a-z0-9_|]+\))", text):
        if piece.startswith("(") and piece.endswith(")"):
            parts.append(piece[1:-1].split("|"))
        else:
            plain = piece.replace(r"\d+", "*").replace(".*", "*").replace(r"\.", ".")
            if re.search(r"[\\()|+?^${}]", plain):
                return None
            parts.append([plain])
    forms = list(product(*parts)) if len(parts) < 12 else []
    return ["".join(form) for form in forms] if 0 < len(forms) <= _MOST_FORMS else None


def _matches(module: str, glob: str) -> bool:
    """Whether a module of one layer is named: itself, a part it belongs to, its ending, or by a glob over its whole name."""
    if "*" in glob or "?" in glob:
        full = f"model.layers.0.{module}"
        return any(fnmatchcase(name, form) for name in (module, full) for form in (glob, f"{glob}.*"))
    return f".{glob}." in f".{module}."
