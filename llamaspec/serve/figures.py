"""Statistics of texts as replies give them."""

from collections.abc import Sequence

from llamaspec.completion import Completion
from llamaspec.serve.replies import Extra, Timings, Usage
from llamaspec.trace import by_position


def usage_of(done: Sequence[Completion], prompts: int) -> Usage:
    """Tokens of all texts of a request; those of a prompt count once, however many texts it has.

    done: the texts, n of the first prompt, n of the second and so on.
    """
    firsts = done[:: max(1, len(done) // prompts)]
    prompt = sum(one.stats.prompt_tokens for one in firsts)
    completion = sum(one.stats.completion_tokens for one in done)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": sum(one.stats.cached_tokens for one in firsts)},
    }


def timings_of(done: Sequence[Completion], *, drafts: bool) -> Timings:
    """Sums over texts: rates are those of one text where there is one."""
    stats = [one.stats for one in done]
    cached = sum(one.cached_tokens for one in stats)
    prompt = sum(one.prompt_tokens for one in stats) - cached
    predicted = sum(one.completion_tokens for one in stats)
    prompt_ms = 1e3 * sum(max(0.0, s.time_to_first_token_s - s.queue_s) for s in stats)
    predicted_ms = 1e3 * sum(max(0.0, s.total_s - s.time_to_first_token_s) for s in stats)
    found: Timings = {
        "cache_n": cached,
        "prompt_n": prompt,
        "prompt_ms": round(prompt_ms, 3),
        "prompt_per_token_ms": _ratio(prompt_ms, prompt),
        "prompt_per_second": _ratio(1e3 * prompt, prompt_ms),
        "predicted_n": predicted,
        "predicted_ms": round(predicted_ms, 3),
        "predicted_per_token_ms": _ratio(predicted_ms, predicted),
        "predicted_per_second": _ratio(1e3 * predicted, predicted_ms),
    }
    if drafts:
        found["draft_n"] = sum(one.drafted for one in stats)
        found["draft_n_accepted"] = sum(one.accepted for one in stats)
        found["draft_rounds"] = sum(one.rounds for one in stats)
    return found


def extra_of(done: Sequence[Completion], *, drafts: bool) -> Extra:
    """llamaspec's own figures."""
    found: Extra = {"queue_ms": round(1e3 * max(one.stats.queue_s for one in done), 3)}
    if drafts:
        rounds = [record for one in done for record in one.rounds]
        found["accept_by_position"] = [round(rate, 4) for rate in by_position(rounds)]
    return found


def _ratio(part: float, whole: float) -> float:
    return round(part / whole, 3) if whole > 0 else 0.0
