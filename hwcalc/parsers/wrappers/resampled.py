"""Documents whose towers are joined by attention: query transformers, resamplers, and small transformers."""

from __future__ import annotations

from typing import Final

from hwcalc.formulas.weights import Block, WeightRole, attention, embedding, gated_mlp, linear, parameter, rms_norm
from hwcalc.parsers.blocks import Weighed
from hwcalc.parsers.config import Config
from hwcalc.parsers.towers.build import LLAMA, LLAMA_NAMES, block, encoder_layer, linears, mlp_chain, needed, norms, tower
from hwcalc.parsers.wrappers.build import JOINT, PATH, Joined, audio, beside, vision, wrapper


def _aria(joined: Joined) -> Weighed:
    """Aria: learned queries attend to the patches. There are as many as the largest image gets."""
    width, text, attend = joined.width, joined.out, f"{PATH}.cross_attn"
    return (
        *parameter(f"{PATH}.query", _aria_queries(joined.top), width),
        *linears(attend, LLAMA_NAMES[:3], width, width),
        *parameter(f"{attend}.multihead_attn.in_proj_weight", 3 * width, width, role=WeightRole.LINEAR),
        *parameter(f"{attend}.multihead_attn.in_proj_bias", 3 * width, role=WeightRole.BIAS),
        *linears(attend, ("multihead_attn.out_proj", "linear"), width, width, bias=True),
        *norms("layer", PATH, ("cross_attn.layer_norm", "cross_attn.layer_norm_kv", "layer_norm"), width),
        *mlp_chain(f"{PATH}.feed_forward", (width, text, text), ("linear_in", "linear_out"), bias=False),
    )


def _aria_queries(top: Config) -> int:
    most = top.maybe_integer("max_value_projector_patch_to_query_dict")
    given = top.get("projector_patch_to_query_dict")
    if most is not None or given is None:
        return most or 256
    if not isinstance(given, dict) or not given:
        raise top.error("projector_patch_to_query_dict", given, "an object of patches and queries")
    return max(top.checked_integer("projector_patch_to_query_dict", value) for value in given.values())


ARIA: Final = wrapper(vision(_aria))


def _blip2(joined: Joined) -> tuple[Block, ...]:
    """BLIP-2 and InstructBLIP. The query transformer of InstructBLIP reads the instruction as well."""
    former = needed(joined.top, "qformer_config", encoder_hidden_size=joined.width)
    width = former.integer("hidden_size")
    out = tower(former, "qformer")
    ends = (
        *parameter("query_tokens", joined.top.integer("num_query_tokens"), width),
        *linear("language_projection", width, joined.out, bias=True),
    )
    if joined.top.model_type != "blip-2":
        ends += embedding("qformer.embeddings.word_embeddings", former.integer("vocab_size"), width)
        ends += embedding("qformer.embeddings.position_embeddings", former.integer("max_position_embeddings"), width)
    return (*out, *block("projector", ends, JOINT))


BLIP2: Final = wrapper(vision(path="vision_model", then=_blip2))


def _granite_speech(joined: Joined) -> Weighed:
    """Granite Speech: a query transformer that reads each window of audio."""
    width = joined.width
    queries = joined.top.integer("window_size") // joined.top.integer("downsample_rate")
    return parameter("projector.query", queries, width) + linear("projector.linear", width, joined.out, bias=True)


GRANITE_SPEECH: Final = wrapper(
    beside("encoder_config", path="encoder"), beside("projector_config", _granite_speech, path="projector.qformer")
)


def _idefics2(joined: Joined) -> tuple[Block, ...]:
    """Idefics 2: a gated MLP, then a perceiver with latents that attend to the patches."""
    text, middle = joined.out, joined.language.integer("intermediate_size")
    config = needed(joined.top, "perceiver_config", hidden_size=text)
    base = "connector.modality_projection"
    mlp = linears(base, ("gate_proj", "up_proj"), joined.width, middle) + linear(f"{base}.down_proj", middle, text)
    own, base = config.integer("hidden_size"), "connector.perceiver_resampler"
    heads, kv_heads = config.integer("resampler_n_heads"), config.integer("num_key_value_heads")
    layer = (
        *attention(own, heads, kv_heads, config.integer("resampler_head_dim"), path=f"{base}.layers.self_attn"),
        *gated_mlp(own, 4 * own, path=f"{base}.layers.mlp"),
        *norms("rms", f"{base}.layers", ("input_latents_norm", "input_context_norm", "post_attention_layernorm"), own),
    )
    ends = parameter(f"{base}.latents", config.integer("resampler_n_latents"), own) + rms_norm(f"{base}.norm", own)
    return (
        *block("projector", mlp, JOINT),
        *block("resampler", layer, JOINT, config.number_of_layers("resampler_depth")),
        *block("latents", ends, JOINT),
    )


IDEFICS2: Final = wrapper(vision(path="vision_model", then=_idefics2))


def _kosmos(joined: Joined) -> Weighed:
    """Kosmos-2 and 2.5: latent queries attend to the patches."""
    text, base = joined.out, "image_to_text_projection"
    return (
        *parameter(f"{base}.latent_query", joined.top.integer("latent_query_num"), text),
        *linear(f"{base}.dense", joined.width, text, bias=True),
        *linears(f"{base}.x_attn", ("k_proj", "v_proj", "q_proj", "out_proj"), text, text, bias=True),
    )


KOSMOS: Final = wrapper(vision(_kosmos, path="vision_model"))


def _fun_asr(joined: Joined) -> tuple[Block, ...]:
    """Fun-ASR: two linear layers and a small transformer between the tower and the language model."""
    adaptor = needed(joined.top, "adaptor_config")
    width = adaptor.integer("hidden_size")
    sizes = (joined.width, adaptor.integer("projector_hidden_size"), width)
    layer = encoder_layer(adaptor, LLAMA, f"{PATH}.layers", width, adaptor.integer("intermediate_size"))
    return (
        *block("projector", mlp_chain(PATH, sizes, ("linear_1", "linear_2")), JOINT),
        *block("projector layer", layer, JOINT, adaptor.number_of_layers()),
    )


FUN_ASR: Final = wrapper(audio(then=_fun_asr))
