"""Arms against each other: the same prompts and limits, in turn, in one tree of processes."""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from llamaspec import demo, models
from llamaspec.bench import machine, peers
from llamaspec.bench.arms import ArmSpec, Generated, Ready, Runner, check_drafts, read_arms
from llamaspec.bench.ours import Ours
from llamaspec.bench.record import DEFINITIONS, FORMAT, Arm, Asked, Result, Sample, Traced
from llamaspec.bench.synthetic import read_rates
from llamaspec.bench.workloads import Prompt
from llamaspec.errors import OptionError
from llamaspec.ffi import LIBRARY_DIR
from llamaspec.options import LoadOptions
from llamaspec.runtime.describe import describe

WARM_UP_TOKENS = 16
DEFAULT_ARMS = "plain,dspark"
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Plan:
    """What to compare. target, draft, dflash: files or hf:// references; without any, the bundled
    pair. rates: of synthetic acceptance, None for the target's word. base: the arm that others are
    compared with, "" for plain, or else the first.
    """

    target: str | None = None
    draft: str | None = None
    dflash: str | None = None
    arms: str = DEFAULT_ARMS
    base: str = ""
    max_tokens: int = 256
    repeats: int = 5
    rates: str | None = None
    tools: Path | None = None
    options: LoadOptions = field(default_factory=LoadOptions)

    def __post_init__(self) -> None:
        for name, value in (("max_tokens", self.max_tokens), ("repeats", self.repeats)):
            if value < 1:
                raise OptionError(f"{name} is {value}; it must be at least 1")


@dataclass(frozen=True)
class _Setting:
    """A plan with its files resolved and its names read."""

    plan: Plan
    arms: list[ArmSpec]
    base: str
    target: Path
    draft: Path | None
    dflash: Path | None
    rates: tuple[float, ...] | None

    def file(self, arm: ArmSpec) -> Path | None:
        return {"draft": self.draft, "dflash": self.dflash}.get(arm.source)


def compare(
    plan: Plan, prompts: Sequence[Prompt], on_sample: Progress = lambda done, total: None
) -> Result:
    """Run every arm on every prompt, `repeats` times, in an order that turns with each prompt and
    repeat; after a warm-up of each arm.

    on_sample: called with the number of generations done and of all.

    Raises:
        OptionError: unknown arms, drafts or tools that are not there, no prompt that fits.
        ModelLoadError, IncompatibleDraftError, DecodeError; LlamaSpecError where a tool fails.
    """
    setting = _resolve(plan)
    with ExitStack() as stack:
        ours = Ours(
            setting.target, {"draft": setting.draft, "dflash": setting.dflash}, plan.options
        )
        stack.callback(ours.close)
        ours.open([arm.source for arm in setting.arms if arm.kind == "ours"])
        fitting, ready = _fitting(ours, prompts, plan.max_tokens)
        runners = {arm.name: _runner(arm, setting, ours, stack) for arm in setting.arms}
        for runner in runners.values():
            runner.run(ready[0], min(WARM_UP_TOKENS, plan.max_tokens))
        turns = _Turns(runners, ready, plan, on_sample)
        turns.run()
        about = machine.about(_files(setting)) | {"tools": _tools(setting, ours).version()}
        session = ours.first
        asked = [
            Asked(p.category, p.id, p.text, len(r.ids)) for p, r in zip(fitting, ready, strict=True)
        ]
    return Result(
        format=FORMAT,
        about=about,
        settings=_settings(setting, session.n_ctx),
        definitions=DEFINITIONS,
        base=setting.base,
        synthetic=setting.rates is not None,
        arms=tuple(Arm(arm.name, runners[arm.name].argv) for arm in setting.arms),
        prompts=tuple(asked),
        left_out=len(prompts) - len(fitting),
        load=tuple(turns.load),
        samples=tuple(_judged(turns, setting)),
        traces=tuple(turns.traces),
    )


def _resolve(plan: Plan) -> _Setting:
    arms = read_arms(plan.arms)
    names = [arm.name for arm in arms]
    base = plan.base or ("plain" if "plain" in names else names[0])
    if base not in names:
        raise OptionError(f"the base arm {base} is none of the arms {', '.join(names)}")
    rates = None if plan.rates is None else read_rates(plan.rates)
    simple = [arm.name for arm in arms if arm.kind == "simple"]
    if rates is not None and simple:
        raise OptionError(f"{simple[0]}: its tool takes no synthetic rates; leave it out")
    target, draft = plan.target, plan.draft
    if target is None:
        if draft is not None or plan.dflash is not None:
            raise OptionError("a draft was given without a target; give it with -m")
        check_drafts(arms, draft=True, dflash=False)
        return _Setting(plan, arms, base, demo.target_path(), demo.draft_path(), None, rates)
    check_drafts(arms, draft=draft is not None, dflash=plan.dflash is not None)
    found = models.find_target(target)
    first, second = (
        models.find_draft(name, found) if name else None for name in (draft, plan.dflash)
    )
    return _Setting(plan, arms, base, found.path, first, second, rates)


