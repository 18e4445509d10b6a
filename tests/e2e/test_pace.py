"""How much is drafted and verified where a request leaves it open, on the bundled pair: with curves
given as files, so that nothing depends on how fast passes are here.
"""

import itertools
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from llamaspec import demo
from llamaspec.bench.pairs import PROMPTS
from llamaspec.completion import Completion
from llamaspec.errors import OptionError
from llamaspec.options import Acceptance, GenerateSettings
from llamaspec.schedule.cost import FORMAT
from llamaspec.session import Session, load
from llamaspec.text.prompt import Prompt
from tests.e2e.terminal import environment, llamaspec, refusal, together
from tests.rounds import BLOCK, widths

pytestmark = pytest.mark.native

MESSAGES: list[Prompt] = [[{"role": "user", "content": prompt}] for _, prompt in PROMPTS]
CODE = MESSAGES[2]
# seconds of target passes over 1, 2, ... rows, and of a draft
CURVES: dict[str, tuple[list[float], float]] = {
    "flat": ([1 + 0.001 * n for n in range(8)], 0.01),
    "steep": ([1 + 0.9 * n for n in range(8)], 0.1),
    "stairs": ([1.0, 1.1, 1.1, 1.1, 2.1, 2.1, 2.1, 2.1], 0.2),
    "line": ([1 + 0.25 * n for n in range(8)], 0.05),
    "never": ([1 + 0.05 * n for n in range(8)], 20.0),
}


def written(folder: Path, name: str) -> str:
    """The file of a curve."""
    verify, draft = CURVES[name]
    path = folder / f"{name}.json"
    curve = {
        "format": FORMAT,
        "verify": {"depths": [0], "sizes": list(range(1, 9)), "seconds": [verify]},
        "draft": {"depths": [0], "sizes": [BLOCK], "seconds": [[draft]]},
    }
    path.write_text(json.dumps(curve))
    return str(path)


def opened(folder: Path, name: str, **settings: Any) -> Session:  # noqa: ANN401
    curve = written(folder, name)
    return load(**{"threads": 1, "context": 512, "cost_curve": curve, **settings})


def outcome(done: Completion) -> tuple[str, tuple[int, ...], str]:
    return done.text, done.token_ids, done.finish_reason


@pytest.fixture(scope="module")
def plain() -> dict[tuple[int, int | None], Completion]:
    """What plain decoding gives, by prompt and seed, None for greedy."""
    with load(demo.target_path(), threads=1, context=512) as session:
        return {
            (number, seed): session.generate(asked, **drawn(seed))
            for number, asked in enumerate(MESSAGES)
            for seed in (None, 5)
        }


def drawn(seed: int | None) -> GenerateSettings:
    settings: GenerateSettings = {"max_tokens": 64, "cache_prompt": False}
    return settings if seed is None else {**settings, "temperature": 0.8, "seed": seed}


# --- what is chosen


def test_texts_are_plain_decodings_whatever_passes_cost(
    tmp_path: Path, plain: dict[tuple[int, int | None], Completion]
) -> None:
    seen: Counter[int] = Counter()
    for name in CURVES:
        with opened(tmp_path, name) as session:
            for (number, seed), expected in plain.items():
                done = session.generate(MESSAGES[number], **drawn(seed))
                assert outcome(done) == outcome(expected), (name, number, seed)
                assert 1 + sum(r.committed for r in done.rounds) == len(done.token_ids)
                assert done.stats.widths == tuple(
                    sum(len(r.draft) == width for r in done.rounds)
                    for width in range(1 + max(len(r.draft) for r in done.rounds))
                )
                for record in done.rounds:
                    assert len(record.draft) <= max(record.offered, 0) <= BLOCK
                    assert len(record.confidence or ()) == len(record.draft)
                seen += widths([done])
    assert set(seen) == set(range(BLOCK + 1))


def test_where_rows_are_free_whole_blocks_are_verified(tmp_path: Path) -> None:
    with opened(tmp_path, "flat") as session:
        found = widths([session.generate(asked, max_tokens=64) for asked in MESSAGES])
    assert set(found) == {BLOCK}


