"""z-lab DFlash (`DFlashDraftModel`): a nested `dflash_config`, bonus-anchor, no heads.

Its block attends both ways, over sliding windows in the layers that `layer_types` says.
"""

from llamaspec.convert.backbone import Choices, decoder_taps, dense_config
from llamaspec.convert.checkpoint import Checkpoint
from llamaspec.convert.dense import map_dense
from llamaspec.convert.plan import DraftConfig, Mapped, Packaging
from llamaspec.convert.target import Target


def recognises(source: Checkpoint) -> bool:
    """A `dflash_config` (that no other packaging has claimed) and no Markov head."""
    nested = isinstance(source.settings.config.get("dflash_config"), dict)
    return nested and not any("markov_w1" in name for name in source.entries)


def configure(source: Checkpoint, target: Target) -> DraftConfig:
    """The configuration in neutral terms."""
    taps = decoder_taps(source.settings)
    choices = Choices(taps, anchor_first=None, tables="none", heads=False)
    return dense_config(source, target, choices)


def map_tensors(source: Checkpoint, config: DraftConfig) -> Mapped:
    """The tensors under GGUF names."""
    return map_dense(source, config)


PACKAGING = Packaging("z-lab DFlash", recognises, configure, map_tensors)
