"""The quantisation of a plan: that of ``--weights`` if it is set, otherwise that of the checkpoint.

Some formats have names that say their bits (``exl2 4.0bpw``, ``mlx-4bit``), and some configs do not say how the weights are
quantised, but the model's name does. Weight files that do not hold the whole model say nothing about its size.
"""

from __future__ import annotations

import re
from functools import cache
from typing import Final

from msgspec.structs import replace

from hwcalc.errors import UnknownNameError, UnmadeFormatError, UsageError
from hwcalc.formulas.formats import BF16, FLOATS, WeightFormat
from hwcalc.formulas.weights import Part, WeightRole, Weights
from hwcalc.model import PARTIAL_WEIGHTS, Definition, ModelSpec, Note, WeightFacts
from hwcalc.quantization.scheme import Rule, Scheme
from hwcalc.text import by_word, did_you_mean, shown

_SPELLINGS: Final = by_word({
    "fp32": "float32 f32", "fp16": "float16 f16 half", "bf16": "bfloat16", "fp8": "fp8_e4m3",
    "bnb4": "nf4 bnb_nf4 bnb_fp4 bnb_4bit", "bnb8": "bnb_8bit bnb_int8 llm_int8", "awq": "awq_4bit awq_int4",
    "gptq": "gptq_4bit gptq_int4", "int4": "w4a16", "int8": "w8a8 w8a16", "q3_k_m": "q3_k", "q4_k_m": "q4_k",
    "q5_k_m": "q5_k",
})  # fmt: skip
"""Other names of formats, in lower case, their words joined by underscores."""
_BY_HAND: Final = r"^ud_|_k_?(xl|l)$|_(xxl|xl)$"
"""Names of files that are made otherwise than ``llama-quantize`` makes them: unsloth's dynamic ones, and those with larger tables."""
_PUBLISHED: Final = frozenset({"catalog", "hub", "hf-cache"})
"""Sources whose model ids are the names that publishers chose."""


def weight_formats() -> tuple[str, ...]:
    """All names that ``--weights`` takes."""
    from hwcalc.quantization.ggml import MIXES
    from hwcalc.quantization.scheme import FORMATS

    return (*FLOATS, *FORMATS, *MIXES, *EXAMPLES)


_ON_SERVERS: Final = {"4": "awq", "8": "fp8"}
"""Bits -> the format of that width that servers run most."""


def format_name(text: str | None) -> str | None:
    """The canonical format name for a value of ``--weights``; ``None`` means as published. Raises :class:`UnknownNameError`."""
    if text is None:
        return None
    from hwcalc.quantization.ggml import MIXES

    # Most name a mix as it is: the other formats need not be read for it.
    if text in MIXES and text not in _SPELLINGS:
        return text
    name = text.strip().lower()
    name = name if name.isalnum() else re.sub(r"[\s_-]+", "_", name)
    name = _SPELLINGS.get(name, name)
    from hwcalc.quantization.scheme import FORMATS

    # Most names are one of these; the others have tables of their own.
    if name in FLOATS or name in FORMATS:
        return name
    known = weight_formats()
    if name in known:
        return name

    by_bits = named_by_bits(name)
    if by_bits is None and re.search(_BY_HAND, name):
        nearest = next(part for part in (re.sub(r"_k_?(xl|l)$", "_k_m", name.removeprefix("ud_")), "q4_k_m") if part in known)
        raise UnknownNameError(
            f"--weights {shown(text, 40)} is a mix that its publisher chooses tensor by tensor: no rule says what is in it.",
            option="weights",
            hint=f"Give the file itself, such as ./model.gguf or org/repo:FILE.gguf, or a mix of llama.cpp: --weights {nearest}.",
        )
    if by_bits is None:
        bits = re.fullmatch(r"(?:q|int|w)?_?([1-8])_?(?:b|bits?)?", name)
        like = [f"q{bits[1]}_k_m", f"q{bits[1]}_0", f"mlx_{bits[1]}bit", _ON_SERVERS.get(bits[1], "")] if bits else []
        like = [each for each in like if each in known or named_by_bits(each)]
        meant = f"Did you mean {' or '.join(like)}? All: kvplan dtypes" if like else did_you_mean(name, known, 2)
        raise UnknownNameError(
            f"--weights {shown(text, 40)} is not a known weight format.",
            option="weights",
            hint=meant if like else f"{meant}Known: {', '.join(known)}; exl2, exl3 and mlx with other bits: exl2 3.5bpw.",
        )
    return by_bits


