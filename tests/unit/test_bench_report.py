"""A result as JSON, as a table and as a page; and what damaged or hostile files do to them."""

import json
import re
from base64 import b64decode
from dataclasses import asdict, replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from llamaspec.bench.figures import Verdict
from llamaspec.bench.record import FORMAT, Arm, Asked, Result, Sample, Traced, load
from llamaspec.bench.report import write_report
from llamaspec.bench.tables import lines, report, shares
from llamaspec.errors import OptionError
from llamaspec.schedule.cost import CostCurve, Surface

EVIL = "\udcff</td><script>alert('x')</script>\"' & $a_b$ \x1b[31m \\n " + "<b>" * 20


def sample(arm: str, prompt: int, repeat: int, rate: float, **changes: Any) -> Sample:  # noqa: ANN401
    drafts = arm != "plain"
    made = Sample(
        arm=arm,
        prompt=prompt,
        repeat=repeat,
        tokens=13,
        decode_rate=rate,
        request_rate=rate / 2,
        latency_s=26 / rate,
        rounds=3 if drafts else 12,
        drafted=12 if drafts else 0,
        accepted=9 if drafts else 0,
        draft_s=0.1 if drafts else 0.0,
        verify_s=0.8,
        other_s=0.1,
        digest="abc",
        text_digest="def",
        identical=True,
    )
    return replace(made, **changes)


def result(name: str = "math", arm: str = "dspark") -> Result:
    rates = {"plain": (10.0, 20.0), arm: (20.0, 30.0)}
    samples = [
        sample(one, prompt, repeat, rate * (1 + repeat))
        for one, both in rates.items()
        for prompt, rate in enumerate(both)
        for repeat in range(2)
    ]
    rounds = (Verdict(4, 4, (0.9, 0.8, 0.9, 0.7)), Verdict(4, 1, (0.9, 0.2, 0.1, 0.1)))
    return Result(
        format=FORMAT,
        about={"cpu": name},
        settings={"repeats": "2"},
        definitions={"tau": "tokens a round"},
        base="plain",
        synthetic=False,
        arms=(Arm("plain", ()), Arm(arm, ("tool", name))),
        prompts=(Asked(name, "1", name, 5), Asked("qa", name, "Why?", 5)),
        left_out=1,
        load=(0.5, 1.5),
        samples=tuple(samples),
        traces=(Traced(arm, 0, rounds),),
    )


def saved(found: Result, path: Path) -> Path:
    found.save(path)
    return path


def test_a_result_survives_its_file(tmp_path: Path) -> None:
    assert load(saved(result(EVIL), tmp_path / "a.json")) == result(EVIL)


def test_lines_pair_by_prompt_and_repeat() -> None:
    math, qa, overall = lines(result(), "dspark")
    assert (math.category, qa.category, overall.category) == ("math", "qa", "overall")
    assert math.speedup == (2.0, 2.0, 2.0)
    assert qa.speedup == (1.5, 1.5, 1.5)
    assert overall.speedup is not None
    assert overall.speedup.middle == 1.75
    assert (math.base, math.spec) == (15.0, 30.0)
    # twice the rate is half the seconds
    assert math.latency == 2.0
    assert (math.accept, math.tau) == (0.75, 4.0)
    assert (overall.same, overall.compared) == (4, 4)


