"""A server under load: many requests at once, some of which are cut off, malformed or too long.

    python -m llamaspec.bench.serving [-m T -d D] [--requests 2000] [--theirs 0,1,3,7]

Every answer that comes to its end is compared with the offline one, token by token; where they part
the two likeliest tokens have to lie close together, as rows of shared passes round otherwise than
rows alone. Afterwards no place may be taken, and the process may not have grown. With --theirs the
same load goes to llama-server as well, in turns, at each of these n_max (0: without the draft).
"""

import asyncio
import json
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import typer

from llamaspec import demo
from llamaspec.bench.http_client import Address, Answer, in_turn
from llamaspec.bench.machine import load_average
from llamaspec.bench.pairs import read_prompts
from llamaspec.bench.serving_start import start
from llamaspec.errors import LlamaSpecError, OptionError
from llamaspec.session import Session, load

GOOD, KILLED, MALFORMED, TOO_LONG = "good", "killed", "malformed", "too long"
SHARES = ((KILLED, 0.10), (MALFORMED, 0.05), (TOO_LONG, 0.05))
NEAR = 0.05
"""Logits between two tokens that a shared pass may order otherwise."""
_THEIRS = "llama-server"
_TOOLS = Path(__file__).resolve().parents[1] / "llamaspec" / "bin"
_MALFORMED = (
    b"{",
    b'{"messages": []}',
    b'{"messages": "hello"}',
    b'{"messages": [{"role": "user", "content": "x"}], "temperature": "warm"}',
)


@dataclass(frozen=True, slots=True)
class Load:
    """What is asked. n_ctx: of a sequence."""

    prompts: tuple[str, ...]
    requests: int = 2000
    concurrency: int = 32
    max_tokens: int = 64
    n_ctx: int = 512
    threads: int = 0
    seed: int = 1


@dataclass
class Result:
    """One run. same: answers equal to the offline ones; near: that parted at a near tie; wrong:
    elsewhere. lost: requests without the answer they should have. slots: places taken afterwards.
    """

    server: str
    seconds: float
    tokens_per_second: float
    tokens: int
    p50_first_s: float
    p99_first_s: float
    same: int = 0
    near: int = 0
    wrong: int = 0
    lost: int = 0
    kinds: dict[str, int] = field(default_factory=dict)
    slots: float = 0.0
    rss_mib: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class _Asked:
    kind: str
    prompt: int
    body: bytes
    leave_after: int | None = None


