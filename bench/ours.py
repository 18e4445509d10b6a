"""The arms that llamaspec itself decodes, in this process."""

from dataclasses import dataclass, field
from math import isfinite
from pathlib import Path

from llamaspec.bench.arms import ArmSpec, Generated, Ready, Source
from llamaspec.bench.figures import Verdict
from llamaspec.bench.synthetic import ScriptedAcceptance, for_width
from llamaspec.completion import Completion
from llamaspec.loading import LOOKUP, DraftSource, Pair, load_pair
from llamaspec.options import LoadOptions
from llamaspec.runtime.gguf_file import GGUFFile
from llamaspec.session import Session
from llamaspec.text.chat import ChatTemplate
from llamaspec.verify.accept import accept


@dataclass
class Ours:
    """One session for each source of proposals that some arm needs; plain decoding takes the first
    one that is there.
    """

    target: Path
    drafts: dict[Source, Path | None]
    options: LoadOptions
    pairs: dict[Source, Pair] = field(default_factory=dict)
    sessions: dict[Source, Session] = field(default_factory=dict)

    def open(self, sources: list[Source]) -> None:
        """Load what the arms need: at least one session, which also reads prompts."""
        wanted: list[Source] = [source for source in sources if source != "none"]
        for source in wanted or sources[:1] or ["none"]:
            if source not in self.sessions:
                draft: DraftSource = LOOKUP if source == "lookup" else self.drafts.get(source)
                pair = load_pair(self.target, draft, self.options)
                self.pairs[source], self.sessions[source] = pair, Session(pair)

    def close(self) -> None:
        """Free all of them."""
        for session in self.sessions.values():
            session.close()

    @property
    def first(self) -> Session:
        return next(iter(self.sessions.values()))

    @property
    def ends(self) -> frozenset[int]:
        """The tokens that end a text."""
        pair = next(iter(self.pairs.values()))
        return frozenset(pair.model.vocab.ends)

    def ready(self, number: int, text: str) -> Ready:
        """A user's message in the target's chat template, or as it is where there is none."""
        if self.first.has_chat_template:
            with GGUFFile.open(self.target) as file:
                template = ChatTemplate.from_gguf(file)
            messages = [{"role": "user", "content": text}]
            return Ready(number, self.first.tokenize(messages), template.render(messages))
        return Ready(number, self.first.tokenize(text), text)

    def runner(self, arm: ArmSpec, rates: tuple[float, ...] | None) -> "OurArm":
        """The runner of an arm; rates: of synthetic acceptance, None for the target's word."""
        source = arm.source if arm.source in self.sessions else next(iter(self.sessions))
        session = self.sessions[source]
        most = min(arm.width or session.draft_limit, session.draft_limit)
        width = (arm.width and most) if arm.drafts else 0
        script = None
        if rates is not None and arm.drafts:
            script = ScriptedAcceptance(for_width(rates, most, arm.name), self.ends)
        return OurArm(session, self.pairs[source], width, self.ends, script)


@dataclass
class OurArm:
    """A session at a fixed width, or None for as many proposals as pay. script: decides acceptance
    instead of the target.
    """

    session: Session
    pair: Pair
    width: int | None
    ends: frozenset[int]
    script: ScriptedAcceptance | None = None
    argv: tuple[str, ...] = ()

    def run(self, prompt: Ready, max_tokens: int) -> Generated:
        """Generate greedily, from scratch."""
        engine = self.pair.engine
        if self.script is not None:
            self.script.seed(prompt.number)
            engine.accept = self.script
        try:
            # the arm before had the same prompt, and would spare this one its time
            done = self.session.generate(
                prompt.ids, max_tokens=max_tokens, draft_max=self.width, cache_prompt=False
            )
        finally:
            engine.accept = accept
        return generated(done, self.ends)


def generated(done: Completion, ends: frozenset[int]) -> Generated:
    """The figures of a completion."""
    stats = done.stats
    after = stats.total_s - stats.time_to_first_token_s
    steps = stats.completion_tokens - 1
    return Generated(
        tokens=stats.completion_tokens,
        decode_rate=steps / after if steps and after > 0 else 0.0,
        request_rate=stats.tokens_per_second,
        latency_s=stats.total_s,
        rounds=stats.rounds,
        drafted=stats.drafted,
        accepted=stats.accepted,
        draft_s=stats.draft_s,
        verify_s=stats.verify_s,
        other_s=stats.other_s,
        ids=without_end(done.token_ids, ends),
        text=done.text.encode("utf-8", "surrogatepass"),
        verdicts=tuple(
            Verdict(len(r.draft), r.accepted, _finite(r.confidence)) for r in done.rounds
        ),
    )


def _finite(confidence: tuple[float, ...] | None) -> tuple[float, ...] | None:
    # a damaged draft gives NaN, which JSON has no word for
    return confidence if confidence and all(map(isfinite, confidence)) else None


def without_end(ids: tuple[int, ...], ends: frozenset[int]) -> tuple[int, ...]:
    """Token ids less a final one that ends the text."""
    return ids[:-1] if ids and ids[-1] in ends else ids
