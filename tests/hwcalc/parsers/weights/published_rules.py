"""What a published count counts besides the parameters of the model, each as arithmetic over the model's own numbers.

A Hub count is one of stored elements: buffers, copies and scales count, and two 4-bit numbers in one byte are one element.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import prod
from typing import Any

from hwcalc import ModelSpec
from hwcalc.formulas.formats import BF16, WeightFormat
from hwcalc.formulas.weights import Block, Part, Weight, WeightRole
from hwcalc.quantization.planned import planned_scheme

Rule = Callable[[ModelSpec], int]


def blocks(model: ModelSpec) -> tuple[Block, ...]:
    """The blocks of weights; the rules are for counted models."""
    assert model.counted is not None
    return model.counted.blocks


def text(model: ModelSpec) -> Mapping[str, Any]:
    """The config of the text part."""
    inner: Mapping[str, Any] = model.config.get("text_config", model.config)
    return inner


def hidden(model: ModelSpec) -> int:
    """The width of the model."""
    width: int = text(model)["hidden_size"]
    return width


def depth(model: ModelSpec) -> int:
    """Its layers."""
    layers: int = text(model).get("num_hidden_layers") or text(model)["n_layer"]
    return layers


def table(model: ModelSpec) -> int:
    """Vocabulary x width: the embedding, or an output head."""
    return next(weight.elements for block in blocks(model) for weight in block.weights if weight.role is WeightRole.EMBEDDING)


def mtp(model: ModelSpec) -> int:
    """Layers for multi-token prediction."""
    assert model.counted is not None
    return model.counted.mtp


def mtp_shares_tables(model: ModelSpec) -> int:
    """The files leave the copies of embedding and head in those layers out."""
    return -2 * table(model)


def _experts(model: ModelSpec, part: Part) -> int:
    routers = (
        block.count * weight.shape[0]
        for block in blocks(model)
        for weight in block.weights
        if block.part is part and weight.role is WeightRole.ROUTER and weight.shape[0] > 1
    )
    return sum(routers)


def router_bias(model: ModelSpec) -> int:
    """One number an expert that corrects the router: a buffer. Layers that route by a table have none."""
    layers = sum(block.count for block in blocks(model) for weight in block.weights if weight.role is WeightRole.ROUTER
                 and block.part is Part.LANGUAGE and weight.shape[0] > 1)  # fmt: skip
    experts = _experts(model, Part.LANGUAGE)
    return experts - experts // layers * model.facts.hash_routed_layers


def routed_bias(model: ModelSpec) -> int:
    """As :func:`router_bias`, for a router that has rows for shared experts too: the buffer has none for these."""
    shared: int = model.config["text_config"]["n_shared_experts"]
    experts = _experts(model, Part.LANGUAGE)
    rows: int = model.config["text_config"]["n_routed_experts"] + shared
    return experts - experts // rows * shared


def mtp_router_bias(model: ModelSpec) -> int:
    """The same for the layers of multi-token prediction."""
    return _experts(model, Part.MTP)


def tower_router_bias(model: ModelSpec) -> int:
    """The same for experts of the vision tower."""
    return _experts(model, Part.VISION)


def token_table(model: ModelSpec) -> int:
    """Layers that route by the token keep the experts of every token: integers, a buffer."""
    assert model.vocab_size is not None
    return model.facts.hash_routed_layers * model.vocab_size * model.facts.experts_per_token


def head_twice(model: ModelSpec) -> int:
    """The files hold the head although it is the embedding, as transformers builds the model."""
    return table(model)


def rotary_in_layers(model: ModelSpec) -> int:
    """Inverse frequencies of the rotary embedding, half a head of ``hidden_size / num_attention_heads`` in each layer: a buffer.

    Moonlight's and Kimi-VL's files have them too, as wide as that although only 64 numbers of a head turn: transformers took the
    head for them from these two keys (NVIDIA-NeMo/Megatron-Bridge #1838, and #1861, where a file of this kind has 7,168 / 64 / 2).
    """
    config = text(model)
    return int(depth(model) * (hidden(model) // config["num_attention_heads"] // 2))


def rotary_once(model: ModelSpec) -> int:
    """Inverse frequencies of one rotary embedding over half of a head: a buffer."""
    config = text(model)
    return hidden(model) // int(config["num_attention_heads"]) // 2 // 2


def rotary_of_a_quarter(model: ModelSpec) -> int:
    """Inverse frequencies in each layer, where ``rotary_pct`` of a head turns."""
    config = text(model)
    turned = int(hidden(model) // config["num_attention_heads"] * config["rotary_pct"])
    return depth(model) * (turned // 2)


def masks(model: ModelSpec) -> int:
    """A causal mask of positions x positions in each layer: a buffer."""
    assert model.max_position_embeddings is not None
    return depth(model) * model.max_position_embeddings**2


def masks_of_local_layers(model: ModelSpec) -> int:
    """Such masks in the layers with a window alone."""
    assert model.max_position_embeddings is not None
    local = sum(kinds.count("local") * times for kinds, times in text(model)["attention_types"])
    return int(local) * model.max_position_embeddings**2


def unused_norms(model: ModelSpec) -> int:
    """A.X-K1's files also hold the norm behind the MLP for its dense layers, which do not use it (transformers, modeling_axk1.py)."""
    return sum(block.count for block in blocks(model) if block.kind == "mlp") * hidden(model)


def padded_vocabulary(model: ModelSpec) -> int:
    """The repository's files are those of the 32,768 tokens that Mixtral-8x22B-Instruct has, in embedding and head."""
    assert model.vocab_size is not None
    return 2 * (32_768 - model.vocab_size) * hidden(model)


def shared_keys(model: ModelSpec) -> int:
    """Gemma-4's last layers read the cache of others, but the files hold key and value weights and a key norm for them."""
    config = text(model)
    shared = config["layer_types"][-config["num_kv_shared_layers"] :]
    widths = [config["global_head_dim"] if kind == "full_attention" else config["head_dim"] for kind in shared]
    return sum(2 * config["num_key_value_heads"] * width * hidden(model) + width for width in widths)


def layer_scalars(model: ModelSpec) -> int:
    """One number a layer: a buffer."""
    return depth(model)


def standardised(model: ModelSpec) -> int:
    """Gemma-4's tower ends with a mean and a scale of each of its numbers: buffers."""
    tower = model.config["vision_config"]
    assert tower["standardize"]
    return 2 * int(tower["hidden_size"])


def _mlp(model: ModelSpec) -> int:
    return 3 * hidden(model) * int(text(model)["intermediate_size"])


def ernie_mtp(model: ModelSpec) -> int:
    """A dense layer, the projection of two hidden states to one, and two norms; the config does not mention it."""
    config, width = text(model), hidden(model)
    heads, groups = config["num_attention_heads"], config["num_key_value_heads"]
    head = width // heads
    return int(2 * width * head * (heads + groups) + _mlp(model) + 2 * width * width + 4 * width)


def _joined_layer(model: ModelSpec, queries: int, keys: int, values: int, output: int) -> int:
    """An attention, a dense MLP, the projection of two hidden states to one, and five norms."""
    width = hidden(model)
    return width * (queries + keys + values + output) + _mlp(model) + 2 * width * width + 5 * width


def exaone_mtp(model: ModelSpec) -> int:
    """A layer with a dense MLP and norms of query and key; its tables are the model's (vLLM, exaone_moe_mtp.py)."""
    config = text(model)
    heads, groups, head = config["num_attention_heads"], config["num_key_value_heads"], config["head_dim"]
    return _joined_layer(model, heads * head, groups * head, groups * head, heads * head) + 2 * int(head)


def mimo_mtp(model: ModelSpec) -> int:
    """Three layers with a window, a sink per head and a dense MLP; the config does not mention them."""
    config = text(model)
    heads, groups = config["swa_num_attention_heads"], config["swa_num_key_value_heads"]
    wide, narrow = config["swa_head_dim"], config["swa_v_head_dim"]
    return int(3 * (_joined_layer(model, heads * wide, groups * wide, groups * narrow, heads * narrow) + heads))


def mimo_scales(model: ModelSpec) -> int:
    """Scales of the three layers, and the two rows of scales more that the keys of a full layer have.

    The header of ``model_mtp.safetensors`` has 96, 12 and 8 rows of scales for query, key and value, 128 for gate and up, 32 for down,
    and 16-bit projections for the rest. In the main layers the tiles of keys start anew with each head of 192 rows, as loaders of
    the files say (hughmadden/cuteafd, mimo/resident.rs: "restarted 128+64 blocks per 192-row head", 8 rows for 4 heads;
    sgl-project/sglang #23808 says of a sibling that each shard is padded by itself). Two heads of a sliding layer fill whole tiles.
    """
    assert _formats(model)
    config, columns = text(model), hidden(model) // 128
    heads, wide, narrow = config["swa_num_attention_heads"], config["swa_head_dim"], config["swa_v_head_dim"]
    rows = (heads * wide + config["swa_num_key_value_heads"] * (wide + narrow)) // 128
    layers = 3 * (rows * columns + _mlp(model) // 128**2)
    groups, key = config["num_key_value_heads"], config["head_dim"]
    anew = groups * -(-key // 128) - groups * key // 128
    return int(layers + config["hybrid_layer_pattern"].count(0) * columns * anew)


def step_mtp(model: ModelSpec) -> int:
    """Three layers with a window, each with a gate per head, norms of query and key, and a head of its own."""
    config, width = text(model), hidden(model)
    heads = config["attention_other_setting"]["num_attention_heads"]
    groups, head = config["num_key_value_heads"], config["head_dim"]
    attention = _joined_layer(model, heads * head, groups * head, groups * head, heads * head)
    return int(int(config["num_nextn_predict_layers"]) * (attention + heads * width + 2 * head + table(model)))


def dots_mtp(model: ModelSpec) -> int:
    """A layer with a window and a dense MLP, the projection of two hidden states to one, three norms more, and an embedding."""
    window = next(block for block in blocks(model) if block.kind == "attention" and block.layers and 2 in block.layers)
    attention = sum(weight.elements for weight in window.weights)
    return attention + _mlp(model) + 2 * hidden(model) ** 2 + 5 * hidden(model) + table(model)


def _formats(model: ModelSpec) -> list[tuple[Part, int, WeightFormat, Weight]]:
    scheme, known = planned_scheme(model, None)
    assert known
    assert scheme is not None
    return [
        (block.part, count, form, weight)
        for block in blocks(model)
        for weight in block.weights
        for count, form in scheme.formats(block, weight, BF16)
    ]


def _scale_count(form: WeightFormat, weight: Weight) -> int:
    rows, columns = prod(weight.shape[:-1]), weight.shape[-1]
    if form.block is not None:
        return weight.copies * -(-rows // form.block[0]) * -(-columns // form.block[1])
    if form.group:
        return weight.copies * rows * (columns // form.group)
    return weight.copies * rows if form.row_bytes else 0


def scales(model: ModelSpec) -> int:
    """Scales of tiles, groups or rows, outside multi-token prediction. Scales of whole tensors are not among them."""
    return sum(count * _scale_count(form, weight) for part, count, form, weight in _formats(model) if part is not Part.MTP)


def static_scales(model: ModelSpec) -> int:
    """A scale of the weights and one of their inputs for each matrix in fp8, of which an expert has two: gate and up are one."""
    return sum(
        2 * count * weight.copies
        for _, count, form, weight in _formats(model)
        if form.name == "fp8" and form.tensor_bytes == 8 and not (weight.role is WeightRole.EXPERT and "up_proj" in weight.path)
    )


def mtp_scales(model: ModelSpec) -> int:
    """The same in the layers of multi-token prediction."""
    return sum(count * _scale_count(form, weight) for part, count, form, weight in _formats(model) if part is Part.MTP)


def _packed(model: ModelSpec, *, inside: bool) -> int:
    formats = _formats(model)
    halves = (count * weight.elements for part, count, form, weight in formats if form.bits == 4 and (part is Part.MTP) is inside)
    return -(sum(halves) // 2)


def packed(model: ModelSpec) -> int:
    """Two 4-bit numbers in one byte are one element."""
    return _packed(model, inside=False)


def mtp_packed(model: ModelSpec) -> int:
    """The same in the layers of multi-token prediction."""
    return _packed(model, inside=True)


def cache_scales(model: ModelSpec) -> int:
    """A scale of the keys and one of the values in each attention layer."""
    assert model.quantization is not None
    assert model.quantization["kv_cache_quant_algo"]
    return 2 * sum(group.count for group in model.stack.groups if "num_key_value_heads" in group.kind.dims())


def ternary(model: ModelSpec) -> int:
    """BitNet: four ternary numbers in a byte are one element, and each matrix has a scale."""
    matrices = [(count, weight) for _, count, form, weight in _formats(model) if form.name == "ternary"]
    return sum(count * (1 + weight.elements // 4 - weight.elements) for count, weight in matrices)
