"""LFM2 (`Lfm2DSparkDraftModel`): SpecForge's schema with RoPE in interleaved pairs.

`rope_is_neox_style` false means that elements (0, 1), (2, 3), ... of a head turn together. The
rows of queries, keys and their norms are put in NeoX order, in which llama.cpp turns halves.
"""

from llamaspec.convert.backbone import Choices, decoder_taps, dense_config, head_width
from llamaspec.convert.checkpoint import Checkpoint
from llamaspec.convert.dense import map_dense, to_neox
from llamaspec.convert.plan import DraftConfig, Mapped, Packaging
from llamaspec.convert.target import Target


def recognises(source: Checkpoint) -> bool:
    """It says how its RoPE pairs lie, which no other packaging does."""
    config = source.settings.config
    return "rope_is_neox_style" in config or source.architecture.startswith("Lfm2DSpark")


def configure(source: Checkpoint, target: Target) -> DraftConfig:
    """The configuration in neutral terms."""
    taps = decoder_taps(source.settings)
    if source.settings.flag("rope_is_neox_style") is None:
        source.settings.need("rope_is_neox_style")
    return dense_config(source, target, Choices(taps, anchor_first=True))


def map_tensors(source: Checkpoint, config: DraftConfig) -> Mapped:
    """The tensors under GGUF names, in NeoX order."""
    mapped = map_dense(source, config)
    if source.settings.flag("rope_is_neox_style"):
        return mapped
    return to_neox(mapped, head_width(config.shape))


PACKAGING = Packaging("LFM2", recognises, configure, map_tensors)
