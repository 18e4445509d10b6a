"""DFlash2: DFlash with causal convolutions around attention and feed-forward, and a selector.

Keys and tensors are llama.cpp's. Its selector always reads past slot 0.
"""

from dataclasses import replace

from llamaspec.convert.backbone import Choices, decoder_taps, dense_config
from llamaspec.convert.checkpoint import Checkpoint
from llamaspec.convert.dense import BLOCK_NAMES, map_dense
from llamaspec.convert.plan import DraftConfig, Mapped, Packaging
from llamaspec.convert.target import Target

_KEYS = ("conv_kernel_size", "conv_group_size", "selector_rank", "selector_top_k")
_NAMES = BLOCK_NAMES | {
    "attention_conv.base_kernel": "attn_conv_base",
    "attention_conv.kernel_projection.weight": "attn_conv_proj.weight",
    "mlp_conv.base_kernel": "ffn_conv_base",
    "mlp_conv.kernel_projection.weight": "ffn_conv_proj.weight",
}
_ROOT = {
    "candidate_selector.predecessor_codebook": "selector_predecessor.weight",
    "candidate_selector.successor_codebook": "selector_successor.weight",
    "candidate_selector.hidden_projection": "selector_hidden.weight",
}


def recognises(source: Checkpoint) -> bool:
    """Any of the keys of selector and convolutions."""
    return any(source.settings.find(key) is not None for key in _KEYS)


def configure(source: Checkpoint, target: Target) -> DraftConfig:
    """The configuration in neutral terms."""
    settings = source.settings
    taps = decoder_taps(settings)
    choices = Choices(taps, anchor_first=None, tables="none", heads=False)
    config = dense_config(source, target, choices)
    sizes = {key: settings.whole(key) for key in _KEYS}
    if config.shape.width % sizes["conv_group_size"]:
        raise settings.wrong(
            f"conv_group_size {sizes['conv_group_size']} does not divide the width "
            f"{config.shape.width}"
        )
    lattice = sizes["selector_top_k"] * (sizes["selector_top_k"] + 1)
    if config.shape.width < lattice:
        raise settings.wrong(
            f"selector_top_k {sizes['selector_top_k']} needs {lattice} elements of the width "
            f"{config.shape.width}: llama.cpp hands its scores over in one row"
        )
    return replace(config, anchor_first=None, extra={**config.extra, **sizes})


def map_tensors(source: Checkpoint, config: DraftConfig) -> Mapped:
    """The tensors under GGUF names."""
    mapped = map_dense(source, config, _NAMES)
    for name in source.entries:
        bare = name.removeprefix("model.").removesuffix(".weight")
        if bare in _ROOT:
            mapped.tensors[_ROOT[bare]] = source.weights(name)
    return mapped


PACKAGING = Packaging("DFlash2", recognises, configure, map_tensors)
