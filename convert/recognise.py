"""From a folder to the plan of its draft: recognise, configure, map, validate."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from llamaspec.convert.check import (
    check_fit,
    check_tensors,
    common_shapes,
    dense_shapes,
    optional_shapes,
)
from llamaspec.convert.checkpoint import Checkpoint, read_config
from llamaspec.convert.dense import unmapped
from llamaspec.convert.formats import PACKAGINGS, deepseek4
from llamaspec.convert.plan import DraftConfig, Mapped, Packaging, Plan
from llamaspec.convert.settings import Settings, first_architecture
from llamaspec.convert.tables import decide
from llamaspec.convert.target import Target
from llamaspec.convert.weights import Weights
from llamaspec.errors import ModelLoadError, OptionError

MASK_EMBEDDING = "mask_embedding.pt"


@dataclass(frozen=True)
class Wishes:
    """How a plan is to be made.

    Attributes:
        standalone: write embedding and head whoever's they are.
        drop_unexpected: leave tensors out that the packaging does not have, instead of refusing.
        overrides: settings that replace the configuration's.
    """

    standalone: bool = False
    drop_unexpected: bool = False
    overrides: Mapping[str, Any] = field(default_factory=dict)


def open_draft(folder: Path, overrides: Mapping[str, Any]) -> Checkpoint:
    """A draft's checkpoint with the shards that it needs; the caller closes it.

    Raises:
        ModelLoadError: see `Checkpoint.open`; or a mask embedding that only a pickle holds.
    """
    embedded = deepseek4.marked(read_config(folder))
    if embedded:
        return Checkpoint.open(folder, overrides, deepseek4.wanted)
    if (folder / MASK_EMBEDDING).exists():
        raise ModelLoadError(
            f"{folder / MASK_EMBEDDING}: the mask's embedding is pickled, and opening a pickle "
            "runs code of whoever made it; save it as safetensors into the embedding's row instead"
        )
    return Checkpoint.open(folder, overrides)


def recognise(source: Checkpoint) -> Packaging:
    """The packaging of a checkpoint. Raises ModelLoadError where it is none of the known."""
    for packaging in PACKAGINGS:
        if packaging.recognises(source):
            return packaging
    name = first_architecture(source.settings.config) or "no architecture"
    known = ", ".join(packaging.name for packaging in PACKAGINGS)
    raise ModelLoadError(
        f"{source.settings.path}: {name} is none of the draft packagings that are known ({known})"
    )


def make_plan(source: Checkpoint, target: Target, wishes: Wishes) -> Plan:
    """Every tensor and key of the draft, checked against its own configuration and the target.

    Raises:
        ModelLoadError: a packaging that is not known, a setting or tensor that is missing, wrong
            or unexpected.
        IncompatibleDraftError: it was made for another target, or its parts do not fit.
    """
    packaging = recognise(source)
    config = packaging.configure(source, target)
    check_fit(config, target, source.settings.whole_or(0, "num_target_layers") or None)
    mapped = _without_identity(packaging.map_tensors(source, config), config)
    check_overrides(source.settings, wishes)
    tables = decide(mapped, config, target, wishes.standalone)
    left_out = {**mapped.left_out, **tables.left_out}
    unexpected = unmapped(source, mapped)
    if unexpected and not wishes.drop_unexpected:
        more = f" and {len(unexpected) - 4} more" if len(unexpected) > 4 else ""
        raise ModelLoadError(
            f"{source.folder}: {', '.join(unexpected[:4])}{more}: a {packaging.name} draft has no "
            "such tensors, and without them it may compute something else; "
            "--drop-unexpected converts it all the same"
        )
    left_out |= dict.fromkeys(unexpected, "unexpected")
    plan = Plan(
        packaging=packaging.name,
        config=config,
        tensors=_ordered({**mapped.tensors, **tables.tensors, **_factors(config)}),
        left_out=left_out,
        notes=(*config.notes, tables.note, *_notes(config, target)),
    )
    required = (packaging.expected or dense_shapes)(config) | common_shapes(config, target)
    check_tensors(plan, required, optional_shapes(config))
    return plan


def check_overrides(settings: Settings, wishes: Wishes) -> None:
    """Raise OptionError for an override that nothing has asked for."""
    vain = sorted(set(wishes.overrides) - settings.asked)
    if vain:
        raise OptionError(f"--set {vain[0]}: this draft's conversion reads no such setting")


def _factors(config: DraftConfig) -> dict[str, Weights]:
    factors = config.rope.factors
    return {} if factors is None else {"rope_freqs.weight": factors}


def _without_identity(mapped: Mapped, config: DraftConfig) -> Mapped:
    """A d2t that maps every token to itself says nothing, and would cost a scatter a pass."""
    ids = mapped.tensors.get("d2t")
    full = config.draft_vocabulary == config.shape.vocabulary
    if ids is not None and full and (ids.whole() == np.arange(ids.n_rows)).all():
        del mapped.tensors["d2t"]
        mapped.left_out[ids.source[0]] = "maps every token to itself"
    return mapped


def _ordered(tensors: dict[str, Weights]) -> dict[str, Weights]:
    """Tables and heads first, then layer by layer."""

    def place(name: str) -> tuple[int, int, str]:
        parts = name.split(".")
        return (1, int(parts[1]), name) if parts[0] == "blk" else (0, 0, name)

    return {name: tensors[name] for name in sorted(tensors, key=place)}


def _notes(config: DraftConfig, target: Target) -> list[str]:
    notes = []
    if not target.architecture:
        notes.append(
            f"what llama.cpp calls the architecture of {target.path.name} is not known here: "
            "whether it gives the layer outputs that the draft reads shows when the two are loaded"
        )
    if config.markov[0] in ("gated", "rnn"):
        notes.append(
            f"the Markov head is {config.markov[0]}: llama.cpp's own tools refuse this file, "
            "their draft graph has vanilla heads only"
        )
    return notes
