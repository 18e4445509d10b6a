"""`llamaspec bench` as it is used, on the bundled pair: a few tokens, and no timing asserted."""

import json
import os
from pathlib import Path

import pytest

from llamaspec import demo
from llamaspec.bench.arms import read_arms
from llamaspec.bench.ours import Ours
from llamaspec.bench.pairs import PROMPTS
from llamaspec.bench.peers import ServerArm, Tools, server, simple
from llamaspec.bench.record import Result, load
from llamaspec.bench.run import Plan, compare
from llamaspec.bench.workloads import read
from llamaspec.errors import LlamaSpecError, OptionError
from llamaspec.ffi import LIBRARY_DIR
from llamaspec.options import LoadOptions
from llamaspec.schedule.cost import CostCurve
from tests.e2e.terminal import llamaspec, refusal, together

pytestmark = pytest.mark.native

OPTIONS = LoadOptions(threads=1, context=512)
TOKENS = 24


@pytest.fixture(scope="module")
def tools() -> Path:
    """llama.cpp's tools, where they were built."""
    folder = Path(os.environ.get("LLAMASPEC_TOOLS") or LIBRARY_DIR.parent / "bin")
    if not (folder / "llama-server").is_file():
        pytest.skip("no llama.cpp tools: python build.py --tools")
    return folder


@pytest.fixture(scope="module")
def result() -> Result:
    arms = "plain,dspark,dspark@7,dspark@3,lookup@7"
    plan = Plan(arms=arms, max_tokens=TOKENS, repeats=2, options=OPTIONS)
    return compare(plan, read(None, per_category=1))


def test_every_arm_decodes_every_prompt_and_gives_plain_decodings_text(result: Result) -> None:
    seen = {(s.arm, s.prompt, s.repeat) for s in result.samples}
    assert len(seen) == len(result.samples) == 5 * 2 * 2
    assert all(s.identical for s in result.samples)
    assert len({s.digest for s in result.samples if s.prompt == 0}) == 1
    assert all(0 < s.tokens <= TOKENS for s in result.samples)


def test_no_arm_reuses_what_another_computed_of_a_prompt() -> None:
    ours = Ours(demo.target_path(), {"draft": demo.draft_path()}, LoadOptions(threads=1))
    arms = read_arms("plain,dspark,dspark@3")
    ours.open([arm.source for arm in arms])
    try:
        ready = ours.ready(0, PROMPTS[0][1])
        for arm in arms * 2:
            ours.runner(arm, None).run(ready, 8)
            assert ours.first.last is not None
            assert ours.first.last.stats.cached_tokens == 0
    finally:
        ours.close()


def test_rates_are_those_of_their_definitions(result: Result) -> None:
    for s in result.samples:
        assert s.request_rate == pytest.approx(s.tokens / s.latency_s)
        # the first token took some time too
        assert s.decode_rate > (s.tokens - 1) / s.latency_s
        assert s.draft_s is not None
        assert s.verify_s is not None
        assert s.other_s is not None
        assert s.draft_s + s.verify_s + s.other_s == pytest.approx(s.latency_s, rel=0.01)


def test_widths_and_drafts_are_the_arms_own(result: Result) -> None:
    widest = {
        trace.arm: max(r.drafted for r in trace.rounds) for trace in result.traces if trace.rounds
    }
    assert (widest["plain"], widest["dspark@7"], widest["dspark@3"]) == (0, 7, 3)
    # that one verifies what pays
    assert widest["dspark"] <= 7
    drafted = {arm.name: sum(s.drafted for s in result.of(arm.name)) for arm in result.arms}
    assert drafted["plain"] == 0
    assert min(drafted[name] for name in ("dspark@7", "dspark@3", "lookup@7")) > 0
    confident = {t.arm for t in result.traces if any(r.confidence for r in t.rounds)}
    assert confident - {"dspark"} == {"dspark@7", "dspark@3", "lookup@7"}


def test_a_result_says_what_it_was_measured_with(result: Result) -> None:
    assert result.settings["threads"] == "1"
    assert result.settings["prompt cache"] == "off"
    wanted = {"argv", "llamaspec", "llama.cpp", "cpu", "devices", "target", "draft", "tools"}
    assert wanted <= result.about.keys()
    assert "+" in result.about["native build (commit + patches)"]
    assert len(result.load) == 3


def test_synthetic_runs_are_marked_and_repeat_themselves() -> None:
    plan = Plan(arms="plain,dspark@2", max_tokens=TOKENS, repeats=2, rates="1,0", options=OPTIONS)
    found = compare(plan, read(None, per_category=1))
    assert found.synthetic
    assert {s.identical for s in found.samples} == {None}
    drafted = [s for s in found.samples if s.arm == "dspark@2"]
    # every first proposal but one that would go past the end, and no second one
    assert all(s.accepted in (s.rounds, s.rounds - 1) for s in drafted)
    assert len({s.digest for s in drafted if s.prompt == 0}) == 1