@cache
def bits_of(name: str) -> float | None:
    """The bits of a number in most matrices of a format or a GGUF file type, without its scales; ``None`` if it is not known.

    >>> bits_of("bf16"), bits_of("q3_k_l"), bits_of("iq4_xs"), bits_of("mxfp4_moe"), bits_of("exl2_3.5bpw"), bits_of("awq")
    (16.0, 3.0, 4.0, 4.0, 3.5, 4.0)
    """
    form = most_in(name)
    return None if form is None else form.bits / form.per


def most_in(name: str) -> WeightFormat | None:
    """What most matrices are stored as in a format or a GGUF file type; ``None`` if it is not known."""
    from hwcalc.quantization.ggml import GGML, MIXES
    from hwcalc.quantization.scheme import uniform_scheme

    form = FLOATS.get(name) or GGML.get(MIXES.get(name, name))
    scheme = None if form is not None else uniform_scheme(name) or by_bits(name)
    return form or (None if scheme is None else scheme.rules[0].format)


def planned_scheme(model: ModelSpec, name: str | None) -> tuple[Scheme | None, bool]:
    """The scheme of a plan (``None`` for unquantised weights), and whether it is known.

    ``name`` is the name of a format; ``None`` means as published.
    """
    if name in FLOATS:
        return None, True
    if name is not None:
        return model.once(("scheme", name), lambda: _named(model, name)), True
    if model.gguf is not None and model.gguf.tensors:
        from hwcalc.quantization.gguf import stored_scheme

        scheme = model.once("published scheme", lambda: stored_scheme(model))
        return scheme, scheme is not None
    if model.quantization is None:
        return None, model.once("names a format", lambda: named_in_the_id(model)) is None
    scheme = model.once("published scheme", lambda: _published(model))
    return scheme, scheme is not None


def _named(model: ModelSpec, name: str) -> Scheme | None:
    """The scheme of a format by its canonical name. What a GGUF mix gives to a tensor depends on the model."""
    from hwcalc.quantization.ggml import MIXES

    if name in MIXES:
        from hwcalc.quantization.gguf import mix

        return mix(name, model)
    from hwcalc.quantization.scheme import uniform_scheme

    return uniform_scheme(name) or by_bits(name)


def _published(model: ModelSpec) -> Scheme | None:
    from hwcalc.quantization.config import read_scheme

    scheme = read_scheme(model.quantization or {}, model.facts.expert_dtype)
    if scheme is None:
        return None
    blocks = () if model.counted is None else model.counted.blocks
    numbers = [number for block in blocks for number in block.layers or () if block.part is Part.LANGUAGE]
    return scheme.placed(layers=1 + max(numbers, default=-1), text_only=model.facts.quantizes_text_only)


def named_in_the_id(model: ModelSpec) -> Note | None:
    """A note for a published model whose name contains a quantised format that its config does not state, or ``None``."""
    word_and_format = named_format(model.id) if model.source in _PUBLISHED else None
    if word_and_format is None:
        return None
    word, name = word_and_format
    return Note(
        code="weights-unknown",
        message=f"The name {model.id} says {word}, but its config does not say how the weights are quantised: they are not "
        f"counted. Give a format: --weights {name}.",
    )


EXAMPLES: Final = ("exl2_4bpw", "exl3_4bpw", "mlx_4bit", "mlx_8bit")
"""Names to list: the bits may be others."""

