"""Loads a pair in a process of its own, fills all that it has, and prints what it has grown by.

Started by test_memory.py: `python -m tests.native.memory_probe`, a JSON object on stdin.
"""

import itertools
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from llamaspec.options import LoadOptions
from llamaspec.runtime import backend
from llamaspec.runtime.forecast import HOST, KINDS, Part, memory_of
from llamaspec.session import Session, load


def resident() -> int:
    """Bytes of this process in memory, pages of mapped files among them."""
    (line,) = (
        line
        for line in Path("/proc/self/smaps_rollup").read_text().splitlines()
        if line.startswith("Rss:")
    )
    return int(line.split()[1]) * 1024


def fill(session: Session, tokens: int) -> None:
    """Every sequence full once, and blocks of every width."""
    draw = np.random.default_rng(1)
    widest = session.draft_limit

    def stream(size: int, length: int, width: int) -> Iterator[object]:
        # ids that every vocabulary here has
        prompt = draw.integers(10, 500, size).tolist()
        return session.stream(prompt, max_tokens=length, draft_max=width, cache_prompt=False)

    long = session.n_ctx - tokens
    list(
        itertools.zip_longest(*(stream(long, tokens, widest) for _ in range(session.max_sequences)))
    )
    for width in range(1, widest):
        list(stream(40, 24, width))


def by_part(session: Session) -> dict[str, int]:
    """What llama.cpp counts of the loaded contexts, kept graphs among compute."""
    found = Part(HOST)
    pair = session._pair
    block: Any = getattr(pair.drafter, "block", pair.drafter)
    contexts = {"kv_target": pair.context, "kv_draft": getattr(block, "context", None)}
    for kind, context in contexts.items():
        for part in memory_of(context, kind) if context is not None else ():
            found = found.plus(**{name: getattr(part, name) for name in KINDS})
    return {name: getattr(found, name) for name in KINDS}


def main() -> None:
    given = json.load(sys.stdin)
    backend.devices()
    before = resident()
    options = LoadOptions(prefix_cache=0, **given["settings"])
    with load(given.get("model"), given.get("draft"), options=options) as session:
        loaded = resident()
        fill(session, given["tokens"])
        after = resident()
        forecast = session.forecast
        told = {
            "grown": after - before,
            "loaded": loaded - before,
            "forecast": forecast.total,
            "planned": {
                name: sum(getattr(part, name) for part in forecast.parts) for name in KINDS
            },
            "counted": by_part(session),
        }
    json.dump(told, sys.stdout)


if __name__ == "__main__":
    main()