def test_what_cannot_be_compared_is_refused_before_anything_is_loaded() -> None:
    for changes, said in (
        ({"arms": "plain,quick"}, "no arm 'quick'"),
        ({"base": "server"}, "the base arm server is none of"),
        ({"draft": "x.gguf"}, "without a target"),
        ({"arms": "dflash"}, "dflash needs a draft"),
        ({"arms": "simple@3", "rates": "1,1,1"}, "takes no synthetic rates"),
        ({"rates": "2"}, "numbers in 0 to 1"),
    ):
        with pytest.raises(OptionError, match=said):
            compare(Plan(**changes), read(None))  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="repeats is 0"):
        Plan(repeats=0)


def test_prompts_that_do_not_fit_are_left_out() -> None:
    few = LoadOptions(threads=1, context=64)
    prompts = read(None, per_category=1)
    long = [type(p)(p.category, p.id, (p.text * 20,)) for p in prompts]
    plan = Plan(arms="plain", max_tokens=8, repeats=1, options=few)
    found = compare(plan, [*prompts, *long])
    assert (len(found.prompts), found.left_out) == (2, 2)
    with pytest.raises(OptionError, match="no prompt fits a context of 64"):
        compare(plan, long)


def test_run_report_and_cost_from_the_command_line(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    out, costs, curve, page = (tmp_path / n for n in ("r.json", "c.json", "curve.json", "p.html"))
    few = ("-t", 1, "-n", 8, "--repeats", 1, "--per-category", 1)
    done = together(
        {
            "run": ("bench", "run", *few, "--json", out),
            "cost": (
                *("bench", "cost", "-t", 1, "--widths", "1-2,8", "--depths", "16", "--repeats", 1),
                *("--json", costs, "--curve", curve),
            ),
        }
    )
    assert [d.returncode for d in done.values()] == [0, 0], [d.stderr for d in done.values()]
    assert "speedup" in done["run"].stdout
    assert "overall" in done["run"].stdout
    assert "verify, ms by rows" in done["cost"].stdout
    assert load(out).base == "plain"
    assert CostCurve.load(curve).verify.sizes == (1, 2, 8)
    assert CostCurve.of_json(json.loads(costs.read_text())["curve"]) == CostCurve.load(curve)
    shown = llamaspec("bench", "report", out, costs, "-o", page)
    assert (shown.returncode, shown.stderr) == (0, "")
    assert page.read_text().startswith("<!doctype html>")


def test_bad_input_is_one_line(tmp_path: Path) -> None:
    bad = tmp_path / "bad.json"
    bad.write_text("{")
    done = together(
        {
            "prompts": ("bench", "run", "--prompts", tmp_path / "absent.jsonl"),
            "result": ("bench", "report", bad, "-o", tmp_path / "p.html"),
            "widths": ("bench", "cost", "--widths", "1-x"),
            "shape": ("bench", "synth", "--shape", "x", "-o", tmp_path),
        }
    )
    said = {name: refusal(d) for name, d in done.items()}
    assert "absent.jsonl: cannot be read" in said["prompts"]
    assert "is not JSON" in said["result"]
    assert "--widths is '1-x'" in said["widths"]
    assert "no shape 'x'" in said["shape"]


def test_tools_of_llama_cpp_give_the_same_texts(tools: Path) -> None:
    plan = Plan(
        arms="plain,dspark,server@3,server-plain,simple@7",
        target=str(demo.target_path()),
        draft=str(demo.draft_path()),
        max_tokens=TOKENS,
        repeats=1,
        tools=tools,
        options=OPTIONS,
    )
    found = compare(plan, read(None, per_category=1))
    assert all(s.identical for s in found.samples)
    counts = {arm.name: found.of(arm.name) for arm in found.arms}
    assert all(s.drafted == 0 for s in counts["server-plain"])
    assert all(s.drafted > 0 for name in ("server@3", "simple@7") for s in counts[name])
    assert all(s.tokens <= TOKENS for s in found.samples if s.arm != "simple@7")
    assert found.about["tools"].startswith("version")
    assert all(arm.argv for arm in found.arms if arm.name.startswith("s"))


def test_a_tool_that_fails_is_one_line(tools: Path, tmp_path: Path) -> None:
    bad = tmp_path / "bad.gguf"
    bad.write_bytes(b"GGUF")
    draft = demo.draft_path()
    broken = Tools(tools, bad, OPTIONS, 512, {draft: "draft-dspark"})
    (arm,) = read_arms("server@3")
    with (
        pytest.raises(LlamaSpecError, match="llama-server did not start"),
        server(broken, arm, draft, frozenset(), None, 3),
    ):
        pass
    ours = Ours(demo.target_path(), {}, OPTIONS)
    ours.open(["none"])
    try:
        prompt = ours.ready(0, "Hello")
        with pytest.raises(LlamaSpecError, match="llama-speculative-simple ended with"):
            simple(broken, draft, 3).run(prompt, 8)
        with pytest.raises(LlamaSpecError, match="failed a request"):
            ServerArm((), "http://127.0.0.1:9", frozenset(), 3).run(prompt, 8)
    finally:
        ours.close()
