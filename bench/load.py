"""A simulation of serving: throughput against the speed of each user, for a cost curve of a GPU and
up to 256 sequences at once; plain decoding, whole blocks, fixed widths and the prefix scheduler.

    python -m llamaspec.bench.load simulate [--plot FILE] [--json FILE] [--seed 1] ...
    python -m llamaspec.bench.load check MEASURED.json
    python -m llamaspec.bench.load record -m T -d D --prompts F -o FILE

Texts are real: rounds of a pair that were recorded from nearly every token of its texts
(`recorded.py`), so that a round of any width gives what it would have given. Time is not: what
passes cost is a formula, or a table of measured points. `check` takes such points with measured
runs, and says how far the simulation is from them. Prompts cost nothing here: the figures are of
decoding alone.
"""

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean

from llamaspec.bench.recorded import Moment, Recorded, Text
from llamaspec.errors import OptionError
from llamaspec.schedule.cost import Surface
from llamaspec.schedule.prefix import best_widths
from llamaspec.schedule.scaling import Scaling

SEQUENCES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
PLAIN, FULL, SCHEDULED, ORACLE = "plain", "full", "scheduled", "oracle"


@dataclass(frozen=True, slots=True)
class Roofline:
    """What passes of a GPU cost, in seconds: a pass takes what reading the weights takes or what
    its rows' arithmetic takes, whichever is longer, and what every sequence's KV cache takes.

    floor_s, row_s, sequence_s, launch_s: of the target's passes; draft_floor_s, draft_row_s,
    draft_launch_s: of the draft's, which has `block` rows a sequence. The defaults are those of 8
    billion parameters at 16 bits and 5 of 36 layers drafting, at 4 TB/s and 600 TFLOP/s, contexts
    of 1000 tokens.
    """

    floor_s: float = 4.0e-3
    row_s: float = 27e-6
    sequence_s: float = 37e-6
    launch_s: float = 0.3e-3
    draft_floor_s: float = 0.6e-3
    draft_row_s: float = 4e-6
    draft_launch_s: float = 0.2e-3
    block: int = 7

    def __post_init__(self) -> None:
        if min(asdict(self).values()) < 0 or not self.floor_s + self.row_s > 0:
            raise OptionError("seconds of a roofline must be positive numbers")

    def verify(self, rows: int, sequences: int) -> float:
        """Seconds of a target pass."""
        work = max(self.floor_s, self.row_s * rows)
        return self.launch_s + work + self.sequence_s * sequences

    def draft(self, sequences: int) -> float:
        """Seconds of drafting a block for each sequence."""
        work = max(self.draft_floor_s, self.draft_row_s * self.block * sequences)
        return self.draft_launch_s + work


@dataclass(frozen=True, slots=True)
class Table:
    """What passes were measured to cost: seconds by rows, and of drafting by sequences; linear
    between the points, rising whatever the noise.
    """

    passes: Surface
    drafts: Surface

    def verify(self, rows: int, sequences: int) -> float:
        """Seconds of a target pass; sequences are in the measurement."""
        return self.passes.at(rows)

    def draft(self, sequences: int) -> float:
        """Seconds of drafting a block for each sequence."""
        return self.drafts.at(sequences)


Costs = Roofline | Table


@dataclass(frozen=True, slots=True)
class Outcome:
    """A policy at a number of sequences. throughput: tokens a second of all; per_user: of each.
    rows: of a pass, on average; tau: tokens a sequence's round.
    """

    policy: str
    sequences: int
    throughput: float
    per_user: float
    rows: float
    tau: float


@dataclass
class _Reader:
    """One slot: a text under way, another when it is over."""

    texts: Iterator[Text]

    def __post_init__(self) -> None:
        self._text, self._place = next(self.texts), 0

    def now(self) -> Moment:
        """The round from here."""
        found = self._text.at(self._place)
        while found is None:
            self._text, self._place = next(self.texts), 0
            found = self._text.at(0)
        self._place, moment = found
        return moment

    def go(self, width: int) -> int:
        """Verify so many proposals of this round; the tokens it commits."""
        tokens = min(self.now().committed, width + 1)
        self._place += tokens
        return tokens


Policy = Callable[[Sequence[Moment]], list[int]]


def policy_of(name: str, costs: Costs, scaling: Scaling, count: int) -> Policy:
    """Widths by name: plain, full, scheduled, oracle (knows what will be accepted), or a number.

    Raises OptionError for another name.
    """
    if name == PLAIN:
        return lambda moments: [0] * len(moments)
    if name == FULL:
        return lambda moments: [len(m.confidence) for m in moments]
    if name.isdecimal():
        return lambda moments: [min(int(name), len(m.confidence)) for m in moments]
    if name not in (SCHEDULED, ORACLE):
        raise OptionError(f"there is no policy {name!r}; give plain, full, scheduled, oracle or N")

    def seconds(rows: int) -> float:
        return costs.verify(rows, count)

    def widths(moments: Sequence[Moment]) -> list[int]:
        if name == ORACLE:
            survivals = [[1.0] * m.accepted for m in moments]
        else:
            survivals = [scaling.survival(m.confidence) for m in moments]
        return best_widths(survivals, seconds, spent=costs.draft(count))

    return widths


