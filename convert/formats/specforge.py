"""SpecForge (`DSparkDraftModel`): a nested `dflash_config` and a Markov head, anchor-first.

The class name is speculators' too; what tells them apart is the schema. Embedding and head are the
target's. Long contexts come as YaRN.
"""

from llamaspec.convert.backbone import Choices, decoder_taps, dense_config
from llamaspec.convert.checkpoint import Checkpoint
from llamaspec.convert.dense import map_dense
from llamaspec.convert.plan import DraftConfig, Mapped, Packaging
from llamaspec.convert.target import Target


def recognises(source: Checkpoint) -> bool:
    """`dflash_config.projector_type` is "dspark", or there is a Markov head beside the nesting."""
    nested = source.settings.config.get("dflash_config")
    if not isinstance(nested, dict):
        return False
    marked = nested.get("projector_type") == "dspark"
    return marked or any("markov_w1" in name for name in source.entries)


def configure(source: Checkpoint, target: Target) -> DraftConfig:
    """The configuration in neutral terms."""
    taps = decoder_taps(source.settings)
    return dense_config(source, target, Choices(taps, anchor_first=True))


def map_tensors(source: Checkpoint, config: DraftConfig) -> Mapped:
    """The tensors under GGUF names."""
    return map_dense(source, config)


PACKAGING = Packaging("SpecForge", recognises, configure, map_tensors)
