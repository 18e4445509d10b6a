"""The rules of acceptance at a temperature: are texts distributed as plain decoding gives them, and
how much does each rule accept?

    python -m llamaspec.bench.acceptance distribution [-m TARGET -d DRAFT] [--draws 200000]
    python -m llamaspec.bench.acceptance figures [-m TARGET -d DRAFT] [--prompts FILE.jsonl]

`distribution` counts the first tokens of so many texts of one prompt and compares them with exact
enumeration; a rule that is told another q than the draft sampled from has to fail. Exit code 1
where a right rule fails or the wrong one passes. `figures` prints tau by category and rule.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, get_args

import numpy as np
import typer

from llamaspec import Session, load
from llamaspec.bench.goodness import Goodness, goodness
from llamaspec.bench.pairs import PROMPTS, read_prompts
from llamaspec.demo import draft_path, target_path
from llamaspec.draft.drafter import Anchor, Dice, Drafter, Features, Proposal, Saved
from llamaspec.engine.chances import Chances
from llamaspec.engine.ending import Ending
from llamaspec.engine.loop import Engine
from llamaspec.engine.sequence import Request, Sequence
from llamaspec.loading import Pair, load_pair
from llamaspec.options import Acceptance, GenerateOptions, LoadOptions
from llamaspec.runtime.arrays import FloatArray, IntArray
from llamaspec.runtime.sampler import Sampler
from llamaspec.text.detokenize import Pieces
from llamaspec.verify.chance import SampledRule

SLOTS = 8
LENGTH = 3
"""Tokens that are compared: the first comes from the prompt, the others from rounds."""
PROPOSALS = 3
OPTIONS = GenerateOptions(temperature=0.7, top_k=5)
ALPHA = 0.01
Text = tuple[int, ...]


@dataclass
class Misleading:
    """A drafter that says what it would have sampled from at temperature 1."""

    drafter: Drafter
    temperature: float

    def __post_init__(self) -> None:
        self.proposals = self.drafter.proposals
        self.reads_features = self.drafter.reads_features
        self.proposes_parked = self.drafter.proposes_parked
        self.seconds = 0.0

    def commit(self, features: Features) -> None:
        self.drafter.commit(features)

    def keep(self, seq: int, length: int) -> int:
        return self.drafter.keep(seq, length)

    def knows(self, seq: int, length: int) -> int:
        return self.drafter.knows(seq, length)

    def copy(self, source: int, seq: int, length: int) -> int:
        return self.drafter.copy(source, seq, length)

    def saved_size(self, seq: int) -> int | None:
        return self.drafter.saved_size(seq)

    def save(self, seq: int) -> Saved:
        return self.drafter.save(seq)

    def restore(self, seq: int, saved: Saved, length: int) -> int:
        return self.drafter.restore(seq, saved, length)

    def propose(self, anchors: list[Anchor]) -> list[Proposal]:
        return [self._retold(proposal) for proposal in self.drafter.propose(anchors)]

    def _retold(self, proposal: Proposal) -> Proposal:
        if proposal.odds is None:
            return proposal
        q = proposal.odds**self.temperature
        return proposal._replace(odds=q / q.sum(axis=1, keepdims=True))


@dataclass(frozen=True)
class Prompted:
    """A pair and the prompt [n] whose texts are counted."""

    pair: Pair
    prompt: IntArray

    def sampler(self, seed: int) -> Sampler:
        """A text's sampler."""
        model, n_ctx = self.pair.model, self.pair.n_ctx
        return Sampler.create(model, OPTIONS, seed=seed, prompt=self.prompt, n_ctx=n_ctx)

    def request(
        self, limit: int, draw: Callable[[int, int], int], chances: Chances | None = None
    ) -> Request:
        """A text that ends by its end token or its length."""
        ends = self.pair.model.vocab.ends
        ending = Ending(pieces=Pieces(lambda _: b""), ends=ends, limit=limit)
        drafts = 0 if chances is None else PROPOSALS
        return Request(
            self.prompt, limit, drafts, ending, draw, chances, cache_prompt=chances is not None
        )

    def row(self, text: Text) -> FloatArray:
        """What the token after a text is drawn from [V], by plain decoding."""
        found: list[FloatArray] = []
        with self.sampler(0) as sampler:

            def draw(row: int, index: int) -> int:
                found.append(sampler.odds(self.pair.context, row, (), index)[0].copy())
                token = text[index] if index < len(text) else int(found[-1].argmax())
                sampler.take(token, index)
                return token

            _run(self.pair.engine, [self.request(len(text) + 1, draw)])
        return found[-1]