def simulate(
    recorded: Recorded, costs: Costs, name: str, sequences: int, *, rounds: int = 200, seed: int = 1
) -> Outcome:
    """Run one policy: every slot reads recorded texts, in an order of its own, for `rounds` shared
    passes. The same seed gives all policies the same texts.
    """
    if sequences < 1 or rounds < 1:
        raise OptionError(f"{sequences} sequences and {rounds} rounds; give at least one of each")
    policy = policy_of(name, costs, recorded.scaling, sequences)
    readers = [_Reader(_shuffled(recorded.texts, seed, i)) for i in range(sequences)]
    tokens = rows = 0
    seconds = 0.0
    for _ in range(rounds):
        widths = policy([reader.now() for reader in readers])
        tokens += sum(reader.go(width) for reader, width in zip(readers, widths, strict=True))
        rows += sequences + sum(widths)
        seconds += costs.verify(sequences + sum(widths), sequences)
        # plain decoding has no draft to wait for
        seconds += 0.0 if name == PLAIN else costs.draft(sequences)
    return Outcome(
        policy=name,
        sequences=sequences,
        throughput=tokens / seconds,
        per_user=tokens / seconds / sequences,
        rows=rows / rounds,
        tau=tokens / rounds / sequences,
    )


def _shuffled(texts: Sequence[Text], seed: int, slot: int) -> Iterator[Text]:
    noise = random.Random(f"{seed} {slot}")
    while True:
        yield from noise.sample(texts, len(texts))


def sweep(
    recorded: Recorded,
    costs: Costs,
    *,
    sequences: Sequence[int] = SEQUENCES,
    policies: Sequence[str] | None = None,
    rounds: int = 200,
    seed: int = 1,
) -> list[Outcome]:
    """All policies at all numbers of sequences; without a list plain, every fixed width, the
    scheduler and the oracle.
    """
    names = policies or [PLAIN, *map(str, range(1, recorded.proposals)), FULL, SCHEDULED, ORACLE]
    return [
        simulate(recorded, costs, name, count, rounds=rounds, seed=seed)
        for name in names
        for count in sequences
    ]


def lines(outcomes: Sequence[Outcome]) -> list[str]:
    """A table: throughput by sequences, and the scheduler's against the best fixed width's."""
    counts = sorted({o.sequences for o in outcomes})
    by = {(o.policy, o.sequences): o for o in outcomes}
    names = list(dict.fromkeys(o.policy for o in outcomes))
    found = ["tokens/s of all".ljust(16) + "".join(f"{n:>9}" for n in counts)]
    for name in names:
        row = (f"{by[name, n].throughput:9.0f}" if (name, n) in by else " " * 9 for n in counts)
        found.append(name.ljust(16) + "".join(row))
    fixed = [name for name in names if name not in (SCHEDULED, ORACLE)]
    if SCHEDULED in names and fixed:
        ratios = [
            by[SCHEDULED, n].throughput / max(by[name, n].throughput for name in fixed)
            for n in counts
        ]
        found.append("over best fixed".ljust(16) + "".join(f"{x:9.2f}" for x in ratios))
        found.append(
            "rows scheduled".ljust(16) + "".join(f"{by[SCHEDULED, n].rows:9.0f}" for n in counts)
        )
    return found


@dataclass(frozen=True, slots=True)
class Run:
    """A measured run: tokens a second of all sequences with a policy."""

    policy: str
    sequences: int
    throughput: float


@dataclass(frozen=True, slots=True)
class Measured:
    """What was measured: (rows, seconds) of target passes, (sequences, seconds) of drafting a block
    for each, and runs.
    """

    verify: tuple[tuple[float, ...], ...]
    draft: tuple[tuple[float, ...], ...]
    runs: tuple[Run, ...] = ()

    def table(self) -> Table:
        """The points as costs. Raises OptionError for points that are none."""
        return Table(_surface("verify", self.verify), _surface("draft", self.draft))


def _surface(name: str, points: Sequence[Sequence[float]]) -> Surface:
    if not all(len(point) == 2 and float(point[0]).is_integer() for point in points):
        raise OptionError(f"{name} of measured points must be pairs of a whole number and seconds")
    sizes = tuple(int(point[0]) for point in points)
    return Surface((0,), sizes, (tuple(float(point[1]) for point in points),))


@dataclass(frozen=True, slots=True)
class Compared:
    """A measured run and the simulated one; ratio: simulated / measured throughput."""

    run: Run
    simulated: Outcome

    @property
    def ratio(self) -> float:
        return self.simulated.throughput / self.run.throughput


def check(
    measured: Measured, recorded: Recorded, *, rounds: int = 200, seed: int = 1
) -> list[Compared]:
    """Replay measured runs through the simulation, at the measured costs of passes.

    Raises OptionError where there is nothing to compare.
    """
    if not measured.runs or any(run.throughput <= 0 for run in measured.runs):
        raise OptionError("there are no measured runs with a throughput to compare with")
    costs = measured.table()
    return [
        Compared(
            run, simulate(recorded, costs, run.policy, run.sequences, rounds=rounds, seed=seed)
        )
        for run in measured.runs
    ]


def check_lines(compared: Sequence[Compared]) -> list[str]:
    """Measured against simulated, a run a line, and the mean distance."""
    found = [f"{'policy':<12}{'sequences':>10}{'measured':>10}{'simulated':>10}{'ratio':>7}"]
    for one in compared:
        found.append(
            f"{one.run.policy:<12}{one.run.sequences:>10}{one.run.throughput:>10.0f}"
            f"{one.simulated.throughput:>10.0f}{one.ratio:>7.2f}"
        )
    found.append(f"mean distance {fmean(abs(one.ratio - 1) for one in compared):.1%}")
    return found


if __name__ == "__main__":
    from llamaspec.bench.load_cli import app

    app()