def test_a_loss_is_shown_as_a_gain_is(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    slower = result()
    slower = replace(
        slower,
        samples=tuple(
            replace(s, decode_rate=s.decode_rate / 4) if s.arm == "dspark" else s
            for s in slower.samples
        ),
    )
    assert any("0.500 (0.500..0.500)" in line for line in report(slower))
    write_report([saved(slower, tmp_path / "a.json")], tmp_path / "a.html")
    assert '<td class="loss">0.500</td>' in (tmp_path / "a.html").read_text()


def test_outputs_that_differ_are_counted() -> None:
    found = result()
    found = replace(
        found,
        samples=tuple(
            replace(s, identical=False) if s.arm == "dspark" and s.prompt == 0 else s
            for s in found.samples
        ),
    )
    assert [(one.same, one.compared) for one in lines(found, "dspark")] == [(0, 2), (2, 2), (2, 4)]
    assert any(line.split()[-1:] == ["0/2"] for line in report(found))


def test_the_table_says_what_it_left_out_and_what_is_synthetic() -> None:
    text = "\n".join(report(replace(result(), synthetic=True)))
    assert "1 prompts did not fit" in text
    assert "SYNTHETIC" in text
    assert "0.5" in text.splitlines()[0]
    # of two rounds: 4 and 1 accepted of 4
    assert "accepted, once reached: 1.000 0.500 1.000 1.000" in text
    assert "accepted of verified:   1.000 0.500 0.500 0.500" in text
    assert "rounds by length:       0:0 1:1 2:0 3:0 4:1" in text


def test_a_busy_machine_is_told_of(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    for load_average, told in ((0.5, False), (0.6, True)):
        found = replace(result(), load=(load_average, 3.0))
        assert any("was busy before the run" in line for line in report(found)) == told
        write_report([saved(found, tmp_path / "a.json")], tmp_path / "a.html")
        assert ("was busy before the run" in (tmp_path / "a.html").read_text()) == told


def test_shares_are_of_all_the_time() -> None:
    assert shares(result().of("dspark")) == pytest.approx((0.1, 0.8, 0.1))
    assert shares([sample("server", 0, 0, 1.0, draft_s=None)]) is None


class Page(HTMLParser):
    """The tags of a page, its attributes that could fetch something, and its images."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.fetches: list[str] = []
        self.images: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        for name, value in attrs:
            assert name in {"class", "lang", "charset", "alt", "src", "http-equiv", "content"}
            if name == "src":
                assert value is not None
                if value.startswith("data:image/svg+xml;base64,"):
                    self.images.append(b64decode(value.partition(",")[2]).decode())
                else:
                    self.fetches.append(value)


def test_hostile_texts_stay_texts(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    cost = {
        "about": {},
        "curve": CostCurve(
            Surface((0, 9), (1, 8), ((0.1, 0.2), (0.2, 0.3))), settings=((EVIL, EVIL),)
        ).as_json(),
        "bandwidth": 1e9,
        "target_bytes": 10**8,
        "draft_bytes": 0,
    }
    costs = tmp_path / "<img src=x onerror=alert(1)>.json"
    costs.write_text(json.dumps(cost))
    files = [saved(result(EVIL, EVIL), tmp_path / "<b>.json"), costs]
    write_report(files, tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text()
    page = Page(text)
    assert page.tags == {
        *("html", "head", "meta", "title", "style", "body", "h1", "h2", "h3", "p", "img"),
        *("table", "tr", "th", "td"),
    }
    assert page.fetches == []
    assert "&lt;script&gt;" in text
    # speedup, two of acceptance, time, calibration, cost
    assert len(page.images) == 6
    for image in page.images:
        assert image.startswith("<svg")
        assert "<script" not in image
        assert not re.findall(r'(?:href|src)="(?!#)', image)


def test_the_page_of_the_same_result_is_the_same(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    path = saved(result(), tmp_path / "a.json")
    pages = []
    for name in ("1.html", "2.html"):
        write_report([path], tmp_path / name)
        pages.append((tmp_path / name).read_bytes())
    assert pages[0] == pages[1]


def test_the_page_needs_no_rounds_and_no_second_arm(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    bare = replace(
        result(), arms=(Arm("plain", ()),), traces=(), samples=tuple(result().of("plain"))
    )
    write_report([saved(bare, tmp_path / "a.json")], tmp_path / "a.html")
    assert len(Page((tmp_path / "a.html").read_text()).images) == 1


def _changed(**changes: Any) -> str:  # noqa: ANN401
    return json.dumps(asdict(result()) | changes)


def _sample(**changes: Any) -> list[dict[str, Any]]:  # noqa: ANN401
    return [asdict(result().samples[0]) | changes]


def _trace(drafted: int, accepted: int) -> dict[str, Any]:
    record = {"drafted": drafted, "accepted": accepted, "confidence": None}
    return {"arm": "dspark", "prompt": 0, "rounds": [record]}


HOSTILE = {
    "empty": ("", "is not JSON"),
    "cut": ('{"format": ', "is not JSON"),
    "deep": ("[" * 100_000, "is not JSON"),
    "list": ("[]", "not a JSON object"),
    "other": ("{}", "neither a result"),
    "nan": (_changed(load=[float("nan")]), "is not JSON"),
    "version": (_changed(format="llamaspec bench 99"), "neither a result"),
    "no samples": (_changed(samples=None), r"samples is None"),
    "lacking": (_changed(samples=[{}]), r"samples\[0\] has no 'arm'"),
    "huge": (_changed(load=[10**400]), r"load\[0\] is 1000"),
    "number": (_changed(samples=_sample(decode_rate="fast")), "decode_rate is 'fast'"),
    "flag": (_changed(samples=_sample(tokens=True)), "tokens is True"),
    "index": (_changed(samples=_sample(prompt=7)), "prompt 7, which the file does not list"),
    "negative": (_changed(samples=_sample(prompt=-1)), "does not list"),
    "arm": (_changed(samples=_sample(arm="x" * 500)), "of arm 'xxx"),
    "base": (_changed(base="<script>"), "base arm '<script>' is not among"),
    "about": (_changed(about={"cpu": ["x"]}), r"about\['cpu'\] is \['x'\]"),
    "rounds": (
        _changed(traces=[_trace(1, 2)]),
        "accepts more",
    ),
    "long": (
        _changed(traces=[_trace(10**9, 1)]),
        "accepts more",
    ),
    "curve": ('{"curve": {"format": "?"}}', "not a cost curve"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_damaged_results_are_one_line(name: str, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    text, said = HOSTILE[name]
    path = tmp_path / "a.json"
    path.write_text(text)
    with pytest.raises(OptionError, match=said) as caught:
        write_report([path], tmp_path / "page.html")
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400 + len(str(path))
    assert not (tmp_path / "page.html").exists()


def test_files_that_cannot_be_read_or_written(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    with pytest.raises(OptionError, match="cannot be read"):
        write_report([tmp_path / "absent.json"], tmp_path / "page.html")
    with pytest.raises(OptionError, match="cannot be written"):
        write_report([saved(result(), tmp_path / "a.json")], tmp_path / "no" / "page.html")
    with pytest.raises(OptionError, match="cannot be written"):
        result().save(tmp_path / "no" / "a.json")
