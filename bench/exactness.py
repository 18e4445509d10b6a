"""How exact drafting is, over settings: tokens compared with plain decoding, and divergences.

    python -m llamaspec.bench.exactness [-m TARGET]... [--types f32,bf16,q8_0,q4_k_m] [-n 128] ...

Every target, in every type asked for, decodes plainly and then with a drafter that proposes the
plain text with errors, so that every accepted length occurs, at every verify width, in three ways:
exact mode; default mode; and near ties, what exact mode does where passes cannot be computed alike
(rows as by default, choices within the measured bound decided by single rows).
"""

import json
import random
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from itertools import product
from pathlib import Path
from typing import Annotated

import typer

from llamaspec import demo
from llamaspec.bench.pairs import read_prompts
from llamaspec.draft.drafter import Anchor, NothingLearnt, Proposal
from llamaspec.engine.doubt import NO_DOUBT, Doubt
from llamaspec.engine.ending import Ending
from llamaspec.engine.loop import Engine
from llamaspec.engine.replay import plain_gap
from llamaspec.engine.sequence import Request, Sequence
from llamaspec.loading import LOOKUP, Pair, load_pair
from llamaspec.options import LoadOptions
from llamaspec.runtime.arrays import IntArray
from llamaspec.runtime.quantize import quantize
from llamaspec.text.detokenize import Pieces

WIDEST = 8
ERRORS = 0.2
MODES = ("exact", "default", "near ties")


@dataclass(frozen=True)
class Setting:
    """One combination that is measured."""

    target: str
    flash_attention: str
    threads: int
    mode: str


@dataclass
class Tally:
    """What a setting gave. alone: rows that a near tie had decided alone; replayed: rows decoded
    again for that. gaps: plain decoding's, at each divergence.
    """

    setting: Setting
    bitwise: bool
    bound: float
    tokens: int = 0
    texts: int = 0
    rounds: int = 0
    alone: int = 0
    replayed: int = 0
    gaps: list[float] = field(default_factory=list)

    def add(self, sequence: Sequence) -> None:
        """Count a drafted text."""
        self.tokens += len(sequence.tokens)
        self.texts += 1
        self.rounds += len(sequence.rounds)
        self.alone += sequence.near_ties
        self.replayed += sum(r.replayed for r in sequence.rounds)


class ScriptedDrafter(NothingLearnt):
    """Proposes a known text, each token wrong with a fixed chance."""

    reads_features = False
    proposes_parked = False
    seconds = 0.0

    def __init__(self, proposals: int, seed: int) -> None:
        """proposals: ids a round; seed: of the errors."""
        self.proposals = proposals
        self.text: list[int] = []
        self._random = random.Random(seed)

    def propose(self, anchors: list[Anchor]) -> list[Proposal]:
        """The known text from each anchor on."""
        return [self._next(anchor) for anchor in anchors]

    def _next(self, anchor: Anchor) -> Proposal:
        start = anchor.position + 1
        ids = self.text[start : start + min(anchor.limit, self.proposals)]
        wrong = self._random
        return Proposal(tuple(i ^ 1 if wrong.random() < ERRORS else i for i in ids))


def run(engine: Engine, pair: Pair, prompt: IntArray, tokens: int, draft_max: int) -> Sequence:
    """Decode a prompt greedily, past the end of its answer: what follows is full of near ties."""
    pieces = Pieces(pair.model.vocab.piece)
    ending = Ending(pieces=pieces, ends=frozenset(), limit=tokens)
    request = Request(prompt, tokens, draft_max, ending)
    try:
        sequence = engine.admit(request)
        while sequence.finish_reason is None:
            engine.step()
    finally:
        engine.release(request)
    return sequence


def measure(
    pair: Pair, setting: Setting, prompts: list[IntArray], tokens: int, widths: range
) -> Tally:
    """Compare the drafted texts of some prompts with the plain ones, at every width."""
    exactness = pair.measure_exactness()
    doubt = pair.engine.doubt
    if setting.mode == "near ties":
        doubt = Doubt(exactness.bound, patience=0)
    tally = Tally(setting, exactness.bitwise, exactness.bound)
    plain = Engine(pair.context, None, NO_DOUBT)
    for number, prompt in enumerate(prompts):
        expected = run(plain, pair, prompt, tokens, 0)
        for width in widths:
            drafter = ScriptedDrafter(width - 1, seed=1000 * width + number)
            drafter.text = expected.text
            engine = Engine(pair.context, drafter, doubt)
            sequence = run(engine, pair, prompt, tokens, drafter.proposals)
            tally.add(sequence)
            if sequence.tokens != expected.tokens:
                pairs = zip(sequence.tokens, expected.tokens, strict=True)
                same = next(i for i, (a, b) in enumerate(pairs) if a != b)
                tally.gaps.append(plain_gap(plain, pair.context, prompt, expected.tokens[:same]))
    return tally


