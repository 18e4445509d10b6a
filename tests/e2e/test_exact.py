"""Exact mode, the probe and `llamaspec verify` as a program and a user meet them."""

import json
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from llamaspec import demo
from llamaspec.bench.pairs import PROMPTS
from llamaspec.checking import Divergence, check
from llamaspec.engine.doubt import Doubt
from llamaspec.errors import OptionError
from llamaspec.runtime.quantize import quantize
from llamaspec.session import Session, load
from llamaspec.verify.probe import Exactness
from tests.e2e.terminal import llamaspec, refusal

pytestmark = pytest.mark.native

PAIR = ("-m", demo.target_path(), "-d", demo.draft_path())
MESSAGES = [[{"role": "user", "content": text}] for _, text in PROMPTS]


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LLAMASPEC_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture(scope="module")
def inexact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A target of a type whose passes over eight rows round unlike single rows by default."""
    path = tmp_path_factory.mktemp("inexact") / "target.gguf"
    quantize(demo.target_path(), path, "q3_k_m", threads=1)
    return path


@pytest.fixture
def exact(inexact: Path) -> Iterator[Session]:
    with load(inexact, demo.draft_path(), threads=1, context=512, exact=True) as session:
        yield session


def test_the_bundled_pair_is_bitwise_by_default_and_told_so(own_cache: Path) -> None:
    with load(threads=1, context=256) as session:
        found = session.exactness
        assert found is session.exactness
    assert found.bitwise
    assert found.widths == tuple(range(1, 9))
    assert dict(found.settings)["threads"] == "1"
    assert len(list((own_cache / "exactness").iterdir())) == 1


def test_q3_k_is_not_and_exact_mode_makes_it(inexact: Path, exact: Session) -> None:
    with load(inexact, demo.draft_path(), threads=1, context=512) as session:
        default = session.exactness
    assert not default.bitwise
    assert 0 < default.deviation < default.bound
    assert {8} <= set(default.unequal) <= set(range(2, 9))
    assert exact.exactness.bitwise
    for messages in MESSAGES:
        drafted = exact.generate(messages, max_tokens=64, draft_max=7)
        plain = exact.generate(messages, max_tokens=64, draft_max=0)
        assert drafted.token_ids == plain.token_ids
        assert drafted.stats.replayed == 0
        assert drafted.stats.tau > 1.2
    with load(inexact, threads=1, context=512) as without:
        # prompts too are computed as without exact mode
        assert without.generate(messages, max_tokens=64).token_ids == plain.token_ids


def test_with_a_seed_exact_mode_draws_what_plain_decoding_draws(exact: Session) -> None:
    for seed, messages in enumerate(MESSAGES):
        settings = {"max_tokens": 48, "temperature": 0.8, "seed": seed}
        drafted = exact.generate(messages, draft_max=7, **settings)  # type: ignore[arg-type]
        plain = exact.generate(messages, draft_max=0, **settings)  # type: ignore[arg-type]
        assert drafted.token_ids == plain.token_ids
        assert drafted.stats.drafted > 0


def test_where_rows_cannot_be_made_alike_near_ties_and_draws_get_rows_alone(
    inexact: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(
        "llamaspec.runtime.context.TargetContext.compute_rows_alike", lambda self: None
    )
    with load(inexact, demo.draft_path(), threads=1, context=512, exact=True) as session:
        bound = session.exactness.bound
        assert bound > 0
        session._pair.engine.doubt = Doubt(1.0, patience=0)
        replayed = 0
        for messages in MESSAGES:
            drafted = session.generate(messages, max_tokens=48, draft_max=7)
            plain = session.generate(messages, max_tokens=48, draft_max=0)
            assert drafted.token_ids == plain.token_ids
            replayed += drafted.stats.replayed
        assert replayed > 0
        with caplog.at_level(logging.WARNING, "llamaspec"):
            drawn = session.generate(messages, max_tokens=24, temperature=0.8, seed=1)
        again = session.generate(messages, max_tokens=24, temperature=0.8, seed=1, draft_max=0)
        assert drawn.token_ids == again.token_ids
        assert drawn.stats.drafted == 0
        assert [r.getMessage() for r in caplog.records if "a draw depends" in r.getMessage()]


def test_a_target_without_a_draft_decodes_by_lookup() -> None:
    with load(demo.target_path(), "lookup", threads=1, context=512) as session:
        assert session.draft_limit == 15
        for messages in MESSAGES:
            found = session.generate(messages, max_tokens=96, draft_max=7)
            plain = session.generate(messages, max_tokens=96, draft_max=0)
            assert found.token_ids == plain.token_ids
        # the last answer repeats itself
        assert found.stats.accepted > 0
        assert found.stats.draft_s == 0


def test_the_check_tells_a_near_tie_from_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    with load(threads=1, context=256) as session:
        right = session.generate(MESSAGES[0], max_tokens=12, draft_max=0)
        wrong = list(right.token_ids)
        wrong[5] += 1
        original = session.generate

        def generate(prompt: object, **settings: object) -> object:
            done = original(MESSAGES[0], max_tokens=12, draft_max=0)
            if settings["draft_max"] != 0:
                object.__setattr__(done, "token_ids", tuple(wrong))
            return done

        monkeypatch.setattr(session, "generate", generate)
        found = check(session, [MESSAGES[0]], max_tokens=12)
        (divergence,) = found.divergences
        gap = session.plain_gap(MESSAGES[0], right.token_ids[:5])
        assert divergence == Divergence(0, 5, wrong[5], right.token_ids[5], gap, False)
        assert gap > 0
        assert not found.passed
        # the same difference is none of rounding's faults where rounding moves more than the gap
        loose = Exactness(False, gap, 2 * gap, 0.1, 0.1, (2,), (2,), 9)
        session._pair.exactness = loose
        assert check(session, [MESSAGES[0]], max_tokens=12).passed
        # a text that ends early is a fault however close the choice was
        wrong[5:] = []
        early = check(session, [MESSAGES[0]], max_tokens=12)
        assert not early.passed
        assert early.divergences[0].drafted is None


def test_the_gap_is_that_of_plain_decoding() -> None:
    with load(threads=1, context=256) as session:
        done = session.generate(MESSAGES[1], max_tokens=8, draft_max=0)
        gaps = [session.plain_gap(MESSAGES[1], done.token_ids[:n]) for n in range(8)]
        assert min(gaps) > 0
        assert len(set(gaps)) == 8
        # the slot is free again
        assert session.generate(MESSAGES[1], max_tokens=8).token_ids == done.token_ids


def test_verify_prints_what_it_compared(tmp_path: Path) -> None:
    file = tmp_path / "prompts.txt"
    file.write_text('What is 12 plus 30?\n\n{"prompt": "Write first_9 in Python."}\n')
    done = llamaspec("verify", *PAIR, "--prompts", file, "-n", 24, "-t", 1)
    assert (done.returncode, done.stderr) == (0, "")
    assert "bitwise" in done.stdout
    assert "2 prompts" in done.stdout
    assert done.stdout.endswith("identical\n")


def test_verify_speaks_json_and_knows_exact_mode(inexact: Path) -> None:
    words = ("-m", inexact, "-d", "lookup", "-n", 24, "-t", 1, "--exact", "--json")
    done = llamaspec("verify", *words)
    found = json.loads(done.stdout)
    assert done.returncode == 0
    assert (found["exact"], found["passed"], found["bound"]) == (True, True, 0)
    assert found["prompts"] == len(PROMPTS)
    assert found["divergences"] == []


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "holds no prompt"),
        ('{"prompt": 3}', "no JSON object"),
        ('{"text": "x"}', "no JSON object"),
        ("{", "no JSON object"),
    ],
)
def test_verify_refuses_what_holds_no_prompt(tmp_path: Path, text: str, words: str) -> None:
    file = tmp_path / "prompts"
    file.write_text(text)
    assert words in refusal(llamaspec("verify", *PAIR, "--prompts", file))
    assert "cannot be read" in refusal(llamaspec("verify", *PAIR, "--prompts", tmp_path / "none"))


def test_verify_needs_a_draft() -> None:
    assert "there is no draft" in refusal(llamaspec("verify", "-m", demo.target_path()))


def test_a_check_without_a_draft_is_refused(session: Session) -> None:
    with pytest.raises(OptionError, match="no draft"):
        check(session, [MESSAGES[0]], max_tokens=4, draft_max=0)


def test_doctor_says_how_exact_a_pair_is(inexact: Path) -> None:
    done = llamaspec("doctor", "-m", inexact, "-d", demo.draft_path(), "-t", 1)
    assert done.returncode == 0
    assert "default mode" in done.stdout
    assert "exact mode" in done.stdout
    assert "--exact makes these passes bitwise equal" in done.stdout
    found = json.loads(llamaspec("doctor", "-m", demo.target_path(), "--json", "-t", 1).stdout)
    assert found["exactness"]["default"]["bitwise"] is True


def test_run_takes_exact(inexact: Path) -> None:
    words = (
        "run",
        "-m",
        inexact,
        "-d",
        demo.draft_path(),
        "-t",
        1,
        "-n",
        24,
        "--json",
        "--compare",
    )
    done = llamaspec(*words, "--exact", PROMPTS[0][1])
    found = json.loads(done.stdout)
    assert found["identical"] is True
    assert found["stats"]["replayed"] == 0
