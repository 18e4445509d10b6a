"""A reduced draft vocabulary: d2t, the target id of every row of the draft's head."""

import numpy as np
import numpy.typing as npt

from llamaspec.convert.checkpoint import Checkpoint
from llamaspec.convert.plan import DraftConfig
from llamaspec.convert.weights import Weights, constant
from llamaspec.errors import IncompatibleDraftError, ModelLoadError

_INTEGERS = ("I64", "I32", "I16", "I8", "U8")


def target_ids(source: Checkpoint, name: str, config: DraftConfig) -> Weights:
    """d2t as absolute target ids: checkpoints store id - row.

    Raises:
        IncompatibleDraftError: ids twice or out of range, a wrong length, or a t2d that says
            something else.
    """
    if source.entry(name).dtype not in _INTEGERS:
        raise ModelLoadError(f"{source.folder}: d2t holds {source.entry(name).dtype}, not integers")
    offsets = source.whole(name).reshape(-1)
    ids = offsets.astype(np.int64) + np.arange(offsets.size)
    seen = check_ids(ids, config)
    mask = next((other for other in source.entries if other.removeprefix("model.") == "t2d"), None)
    if mask is not None:
        said = source.whole(mask).reshape(-1).astype(bool)
        size = config.shape.vocabulary
        if said.size != size or (said != seen).any():
            raise IncompatibleDraftError(
                f"t2d marks {int(said.sum())} of {said.size} tokens, "
                f"d2t uses {ids.size} of {size}, and they are not the same ones"
            )
    return constant(ids, (name,))


def check_ids(ids: npt.NDArray[np.int64], config: DraftConfig) -> npt.NDArray[np.bool_]:
    """Check target ids, [draft vocabulary]; returns which tokens they are, [vocabulary].

    Raises:
        IncompatibleDraftError: ids twice or out of range, or a wrong number of them.
    """
    rows, size = config.draft_vocabulary, config.shape.vocabulary
    if ids.size != rows:
        raise IncompatibleDraftError(f"d2t has {ids.size} rows, draft_vocab_size is {rows}")
    low, high = (int(ids.min()), int(ids.max())) if ids.size else (0, -1)
    if not 0 <= low <= high < size:
        raise IncompatibleDraftError(f"d2t maps to tokens {low} to {high}, the target has {size}")
    seen = np.zeros(size, bool)
    seen[ids] = True
    if seen.sum() != ids.size:
        raise IncompatibleDraftError(
            f"d2t maps {ids.size} rows to only {seen.sum()} tokens; each may occur once"
        )
    return seen
