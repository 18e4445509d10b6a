"""Many texts at once: tokens per second of all of them, ours and llama-server's, in turns.

    python -m llamaspec.bench.many -m TARGET -d DRAFT --prompts FILE.jsonl --concurrency 1,8,32

Arms: `plain`, `auto`, `@N` (N proposals of every text), `full` (whole blocks), a number such as
`0.6` (a confidence threshold); `server` (llama-server without a draft), `server@N` (with it, n_max
N). All get the same prompts in the same order, as many at once as the concurrency says; the clock
runs from the first request to the last answer, prompts included. Prompt caches are off. With
--synth-rates proposals are accepted by chance, for pairs of true shape and random weights.
"""

import hashlib
import json
import random
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import typer

from llamaspec import demo
from llamaspec.bench.arms import ArmSpec, Ready
from llamaspec.bench.figures import bootstrap
from llamaspec.bench.ours import without_end
from llamaspec.bench.peers import ServerArm, Tools, server
from llamaspec.bench.synthetic import ScriptedAcceptance, for_width, read_rates
from llamaspec.bench.workloads import Prompt, read
from llamaspec.errors import LlamaSpecError, OptionError
from llamaspec.options import GenerateSettings, LoadOptions
from llamaspec.runtime.gguf_file import GGUFFile
from llamaspec.session import Session, load
from llamaspec.text.chat import ChatTemplate

TOOLS = Path(__file__).resolve().parents[1] / "llamaspec" / "bin"
Ids = tuple[int, ...]


@dataclass(frozen=True)
class Setting:
    """What all arms share. concurrency: texts at once. rates: of synthetic acceptance, None for the
    target's word.
    """

    target: Path
    draft: Path
    options: LoadOptions
    max_tokens: int
    concurrency: int
    tools: Path
    rates: tuple[float, ...] | None = None


@dataclass(frozen=True)
class Ran:
    """One arm's turn. tau, widths: of our arms; texts at once on the average of its passes."""

    arm: str
    concurrency: int
    repeat: int
    tokens: int
    seconds: float
    tau: float
    accept_rate: float
    texts: float
    first_token_s: float
    digests: tuple[str, ...]

    @property
    def rate(self) -> float:
        return self.tokens / self.seconds


class OurMany:
    """A session for as many texts as the concurrency says."""

    def __init__(self, setting: Setting, arm: str) -> None:
        self._settings: GenerateSettings = {
            "max_tokens": setting.max_tokens,
            "cache_prompt": False,
        }
        options = replace(setting.options, max_sequences=setting.concurrency)
        if arm == "plain":
            self._settings["draft_max"] = 0
        elif arm.startswith("@"):
            self._settings["draft_max"] = int(arm[1:])
        elif arm != "auto":
            options = replace(options, schedule="full" if arm == "full" else float(arm))
        self._session = load(setting.target, setting.draft, options=options)
        self._script: ScriptedAcceptance | None = None
        if setting.rates is not None and arm != "plain":
            rates = for_width(setting.rates, self._session.draft_limit, arm)
            self._script = ScriptedAcceptance(rates, self._session.vocab.ends)
            self._session._pair.engine.accept = self._script

    def run(self, prompts: list[Ready]) -> tuple[list[Ids], dict[str, float]]:
        """Complete all prompts; return their ids and our figures."""
        if self._script is not None:
            self._script.seed(0)
        done = self._session.generate_batch([p.ids for p in prompts], **self._settings)
        rounds = sum(one.stats.rounds for one in done)
        drafted = sum(one.stats.drafted for one in done)
        committed = sum(one.stats.completion_tokens - 1 for one in done)
        figures = {
            "tau": committed / rounds if rounds else 0.0,
            "accept_rate": sum(o.stats.accepted for o in done) / drafted if drafted else 0.0,
            "texts": sum(o.stats.texts for o in done) / len(done),
            "first_token_s": sum(o.stats.time_to_first_token_s for o in done) / len(done),
        }
        return [one.token_ids for one in done], figures

    def close(self) -> None:
        self._session.close()


