"""The distributions that a sampler says it draws from, against what it draws; and tokens that
others choose for it.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from llamaspec.errors import SamplingError
from llamaspec.options import GenerateOptions
from llamaspec.runtime.arrays import FloatArray
from llamaspec.runtime.batch import ALL_OUTPUT, Batch
from llamaspec.runtime.context import ContextShape, TargetContext
from llamaspec.runtime.model import Model
from llamaspec.runtime.sampler import Sampler
from tests.chi_square import far

pytestmark = pytest.mark.native

PROMPT = "one two three one two three one two"
N_CTX = 256
DRAWS = 3000
LETTERS = "root ::= [a-z ]+"
SETTINGS: dict[str, dict[str, Any]] = {
    "temperature": {"temperature": 1.0},
    "top_k": {"temperature": 1.5, "top_k": 12},
    "top_p": {"temperature": 1.4, "top_p": 0.8},
    "min_p": {"temperature": 1.5, "min_p": 0.05},
    "typical_p": {"temperature": 1.2, "typical_p": 0.8},
    "penalties": {
        "temperature": 1.0,
        "repeat_penalty": 1.4,
        "presence_penalty": 0.5,
        "frequency_penalty": 0.7,
        "repeat_last_n": -1,
    },
    "dry": {"temperature": 1.0, "dry_multiplier": 1.5, "dry_penalty_last_n": -1},
    "logit_bias": {"temperature": 1.0, "logit_bias": {13: -math.inf, 262: 2.0, 300: 4.0}},
    "grammar": {"temperature": 1.5, "grammar": LETTERS},
    "grammar and filters": {"temperature": 1.5, "grammar": LETTERS, "top_k": 30, "min_p": 0.01},
    "greedy": {"temperature": 0.0, "repeat_penalty": 1.3, "grammar": LETTERS},
}


@dataclass
class Text:
    """A target that has computed a prompt of n tokens, of which all rows are put out."""

    context: TargetContext
    model: Model
    prompt: list[int]

    def sampler(self, settings: dict[str, Any], seed: int = 0) -> Sampler:
        options = GenerateOptions(seed=seed, **settings)
        prompt = np.array(self.prompt, np.int32)
        return Sampler.create(self.model, options, seed=seed, prompt=prompt, n_ctx=N_CTX)

    def odds(self, sampler: Sampler, ids: list[int], index: int = 0, row: int = 2) -> FloatArray:
        return sampler.odds(self.context, row, ids, index)

    def likely(self, settings: dict[str, Any], n: int) -> list[int]:
        """Ids of which each has odds after the ones before."""
        found: list[int] = []
        for i in range(n):
            (*_, row) = self.odds(self.sampler(settings), found)
            found.append(int(np.argsort(-row)[min(i, int(np.count_nonzero(row)) - 1)]))
        return found


@pytest.fixture(scope="module")
def text(ggufs: Path) -> Iterator[Text]:
    model = Model.load(ggufs / "tiny-target-f32.gguf")
    context = TargetContext.create(model, ContextShape(N_CTX, 64, 1, 64, 1, "off", "f32"))
    prompt = model.vocab.tokenize(PROMPT, add_special=False, parse_special=False).tolist()
    batch = Batch.create(len(prompt))
    batch.add_tokens(prompt, start=0, seq=0, output=ALL_OUTPUT)
    context.decode(batch)
    yield Text(context, model, prompt)
    model.close()


@pytest.mark.parametrize("name", SETTINGS)
def test_the_odds_are_those_of_the_draws(text: Text, name: str) -> None:
    """Of the first token, and of the third by the two before it."""
    settings = SETTINGS[name]
    ids = text.likely(settings, 2)
    odds = text.odds(text.sampler(settings), ids)
    assert odds.shape == (3, text.model.vocab.size)
    assert odds.dtype == np.float32
    assert odds.sum(axis=1) == pytest.approx(1, abs=1e-5)
    for i in (0, 2):
        drawn = []
        for seed in range(DRAWS):
            sampler = text.sampler(settings, seed)
            for index in range(i):
                sampler.take(ids[index], index)
            drawn.append(sampler.draw(text.context, 2 + i, i))
            sampler.close()
        if settings["temperature"] == 0:
            assert odds[i].tolist() == np.eye(1, odds.shape[1], drawn[0])[0].tolist()
            assert len(set(drawn)) == 1
        else:
            assert far(np.array(drawn), odds[i]) < 4


def test_settings_change_the_odds(text: Text) -> None:
    """Odds that left one out would be compared with draws that leave it out too."""
    for name, settings in SETTINGS.items():
        ids = text.likely(settings, 2)
        bare = text.sampler({"temperature": settings["temperature"]})
        plain, found = text.odds(bare, ids), text.odds(text.sampler(settings), ids)
        assert (name == "temperature") == (len(plain) == 3 and np.allclose(plain, found)), name


@pytest.mark.parametrize("name", SETTINGS)
def test_asking_disturbs_nothing(text: Text, name: str) -> None:
    settings = SETTINGS[name]
    asked, silent = text.sampler(settings, 7), text.sampler(settings, 7)
    for index in range(6):
        ids = text.likely(settings, 2)
        text.odds(asked, ids, index)
        drawn = asked.draw(text.context, index, index)
        assert silent.draw(text.context, index, index) == drawn
        text.odds(asked, ids, index)
        assert np.array_equal(text.odds(asked, [], index + 1), text.odds(silent, [], index + 1))


@pytest.mark.parametrize("name", SETTINGS)
def test_what_is_taken_counts_as_if_drawn(text: Text, name: str) -> None:
    settings = SETTINGS[name]
    drawer, taker = text.sampler(settings, 3), text.sampler(settings, 4)
    for index in range(5):
        token = drawer.draw(text.context, index, index)
        before = text.odds(taker, [token], index, index)
        assert before[0, token] > 0
        taker.take(token, index)
        taker.take(0, index)  # known by now
        assert taker.draw(text.context, index, index) == token
        after = text.odds(drawer, [], index + 1, index + 1)
        assert np.array_equal(text.odds(taker, [], index + 1, index + 1), after)
        # which is what was said of the row after it
        assert np.array_equal(before[1:], after)


def test_taking_uses_no_random_number(text: Text) -> None:
    settings = {"temperature": 1.5}
    drawn = set()
    for seed in range(20):
        taker, fresh = text.sampler(settings, seed), text.sampler(settings, seed)
        for index in range(3):
            taker.take(300, index)
        drawn.add(taker.draw(text.context, 5, 3))
        assert fresh.draw(text.context, 5, 0) in drawn
        assert taker.draw(text.context, 5, 3) == fresh.draw(text.context, 5, 0)
    assert len(drawn) > 5


def test_a_known_token_has_all_the_odds(text: Text) -> None:
    settings = SETTINGS["penalties"]
    ids = text.likely(settings, 3)
    sampler, ahead = text.sampler(settings), text.sampler(settings)
    for index, token in enumerate(ids[:2]):
        sampler.take(token, index)
    found = text.odds(sampler, ids, 0)
    expected = text.odds(ahead, ids, 0)
    for i in range(2):
        assert np.flatnonzero(found[i]).tolist() == [ids[i]]
        assert found[i, ids[i]] == 1
    assert np.array_equal(found[2:], expected[2:])
    assert len(text.odds(sampler, [ids[0], ids[1] + 1, ids[2]], 0)) == 2


def test_rows_end_where_the_text_does(text: Text) -> None:
    settings = {"temperature": 1.0, "top_k": 1}
    (only,) = text.likely(settings, 1)
    other = only + 1
    assert len(text.odds(text.sampler(settings), [other, only])) == 1
    assert len(text.odds(text.sampler(settings), [only, other])) == 2
    assert len(text.odds(text.sampler(settings), [])) == 1
    ends = min(text.model.vocab.ends)
    free = {"temperature": 1.0, "logit_bias": {ends: 30.0}}
    ids = [only, ends, only]
    found = text.odds(text.sampler(free), ids)
    assert len(found) == 2
    assert found[1, ends] > 0


def test_nothing_can_follow(text: Text) -> None:
    """A grammar that is at its end, and the tokens that may end a text excluded."""
    vocab = text.model.vocab
    banned = dict.fromkeys(vocab.ends, -math.inf)
    settings = {"temperature": 1.0, "grammar": 'root ::= "a"', "logit_bias": banned}
    (letter,) = vocab.tokenize("a", add_special=False, parse_special=False).tolist()
    sampler = text.sampler(settings)
    found = text.odds(sampler, [letter, letter])
    assert len(found) == 1
    assert found[0, letter] == pytest.approx(1)
    sampler.take(letter, 0)
    for ask in (lambda: text.odds(sampler, [], 1), lambda: sampler.draw(text.context, 3, 1)):
        with pytest.raises(SamplingError, match="after 1 tokens: no token of the vocabulary"):
            ask()


def test_order_and_range_are_checked(text: Text) -> None:
    sampler = text.sampler({"temperature": 1.0})
    with pytest.raises(SamplingError, match="drawn in order"):
        sampler.take(5, 1)
    with pytest.raises(SamplingError, match="drawn in order"):
        text.odds(sampler, [], 1)
    for token in (-1, text.model.vocab.size):
        with pytest.raises(SamplingError, match="outside the vocabulary"):
            text.odds(sampler, [token])
        with pytest.raises(SamplingError, match="outside the vocabulary"):
            sampler.take(token, 0)
    assert len(text.odds(sampler, [5])) == 2


def test_what_the_grammar_forbids_cannot_be_taken(text: Text) -> None:
    sampler = text.sampler({"temperature": 1.0, "grammar": 'root ::= "a"+'})
    (digit,) = text.model.vocab.tokenize("7", add_special=False, parse_special=False).tolist()
    with pytest.raises(SamplingError, match=f"token 0 of the text cannot be {digit}"):
        sampler.take(digit, 0)
