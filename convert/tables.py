"""Embedding and head: both the target's (left out) or both the draft's own (written), never one.

llama.cpp takes a draft's embedding for its head where the draft has no head. With an untied target
that is the wrong matrix, and nothing but a low acceptance tells.
"""

from dataclasses import dataclass

import numpy as np

from llamaspec.convert.finite import is_finite
from llamaspec.convert.plan import DraftConfig, Mapped
from llamaspec.convert.target import Table, Target
from llamaspec.convert.weights import Weights, floats
from llamaspec.errors import IncompatibleDraftError, ModelLoadError

SAMPLES = 64
_SAME_ROUNDED = 2.0**-7
_SAME_QUANTISED = 0.9
EMBEDDING, HEAD = "token_embd.weight", "output.weight"


@dataclass(frozen=True)
class Decision:
    """Tables to write, by GGUF name, and what to tell of it."""

    tensors: dict[str, Weights]
    note: str
    left_out: dict[str, str]


def decide(mapped: Mapped, config: DraftConfig, target: Target, standalone: bool) -> Decision:
    """Which tables a draft's GGUF gets.

    A reduced vocabulary needs the draft's own head. With the whole vocabulary both are left out
    where they are copies of the target's: by comparison where the target's weights are at hand, by
    what the packaging promises where not.

    Args:
        mapped: the checkpoint's tables, if any.
        config: its configuration.
        target: the target.
        standalone: write both whatever they are.

    Raises:
        ModelLoadError: a table is needed that is nowhere.
        IncompatibleDraftError: a table has another shape than the vocabulary and width ask for.
    """
    wide = config.shape.width
    _check(mapped.embedding, "embedding", config.shape.vocabulary, wide)
    _check(mapped.head, "head", config.draft_vocabulary, wide)
    reduced = config.draft_vocabulary < config.shape.vocabulary
    if reduced:
        return _reduced(mapped, config, target, standalone)
    if standalone:
        return _both(*_for_standalone(mapped, target), "standalone: embedding and head are written")
    if mapped.embedding is None and mapped.head is None:
        return Decision({}, "embedding and head are the target's", {})
    verdict = _verdict(mapped, config, target)
    if verdict == "same" or (verdict == "unknown" and config.tables == "copies"):
        said = "equal the target's" if verdict == "same" else "are the target's in this packaging"
        gone = {
            name: "the target's is used"
            for table in (mapped.embedding, mapped.head)
            if table is not None
            for name in table.source
        }
        return Decision({}, f"embedding and head {said}: left out", gone)
    if mapped.embedding is None or (mapped.head is None and config.tables != "own"):
        lone = "an embedding and no head" if mapped.head is None else "a head and no embedding"
        raise ModelLoadError(
            f"the draft brings {lone} of its own, and llama.cpp would take one for both; the "
            "checkpoint is incomplete, or give --standalone, which takes the other from the target"
        )
    why = "differ from the target's" if verdict == "different" else "are the draft's own"
    head = mapped.head or mapped.embedding
    return _both(mapped.embedding, head, f"embedding and head {why}: both are written")


def _both(embedding: Weights, head: Weights, note: str) -> Decision:
    return Decision({EMBEDDING: embedding, HEAD: head}, note, {})


def _reduced(mapped: Mapped, config: DraftConfig, target: Target, standalone: bool) -> Decision:
    if mapped.head is None:
        raise ModelLoadError(
            f"the draft proposes from {config.draft_vocabulary} of {config.shape.vocabulary} "
            "tokens and has no lm_head of its own for them; the checkpoint is incomplete"
        )
    tensors = {HEAD: mapped.head}
    embedding = mapped.embedding
    if embedding is None and standalone:
        embedding = _for_standalone(mapped, target)[0]
    if embedding is not None:
        tensors = {EMBEDDING: embedding, **tensors}
    owner = "the draft's own" if embedding is not None else "the target's"
    return Decision(tensors, f"head for {config.draft_vocabulary} tokens; embedding {owner}", {})


def _for_standalone(mapped: Mapped, target: Target) -> tuple[Weights, Weights]:
    embedding, head = mapped.embedding, mapped.head
    if embedding is None and target.embedding is not None:
        embedding = target.embedding.weights
    if head is None and target.head is not None:
        head = target.head.weights
    if embedding is None or head is None:
        missing = "embedding" if embedding is None else "head"
        raise ModelLoadError(
            f"--standalone: the draft has no {missing}, and {target.path} brings none in F32, F16 "
            "or BF16 safetensors; give the target's checkpoint folder with its weights"
        )
    return embedding, head


def _check(table: Weights | None, what: str, rows: int, wide: int) -> None:
    if table is not None and table.shape != (rows, wide):
        raise IncompatibleDraftError(
            f"the draft's {what} has the shape {list(table.shape)}, its configuration asks for "
            f"{[rows, wide]}"
        )


def _verdict(mapped: Mapped, config: DraftConfig, target: Target) -> str:
    compared = []
    for own, theirs in ((mapped.embedding, target.embedding), (mapped.head, target.head)):
        if own is not None and theirs is not None:
            # the mask's row may be the only one that was trained
            compared.append(_equal(own, theirs, config.mask))
    if not compared:
        return "unknown"
    return "same" if all(compared) else "different"


def _equal(own: Weights, theirs: Table, mask: int) -> bool:
    if own.shape != theirs.shape:
        return False
    spread = np.linspace(0, own.n_rows - 1, SAMPLES).astype(int).tolist()
    for row in sorted({mask, *spread}):
        mine, other = floats(own.rows(row, row + 1))[0], theirs.rows(row, row + 1)[0]
        if not (is_finite(mine) and is_finite(other)):
            return False
        a, b = mine.astype(np.float64), other.astype(np.float64)
        if theirs.exact:
            if np.abs(a - b).max() > _SAME_ROUNDED * max(np.abs(a).max(), np.abs(b).max()):
                return False
            continue
        size = np.linalg.norm(a) * np.linalg.norm(b)
        if size > 0 and a @ b / size < _SAME_QUANTISED:
            return False
    return True