def sweep(
    targets: list[Path],
    texts: list[str],
    *,
    tokens: int = 128,
    threads: tuple[int, ...] = (1, 2),
    modes: tuple[str, ...] = MODES,
) -> Iterator[Tally]:
    """Measure every target in every setting; texts are prompts of the model's chat template's."""
    for target, attention, n_threads, mode in product(targets, ("on", "off"), threads, modes):
        options = LoadOptions(
            context=tokens + 512,
            threads=n_threads,
            flash_attention=attention,  # type: ignore[arg-type]
            exact=mode == "exact",
        )
        pair = load_pair(target, LOOKUP, options)
        try:
            if mode == "near ties" and pair.measure_exactness().bitwise:
                continue
            prompts = [pair.model.vocab.tokenize(_asked(pair, text))[:400] for text in texts]
            setting = Setting(target.stem, attention, n_threads, mode)
            yield measure(pair, setting, prompts, tokens, range(2, WIDEST + 1))
        finally:
            pair.close()


def _asked(pair: Pair, text: str) -> str:
    if pair.target_file.architecture.startswith("gemma"):
        return text
    return f"<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n"


def line(tally: Tally) -> str:
    """One row of the report."""
    setting = tally.setting
    name = f"{setting.target:<22} fa {setting.flash_attention:<3} t {setting.threads}"
    worst = f", gaps up to {max(tally.gaps):.2g}" if tally.gaps else ""
    return (
        f"{name} {setting.mode:<9} {tally.tokens:7} tokens, {len(tally.gaps):3} of {tally.texts} "
        f"texts differ{worst}; {'bitwise' if tally.bitwise else f'bound {tally.bound:.2g}'}, "
        f"tau {(tally.tokens - tally.texts) / max(1, tally.rounds):.2f}, "
        f"alone {tally.alone / tally.tokens:.2%}, replayed {tally.replayed / tally.tokens:.1%}"
    )


def main(
    models: Annotated[
        list[Path] | None, typer.Option("-m", help="Targets, f32 where types are wanted.")
    ] = None,
    types: Annotated[str, typer.Option("--types", help="Types to make of each first.")] = "",
    prompts: Annotated[
        Path | None, typer.Option("--prompts", help="JSON lines as for pairs.")
    ] = None,
    count: Annotated[int, typer.Option("--count", help="Prompts.")] = 7,
    tokens: Annotated[int, typer.Option("-n", help="Tokens of each text.")] = 128,
    modes: Annotated[str, typer.Option("--modes", help="Of exact, default, near ties.")] = "",
    threads: Annotated[str, typer.Option("-t", help="Numbers of threads.")] = "1,2",
    as_json: Annotated[bool, typer.Option("--json", help="Print tallies as JSON lines.")] = False,
) -> None:
    """Count divergences in every setting; exit code 1 where exact mode has one."""
    texts = [text for _, text in read_prompts(prompts, -(-count // 4), 8)][:count]
    tallies = []
    with tempfile.TemporaryDirectory() as folder:
        targets = []
        for model in models or [demo.target_path()]:
            targets += [_typed(model, name, Path(folder)) for name in types.split(",")]
        for tally in sweep(
            targets,
            texts,
            tokens=tokens,
            threads=tuple(map(int, threads.split(","))),
            modes=tuple(modes.split(",")) if modes else MODES,
        ):
            tallies.append(tally)
            print(json.dumps(asdict(tally)) if as_json else line(tally), flush=True)
    for mode in MODES:
        chosen = [t for t in tallies if t.setting.mode == mode]
        total, differ = sum(t.tokens for t in chosen), sum(len(t.gaps) for t in chosen)
        beyond = sum(gap > t.bound for t in chosen for gap in t.gaps)
        print(f"{mode}: {total} tokens, {differ} texts differ, {beyond} of them beyond the bound")
    sys.exit(any(t.gaps for t in tallies if t.setting.mode == "exact"))


def _typed(model: Path, name: str, folder: Path) -> Path:
    if name in ("", "f32"):
        return model
    output = folder / f"{model.stem}-{name}.gguf"
    quantize(model, output, name)
    return output


if __name__ == "__main__":
    typer.run(main)
