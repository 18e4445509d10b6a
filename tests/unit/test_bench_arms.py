"""Arms by name, the order of their turns, scripted acceptance, and what the tools' output says."""

import random
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from llamaspec.bench.arms import Generated, check_drafts, read_arms
from llamaspec.bench.peers import Tools, completed, reckoned_rounds
from llamaspec.bench.run import order, same
from llamaspec.bench.synthetic import ScriptedAcceptance, as_llama_cpp, for_width, read_rates
from llamaspec.engine.loop import Engine
from llamaspec.errors import OptionError
from llamaspec.options import LoadOptions
from llamaspec.verify.accept import accept

END = 99


def test_arms_by_name() -> None:
    found = read_arms("plain, dspark,dspark@3,server@7,server-plain,simple-dflash@2,lookup")
    assert [(arm.kind, arm.source, arm.width) for arm in found] == [
        ("ours", "none", None),
        ("ours", "draft", None),
        ("ours", "draft", 3),
        ("server", "draft", 7),
        ("server", "none", None),
        ("simple", "dflash", 2),
        ("ours", "lookup", None),
    ]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("fast", "there is no arm 'fast'"),
        ("dspark@0", "there is no arm"),
        ("dspark@x", "there is no arm"),
        ("plain@3", "has no width"),
        ("server-plain@3", "has no width"),
        ("plain,dspark,plain", "given twice"),
        (" , ", "no arm to run"),
    ],
)
def test_arms_that_are_none(text: str, said: str) -> None:
    with pytest.raises(OptionError, match=said):
        read_arms(text)


def test_an_arm_without_its_draft_names_the_option() -> None:
    with pytest.raises(OptionError, match="simple-dflash needs a draft; give it with --dflash"):
        check_drafts(read_arms("plain,simple-dflash"), draft=True, dflash=False)
    with pytest.raises(OptionError, match="dspark needs a draft; give it with -d"):
        check_drafts(read_arms("lookup,dspark"), draft=False, dflash=True)


def test_every_arm_takes_every_place_equally_often() -> None:
    names = ["a", "b", "c"]
    turns = [order(names, repeat, prompt) for repeat in range(6) for prompt in range(3)]
    assert all(sorted(turn) == names for turn in turns)
    for place in range(3):
        assert set(Counter(turn[place] for turn in turns).values()) == {6}
    followers = Counter((turn[0], turn[1]) for turn in turns)
    assert len(followers) == 6


def generated(**changes: object) -> Generated:
    return replace(Generated(3, 1.0, 1.0, 1.0), **changes)  # type: ignore[arg-type]


def test_outputs_are_compared_by_ids_or_else_by_text() -> None:
    both = generated(ids=(1, 2), text=b"ab")
    assert same(both, generated(ids=(1, 2), text=b"other")) is True
    assert same(both, generated(ids=(1, 3), text=b"ab")) is False
    assert same(both, generated(text=b"ab")) is True
    assert same(generated(text=b"x"), both) is False
    assert same(both, generated()) is None
    longer = generated(text=b"abcd", overshot=True)
    assert same(both, longer) is True
    assert same(longer, generated(text=b"ax")) is False
    assert same(both, generated(text=b"abcd")) is False


def test_rates_decide_from_left_to_right() -> None:
    script = ScriptedAcceptance((1.0, 1.0, 0.0, 1.0), {END})
    # the target's own word counts where a proposal is refused, and after the last one
    assert script([10, 11, 12, 13, 14], [1, 2, 3, 4]) == (2, [1, 2, 12])
    assert script([10, 11, 12], [1, 2]) == (2, [1, 2, 12])
    assert script([10], []) == (0, [10])


def test_a_proposal_that_would_end_the_text_is_refused() -> None:
    script = ScriptedAcceptance((1.0, 1.0), {END})
    assert script([10, 11, 12], [1, END]) == (1, [1, 11])


def test_choices_that_give_out_end_a_scripted_block_as_any_other() -> None:
    script = ScriptedAcceptance((1.0, 1.0), {END})
    assert script([10], [1, 2]) == accept([1], [1, 2])
    assert script([10, 11], [1, 2]) == accept([1, 2], [1, 2])


