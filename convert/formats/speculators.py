"""speculators (`DSparkDraftModel`, `DSparkSpeculator`): a `transformer_layer_config`.

`aux_hidden_state_layer_ids` count hidden states, of which 0 is the embedding: a layer's input, and
so what GGUF stores. Without `sample_from_anchor` it is bonus-anchor. A reduced vocabulary comes
with `d2t`, stored as offsets, and with its own head. Layers with a sliding window are causal inside
the block where `sliding_window_non_causal` is false; others never are.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from llamaspec.convert.backbone import Choices, decoder_taps, dense_config
from llamaspec.convert.checkpoint import Checkpoint
from llamaspec.convert.dense import map_dense
from llamaspec.convert.plan import DraftConfig, Mapped, Packaging
from llamaspec.convert.settings import Settings
from llamaspec.convert.target import Target

_SCHEMA = ("transformer_layer_config", "aux_hidden_state_layer_ids")


def recognises(source: Checkpoint) -> bool:
    """The schema's own keys; the class name is SpecForge's too."""
    config = source.settings.config
    return any(key in config for key in _SCHEMA) or any(
        key.startswith("speculators_") for key in config
    )


def configure(source: Checkpoint, target: Target) -> DraftConfig:
    """The configuration in neutral terms."""
    settings = source.settings
    states = settings.ids("aux_hidden_state_layer_ids")
    if states is not None and any(state < 0 for state in states):
        raise settings.wrong(
            f"aux_hidden_state_layer_ids is {list(states)}: hidden states are counted from 0"
        )
    taps = states if states is not None else decoder_taps(settings)
    config = dense_config(source, target, Choices(taps, anchor_first=False))
    return replace(config, extra={**_causality(settings, config.extra), **config.extra})


def _causality(settings: Settings, extra: Mapping[str, Any]) -> dict[str, Any]:
    windowed = extra.get("attention.sliding_window_pattern", [])
    if not any(windowed) or settings.flag("sliding_window_non_causal") is not False:
        return {}
    if not all(windowed):
        raise settings.wrong(
            "sliding_window_non_causal is false and some layers have no window: those attend both "
            "ways inside the block, and llama.cpp's draft graph has one rule for all layers; "
            "--set sliding_window_non_causal=true converts it, to be tried for its acceptance"
        )
    return {"attention.causal": True}


def map_tensors(source: Checkpoint, config: DraftConfig) -> Mapped:
    """The tensors under GGUF names."""
    return map_dense(source, config)


PACKAGING = Packaging("speculators", recognises, configure, map_tensors)
