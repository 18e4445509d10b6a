"""Acceptance is pure: every case of agreement, and how often the target is asked."""

from collections.abc import Iterator

import pytest

from llamaspec.verify.accept import Verification, accept


@pytest.mark.parametrize(
    ("choices", "proposal", "accepted", "tokens"),
    [
        ([5], [], 0, [5]),
        ([5, 6, 7], [5, 6], 2, [5, 6, 7]),
        ([5, 9, 7], [5, 6], 1, [5, 9]),
        ([8, 6, 7], [5, 6], 0, [8]),
        ([5, 6, 7, 8], [5, 6, 9], 2, [5, 6, 7]),
    ],
)
def test_longest_agreed_prefix_and_bonus(
    choices: list[int], proposal: list[int], accepted: int, tokens: list[int]
) -> None:
    result = accept(choices, proposal)
    assert (accepted, tokens) == (result.accepted, result.tokens)


def test_one_draw_a_committed_token_in_order() -> None:
    asked: list[int] = []

    def draws() -> Iterator[int]:
        for row, token in enumerate([5, 6, 0, 1]):
            asked.append(row)
            yield token

    result = accept(draws(), [5, 6, 7, 8])
    assert asked == [0, 1, 2]
    assert result.tokens == [5, 6, 0]


@pytest.mark.parametrize(
    ("choices", "expected"),
    [
        ([], Verification(0, [])),
        ([5], Verification(1, [5])),
        ([5, 6], Verification(2, [5, 6])),
        ([5, 9], Verification(1, [5, 9])),
    ],
    ids=str,
)
def test_choices_that_give_out_end_the_result(choices: list[int], expected: Verification) -> None:
    assert accept(choices, [5, 6]) == expected
