"""Statistics are computed from the rounds."""

import pytest

from llamaspec.trace import Round, Times, by_position, summarise


def record(drafted: int, accepted: int, committed: int) -> Round:
    return Round(10, 1, tuple(range(drafted)), None, accepted, committed)


def test_tau_counts_what_rounds_committed_and_not_the_first_token() -> None:
    rounds = [record(7, 7, 8), record(7, 6, 7), record(7, 0, 1)]
    times = Times(total_s=2.0, draft_s=0.5, verify_s=1.25, first_token_s=0.1)
    stats = summarise(rounds, prompt_tokens=9, completion_tokens=17, times=times)
    assert pytest.approx(16 / 3) == stats.tau
    assert (stats.drafted, stats.accepted) == (21, 13)
    assert pytest.approx(13 / 21) == stats.accept_rate
    assert pytest.approx(8.5) == stats.tokens_per_second
    assert pytest.approx(0.25) == stats.other_s


def test_accept_rate_by_position_divides_by_the_rounds_that_verified_it() -> None:
    rounds = [record(3, 3, 4), record(3, 1, 2), record(1, 0, 1)]
    assert by_position(rounds) == (2 / 3, 1 / 2, 1 / 2)


def test_plain_decoding_has_no_rates() -> None:
    times = Times(total_s=1.0, draft_s=0.0, verify_s=0.9, first_token_s=0.1)
    stats = summarise([record(0, 0, 1)] * 4, prompt_tokens=3, completion_tokens=5, times=times)
    assert (stats.accept_rate, stats.tau, stats.accept_by_position) == (0.0, 1.0, ())


def test_a_completion_of_one_token_has_no_rounds() -> None:
    times = Times(total_s=0.0, draft_s=0.0, verify_s=0.0, first_token_s=0.0)
    stats = summarise([], prompt_tokens=3, completion_tokens=1, times=times)
    assert (stats.rounds, stats.tau, stats.tokens_per_second) == (0, 0.0, 0.0)