def _fitting(
    ours: Ours, prompts: Sequence[Prompt], max_tokens: int
) -> tuple[list[Prompt], list[Ready]]:
    """The prompts that leave room for a whole completion."""
    fitting: list[Prompt] = []
    ready: list[Ready] = []
    for prompt in prompts:
        one = ours.ready(len(ready), prompt.text)
        if 0 < len(one.ids) <= ours.first.n_ctx - max_tokens:
            fitting.append(prompt)
            ready.append(one)
    if not ready:
        raise OptionError(
            f"no prompt fits a context of {ours.first.n_ctx} beside {max_tokens} tokens of output; "
            "give a larger one (-c), or fewer tokens (-n)"
        )
    return fitting, ready


def _runner(arm: ArmSpec, setting: _Setting, ours: Ours, stack: ExitStack) -> Runner:
    if arm.kind == "ours":
        return ours.runner(arm, setting.rates)
    tools, draft = _tools(setting, ours), setting.file(arm)
    most = _block(draft) if draft is not None else 0
    width = min(arm.width or most, most)
    if arm.kind == "simple":
        assert draft is not None, "check_drafts lets no such arm through"
        return peers.simple(tools, draft, width)
    opened = peers.server(tools, arm, draft, ours.ends, setting.rates, width)
    return stack.enter_context(opened)


def _tools(setting: _Setting, ours: Ours) -> peers.Tools:
    folder = setting.plan.tools or LIBRARY_DIR.parent / "bin"
    drafts = [path for path in (setting.draft, setting.dflash) if path is not None]
    kinds = {path: kind_of(path) for path in drafts}
    return peers.Tools(folder, setting.target, setting.plan.options, ours.first.n_ctx, kinds)


def kind_of(draft: Path) -> str:
    """llama.cpp's name of a draft's kind."""
    described = describe(draft).draft
    return "draft-dspark" if described and described.markov_rank else "draft-dflash"


def _block(draft: Path) -> int:
    described = describe(draft).draft
    return described.proposals if described else 0


class _Turns:
    """The generations, and what each gave."""

    def __init__(
        self, runners: dict[str, Runner], ready: list[Ready], plan: Plan, on_sample: Progress
    ) -> None:
        self._runners = runners
        self._ready = ready
        self._plan = plan
        self._on_sample = on_sample
        self.load: list[float] = []
        self.traces: list[Traced] = []
        self.found: list[tuple[str, int, int, Generated]] = []

    def run(self) -> None:
        names = list(self._runners)
        total = self._plan.repeats * len(self._ready) * len(names)
        for repeat in range(self._plan.repeats):
            self.load.append(machine.load_average())
            for prompt in self._ready:
                for name in order(names, repeat, prompt.number):
                    done = self._runners[name].run(prompt, self._plan.max_tokens)
                    self.found.append((name, prompt.number, repeat, done))
                    if repeat == 0 and done.verdicts:
                        self.traces.append(Traced(name, prompt.number, done.verdicts))
                    self._on_sample(len(self.found), total)
        self.load.append(machine.load_average())


def order(names: Sequence[str], repeat: int, prompt: int) -> list[str]:
    """The arms of a turn: each begins equally often, and is not always after the same one."""
    start = (repeat + prompt) % len(names)
    turned = [*names[start:], *names[:start]]
    return turned if repeat % 2 == 0 else turned[::-1]


def _judged(turns: _Turns, setting: _Setting) -> Iterator[Sample]:
    base = {
        (prompt, repeat): done for name, prompt, repeat, done in turns.found if name == setting.base
    }
    for name, prompt, repeat, done in turns.found:
        other = base[prompt, repeat]
        yield Sample(
            arm=name,
            prompt=prompt,
            repeat=repeat,
            tokens=done.tokens,
            decode_rate=done.decode_rate,
            request_rate=done.request_rate,
            latency_s=done.latency_s,
            rounds=done.rounds,
            drafted=done.drafted,
            accepted=done.accepted,
            draft_s=done.draft_s,
            verify_s=done.verify_s,
            other_s=done.other_s,
            digest=None if done.ids is None else _digest(repr(done.ids).encode()),
            text_digest=None if done.text is None else _digest(done.text),
            identical=None if setting.rates is not None else same(done, other),
        )


def same(one: Generated, other: Generated) -> bool | None:
    """Whether two outputs are equal, by their ids, or else by their texts, without what a tool
    generated beyond its limit; None where a tool gives neither.
    """
    if one.ids is not None and other.ids is not None:
        return one.ids == other.ids
    if one.text is None or other.text is None:
        return None
    mine, theirs = one.text, other.text
    if one.overshot:
        mine = mine[: len(theirs)]
    if other.overshot:
        theirs = theirs[: len(mine)]
    return mine == theirs


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]


def _files(setting: _Setting) -> dict[str, Path]:
    named = {"target": setting.target, "draft": setting.draft, "dflash": setting.dflash}
    return {name: path for name, path in named.items() if path is not None}


def _settings(setting: _Setting, n_ctx: int) -> dict[str, str]:
    plan, options = setting.plan, setting.plan.options
    found = {
        "max tokens": plan.max_tokens,
        "repeats": plan.repeats,
        "threads": options.n_threads,
        "flash attention": options.flash_attention,
        "KV cache": options.cache_type,
        "context": n_ctx,
        "GPU layers": options.n_gpu_layers,
        "GPU layers of the draft": options.n_gpu_layers_draft,
        "sampling": "greedy",
        "prompt cache": "off",
        "synthetic rates": plan.rates or "none",
    }
    return {name: str(value) for name, value in found.items()}