def test_a_draft_that_never_pays_is_asked_seldom(tmp_path: Path) -> None:
    with opened(tmp_path, "never") as session:
        rounds = [r for asked in MESSAGES for r in session.generate(asked, max_tokens=64).rounds]
    drafted = sum(record.offered > 0 for record in rounds)
    assert 0 < drafted < 0.15 * len(rounds)
    assert drafted >= sum(bool(record.draft) for record in rounds) > 0


def test_what_a_stair_gives_for_nothing_is_taken(tmp_path: Path) -> None:
    with opened(tmp_path, "stairs") as session:
        found = widths([session.generate(asked, max_tokens=64) for asked in MESSAGES])
    assert found[3] + found[7] > 0.9 * found.total()
    assert min(found[3], found[7]) > 0


def test_dearer_rows_are_verified_less(tmp_path: Path) -> None:
    drafted = []
    for name in ("flat", "line", "steep"):
        with opened(tmp_path, name) as session:
            stats = [session.generate(asked, max_tokens=64).stats for asked in MESSAGES]
        drafted.append(sum(s.drafted for s in stats))
        rate = sum(s.accepted for s in stats) / drafted[-1]
        assert name != "steep" or rate > 0.9
    assert drafted[0] > drafted[1] > drafted[2] > 0


@pytest.mark.parametrize("settings", [{}, {"max_sequences": 2}, {"draft": "lookup"}], ids=str)
def test_the_same_requests_in_fresh_sessions_give_the_same_rounds(
    tmp_path: Path, settings: dict[str, Any]
) -> None:
    source = {"model": demo.target_path(), "draft": demo.draft_path(), **settings}
    curve, runs = "line" if "draft" in settings else "steep", []
    for _ in range(2):
        with opened(tmp_path, curve, **source) as session:
            runs.append([session.generate(asked, max_tokens=64) for asked in MESSAGES])
    for one, other in zip(*runs, strict=True):
        assert one.rounds == other.rounds
        assert outcome(one) == outcome(other)
    assert len(widths(runs[0])) > 2


def test_an_explicit_draft_max_is_obeyed_and_teaches_nothing(tmp_path: Path) -> None:
    with opened(tmp_path, "never") as session, opened(tmp_path, "never") as fresh:
        for most in (BLOCK, 3, 1):
            done = session.generate(CODE, max_tokens=40, draft_max=most, cache_prompt=False)
            assert set(widths([done])) == {most}
        assert session.generate(CODE, max_tokens=40, draft_max=0).stats.drafted == 0
        after = session.generate(CODE, max_tokens=40, cache_prompt=False)
        assert after.rounds == fresh.generate(CODE, max_tokens=40).rounds


def test_a_draft_max_of_none_is_the_default(tmp_path: Path) -> None:
    with opened(tmp_path, "line") as session, opened(tmp_path, "line") as other:
        asked = session.generate(CODE, max_tokens=40, draft_max=None)
        assert asked.rounds == other.generate(CODE, max_tokens=40).rounds
    assert len(widths([asked])) > 1


def test_lookup_is_paced_by_its_matches(tmp_path: Path) -> None:
    text = "one two three four five six seven. " * 4
    for name in ("line", "never"):
        with opened(tmp_path, name, model=demo.target_path(), draft="lookup") as session:
            done = session.generate(text, max_tokens=64, cache_prompt=False)
            expected = session.generate(text, max_tokens=64, draft_max=0, cache_prompt=False)
            assert outcome(done) == outcome(expected)
            assert any(record.offered for record in done.rounds)
            assert all(r.confidence is not None for r in done.rounds if r.draft)
            assert session.pace is not None
            assert session.pace.lookup.taught
            silent = sum(not record.draft for record in done.rounds)
        assert name != "never" or silent > 0.5 * len(done.rounds)