class Theirs:
    """A llama-server with as many slots."""

    def __init__(self, arm: ServerArm, setting: Setting) -> None:
        self._arm, self._setting = arm, setting

    def run(self, prompts: list[Ready]) -> tuple[list[Ids], dict[str, float]]:
        """Ask for all prompts, from as many clients as there are slots."""
        with ThreadPoolExecutor(self._setting.concurrency) as clients:
            done = list(clients.map(lambda p: self._arm.run(p, self._setting.max_tokens), prompts))
        drafted = sum(one.drafted for one in done)
        rate = sum(one.accepted for one in done) / drafted if drafted else 0.0
        return [one.ids or () for one in done], {"accept_rate": rate}


def opened(setting: Setting, arm: str, stack: ExitStack) -> OurMany | Theirs:
    """An arm, ready until the stack unwinds. Raises OptionError for a name that is none."""
    if not arm.startswith("server"):
        try:
            ours = OurMany(setting, arm)
        except ValueError as error:
            raise OptionError(f"there is no arm {arm!r}: {error}") from None
        stack.callback(ours.close)
        return ours
    width = int(arm.partition("@")[2] or 0)
    kinds = {setting.draft: "draft-dspark"}
    options, n_ctx = setting.options, setting.options.context
    tools = Tools(setting.tools, setting.target, options, n_ctx, kinds, slots=setting.concurrency)
    spec = ArmSpec(arm, "server", "draft" if width else "none", width or None)
    draft = setting.draft if width else None
    with load(setting.target) as session:
        ends = frozenset(session.vocab.ends) if setting.rates is not None else frozenset()
    peer = stack.enter_context(server(tools, spec, draft, ends, setting.rates, width))
    return Theirs(peer, setting)


def ready(session: Session, target: Path, prompts: list[Prompt]) -> list[Ready]:
    """The prompts in the target's chat template, or as they are where there is none."""
    if not session.has_chat_template:
        return [Ready(n, session.tokenize(p.text), p.text) for n, p in enumerate(prompts)]
    with GGUFFile.open(target) as file:
        template = ChatTemplate.from_gguf(file)
    found = []
    for number, prompt in enumerate(prompts):
        messages = [{"role": "user", "content": prompt.text}]
        found.append(Ready(number, session.tokenize(messages), template.render(messages)))
    return found


def digest(ids: Ids, ends: frozenset[int]) -> str:
    return hashlib.sha256(json.dumps(without_end(ids, ends)).encode()).hexdigest()[:12]


def attempt(
    setting: Setting, arms: list[str], arm: str, runner: OurMany | Theirs, prompts: list[Ready]
) -> tuple[list[Ids], dict[str, float]] | None:
    """A turn of an arm; None, and the arm is taken out of the others, where it fails."""
    try:
        return runner.run(prompts)
    except LlamaSpecError as error:
        arms.remove(arm)
        print(f"{setting.concurrency:4} {arm:<10} left out from here on: {error}")
        return None


def measure(setting: Setting, arms: list[str], prompts: list[Ready], repeats: int) -> Iterator[Ran]:
    """Every arm once a repeat, in an order that changes; one warm-up of a few prompts each. Without
    an arm that fails, as a server does that ends itself, from there on.
    """
    order = random.Random(setting.concurrency)
    with ExitStack() as stack:
        ready_arms = {arm: opened(setting, arm, stack) for arm in arms}
        with load(setting.target) as session:
            ends = frozenset(session._pair.model.vocab.ends)
        for arm in [*arms]:
            attempt(setting, arms, arm, ready_arms[arm], prompts[: max(4, setting.concurrency)])
        for repeat in range(repeats):
            order.shuffle(arms)
            for arm in [*arms]:
                started = time.perf_counter()
                found = attempt(setting, arms, arm, ready_arms[arm], prompts)
                if found is None:
                    continue
                (ids, figures), seconds = found, time.perf_counter() - started
                yield Ran(
                    arm=arm,
                    concurrency=setting.concurrency,
                    repeat=repeat,
                    tokens=sum(map(len, ids)),
                    seconds=seconds,
                    tau=figures.get("tau", 0.0),
                    accept_rate=figures["accept_rate"],
                    texts=figures.get("texts", 0.0),
                    first_token_s=figures.get("first_token_s", 0.0),
                    digests=tuple(digest(each, ends) for each in ids),
                )


