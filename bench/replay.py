"""What the pace's choices are worth, without a clock: blocks of every width are recorded from every
token of some texts, once, and choices are replayed over them with the prices of a cost curve.

    python -m llamaspec.bench.replay record [-m TARGET -d DRAFT] --prompts FILE.jsonl -o BLOCKS.json
    python -m llamaspec.bench.replay play BLOCKS.json --cost-curve CURVE.json

`play` prints by category how much sooner than plain decoding the texts would be there: with the
pace, with whole blocks always, with the best fixed width, and with the best choice of every round
in hindsight. Rounds go one by one: what several in one call do not learn in between is not in it.
"""

import json
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import typer

from llamaspec import Session, load
from llamaspec.bench.synthetic import ScriptedAcceptance
from llamaspec.bench.typed import of_json, read_object
from llamaspec.bench.workloads import Prompt, noise, read
from llamaspec.demo import draft_path, target_path
from llamaspec.errors import LlamaSpecError, OptionError
from llamaspec.options import LoadOptions
from llamaspec.schedule.calibration import Calibration
from llamaspec.schedule.cost import CostCurve
from llamaspec.schedule.pace import Offer, Pace
from llamaspec.schedule.prices import Prices
from llamaspec.verify.accept import accept

FORMAT = "llamaspec blocks 1"


@dataclass(frozen=True)
class Block:
    """confidence: of its proposals. accepted: how many of them were the text's next tokens."""

    confidence: tuple[float, ...]
    accepted: int


@dataclass(frozen=True)
class Blocks:
    """A text. prompt: tokens before it. blocks [width - 1][place]: from every token but the last
    two, of every width.
    """

    category: str
    prompt: int
    blocks: tuple[tuple[Block, ...], ...]

    @property
    def rounds(self) -> int:
        """Of plain decoding, after the first token."""
        return len(self.blocks[0]) + 1

    def at(self, place: int, width: int) -> Block | None:
        """None where only one token is left."""
        return self.blocks[width - 1][place] if place < len(self.blocks[0]) else None


@dataclass(frozen=True)
class Recorded:
    """Texts in the order in which they are replayed."""

    texts: tuple[Blocks, ...]
    format: str = FORMAT

    @classmethod
    def read(cls, path: Path) -> "Recorded":
        """Raises OptionError for a file that is none."""
        found = of_json(cls, read_object(path))
        if found.format != FORMAT or not found.texts:
            raise OptionError(f"{path} holds no recorded blocks; make it with `replay record`")
        return found


def record(session: Session, prompts: Iterable[Prompt], max_tokens: int) -> Recorded:
    """Record blocks of a session with a block draft. Texts too short to draft in are left out."""
    engine, texts = session._pair.engine, []
    # nothing, so that there is a round from every token
    engine.accept = ScriptedAcceptance((0.0,) * session.draft_limit, frozenset())
    try:
        for prompt in prompts:
            found, size = [], 0
            for width in range(1, session.draft_limit + 1):
                done = session.generate(
                    [{"role": "user", "content": prompt.text}],
                    max_tokens=max_tokens,
                    draft_max=width,
                    cache_prompt=False,
                )
                size, ids = done.stats.prompt_tokens, done.token_ids
                # the last round has nothing to propose
                rounds = [r for r in done.rounds if r.draft]
                found.append(
                    tuple(
                        Block(r.confidence or (), accept(ids[place + 1 :], r.draft).accepted)
                        for place, r in enumerate(rounds)
                    )
                )
            if found and found[0]:
                texts.append(Blocks(prompt.category, size, tuple(found)))
    finally:
        engine.accept = accept
    return Recorded(tuple(texts))


@dataclass(frozen=True)
class Costs:
    """Prices, and seconds beside passes of rounds that draft or do not."""

    prices: Prices

    @classmethod
    def of(cls, curve: CostCurve, width: int, plain: float, drafted: float) -> "Costs":
        prices = Prices(curve, rows=width + 1, width=width)
        for seconds, drafts in ((plain, False), (drafted, True)):
            prices.observe_besides(seconds, drafted=drafts)
        prices.pinned = True
        return cls(prices)

    def plain(self, text: Blocks, place: int) -> float:
        """Seconds of a plain round."""
        return self.prices.plain(text.prompt + place) + self.prices.besides(drafted=False)

    def drafted(self, text: Blocks, place: int, width: int, verified: int) -> float:
        """Seconds of a drafted one."""
        depth, prices = text.prompt + place, self.prices
        passes = prices.draft(width, depth) + prices.verify(verified + 1, depth)
        return passes + prices.besides(drafted=True)

    def all_plain(self, text: Blocks) -> float:
        """Seconds of a text without a draft."""
        return sum(self.plain(text, place) for place in range(text.rounds))


Player = Callable[[Blocks], float]
"""Seconds of a text, of which the player may learn."""


