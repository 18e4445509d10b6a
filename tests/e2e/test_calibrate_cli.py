"""`llamaspec calibrate` as it is used, on the bundled pair and a few prompts."""

import json
import shutil
from pathlib import Path

import pytest

from llamaspec import demo
from llamaspec.calibrating import roll_out
from llamaspec.errors import OptionError
from llamaspec.schedule.scaling import Scaling
from llamaspec.schedule.stored import find
from llamaspec.session import Session, load
from tests.e2e.terminal import environment, llamaspec, refusal, together

pytestmark = pytest.mark.native

TEXTS = (
    "A yard is 12 meters long and 4 meters wide. What is its area?",
    "Write a Python function that adds two numbers.",
)
FEW = ("calibrate", "-t", 1, "-n", 24)


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    path = tmp_path / "prompts.jsonl"
    path.write_text("".join(json.dumps({"prompt": text}) + "\n" for text in TEXTS))
    return path


@pytest.fixture
def draft(tmp_path: Path) -> Path:
    return Path(shutil.copy(demo.draft_path(), tmp_path / "draft.gguf"))


def test_a_text_is_the_same_at_every_width_its_rounds_are_taken_at(session: Session) -> None:
    asked = [[{"role": "user", "content": text}] for text in TEXTS]
    mixed = roll_out(session, asked, max_tokens=24)
    whole = roll_out(session, asked, max_tokens=24, mixed=False)
    for every, some, prompt in zip(mixed, whole, asked, strict=True):
        plain = session.generate(prompt, max_tokens=24, draft_max=0).token_ids
        first = len(session.tokenize(prompt))
        assert set(some) <= set(every)
        assert len(set(every)) > len(some)
        assert max(every.count(r) for r in every) <= session.draft_limit
        for r in every:
            at = r.start - first
            assert r.anchor == plain[at]
            assert r.draft[: r.accepted] == plain[at + 1 : at + 1 + r.accepted]
            # all that can be accepted was verified, and more
            follows = plain[at + 1 : at + 1 + len(r.draft)]
            agreed = [a == b for a, b in zip(r.draft, follows, strict=False)]
            assert agreed[: r.accepted] == [True] * r.accepted
            assert r.accepted == len(follows) or not all(agreed)


def test_without_confidences_or_a_draft_there_is_nothing_to_calibrate(ggufs: Path) -> None:
    for name, said in (("tiny-dflash-f32.gguf", "no confidence head"), (None, "no draft")):
        path = None if name is None else ggufs / name
        with (
            load(demo.target_path(), path, threads=1, context=256) as opened,
            pytest.raises(OptionError, match=said),
        ):
            roll_out(opened, ["Hello"], max_tokens=8)


def test_the_file_the_copy_and_the_plot(prompts: Path, draft: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    copy, plot = tmp_path / "with.gguf", tmp_path / "plot.png"
    words = (*FEW, "-m", demo.target_path(), "-d", draft, "--prompts", prompts)
    done = llamaspec(*words, "--embed", copy, "--plot", plot)
    assert (done.returncode, done.stderr) == (0, "")
    file = tmp_path / "draft.calibration.json"
    lines = done.stdout.splitlines()
    assert lines[0].startswith("2 prompts, ")
    assert lines[1].split()[:2] == ["position", "rounds"]
    assert [line.split()[0] for line in lines[2:10]] == [*"1234567", "mean"]
    assert lines[-1] == f"written: {file}, {copy}, {plot}"
    found = find(draft)
    assert found == Scaling.load(file)
    assert found is not None
    assert dict(found.about)["draft"] == "draft.gguf"
    embedded = find(copy)
    assert embedded is not None
    assert (embedded.temperatures, embedded.levels) == (found.temperatures, found.levels)
    assert plot.read_bytes().startswith(b"\x89PNG")
    # nothing is replaced unasked
    assert "exists already" in refusal(llamaspec(*words))
    again = llamaspec(*words, "--force", "--full", "--no-levels", "--json")
    report = json.loads(again.stdout)
    assert report["kept"] != "levels"
    assert report["written"] == [str(file)]
    assert len(report["positions"]) == 7
    # the pair with the copy decodes as before
    asked = [{"role": "user", "content": TEXTS[1]}]
    texts = []
    for path in (copy, draft):
        with load(demo.target_path(), path, threads=1, context=256) as opened:
            texts.append(opened.generate(asked, max_tokens=16, draft_max=7).rounds)
    assert texts[0] == texts[1]
    assert any(r.accepted for r in texts[0])


def test_few_prompts_are_warned_of(tmp_path: Path) -> None:
    done = llamaspec(*FEW, "-o", tmp_path / "c.json")
    assert done.returncode == 0
    (line,) = done.stderr.splitlines()
    assert "4 bundled prompts are few" in line
    assert len(Scaling.load(tmp_path / "c.json").temperatures) == 7


def test_bad_input_is_one_line(prompts: Path, draft: Path, tmp_path: Path) -> None:
    pair = ("-m", demo.target_path(), "-d", draft)
    broken = tmp_path / "none"
    broken.mkdir()
    # a matplotlib that cannot be imported stands for one that is missing
    (broken / "matplotlib.py").write_text("raise ImportError")
    env = environment()
    env["PYTHONPATH"] = f"{broken}:{env['PYTHONPATH']}"
    done = together(
        {
            "half": (*FEW, "-m", demo.target_path()),
            "lookup": (*FEW, "-m", demo.target_path(), "-d", "lookup"),
            "folder": (*FEW, *pair, "-o", tmp_path / "absent" / "c.json"),
            "itself": (*FEW, *pair, "--embed", draft, "--force"),
            "prompts": (*FEW, *pair, "--prompts", tmp_path / "absent.jsonl"),
        }
    )
    said = {name: refusal(d) for name, d in done.items()}
    assert "a target (-m) and its draft (-d)" in said["half"]
    assert "lookup is no draft with a file" in said["lookup"]
    assert "there is no folder" in said["folder"]
    assert "is the input itself" in said["itself"]
    assert "cannot be read" in said["prompts"]
    words = (*FEW, *pair, "--prompts", prompts, "--plot", tmp_path / "p.png")
    assert "plots need matplotlib" in refusal(llamaspec(*words, env=env))
    assert find(draft) is None


def test_loading_starts_from_what_is_found_and_refuses_what_is_broken(
    draft: Path, tmp_path: Path
) -> None:
    file = tmp_path / "draft.calibration.json"
    scaling = Scaling((3.0,) * 7)
    scaling.save(file)
    settings = {"draft": draft, "threads": 1, "context": 512}
    target = demo.target_path()
    with load(target, **settings) as session:  # type: ignore[arg-type]
        assert session.pace is not None
        assert session.pace.calibration.scaling == scaling
        assert session.pace.calibration.probabilities((0.5, 0.9), 2)[1] < 0.7
        done = session.generate(TEXTS[0], max_tokens=24)
        plain = session.generate(TEXTS[0], max_tokens=24, draft_max=0)
    assert done.token_ids == plain.token_ids
    file.write_text('{"format": "llamaspec calibration 1", "temperatures": [0]}')
    with pytest.raises(OptionError, match="temperature 0"):
        load(target, **settings)  # type: ignore[arg-type]
    failed = llamaspec("run", "-t", 1, "-m", target, "-d", draft, TEXTS[0])
    line = refusal(failed)
    assert "draft.calibration.json" in line
    assert "calibrate again, or remove it" in line
