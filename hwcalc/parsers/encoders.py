"""How many tokens an encoder puts out, where the model itself fixes that number."""

from __future__ import annotations

from hwcalc.parsers.config import Config

__all__ = ["encoder_tokens"]

# Vision transformers by the tokens that they add to their patches: a class token, and DeiT's distillation token.
_EXTRA_TOKENS = {"beit": 1, "blip_vision_model": 1, "deit": 2, "dinov2": 1, "vit": 1, "vit_mae": 1}
# Hierarchical ones halve the grid between stages and have no class token.
_HALVING = ("donut-swin", "swin", "swinv2")
_LARGEST_IMAGE = 2**20


def encoder_tokens(config: Config) -> int | None:
    """Tokens of the encoder of a composite model, or ``None`` where the input decides.

    Whisper pads every recording to ``max_source_positions``; an image encoder of fixed size gives one token for each
    patch. ``config`` is the whole model.

    A ViT for 64 x 64 pixels with patches of 32 gives four patches and one class token: 5.
    """
    if config.model_type == "whisper":
        return config.maybe_integer("max_source_positions")
    if config.model_type in ("blip", "pp_formulanet"):
        return _image_tokens(config.sub("vision_config"))
    if config.model_type == "vision-encoder-decoder":
        return _image_tokens(config.sub("encoder"))
    return None


def _image_tokens(encoder: Config | None) -> int | None:
    if encoder is None:
        return None
    # Nothing else in an encoder's config bears on what the decoder keeps.
    encoder.ignore(*encoder.raw)
    size, patch = _pair(encoder, "image_size"), _pair(encoder, "patch_size")
    kind = encoder.model_type
    if size is None or patch is None or kind is None:
        return None
    if kind in _EXTRA_TOKENS:
        return (size[0] // patch[0]) * (size[1] // patch[1]) + _EXTRA_TOKENS[kind]
    rows, columns = (-(-size[i] // patch[i]) for i in (0, 1))
    if kind in _HALVING:
        depths = encoder.sequence("depths")
        if not depths:
            return None
        halvings = min(len(depths) - 1, _LARGEST_IMAGE.bit_length())
    elif kind == "pp_formulanet_vision":
        # Two convolutions of stride 2 follow the patches.
        halvings = 2
    else:
        return None
    for _ in range(halvings):
        rows, columns = -(-rows // 2), -(-columns // 2)
    return rows * columns


def _pair(config: Config, key: str) -> tuple[int, int] | None:
    """A side, or height and width."""
    value = config.get(key)
    if value is None:
        return None
    sides = value if isinstance(value, (list, tuple)) else [value, value]
    if len(sides) != 2:
        raise config.error(key, value, "a whole number, or height and width")
    height, width = (config.checked_integer(key, side, maximum=_LARGEST_IMAGE) for side in sides)
    return height, width