def _run(engine: Engine, requests: list[Request], enough: int = 1 << 30) -> list[Sequence]:
    sequences = [engine.admit(request) for request in requests]
    while any(s.finish_reason is None and len(s.tokens) < enough for s in sequences):
        engine.step()
    for request in requests:
        engine.release(request)
    return sequences


def enumerated(prompted: Prompted) -> dict[Text, float]:
    """The probability of every text of LENGTH tokens, of fewer where an end token comes."""
    ends = prompted.pair.model.vocab.ends
    found: dict[Text, float] = {}
    open_: dict[Text, float] = {(): 1.0}
    for _ in range(LENGTH):
        longer: dict[Text, float] = {}
        for text, probability in open_.items():
            p = prompted.row(text).astype(np.float64)
            for token in np.flatnonzero(p).tolist():
                into = found if token in ends else longer
                into[(*text, token)] = probability * float(p[token] / p.sum())
        open_ = longer
    return found | open_


def counted(prompted: Prompted, drafter: Drafter, rule: Acceptance, draws: int) -> Counter[Text]:
    """How often each text came, of seeds 0, 1, ... with a rule."""
    counts: Counter[Text] = Counter()
    engine = Engine(prompted.pair.context, drafter)
    for first in range(0, draws, SLOTS):
        samplers = [prompted.sampler(seed) for seed in range(first, min(first + SLOTS, draws))]
        requests = [
            prompted.request(32, _drawing(prompted, sampler), _chances(prompted, sampler, rule, i))
            for i, sampler in enumerate(samplers, first)
        ]
        for sequence in _run(engine, requests, LENGTH):
            counts[tuple(sequence.tokens[:LENGTH])] += 1
        for sampler in samplers:
            sampler.close()
    return counts


def _drawing(prompted: Prompted, sampler: Sampler) -> Callable[[int, int], int]:
    return lambda row, index: sampler.draw(prompted.pair.context, row, index)


def _chances(prompted: Prompted, sampler: Sampler, rule: Acceptance, seed: int) -> Chances:
    kind: SampledRule = "residual" if rule == "residual" else "block"
    dice = Dice(OPTIONS.temperature, np.random.default_rng([seed, 1]))
    context = prompted.pair.context
    return Chances(
        kind, dice, lambda row, ids, index: sampler.odds(context, row, ids, index), sampler.take
    )


def described(name: str, found: Goodness, tests: int) -> str:
    """A line of the report; the p-value is Bonferroni's, of so many tests."""
    return (
        f"{name:<28} {found.draws:8d} draws {found.cells:5d} cells  chi-square "
        f"{found.chi_square:9.1f}  p {min(1.0, found.p_value * tests):8.2g}  variation "
        f"{found.variation:.5f} (chance alone {found.expected_variation:.5f})"
    )


app = typer.Typer(add_completion=False)
ModelOption = Annotated[Path | None, typer.Option("-m", "--model", help="Target GGUF.")]
DraftOption = Annotated[Path | None, typer.Option("-d", "--draft", help="Its draft.")]