_EXL: Final = r"(exl[23])_?([1-8](?:\.[0-9]{1,2})?)_?(?:bpw|bits?)?"
_MLX: Final = r"mlx_?(?:q|int)?([234568])_?(?:bits?)?"
_BY_BITS: Final = {"exl2_": "convert.py of ExLlamaV2", "exl3_": "convert.py of ExLlamaV3", "mlx_": "mlx_lm.convert of mlx-lm"}
"""How the names of formats begin that say their bits -> the program that makes one."""
_HEAD_BITS: Final = 6
"""Bits of the output head: the default of ExLlama's converters."""
_MATRICES: Final = (WeightRole.LINEAR, WeightRole.EXPERT)


def named_by_bits(name: str) -> str | None:
    """The canonical name of such a format; ``None`` if ``name`` is none. Words are joined by underscores.

    >>> named_by_bits("exl2_4.0bpw"), named_by_bits("exl3_3.5"), named_by_bits("mlx_4bit"), named_by_bits("exl2")
    ('exl2_4bpw', 'exl3_3.5bpw', 'mlx_4bit', None)
    """
    exl, mlx = re.fullmatch(_EXL, name), re.fullmatch(_MLX, name)
    if exl is not None and float(exl[2]) <= 8:
        return f"{exl[1]}_{float(exl[2]):g}bpw"
    return None if mlx is None else f"mlx_{mlx[1]}bit"


def by_bits(name: str) -> Scheme | None:
    """The scheme of such a name in its canonical form.

    ExLlama's converters reach the bits as an average over the matrices of the layers; the head has six, the embedding stays in 16.
    MLX quantises every matrix and the embedding in groups of 64 numbers with a scale and a bias of 16 bits.
    """
    exl, mlx = re.fullmatch(_EXL, name), re.fullmatch(_MLX, name)
    if exl is not None:
        from fractions import Fraction

        bits = Fraction(exl[2])
        matrices = WeightFormat(name=name, bits=bits.numerator, per=bits.denominator)
        head = WeightFormat(name=f"{exl[1]}_{_HEAD_BITS}bpw", bits=_HEAD_BITS)
        return Scheme(name=name, rules=(Rule(format=matrices, roles=_MATRICES), Rule(format=head, roles=(WeightRole.HEAD,))))
    if mlx is None:
        return None
    form = WeightFormat(name=name, bits=int(mlx[1]), group=64, scale_bytes=4)
    return Scheme(
        name=name, rules=(Rule(format=form, roles=(*_MATRICES, WeightRole.HEAD, WeightRole.EMBEDDING), text_only=True),)
    )


_FORMATS: Final = by_word({
    "nvfp4": "nvfp4 fp4", "mxfp4": "mxfp4", "mxfp8": "mxfp8", "fp8": "fp8", "int8": "w8a8 w8a16 int8 8bit",
    "int4": "w4a16 w4a8 int4 4bit", "awq": "awq", "gptq": "gptq", "bnb4": "bnb",
})  # fmt: skip
"""A word of a name -> the nearest format that ``--weights`` takes."""
_WORD: Final = rf"(?<![a-z0-9])(?:{'|'.join(_FORMATS)})(?![a-z0-9])"


def named_format(model_id: str) -> tuple[str, str] | None:
    """The first word of a model's name that means a quantised format, and this format's name for ``--weights``.

    >>> named_format("nvidia/GLM-5-NVFP4")
    ('NVFP4', 'nvfp4')
    >>> named_format("nvidia/GLM-5") is None
    True
    """
    name = model_id.rpartition("/")[2]
    lower = name.lower()
    word = re.search(_WORD, lower) if any(word in lower for word in _FORMATS) else None
    return None if word is None else (name[word.start() : word.end()], _FORMATS[word[0]])


_MAKERS: Final = by_word({
    "llm-compressor": "awq gptq fp8 fp8_block fp8_channel mxfp8 mxfp4 nvfp4 int8 int4",
    "transformers": "bnb4 bnb4_double bnb8",
})  # fmt: skip
"""A format of checkpoints -> the program that makes one (docs.vllm.ai/projects/llm-compressor; BitsAndBytesConfig of transformers)."""