def requests_of(load_: Load) -> list[_Asked]:
    """The requests, the same for every server."""
    noise = random.Random(load_.seed)
    found = []
    for _ in range(load_.requests):
        chance, kind = noise.random(), GOOD
        for name, share in SHARES:
            if 0 <= chance < share:
                kind = name
            chance -= share
        prompt = noise.randrange(len(load_.prompts))
        text = "word " * 4 * load_.n_ctx if kind == TOO_LONG else load_.prompts[prompt]
        body: dict[str, Any] = {
            "messages": [{"role": "user", "content": text}],
            "max_tokens": load_.max_tokens,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        raw = json.dumps(body).encode()
        if kind == MALFORMED:
            raw = noise.choice(_MALFORMED)
        leaves = noise.randrange(1, 4) if kind == KILLED else None
        found.append(_Asked(kind, prompt, raw, leaves))
    return found


def with_ids(asked: list[_Asked]) -> list[_Asked]:
    """The same with the token ids of every piece, which only llamaspec's server gives."""
    return [
        _Asked(one.kind, one.prompt, one.body[:-1] + b', "return_tokens": true}', one.leave_after)
        if one.kind in (GOOD, KILLED)
        else one
        for one in asked
    ]


async def put(address: Address, asked: list[_Asked], concurrency: int) -> tuple[float, list[Any]]:
    """Send all; seconds, and the answers or errors in order."""
    started = time.perf_counter()
    answers = await in_turn(
        [partial(address.chat, one.body, leave_after=one.leave_after) for one in asked],
        concurrency,
    )
    return time.perf_counter() - started, answers


def judged(name: str, seconds: float, asked: list[_Asked], answers: list[Any]) -> Result:
    """Figures of a run, before any text is compared."""
    good = [
        a
        for one, a in zip(asked, answers, strict=True)
        if one.kind == GOOD and isinstance(a, Answer) and a.whole
    ]
    firsts = sorted(answer.first_s for answer in good) or [0.0]
    tokens = sum(answer.tokens for answer in good)
    result = Result(
        name,
        seconds,
        tokens / seconds,
        tokens,
        median(firsts),
        firsts[min(len(firsts) - 1, int(0.99 * len(firsts)))],
    )
    for one, answer in zip(asked, answers, strict=True):
        result.kinds[one.kind] = result.kinds.get(one.kind, 0) + 1
        status = answer.status if isinstance(answer, Answer) else -1
        fits = {GOOD: status == 200, KILLED: status in (0, 200)}.get(one.kind, 400 <= status < 500)
        result.lost += not fits or (one.kind == GOOD and not answer.whole)
    return result


def compare(
    result: Result, session: Session, load_: Load, asked: list[_Asked], answers: list[Any]
) -> None:
    """Count what equals the offline answers."""
    known: dict[int, tuple[int, ...]] = {}
    for one, answer in zip(asked, answers, strict=True):
        if one.kind != GOOD or not isinstance(answer, Answer) or not answer.whole:
            continue
        messages = [{"role": "user", "content": load_.prompts[one.prompt]}]
        if one.prompt not in known:
            done = session.generate(messages, max_tokens=load_.max_tokens, draft_max=0)
            ends = session.vocab.ends
            known[one.prompt] = tuple(t for t in done.token_ids if t not in ends)
        offline = known[one.prompt]
        if answer.ids == offline:
            result.same += 1
            continue
        common = 0
        for a, b in zip(answer.ids, offline, strict=False):
            if a != b:
                break
            common += 1
        gap = session.plain_gap(messages, offline[:common])
        result.near += gap <= NEAR
        result.wrong += gap > NEAR


def ours(load_: Load, pair: tuple[Path, Path | None]) -> tuple[Result, list[_Asked], list[Any]]:
    """One run against llamaspec's server."""
    words = ["-m", str(pair[0]), *(("-d", str(pair[1])) if pair[1] else ())]
    words += ["--max-sequences", str(load_.concurrency), "--queue", str(2 * load_.concurrency)]
    words += ["-c", str(load_.n_ctx), "-t", str(load_.threads)]
    asked = with_ids(requests_of(load_))
    with start(words) as server:
        address = Address("127.0.0.1", server.port)
        # the caches fill up first, which is no leak
        part = max(1, len(asked) // 4)
        seconds, memory = 0.0, list[float]()
        answers: list[Any] = []
        for at in range(0, len(asked), part):
            more, found = asyncio.run(put(address, asked[at : at + part], load_.concurrency))
            seconds, answers = seconds + more, answers + found
            memory.append(server.rss_mib())
        result = judged("llamaspec", seconds, asked, answers)
        result.slots = _settled(address)
        result.rss_mib = tuple(memory)
    return result, asked, answers


def _settled(address: Address) -> float:
    """Places taken once all is quiet."""
    end = time.monotonic() + 10
    while True:
        text = asyncio.run(address.get("/metrics"))
        names = ("llamaspec_sequences_active ", "llamaspec_queue_length ")
        taken = sum(float(line.split()[-1]) for line in text.splitlines() if line.startswith(names))
        if not taken or time.monotonic() > end:
            return taken
        time.sleep(0.1)


def theirs(load_: Load, pair: tuple[Path, Path | None], width: int, tools: Path) -> Result:
    """One run against llama-server, with the same pair, threads and places."""
    asked = requests_of(load_)
    with _their_server(load_, pair, width, tools) as address:
        seconds, answers = asyncio.run(put(address, asked, load_.concurrency))
    return judged(f"{_THEIRS}@{width}", seconds, asked, answers)


@contextmanager
def _their_server(
    load_: Load, pair: tuple[Path, Path | None], width: int, tools: Path
) -> Iterator[Address]:
    from llamaspec.bench import peers
    from llamaspec.bench.run import kind_of
    from llamaspec.options import LoadOptions

    target, draft = pair[0], pair[1] if width else None
    kinds = {draft: kind_of(draft)} if draft else {}
    options = LoadOptions(threads=load_.threads)
    total = load_.n_ctx * load_.concurrency
    shared = peers.Tools(tools, target, options, total, kinds)
    words = [*shared.command("llama-server", draft, width), "-np", str(load_.concurrency)]
    with peers.listening([*words, "--jinja"]) as address:
        host, _, port = address.removeprefix("http://").partition(":")
        yield Address(host, int(port))


def lines(results: list[Result]) -> list[str]:
    """A line a run, and the ratio."""
    found = []
    for one in results:
        line = (
            f"{one.server:<13}{one.tokens_per_second:8.0f} tokens/s in {one.seconds:6.1f} s, "
            f"first token p50 {one.p50_first_s:.3f} s p99 {one.p99_first_s:.3f} s, lost {one.lost}"
        )
        if one.rss_mib:
            line += (
                f", same {one.same} near {one.near} wrong {one.wrong}, places taken "
                f"{one.slots:.0f}, MiB {' '.join(f'{mib:.0f}' for mib in one.rss_mib)}"
            )
        found.append(line)
    rates: dict[str, list[float]] = {}
    for one in results:
        rates.setdefault(one.server, []).append(one.tokens_per_second)
    mine = median(rates.pop("llamaspec"))
    return found + [
        f"llamaspec / {name}: ratio of medians {mine / median(their):.2f}"
        for name, their in rates.items()
    ]


def main(
    model: Annotated[Path | None, typer.Option("-m", "--model", help="Absent: bundled.")] = None,
    draft: Annotated[Path | None, typer.Option("-d", "--draft")] = None,
    prompts: Annotated[Path | None, typer.Option(help="JSON lines; absent: built-in ones.")] = None,
    requests: Annotated[int, typer.Option(help="Of a run.")] = 2000,
    concurrency: Annotated[int, typer.Option(help="Requests at once, and places.")] = 32,
    max_tokens: Annotated[int, typer.Option("-n")] = 64,
    context: Annotated[int, typer.Option("-c", help="Of a sequence.")] = 512,
    threads: Annotated[int, typer.Option("-t", help="0: the physical cores.")] = 0,
    repeats: Annotated[int, typer.Option(help="Runs of each server.")] = 1,
    their_widths: Annotated[
        str, typer.Option("--theirs", help="And llama-server's, at these n_max: 0,1,3,7.")
    ] = "",
    tools: Annotated[Path, typer.Option(help="Folder with llama-server.")] = _TOOLS,
    output: Annotated[Path | None, typer.Option("--json", help="Write the results.")] = None,
) -> None:
    """Put a server under load and say how it did. Exit code 1: an answer was wrong or lost."""
    if model is None and draft is not None:
        raise OptionError("a draft was given without a model; give both or neither")
    pair = (demo.target_path(), demo.draft_path()) if model is None else (model, draft)
    texts = tuple(text for _, text in read_prompts(prompts, 50, 0))
    load_ = Load(texts, requests, concurrency, max_tokens, context, threads)
    results: list[Result] = []
    print(f"load average {load_average():.1f} at the start", file=sys.stderr)
    for _ in range(repeats):
        result, asked, answers = ours(load_, pair)
        # the offline answers with all the machine to themselves
        with load(pair[0], None, context=context, threads=threads) as session:
            compare(result, session, load_, asked, answers)
        results.append(result)
        for width in filter(None, their_widths.split(",")):
            results.append(theirs(load_, pair, int(width), tools))
    for line in lines(results):
        print(line)
    if output is not None:
        output.write_text(json.dumps([asdict(one) for one in results], indent=1) + "\n")
    mine = [one for one in results if one.server == "llamaspec"]
    raise SystemExit(any(one.wrong or one.lost or one.slots for one in mine))


if __name__ == "__main__":
    try:
        typer.run(main)
    except (LlamaSpecError, subprocess.SubprocessError) as error:
        raise SystemExit(f"llamaspec: {error}") from None