def table(runs: list[Ran], base: str) -> list[str]:
    """A line for each arm at each concurrency: the median of its rates with its interval, of the
    ratios to the base arm's runs of the same repeat, and how many texts are the base arm's.
    """
    lines = ["at once  arm         tokens/s (95%)           / base (95%)         tau  accept  same"]
    for count in sorted({run.concurrency for run in runs}):
        here = [run for run in runs if run.concurrency == count]
        bases = {run.repeat: run for run in here if run.arm == base}
        for arm in dict.fromkeys(run.arm for run in sorted(here, key=lambda run: run.arm)):
            mine = [run for run in here if run.arm == arm]
            rate = bootstrap([run.rate for run in mine])
            paired = [run.rate / bases[run.repeat].rate for run in mine if run.repeat in bases]
            ratio = bootstrap(paired or [0.0])
            same = [
                a == b
                for run in mine
                if run.repeat in bases
                for a, b in zip(run.digests, bases[run.repeat].digests, strict=True)
            ]
            lines.append(
                f"{count:7}  {arm:<10} {rate.middle:7.0f} ({rate.low:5.0f}..{rate.high:5.0f})  "
                f"{ratio.middle:8.2f} ({ratio.low:.2f}..{ratio.high:.2f})  {mine[0].tau:6.2f}  "
                f"{mine[0].accept_rate:6.2f}  {sum(same)}/{len(same)}"
            )
    return lines


def main(
    model: Annotated[str | None, typer.Option("-m", help="Target GGUF.")] = None,
    draft: Annotated[str | None, typer.Option("-d", help="Its draft GGUF.")] = None,
    prompts: Annotated[str | None, typer.Option("--prompts", help="JSON lines.")] = None,
    per_category: Annotated[int, typer.Option("--per-category", help="Of each.")] = 10,
    concurrency: Annotated[str, typer.Option("--concurrency", help="Texts at once.")] = "1,8,32",
    arms: Annotated[str, typer.Option("--arms", help="See above.")] = "plain,auto,@1,@3",
    repeats: Annotated[int, typer.Option("--repeats", help="Turns of every arm.")] = 5,
    max_tokens: Annotated[int, typer.Option("-n", help="Most tokens of a text.")] = 96,
    context: Annotated[int, typer.Option("-c", help="Positions of a text.")] = 512,
    threads: Annotated[int, typer.Option("-t", help="0: physical cores.")] = 0,
    synth_rates: Annotated[
        str | None, typer.Option("--synth-rates", help="As in `llamaspec bench run`.")
    ] = None,
    exact: Annotated[bool, typer.Option("--exact", help="Our arms in exact mode.")] = False,
    tools: Annotated[Path, typer.Option("--tools", help="Folder of llama-server.")] = TOOLS,
    output: Annotated[Path | None, typer.Option("--json", help="Also write the runs.")] = None,
) -> None:
    """Measure texts at once."""
    target = Path(model) if model else demo.target_path()
    drafter = Path(draft) if draft else demo.draft_path()
    options = LoadOptions(threads=threads, context=context, exact=exact)
    rates = None if synth_rates is None else read_rates(synth_rates)
    with load(target) as session:
        asked = ready(session, target, read(prompts, per_category))
    names = [name.strip() for name in arms.split(",")]
    runs: list[Ran] = []
    for count in map(int, concurrency.split(",")):
        setting = Setting(target, drafter, options, max_tokens, count, tools, rates)
        for run in measure(setting, list(names), asked, repeats):
            runs.append(run)
            print(f"{run.concurrency:4} {run.arm:<10} {run.rate:8.0f} tokens/s", flush=True)
    print("\n".join(table(runs, "plain")))
    if output is not None:
        found: list[dict[str, Any]] = [asdict(run) for run in runs]
        output.write_text(json.dumps(found))


if __name__ == "__main__":
    typer.run(main)