def maker(name: str) -> str:
    """The program that makes weights in a format; empty for the formats of training, in which models are published.

    >>> maker("awq"), maker("iq4_xs"), maker("mlx_4bit"), maker("bf16")
    ('llm-compressor', 'llama-quantize of llama.cpp', 'mlx_lm.convert of mlx-lm', '')
    """
    from hwcalc.quantization.ggml import MIXES

    if name in MIXES:
        return "llama-quantize of llama.cpp"
    by_bits = next((program for start, program in _BY_BITS.items() if name.startswith(start)), "")
    return by_bits or _MAKERS.get(name, "")


def spellings(name: str) -> tuple[str, ...]:
    """The other names of a format that ``--weights`` takes."""
    return tuple(other for other, own in _SPELLINGS.items() if own == name)


HUB_MODELS: Final = "https://huggingface.co/models"
"""The Hub's page of all repositories of models, which takes a search."""


def hub_search(model: str, name: str) -> str:
    """The address of a search on the Hub for the copies of a model in a format, by the last part of its id or path, and the format's word.

    >>> hub_search("Qwen/Qwen3-32B", "awq"), hub_search("./Qwen3-8B/", "bnb4")
    ('https://huggingface.co/models?search=Qwen3-32B-awq', 'https://huggingface.co/models?search=Qwen3-8B-bnb')
    """
    word = next((word for word, form in _FORMATS.items() if form == name), name.partition("_")[0])
    return f"{HUB_MODELS}?search={_last(model)}-{word}"


def published_as(model: str, name: str) -> str | None:
    """The id in the catalog of a model's copy in a format, by its name; ``None`` if there is none.

    >>> published_as("Qwen/Qwen3-235B-A22B", "nvfp4"), published_as("Qwen/Qwen3-32B", "fp8_block"), published_as("Qwen/Qwen3-32B", "awq")
    ('nvidia/Qwen3-235B-A22B-NVFP4', 'Qwen/Qwen3-32B-FP8', None)
    """
    from hwcalc.profiles.catalog import list_models

    words = [word for word, form in _FORMATS.items() if form == name.removesuffix("_block")]
    copies = {f"{_last(model)}-{word}".lower() for word in words}
    return next((other for other in list_models() if _last(other).lower() in copies), None)


def _last(model: str) -> str:
    return model.rstrip("/").rpartition("/")[2]


def unmade(engine: str, name: str, model: str, *made: str) -> UnmadeFormatError | UsageError:
    """The error of an engine that does not make a format of the published weights, with what to type; ``made`` are formats that it makes."""
    message = f"{engine} does not make {name} weights of the published ones."
    if name in FLOATS:
        message = f"{engine} has no flag for weights in {name}: it loads them as they are published."
    others = f", use: --weights {' or '.join(made)}" if made else ""
    if name not in _MAKERS:
        return UsageError(message, hint=f"Leave out --weights{others}, or name a model that is published so.")
    known = published_as(model, name) or f"see {hub_search(model, name)}"
    return UnmadeFormatError(
        message, weights=name, hint=f"Leave out --weights{others}, or name a model that is published so: {known}"
    )


def checkpoint_in(model: str, name: str) -> tuple[str, str]:
    """A repository with a model in a format, where the catalog has none ``REPOSITORY``, and a sentence on where it comes from."""
    known = published_as(model, name)
    if known is not None:
        return known, f"Its weights are published in {name}. Plan them as they are stored: kvplan {known}"
    where = f"find one on {hub_search(model, name)} or make one with {_MAKERS[name]}."
    return REPOSITORY, f"{REPOSITORY} is a checkpoint in {name}: {where}"


REPOSITORY: Final = "REPOSITORY"
"""Stands in a command line for a repository of the Hub that the user has to choose."""

LEAST_PERCENT: Final = 98
"""Files with less than this share of the parameters that every copy of a model has are not the whole model.

Of the models with a published count whose config is a copy of the published file, the lowest share is 98.65 % (facebook/opt-125m).
"""

LEAST_PERCENT_RECONSTRUCTED: Final = 90
"""The same where the config is not such a copy. The lowest share is 94.75 %; the smallest of ten equal files that is missing takes 10 %."""