def paced(pace: Pace, costs: Costs) -> Player:
    """By the pace's choices."""

    def play(text: Blocks) -> float:
        gait, seconds, place = pace.begin(), 0.0, 0
        while place < text.rounds:
            depth, accepted, verified, drafted = text.prompt + place, 0, 0, 0
            block = text.at(place, 1)
            if block is not None and pace.drafts(gait):
                drafted = pace.block(gait, depth)
                block = text.blocks[drafted - 1][place]
                limit = min(drafted, text.rounds - place - 1)
                verified = pace.width(gait, Offer(block.confidence[:limit] or None, limit, depth))
                accepted = min(block.accepted, verified)
                seconds += costs.drafted(text, place, drafted, verified)
            else:
                seconds += costs.plain(text, place)
            place += accepted + 1
            if place < text.rounds:
                if drafted and block is not None:
                    said = block.confidence[:verified] or None
                    pace.calibration.learn(said, accepted, verified)
                pace.learn(gait, accepted + 1, verified, drafted=drafted, depth=depth)
        pace.end(gait)
        return seconds

    return play


def fixed(width: int, costs: Costs) -> Player:
    """Blocks of one width, verified to their ends."""

    def play(text: Blocks) -> float:
        seconds, place = 0.0, 0
        while place < text.rounds:
            block = text.at(place, width)
            if block is None:
                return seconds + costs.plain(text, place)
            verified = min(width, text.rounds - place - 1)
            seconds += costs.drafted(text, place, width, verified)
            place += min(block.accepted, verified) + 1
        return seconds

    return play


def hindsight(costs: Costs) -> Player:
    """The least there is, by who knows what will be accepted."""

    def play(text: Blocks) -> float:
        least = [0.0] * (text.rounds + 1)
        for place in reversed(range(text.rounds)):
            ways = [costs.plain(text, place) + least[place + 1]]
            for width, blocks in enumerate(text.blocks, 1):
                accepted = blocks[place].accepted if place < len(blocks) else 0
                for n in range(1, min(accepted, text.rounds - place - 1) + 1):
                    ways.append(costs.drafted(text, place, width, n) + least[place + n + 1])
            least[place] = min(ways)
        return least[0]

    return play


def speedups(texts: Sequence[Blocks], player: Player, costs: Costs) -> dict[str, float]:
    """By category, and of all of them as "all": seconds of plain decoding by those of a player."""
    spent: dict[str, list[float]] = {}
    for text in texts:
        pair = costs.all_plain(text), player(text)
        for name in (text.category, "all"):
            of = spent.setdefault(name, [0.0, 0.0])
            of[0] += pair[0]
            of[1] += pair[1]
    return {name: plain / seconds for name, (plain, seconds) in spent.items()}


def played(recorded: Recorded, costs: Costs) -> dict[str, dict[str, float]]:
    """The speedups of every way; the pace has gone through all texts once before."""
    texts, widest = recorded.texts, len(recorded.texts[0].blocks)
    pace = Pace(costs.prices, Calibration(widest))
    for text in texts:
        paced(pace, costs)(text)
    found = {"pace": speedups(texts, paced(pace, costs), costs)}
    widths = {f"width {n}": speedups(texts, fixed(n, costs), costs) for n in range(1, widest + 1)}
    best = max(widths, key=lambda name: widths[name]["all"])
    found["whole blocks"] = widths[f"width {widest}"]
    found[best] = widths[best]
    found["hindsight"] = speedups(texts, hindsight(costs), costs)
    return found


app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False)


@app.command("record")
def record_command(
    out: Annotated[Path, typer.Option("-o", help="Where to.")],
    target: Annotated[Path | None, typer.Option("-m", help="Absent: bundled.")] = None,
    draft: Annotated[Path | None, typer.Option("-d", help="Its block draft.")] = None,
    prompts: Annotated[str | None, typer.Option(help="JSON lines.")] = None,
    per_category: Annotated[int | None, typer.Option(help="Of each.")] = None,
    random: Annotated[int, typer.Option(help="Besides, prompts of random letters.")] = 0,
    max_tokens: Annotated[int, typer.Option("-n", help="Most tokens of a text.")] = 96,
    threads: Annotated[int, typer.Option("-t", help="0: physical cores.")] = 0,
) -> None:
    """Record blocks."""
    options = LoadOptions(threads=threads)
    chosen = [*read(prompts, per_category), *noise(random)]
    with load(target or target_path(), draft or draft_path(), options=options) as session:
        found = record(session, chosen, max_tokens)
    out.write_text(json.dumps(asdict(found)), encoding="utf-8")


@app.command("play")
def play_command(
    blocks: Annotated[Path, typer.Argument(help="What `record` wrote.")],
    cost_curve: Annotated[Path, typer.Option(help="From `bench cost --curve`.")],
    besides: Annotated[str, typer.Option(help="ms of plain and drafted rounds.")] = "0.03,0.15",
) -> None:
    """Replay choices."""
    recorded = Recorded.read(blocks)
    plain, drafted = (float(x) / 1000 for x in besides.split(","))
    width = len(recorded.texts[0].blocks)
    found = played(recorded, Costs.of(CostCurve.load(cost_curve), width, plain, drafted))
    for name, ratios in found.items():
        print(f"{name:14}", "  ".join(f"{c} {r:.2f}" for c, r in ratios.items()))


if __name__ == "__main__":
    try:
        app()
    except LlamaSpecError as error:
        sys.exit(f"error: {error}")