@app.command()
def distribution(
    model: ModelOption = None,
    draft: DraftOption = None,
    draws: Annotated[int, typer.Option("--draws", help="Texts a rule.")] = 200_000,
    threads: Annotated[int, typer.Option("-t", "--threads", help="0: physical cores.")] = 0,
    only: Annotated[str | None, typer.Option("--rule", help="One rule: residual or block.")] = None,
) -> None:
    """Count the first tokens of many texts and compare with exact enumeration."""
    options = LoadOptions(threads=threads, max_sequences=SLOTS, context=256)
    pair = load_pair(model or target_path(), draft or draft_path(), options)
    try:
        prompted = Prompted(pair, pair.model.vocab.tokenize("A yard is", add_special=True))
        probabilities = enumerated(prompted)
        typer.echo(f"{len(probabilities)} texts, of probability {sum(probabilities.values()):.6f}")
        assert pair.drafter is not None
        wrong = Misleading(pair.drafter, OPTIONS.temperature)
        failed = False
        for rule in [r for r in get_args(SampledRule) if only in (None, r)]:
            found = goodness(counted(prompted, pair.drafter, rule, draws), probabilities)
            failed |= found.p_value * 2 <= ALPHA
            typer.echo(described(rule, found, 2))
            found = goodness(
                counted(prompted, wrong, rule, max(draws // 10, min(draws, 4000))), probabilities
            )
            failed |= found.p_value * 2 > ALPHA
            typer.echo(described(f"{rule}, q before temperature", found, 2))
    finally:
        pair.close()
    raise typer.Exit(1 if failed else 0)


@dataclass(frozen=True)
class Share:
    """What one text came to with one rule."""

    category: str
    rule: Acceptance
    committed: int
    rounds: int
    accepted: int
    drafted: int


def shares(
    session: Session, prompts: list[tuple[str, str]], *, seeds: int, tokens: int
) -> Iterator[Share]:
    """Generate every prompt at temperature 1 with every seed and rule, whole blocks each."""
    for seed in range(seeds):
        for category, prompt in prompts:
            for rule in get_args(Acceptance):
                done = session.generate(
                    [{"role": "user", "content": prompt}],
                    max_tokens=tokens,
                    temperature=1.0,
                    seed=seed,
                    accept=rule,
                    draft_max=session.draft_limit,
                )
                stats = done.stats
                committed = stats.completion_tokens - 1
                yield Share(category, rule, committed, stats.rounds, stats.accepted, stats.drafted)


def spread(found: list[Share]) -> tuple[float, float]:
    """Tau over all rounds, and its standard error over texts (bootstrap, fixed seed)."""
    both = np.array([(share.committed, share.rounds) for share in found], np.float64)
    picks = np.random.default_rng(0).integers(len(both), size=(1000, len(both)))
    sums = both[picks].sum(axis=1)
    return float(both[:, 0].sum() / both[:, 1].sum()), float((sums[:, 0] / sums[:, 1]).std())


@app.command()
def figures(
    model: ModelOption = None,
    draft: DraftOption = None,
    prompts: Annotated[Path | None, typer.Option("--prompts", help="JSON lines.")] = None,
    per_category: Annotated[int, typer.Option("--per-category", help="Prompts of each.")] = 8,
    seeds: Annotated[int, typer.Option("--seeds", help="Seeds a prompt.")] = 4,
    tokens: Annotated[int, typer.Option("-n", help="Most tokens a text.")] = 96,
    threads: Annotated[int, typer.Option("-t", "--threads", help="0: physical cores.")] = 0,
) -> None:
    """Print tau and the accept rate at temperature 1, by category and rule."""
    chosen = read_prompts(prompts, per_category, 0) if prompts else list(PROMPTS)
    with load(model, draft, threads=threads) as session:
        found = list(shares(session, chosen, seeds=seeds, tokens=tokens))
    rules = get_args(Acceptance)
    typer.echo("tau (standard error), accept rate".ljust(20) + " ".join(f"{r:>22}" for r in rules))
    for name in [*sorted({share.category for share in found}), "all"]:
        cells = []
        for rule in rules:
            some = [s for s in found if s.rule == rule and name in ("all", s.category)]
            tau, error = spread(some)
            rate = sum(s.accepted for s in some) / max(1, sum(s.drafted for s in some))
            cells.append(f"{tau:8.3f} ({error:.3f}) {rate:5.1%}".rjust(22))
        typer.echo(f"{name:<33}" + " ".join(cells))


if __name__ == "__main__":
    app()