_NUMBER_BITS: Final = {
    "F8_E4M3": 8, "F8_E5M2": 8, "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8, "F16": 16, "BF16": 16, "F32": 32, "F64": 64, "F6_E2M3": 6,
    "F6_E3M2": 6, "F4": 4,
}  # fmt: skip
"""Bits of the dtypes of which each element is one parameter. An integer may hold several, and an exponent (F8_E8M0) is a scale."""

_UNNAMED_BITS: Final = 4

_SCALES: Final = frozenset({"F8_E8M0", "BOOL"})


def with_whole_weights(model: ModelSpec) -> ModelSpec:
    """The model, without the bytes of its files if they are not the whole model and the counted parameters take more.

    A note says what the files lack. If the parameters are not counted, the bytes of the files stay, with a note if they cannot even hold
    the embedding.
    """
    files = model.weights
    if files is None:
        return model
    stored = most_parameters(model, files)
    if model.counted is None:
        rows, width = model.vocab_size, model.hidden_size
        table = 1 if rows is None or width is None else rows * width
        if stored >= table:
            return model
        than = "none" if table == 1 else f"fewer than the {table:,} of its embedding alone"
        message = (
            f"The weight files hold at most {stored:,} parameters, {than}, and kvplan does not count the parameters of this model: "
            "its weights may take much more than the files."
        )
        return replace(model, notes=(*model.notes, Note(code="weights-unchecked", message=message)))
    needed = needed_parameters(model.counted)
    least = LEAST_PERCENT if model.definition(Definition.EXACT) is Definition.EXACT else LEAST_PERCENT_RECONSTRUCTED
    if 100 * stored >= least * needed:
        return model
    scheme, known = planned_scheme(model, None)
    unquantized = FLOATS.get(model.dtype or "", BF16)
    counted_bytes = sum(
        block.count * unquantized.bytes(weight) if scheme is None else scheme.bytes(block, weight, unquantized)
        for block in model.counted.blocks
        if known and block.part is not Part.MTP
        for weight in block.weights
    )
    larger = known and counted_bytes <= files.total_bytes
    share = "less than 1 %" if 100 * stored < needed else f"{100 * stored // needed} %"
    message = (
        f"The weight files are not the whole model: they hold at most {stored:,} parameters in {files.total_bytes:,} bytes, "
        f"{share} of the {needed:,} that the config needs at least. "
        + ("The files are planned, which take more bytes." if larger else "The parameters of the config are planned instead.")
    )
    note = Note(code=PARTIAL_WEIGHTS, message=message)
    return replace(model, weights=files if larger else None, notes=(*model.notes, note))


def needed_parameters(counted: Weights) -> int:
    """The parameters that the files of every copy of a model have.

    Towers, multi-token prediction and the head may be missing: there are exports for text only, and models that only embed.
    """
    return sum(
        block.count * weight.elements
        for block in counted.blocks
        if block.part in (Part.LANGUAGE, Part.ENCODER)
        for weight in block.weights
        if weight.role is not WeightRole.HEAD
    )


def most_parameters(model: ModelSpec, files: WeightFacts) -> int:
    """The most parameters that files with these dtypes can hold.

    An element of a floating dtype is one. An integer holds as many as its bits allow by the narrowest format of the model's
    quantisation, eight of 4 bits in an I32. If that is not known it holds one a bit, and one in 4 bits if the config names none: so
    files were packed before configs said so.
    """
    numbers = packed = 0
    for dtype, size in files.bytes_by_dtype.items():
        bits = _NUMBER_BITS.get(dtype)
        if bits is not None:
            numbers += 8 * size // bits
        elif dtype not in _SCALES:
            packed += size
    if not packed:
        return numbers
    scheme, known = planned_scheme(model, None)
    narrowest = _UNNAMED_BITS if known else 1
    if scheme is not None:
        narrowest = min((rule.format.bits for rule in scheme.rules), default=1)
    return numbers + 8 * packed // narrowest