def test_scripted_acceptance_meets_its_rates_and_repeats_itself() -> None:
    rates = (0.9, 0.5, 0.7)
    script = ScriptedAcceptance(rates, {END})
    runs = []
    for _ in range(2):
        script.seed(7)
        runs.append([script([0] * 4, [1, 2, 3]).accepted for _ in range(4000)])
    assert runs[0] == runs[1]
    script.seed(8)
    assert [script([0] * 4, [1, 2, 3]).accepted for _ in range(4000)] != runs[0]
    for i, rate in enumerate(rates):
        reached = sum(n >= i for n in runs[0])
        assert sum(n > i for n in runs[0]) / reached == pytest.approx(rate, abs=0.03)


def test_engines_accept_by_the_target_unless_told_otherwise() -> None:
    target = type("Target", (), {"shape": type("Shape", (), {"n_seq": 1, "n_batch": 8})})
    assert Engine(target, None).accept is accept  # type: ignore[arg-type]


def test_rates_as_they_are_given_and_as_llama_cpp_wants_them() -> None:
    rates = read_rates("0.5, 0.5,1")
    assert rates == (0.5, 0.5, 1.0)
    assert as_llama_cpp(for_width(rates, 2, "server@2")) == "0.500000000,0.250000000"
    with pytest.raises(OptionError, match="3 synthetic rates were given and dspark proposes 7"):
        for_width(rates, 7, "dspark")


@pytest.mark.parametrize("text", ["", "a", "0.5,1.1", "-0.1", "nan", "0.5,,0.2"])
def test_rates_that_are_none(text: str) -> None:
    with pytest.raises(OptionError, match="give numbers in 0 to 1"):
        read_rates(text)


def test_the_output_of_the_simple_tool_less_its_prompt() -> None:
    assert completed(b"\n\nHi you\nthere.\n\n\n\n", b"Hi you\n") == b"there."
    # line ends of the text itself stay
    assert completed(b"\n\nHi\n\n\n\n\n\n", b"Hi") == b"\n\n"
    assert completed(b"\n\nsomething else\n\n\n\n", b"Hi") is None


def test_rounds_of_the_server_are_reckoned_from_both_counts() -> None:
    # three whole rounds of seven: 4, 2 and 7 accepted, each with the target's own token
    assert reckoned_rounds(17, 21, 13, 7) == 3
    # the last of them ended with an accepted token
    assert reckoned_rounds(15, 21, 12, 7) == 3
    # the last one was cut to two
    assert reckoned_rounds(17, 16, 13, 7) == 3
    assert reckoned_rounds(17, 0, 0, 0) == 0


def test_tools_get_the_same_settings_as_we_have(tmp_path: Path) -> None:
    (tmp_path / "llama-server").touch()
    draft = tmp_path / "draft.gguf"
    options = LoadOptions(threads=1, flash_attention="off", cache_type="f32", n_gpu_layers=0)
    tools = Tools(tmp_path, tmp_path / "target.gguf", options, 512, {draft: "draft-dspark"})
    words = tools.command("llama-server", draft, 5)
    pairs = dict(zip(words[1::2], words[2::2], strict=False))
    assert {pairs[name] for name in ("-t", "-tb", "-td", "-tbd")} == {"1"}
    assert {pairs[name] for name in ("-ctk", "-ctv", "-ctkd", "-ctvd")} == {"f32"}
    assert (pairs["-fa"], pairs["-c"], pairs["-ngl"], pairs["-ngld"]) == ("off", "512", "0", "all")
    assert (pairs["--spec-type"], pairs["--spec-draft-n-max"]) == ("draft-dspark", "5")
    assert "--spec-type" not in tools.command("llama-server", None, 0)
    with pytest.raises(OptionError, match=r"no llama-bench in .*build\.py --tools"):
        tools.command("llama-bench", None, 0)


def test_a_random_block_never_accepts_more_than_it_has() -> None:
    noise = random.Random(1)
    script = ScriptedAcceptance((0.8,) * 7, {END})
    for _ in range(500):
        width = noise.randint(0, 7)
        choices = [noise.randint(0, 98) for _ in range(width + 1)]
        proposal = [noise.randint(90, 99) for _ in range(width)]
        found = script(choices, proposal)
        assert found.tokens[:-1] == proposal[: found.accepted]
        assert found.tokens[-1] == choices[found.accepted]
        assert END not in found.tokens[:-1]
