"""Miniature draft checkpoints in every published packaging, each with its target's folder.

    pair = write("zlab", tmp_path, sliding=True)

writes `pair.draft` (config.json, safetensors) and `pair.target` (config.json, tokenizer). Names,
dtypes and config keys are the published ones; sizes are small and the weights random, but the same
on every machine.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.checkpoints import (
    deepseek,
    deepspec,
    dflash,
    gemma,
    nemotron,
    specforge,
    speculators,
)
from tests.checkpoints.shapes import Checkpoint
from tests.checkpoints.tokenizer import write_tokenizer
from tests.checkpoints.writing import digest, write_json, write_safetensors

__all__ = ["CASES", "PACKAGINGS", "Case", "Pair", "digest", "write"]

_BUILDERS: dict[str, Callable[..., Checkpoint]] = {
    "deepspec": deepspec.vanilla,
    "deepspec-rank0": deepspec.rank0,
    "deepspec-gated": deepspec.gated,
    "deepspec-rnn": deepspec.rnn,
    "gemma4": gemma.gemma4,
    "zlab": dflash.zlab,
    "speculators": speculators.speculators,
    "specforge": specforge.specforge,
    "lfm2": specforge.lfm2,
    "deepseek4": deepseek.deepseek4,
    "dflash2": dflash.dflash2,
    "nemotron-nvfp4": nemotron.nemotron,
}
PACKAGINGS = tuple(_BUILDERS)


@dataclass(frozen=True)
class Pair:
    """The two folders; for a draft inside its target's checkpoint they are the same."""

    draft: Path
    target: Path


@dataclass(frozen=True)
class Case:
    """A packaging with the keywords that vary it, by a name for reports and files."""

    name: str
    packaging: str
    variation: Mapping[str, Any] = field(default_factory=dict)

    def write(self, folder: Path) -> Pair:
        """Write this case's folders."""
        return write(self.packaging, folder, **self.variation)


def write(packaging: str, folder: Path, **variation: Any) -> Pair:  # noqa: ANN401
    """Write a draft and its target under `folder`.

    Args:
        packaging: one of PACKAGINGS.
        folder: made if missing; a folder inside it that is there already is an error.
        variation: keywords of the packaging's builder in this package.
    """
    built = _BUILDERS[packaging](**variation)
    names = ("draft", "target") if built.target is not None else ("model", "model")
    pair = Pair(folder / names[0], folder / names[1])
    pair.draft.mkdir(parents=True)
    write_json(pair.draft / "config.json", built.config)
    for name, value in built.extra.items():
        write_json(pair.draft / name, value)
    for name, tensors in built.shards.items():
        write_safetensors(pair.draft / name, tensors)
    if len(built.shards) > 1:
        write_json(pair.draft / "model.safetensors.index.json", _index(built))
    if built.target is not None:
        pair.target.mkdir()
        write_json(pair.target / "config.json", built.target)
    write_tokenizer(pair.target)
    return pair


def _index(built: Checkpoint) -> dict[str, Any]:
    where = {name: shard for shard, tensors in built.shards.items() for name in tensors}
    size = sum(len(t.data) for tensors in built.shards.values() for t in tensors.values())
    return {"metadata": {"total_size": size}, "weight_map": dict(sorted(where.items()))}


CASES = (
    *(Case(packaging, packaging) for packaging in PACKAGINGS),
    Case("deepspec-untied", "deepspec", {"untied": True}),
    Case("gemma4-default-tied", "gemma4", {"rope": "default", "tied": True}),
    Case("gemma4-no-rope", "gemma4", {"rope": None}),
    Case("zlab-sliding", "zlab", {"sliding": True}),
    Case("zlab-mrope", "zlab", {"mrope": True}),
    Case("zlab-sinks", "zlab", {"sinks": True}),
    Case("speculators-full", "speculators", {"full": True}),
    Case("speculators-anchor", "speculators", {"from_anchor": True}),
    Case("speculators-no-key", "speculators", {"from_anchor": None}),
    Case("specforge-mrope", "specforge", {"mrope": True}),
    Case("nemotron-nvfp4-w4a4", "nemotron-nvfp4", {"activations": True}),
)
