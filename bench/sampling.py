"""Sampling with the draft against sampling without it, seed by seed: the same tokens?

    python -m llamaspec.bench.sampling [-m TARGET -d DRAFT] [--seeds 200] [--tokens 64]

For every setting of SETTINGS and for JSON by a schema: how many texts are equal, how far apart the
log-probabilities of their tokens are at most, and tau. Exit code 1 where a text differs.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from llamaspec import Completion, Session, load
from llamaspec.bench.pairs import PROMPTS
from llamaspec.options import GenerateSettings

LIST_GRAMMAR = r"""
root ::= item+
item ::= "- " [^\n]{1,20} "\n"
"""
SETTINGS: dict[str, GenerateSettings] = {
    "temperature": {"temperature": 1.0},
    "top_k": {"temperature": 1.5, "top_k": 5},
    "top_p": {"temperature": 1.2, "top_p": 0.8},
    "min_p": {"temperature": 1.5, "min_p": 0.1},
    "typical_p": {"temperature": 1.0, "typical_p": 0.7},
    "repeat_penalty": {"repeat_penalty": 1.8, "repeat_last_n": 48},
    "presence and frequency": {
        "temperature": 0.7,
        "presence_penalty": 1.5,
        "frequency_penalty": 1.0,
        "repeat_last_n": -1,
    },
    "dry": {"temperature": 0.6, "dry_multiplier": 0.8, "dry_penalty_last_n": -1},
    "logit_bias": {"temperature": 0.8, "logit_bias": {13: -float("inf"), 198: -2.0, 262: 1.5}},
    "grammar": {"temperature": 1.0, "grammar": LIST_GRAMMAR},
    "greedy, mixed": {
        "repeat_penalty": 1.1,
        "dry_multiplier": 0.5,
        "logit_bias": {198: -1.0},
        "grammar": LIST_GRAMMAR,
    },
    "all mixed": {
        "temperature": 0.9,
        "top_k": 40,
        "top_p": 0.95,
        "min_p": 0.02,
        "typical_p": 0.95,
        "repeat_penalty": 1.05,
        "presence_penalty": 0.2,
        "frequency_penalty": 0.1,
        "dry_multiplier": 0.4,
        "logit_bias": {198: -0.5},
        "grammar": LIST_GRAMMAR,
    },
}
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 1, "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "kind": {"enum": ["cat", "dog", None]},
        "tags": {"type": "array", "items": {"type": "string", "maxLength": 6}, "maxItems": 3},
        "home": {
            "type": "object",
            "properties": {"city": {"type": "string", "maxLength": 8}, "big": {"type": "boolean"}},
            "required": ["city", "big"],
            "additionalProperties": False,
        },
    },
    "required": ["name", "age", "kind", "tags", "home"],
    "additionalProperties": False,
}
JSON_SETTINGS: GenerateSettings = {
    "temperature": 1.0,
    "json_schema": SCHEMA,
    "max_tokens": 400,
}


@dataclass(frozen=True)
class Case:
    """One seed of one setting, with the draft and without."""

    setting: str
    drafted: Completion
    plain: Completion

    @property
    def same(self) -> bool:
        a, b = self.drafted, self.plain
        return (a.token_ids, a.text, a.finish_reason) == (b.token_ids, b.text, b.finish_reason)

    @property
    def apart(self) -> float:
        """The largest difference between log-probabilities of tokens that both have; alternatives
        included.
        """
        most = 0.0
        assert self.drafted.logprobs is not None
        assert self.plain.logprobs is not None
        for a, b in zip(self.drafted.logprobs, self.plain.logprobs, strict=False):
            if a.token_id != b.token_id:
                break
            others = dict(b.top)
            pairs = [(a.logprob, b.logprob)]
            pairs += [(value, others[token]) for token, value in a.top if token in others]
            most = max(most, *(abs(x - y) for x, y in pairs))
        return most


def compare(
    session: Session, name: str, settings: GenerateSettings, *, seeds: range, tokens: int
) -> Iterator[Case]:
    """Generate with every seed, both ways; the prompts of PROMPTS in turn."""
    for seed in seeds:
        _, text = PROMPTS[seed % len(PROMPTS)]
        most = session.draft_limit
        fixed: GenerateSettings = {"seed": seed, "cache_prompt": False, "draft_max": most}
        options: GenerateSettings = {"max_tokens": tokens, "logprobs": 3, **settings, **fixed}
        plainly: GenerateSettings = {**options, "draft_max": 0}
        messages = [{"role": "user", "content": text}]
        yield Case(
            name, session.generate(messages, **options), session.generate(messages, **plainly)
        )


def line(name: str, cases: list[Case]) -> str:
    """One row of the report."""
    rounds = sum(case.drafted.stats.rounds for case in cases)
    tokens = sum(case.drafted.stats.completion_tokens for case in cases)
    same = sum(case.same for case in cases)
    apart = max(case.apart for case in cases)
    tau = (tokens - len(cases)) / max(1, rounds)
    return f"{name:<24} {same:4d}/{len(cases):<4d} {tokens:7d} {tau:6.2f} {apart:10.1e}"


def main(
    model: Annotated[str | None, typer.Option("-m", "--model", help="Target GGUF.")] = None,
    draft: Annotated[str | None, typer.Option("-d", "--draft", help="Its draft.")] = None,
    seeds: Annotated[int, typer.Option("--seeds", help="Seeds a setting.")] = 200,
    tokens: Annotated[int, typer.Option("--tokens", help="Most tokens a text.")] = 64,
    threads: Annotated[int, typer.Option("-t", "--threads", help="0: the physical cores.")] = 0,
) -> None:
    """Compare sampling with the draft and without it."""
    differing = 0
    with load(model, draft, threads=threads) as session:
        typer.echo("setting                   same      tokens    tau   logprobs apart")
        every = {**SETTINGS, "json_schema": JSON_SETTINGS}
        for name, settings in every.items():
            found = list(compare(session, name, settings, seeds=range(seeds), tokens=tokens))
            differing += sum(not case.same for case in found)
            typer.echo(line(name, found))
        objects = [json.loads(case.drafted.text) for case in found if is_whole(case)]
        typer.echo(f"json: {len(objects)} of {len(found)} ended by themselves, all of them parse")
    raise typer.Exit(1 if differing else 0)


def is_whole(case: Case) -> bool:
    """Whether a text ended before its limit did."""
    return case.drafted.finish_reason == "stop"


if __name__ == "__main__":
    typer.run(main)