def test_two_sequences_at_once_and_one_alone_draft_what_pays(tmp_path: Path) -> None:
    asked: list[tuple[Prompt, int]] = [(MESSAGES[3], 12), (CODE, 64)]
    with opened(tmp_path, "never", max_sequences=2) as session:
        alone = [session.generate(text, max_tokens=most) for text, most in asked]
        streams = [session.stream(text, max_tokens=most) for text, most in asked]
        for _ in itertools.islice(zip(*streams, strict=False), 8):
            pass
        sequences = [run.sequence for run in session._running._runs]
        records = [list(sequence.rounds) for sequence in sequences if sequence]
        assert all(sum(bool(r.draft) for r in rounds) < 5 for rounds in records)
        assert min(map(len, records)) > 0
        done = []
        for stream in streams:
            list(stream)
            assert session.last is not None
            done.append(session.last)
        assert [outcome(one) for one in done] == [outcome(one) for one in alone]
        # the longer text was left alone
        assert not all(record.offered for record in done[-1].rounds)


def test_a_head_in_python_has_no_pace(tmp_path: Path) -> None:
    with opened(tmp_path, "never", head="python") as session:
        assert session.pace is None
        done = session.generate(CODE, max_tokens=40)
    assert set(widths([done])) == {BLOCK}
    with load(demo.target_path(), threads=1, context=512) as session:
        assert session.pace is None


# --- the curve


def test_a_measured_curve_is_remembered_and_a_damaged_one_measured_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LLAMASPEC_CACHE", str(tmp_path))
    measured = []
    from llamaspec import measuring

    original: Any = vars(measuring)["measure"]

    def counting(*arguments: Any, **settings: Any) -> Any:  # noqa: ANN401
        measured.append(original(*arguments, **settings))
        return measured[-1]

    monkeypatch.setattr(measuring, "measure", counting)

    def curves(**settings: Any) -> list[object]:  # noqa: ANN401
        before = len(measured)
        with load(threads=1, context=256, **settings) as session:
            assert session.pace is not None
            assert not session.pace.prices.pinned
            found = session.pace.prices.curve
            assert session.generate(CODE, max_tokens=8).token_ids
        return [found, *measured[before:]]

    (first, made) = curves()
    assert first == made
    (file,) = (tmp_path / "costs").iterdir()
    assert curves() == [first]
    for damage in ("", "[]", "{}", file.read_text().replace(": [", ": [-", 1), '{"format": 1}'):
        file.write_text(damage)
        again, made = curves()
        assert again == made
        assert curves() == [again]
    # another place of the draft, other prices
    assert len(curves(device_draft="cpu", device="cpu")) == 2
    assert len(list((tmp_path / "costs").iterdir())) == 2


BAD_CURVES: dict[str, tuple[str | None, str]] = {
    "missing": (None, "cannot be read"),
    "empty": ("", "is not JSON"),
    "text": ("ten ms", "is not JSON"),
    "deep": ("[" * 100_000, "is not JSON"),
    "list": ("[]", "not a cost curve"),
    "other": ('{"format": "x"}', "not a cost curve"),
    "bare": (json.dumps({"format": FORMAT}), "needs verify seconds"),
    "negative": (
        json.dumps({"format": FORMAT, "verify": {"depths": [0], "sizes": [1], "seconds": [[-1]]}}),
        "no positive numbers",
    ),
    "infinite": (
        json.dumps({"format": FORMAT, "verify": {"depths": [0], "sizes": [1]}})[:-2]
        + ', "seconds": [[1e999]]}}',
        "no positive numbers",
    ),
    "falling": (
        json.dumps(
            {"format": FORMAT, "verify": {"depths": [0], "sizes": [2, 1], "seconds": [[1, 2]]}}
        ),
        "rising",
    ),
}


@pytest.mark.parametrize("name", BAD_CURVES)
def test_a_file_that_is_no_curve_is_one_line(tmp_path: Path, name: str) -> None:
    text, said = BAD_CURVES[name]
    path = tmp_path / f"{name}.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(OptionError) as refused:
        load(threads=1, context=256, cost_curve=str(path))
    (line,) = str(refused.value).splitlines()
    assert line.startswith(f"{path}: ")
    assert said in line


