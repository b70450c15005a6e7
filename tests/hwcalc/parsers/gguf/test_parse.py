"""Tensors of a GGUF header as weights: parameters, bytes by type, and what a token uses."""

from __future__ import annotations

from hwcalc.formulas.formats import FP32
from hwcalc.formulas.weights import Part, WeightRole
from hwcalc.model import Definition, GgufTensor, ModelSpec, RawModel
from hwcalc.parsers.parse import parse
from hwcalc.planner.speed_work import Use, weight_shares
from hwcalc.quantization.planned import planned_scheme
from tests.hwcalc.parsers.gguf.test_hparams import keys

WIDTH, EXPERTS, INNER, ROWS = 256, 4, 512, 1000
_BYTES = {"f32": (1, 4), "q4_k": (256, 144), "q6_k": (256, 210), "q8_0": (32, 34)}


def tensor(name: str, form: str, *shape: int) -> GgufTensor:
    """One tensor with the bytes of its type."""
    block, size = _BYTES[form]
    count = 1
    for each in shape:
        count *= each
    return GgufTensor(name=name, type=form, shape=shape, bytes=count // block * size)


def layer(number: int, down: str) -> list[GgufTensor]:
    """One block of a small model with experts."""
    name = f"blk.{number}"
    return [
        tensor(f"{name}.attn_norm.weight", "f32", WIDTH),
        tensor(f"{name}.attn_q.weight", "q4_k", WIDTH, WIDTH),
        tensor(f"{name}.ffn_gate_inp.weight", "f32", WIDTH, EXPERTS),
        tensor(f"{name}.ffn_up_exps.weight", "q4_k", WIDTH, INNER, EXPERTS),
        tensor(f"{name}.ffn_down_exps.weight", down, INNER, WIDTH, EXPERTS),
    ]


def tensors() -> tuple[GgufTensor, ...]:
    """Two layers and one for multi-token prediction; the output is the embedding."""
    outside = [tensor("token_embd.weight", "q6_k", WIDTH, ROWS), tensor("output_norm.weight", "f32", WIDTH)]
    outside.append(tensor("rope_freqs.weight", "f32", 16))
    return (*outside, *layer(0, "q6_k"), *layer(1, "q4_k"), *layer(2, "q4_k"))


def model() -> ModelSpec:
    """The model of these tensors."""
    config = keys(
        "glm4moe", block_count=3, nextn_predict_layers=1, embedding_length=WIDTH, expert_count=EXPERTS, expert_used_count=1,
        expert_feed_forward_length=INNER,
    )  # fmt: skip
    return parse(RawModel(id="small", config=config, source="gguf", tensors=tensors()))


def test_parameters_are_those_of_the_tensors() -> None:
    """256 x 1,000 + 256 outside; 256 + 256 x 256 + 256 x 4 + 2 x 4 x 256 x 512 in each layer, of whose experts a token uses one."""
    each, outside, unused = 66_816 + 1_048_576, 256_256, 2 * 3 * 131_072
    read = model()
    assert read.parameters is not None
    assert (read.parameters.total, read.parameters.mtp) == (outside + 2 * each, each)
    assert read.parameters.active == outside + 2 * (each - unused)
    assert read.parameters.definition == Definition.EXACT
    assert (read.model_type, read.max_position_embeddings, read.vocab_size) == ("glm4moe", 4096, ROWS)
    assert (read.facts.mtp_modules, read.facts.experts_per_token) == (1, 1)


def test_the_bytes_of_every_type() -> None:
    """The file's bytes by type are the sums of its tensors."""
    read = model()
    assert read.weights is not None
    assert read.weights.total_bytes == sum(one.bytes for one in tensors())
    assert read.weights.bytes_by_dtype["q6_k"] == (WIDTH * ROWS + EXPERTS * WIDTH * INNER) // 256 * 210
    assert (read.weights.tensors, read.weights.definition) == (18, Definition.EXACT)


def test_blocks_keep_their_layers_and_each_tensor_its_type() -> None:
    """Layers with equal tensors are one block, whatever their types; the scheme knows the type of each."""
    read = model()
    assert read.counted is not None
    mlp = next(block for block in read.counted.blocks if block.kind == "mlp" and block.part is Part.LANGUAGE)
    assert mlp.layers == (0, 1)
    down = next(weight for weight in mlp.weights if weight.path == "ffn_down_exps.weight")
    assert (down.role, down.shape, down.copies, down.active) == (WeightRole.EXPERT, (WIDTH, INNER), EXPERTS, 1)
    scheme, known = planned_scheme(read, None)
    assert known
    assert scheme is not None
    assert [form.name for _, form in scheme.formats(mlp, down, FP32)] == ["q6_k", "q4_k"]
    stored = sum(one.bytes for one in tensors() if not one.name.startswith("rope_freqs"))
    assert stored == sum(scheme.bytes(block, weight, FP32) for block in read.counted.blocks for weight in block.weights)


def test_a_token_reads_one_expert_and_the_tied_table_as_output() -> None:
    """Bounds on speed know the types: the table is looked up, and multiplied with."""
    shares = weight_shares(model())
    assert shares is not None
    uses = {(share.use, share.format): share for share in shares}
    assert uses[Use.LAST, "q6_k"].bytes == WIDTH * ROWS // 256 * 210
    chosen = uses[Use.CHOSEN, "q6_k"]
    assert (chosen.copies, chosen.active, chosen.bytes) == (EXPERTS, 1, EXPERTS * WIDTH * INNER // 256 * 210)
