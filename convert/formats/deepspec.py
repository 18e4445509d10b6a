"""DeepSpec, dense (`Qwen3DSparkModel`): everything at the top level, anchor-first.

`save_pretrained` adds copies of the target's embedding and head. With `markov_rank` 0 it is DFlash
in this layout: anchor-first all the same.
"""

from llamaspec.convert.backbone import Choices, decoder_taps, dense_config
from llamaspec.convert.checkpoint import Checkpoint
from llamaspec.convert.dense import map_dense
from llamaspec.convert.plan import DraftConfig, Mapped, Packaging
from llamaspec.convert.target import Target


def recognises(source: Checkpoint) -> bool:
    """Its class, or flat `target_layer_ids` and `block_size`; and no `dflash_config`."""
    config = source.settings.config
    flat = "target_layer_ids" in config and "block_size" in config
    own = source.architecture == "Qwen3DSparkModel"
    return (own or flat) and "dflash_config" not in config


def configure(source: Checkpoint, target: Target) -> DraftConfig:
    """The configuration in neutral terms."""
    taps = decoder_taps(source.settings)
    return dense_config(source, target, Choices(taps, anchor_first=True))


def map_tensors(source: Checkpoint, config: DraftConfig) -> Mapped:
    """The tensors under GGUF names."""
    return map_dense(source, config)


PACKAGING = Packaging("DeepSpec", recognises, configure, map_tensors)