def test_a_curve_of_a_target_alone_is_refused_for_a_pair(tmp_path: Path) -> None:
    path = tmp_path / "target.json"
    verify = {"depths": [0], "sizes": [1, 8], "seconds": [[0.001, 0.002]]}
    path.write_text(json.dumps({"format": FORMAT, "verify": verify}))
    with pytest.raises(OptionError, match=r"no seconds of a draft and draft\.gguf is one"):
        load(threads=1, context=256, cost_curve=str(path))
    with load(demo.target_path(), "lookup", threads=1, cost_curve=str(path)) as session:
        assert session.pace is not None


@pytest.mark.parametrize("value", ["", 7, "a\0b"])
def test_a_curve_that_is_no_path_is_refused(value: object) -> None:
    with pytest.raises(OptionError, match="it must be the path of a file"):
        load(cost_curve=value)  # type: ignore[arg-type]


# --- acceptance by chance


def test_a_seed_gives_one_text_whatever_else_a_session_did_and_passes_cost(tmp_path: Path) -> None:
    rules: tuple[Acceptance, ...] = ("residual", "block")
    asked: dict[str, Any] = {"max_tokens": 32, "temperature": 1.5, "cache_prompt": False}
    found: dict[tuple[str, int], set[tuple[int, ...]]] = {}
    for curve in (None, "steep"):
        given = None if curve is None else written(tmp_path, curve)
        with load(threads=1, context=512, cost_curve=given) as session:
            for rule, seed in itertools.product(rules, range(2)):
                for _ in range(2):
                    done = session.generate(CODE, accept=rule, seed=seed, **asked)
                    found.setdefault((rule, seed), set()).add(done.token_ids)
                    assert set(widths([done])) == {BLOCK}
                    # what is learnt of these is no part of a seed
                    session.generate(MESSAGES[0], accept=rule, **asked)
                    session.generate(MESSAGES[1], max_tokens=24)
    assert all(len(texts) == 1 for texts in found.values())
    assert len(set.union(*found.values())) > 2


def test_a_seed_gives_one_text_beside_other_sequences(tmp_path: Path) -> None:
    rules: tuple[Acceptance, ...] = ("residual", "block")
    asked: dict[str, Any] = {"max_tokens": 40, "temperature": 1.0, "cache_prompt": False}
    for rule in rules:
        with opened(tmp_path, "steep", max_sequences=2) as session:
            alone = session.generate(CODE, accept=rule, seed=1, **asked)
            other = session.stream(MESSAGES[0], max_tokens=100, temperature=0.8, accept=rule)
            stream = session.stream(CODE, accept=rule, seed=1, **asked)
            for _ in zip(other, stream, strict=False):
                pass
            other.close()
            list(stream)
            assert session.last is not None
            assert outcome(session.last) == outcome(alone)


def test_without_a_seed_widths_of_sampled_blocks_are_chosen(tmp_path: Path) -> None:
    rules: tuple[Acceptance, ...] = ("residual", "block")
    with opened(tmp_path, "steep") as session:
        for rule in rules:
            found = [
                session.generate(asked, accept=rule, temperature=1.0, max_tokens=48)
                for asked in MESSAGES
            ]
            assert len(widths(found)) > 2
            assert sum(done.stats.accepted for done in found) > 0


def test_exact_mode_refuses_what_changes_a_seeds_text() -> None:
    with load(threads=1, context=256, exact=True) as session:
        with pytest.raises(OptionError, match="exact gives the text that a seed gives"):
            session.generate(CODE, accept="block", temperature=1.0, seed=1)
        assert session.generate(CODE, accept="match", temperature=1.0, seed=1, max_tokens=3).text


# --- the command line


def test_the_command_line_says_what_was_chosen_and_why(tmp_path: Path) -> None:
    curve, quick = written(tmp_path, "line"), ("run", "-t", 1, "-n", 40, "--explain")
    question = PROMPTS[2][1]
    done = together(
        {
            "file": (*quick, "--cost-curve", curve, question),
            "three": (*quick, "--cost-curve", curve, "--draft-max", 3, question),
            "no draft": (*quick, "-m", demo.target_path(), question),
            "plain": (*quick, "--plain", question),
            "python": (*quick, "--head", "python", question),
            "seed": (*quick, "--accept", "block", "--temp", 1, "--seed", 1, question),
            "lookup": (
                *(*quick, "--cost-curve", curve, "--draft-max", "auto"),
                *("-m", demo.target_path(), "-d", "lookup", question),
            ),
        }
    )
    assert all(d.returncode == 0 for d in done.values()), done
    lines = {name: d.stderr.splitlines()[1:] for name, d in done.items()}
    texts = {d.stdout for name, d in done.items() if name != "seed"}
    assert len(texts) == 1
    with load(threads=1, cost_curve=curve) as session:
        rounds = session.generate(CODE, max_tokens=40).rounds
    counts = Counter(len(r.draft) for r in rounds if r.draft)
    said = ", ".join(f"{width} x {count}" for width, count in sorted(counts.items()))
    chosen, prices, rate, confidence = lines["file"]
    assert chosen.startswith(f"llamaspec: proposals verified a round: {said}; drafted and none ")
    assert f" of {len(rounds)} rounds" in chosen
    assert "prices (of the given file, at " in prices
    assert "rows 1: 1000.00, 2: 1250.00, 3: 1500.00, 4: 1750.00, 5: 2000.00" in prices
    assert "8: 2750.00; a block by proposals 1: 50.00, 2: 50.00" in prices
    assert "tokens/s; a width is taken while" in rate
    assert "confidences 0.1, 0.3, 0.5, 0.7, 0.9, 0.97, 0.99 count for 0." in confidence
    assert "tokens after matches of 1, 3, 10 count for 0." in lines["lookup"][-1]
    assert len(lines["lookup"]) == len(lines["file"])
    assert lines["no draft"] == [
        "llamaspec: proposals verified a round: none, there is no draft",
    ]
    for name, reason in {
        "three": "as --draft-max says",
        "plain": "as --plain or --draft-max says",
        "python": "whole blocks; with --head python nothing is priced",
        "seed": "whole blocks; with --accept block a seed's text depends on them",
    }.items():
        chosen, why = lines[name]
        assert chosen.startswith("llamaspec: proposals verified a round: ")
        assert why.startswith(f"llamaspec: widths: {reason}")
    assert ": 3 x " in lines["three"][0].replace("1 x 1, ", "").replace("2 x 1, ", "")
    assert "not drafted: 39 of 39 rounds" in lines["plain"][0]


def test_explain_names_what_was_measured_here(tmp_path: Path) -> None:
    env = environment(LLAMASPEC_CACHE=str(tmp_path))
    done = llamaspec("run", "-t", 1, "-n", 8, "--explain", PROMPTS[2][1], env=env)
    assert done.returncode == 0
    assert "prices (measured here, at " in done.stderr
    (file,) = (tmp_path / "costs").iterdir()
    assert json.loads(file.read_text())["format"] == FORMAT


def test_bad_widths_curves_and_rules_are_one_line(tmp_path: Path) -> None:
    (tmp_path / "text.json").write_text("ten ms")
    done = together(
        {
            "word": ("run", "--draft-max", "x", "Hello"),
            "part": ("run", "--draft-max", "2.5", "Hello"),
            "negative": ("run", "--draft-max", "-1", "Hello"),
            "missing": ("run", "-t", 1, "--cost-curve", tmp_path / "absent.json", "Hello"),
            "text": ("run", "-t", 1, "--cost-curve", tmp_path / "text.json", "Hello"),
            "rule": ("run", "--accept", "always", "Hello"),
            "compare": ("run", "--compare", "--accept", "block", "--temp", 1, "Hello"),
            "exact": ("run", "-t", 1, "--exact", "--accept", "block", "--temp", 1, "Hello"),
        }
    )
    said = {name: refusal(d) for name, d in done.items()}
    assert said["word"] == "--draft-max is 'x'; it must be a whole number or auto"
    assert "--draft-max is '2.5'" in said["part"]
    assert "draft_max is -1" in said["negative"]
    assert "absent.json: cannot be read (No such file or directory)" in said["missing"]
    assert "text.json: is not JSON" in said["text"]
    assert said["rule"] == "accept is 'always'; it must be one of match, residual, block"
    assert "--compare compares texts and --accept block gives others" in said["compare"]
    assert "exact gives the text that a seed gives" in said["exact"]
