"""The command line as it is used: what it prints, where, and with which exit code."""

import json
import math
import signal
import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from typing import IO, Any

import gguf
import pytest

from llamaspec import demo
from llamaspec._version import LLAMA_CPP_COMMIT, __version__
from llamaspec.completion import Completion
from llamaspec.options import GenerateOptions
from llamaspec.session import Session
from llamaspec.trace import Round, Stats
from tests.e2e.terminal import COMMAND, SECONDS, environment, llamaspec, refusal
from tests.rewrite import rewrite

pytestmark = pytest.mark.native

TARGET, DRAFT = demo.target_path(), demo.draft_path()
PAIR = ("-m", TARGET, "-d", DRAFT)
QUESTION = "What is the sum of 20, 13 and 13?"
IN_CHAT = [{"role": "user", "content": QUESTION}]
# the bundled target answers this with one pair of tokens for ever
ENDLESS = "Translate to Japanese: 🎉 日本"

HELP = """
import sys
sys.argv = ["llamaspec", *{words!r}]
from llamaspec.cli import main
try:
    main()
except SystemExit as end:
    assert not end.code, end.code
heavy = ("numpy", "gguf", "jinja2", "huggingface_hub", "cffi", "llamaspec._native", "llamaspec.ffi")
print("heavy:", [name for name in heavy if name in sys.modules])
"""


@pytest.mark.parametrize(
    "words",
    [
        ["--help"],
        ["run", "--help"],
        ["inspect", "-h"],
        ["doctor", "-h"],
        ["--version"],
        ["convert", "-h"],
        ["convert-target", "-h"],
        ["quantize", "-h"],
        ["verify", "-h"],
        ["serve", "-h"],
        ["calibrate", "-h"],
        ["bench", "-h"],
        ["bench", "run", "-h"],
    ],
)
def test_help_and_version_import_nothing_heavy(words: list[str]) -> None:
    program = HELP.format(words=words)
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env=environment()
    )
    assert done.returncode == 0, done.stderr
    shown, _, heavy = done.stdout.rpartition("heavy: ")
    assert heavy.strip() == "[]"
    assert shown.strip()


def test_help_names_every_command_and_option() -> None:
    overview = llamaspec("--help").stdout
    for command in (
        "run",
        "inspect",
        "convert",
        "convert-target",
        "quantize",
        "verify",
        "calibrate",
        "doctor",
        "--version",
    ):
        assert command in overview
    usage = llamaspec("run", "--help").stdout
    options = "-m --model -d --draft -n --max-tokens --draft-max --plain --compare --json --stop"
    more = "--prompt-ids --temp --seed -ngl -ngld -c -t --head --chat --raw --exact"
    drafts = "--accept --cost-curve --explain --lookup"
    filters = "--top-k --top-p --min-p --typical --logit-bias --grammar --json-schema --logprobs"
    penalties = "--repeat-penalty --presence-penalty --frequency-penalty --repeat-last-n"
    for option in f"{options} {more} {drafts} {filters} {penalties} --dry-multiplier".split():
        assert option in usage
    assert "130" in usage


def test_version_names_the_vendored_commit() -> None:
    done = llamaspec("--version")
    assert done.stdout == f"llamaspec {__version__} (llama.cpp {LLAMA_CPP_COMMIT[:12]})\n"


@pytest.mark.parametrize("words", [["nosuch"], ["run", "--nosuch"], ["run", "-n", "many"], []])
def test_a_usage_error_is_exit_code_2(words: list[str]) -> None:
    done = llamaspec(*words)
    assert done.returncode == 2
    assert "Usage:" in done.stdout + done.stderr
    assert "Traceback" not in done.stderr


def complete(*arguments: object, stdin: bytes = b"") -> dict[str, Any]:
    """The object that `run --json` prints: alone on stdout, with nothing on stderr."""
    done = llamaspec("run", "-t", 1, "--json", *arguments, stdin=stdin)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.count("\n") == 1
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def result(done: Completion) -> tuple[str, list[int], str]:
    return done.text, list(done.token_ids), done.finish_reason


def told(found: dict[str, Any]) -> tuple[str, list[int], str]:
    return found["text"], found["token_ids"], found["finish_reason"]


def test_run_streams_text_to_stdout_and_closes_with_the_figures_on_stderr(session: Session) -> None:
    expected = session.generate(IN_CHAT, max_tokens=100, draft_max=7)
    done = llamaspec("run", "-t", 1, *PAIR, "--draft-max", 7, QUESTION)
    assert (done.returncode, done.stdout) == (0, expected.text + "\n")
    (line,) = done.stderr.splitlines()
    stats = expected.stats
    assert line.startswith(f"llamaspec: {stats.completion_tokens} tokens in ")
    assert "tokens/s" in line
    assert line.endswith(f"tau {stats.tau:.2f}, accept rate {stats.accept_rate:.0%}")


def test_run_without_a_model_is_the_bundled_pair_and_its_prompt(session: Session) -> None:
    asked = [{"role": "user", "content": demo.PROMPT}]
    expected = session.generate(asked, max_tokens=20, draft_max=7)
    assert told(complete("-n", 20)) == result(expected)
    assert expected.stats.tau > 3
    notice, _ = llamaspec("run", "-t", 1, "-n", 5).stderr.splitlines()
    assert notice == f'llamaspec: no prompt was given; using the bundled pair\'s: "{demo.PROMPT}"'


def test_compare_without_a_draft_is_refused() -> None:
    done = llamaspec("run", "-t", 1, "--compare", "-m", PAIR[1], QUESTION)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "llamaspec: --compare needs a draft to compare with; give one with -d\n"


def test_plain_decodes_without_the_draft(session: Session) -> None:
    done = llamaspec("run", "-t", 1, "--plain", QUESTION)
    assert done.stdout == session.generate(IN_CHAT).text + "\n"
    assert done.stderr.strip().endswith("no draft")
    assert complete("--plain", QUESTION)["stats"]["drafted"] == 0


def test_json_has_the_fields_of_a_completion(session: Session) -> None:
    found = complete(*PAIR, "--draft-max", 7, QUESTION)
    assert list(found) == [field.name for field in fields(Completion)]
    assert list(found["stats"]) == [field.name for field in fields(Stats)]
    expected = session.generate(IN_CHAT, draft_max=7)
    assert told(found) == result(expected)
    assert len(found["rounds"]) == found["stats"]["rounds"] == len(expected.rounds)
    for record, ours in zip(found["rounds"], expected.rounds, strict=True):
        assert list(record) == [field.name for field in fields(Round)]
        assert record["draft"] == list(ours.draft)
        assert len(record["confidence"]) == len(ours.draft)


def test_compare_shows_both_speeds_and_that_the_outputs_are_identical() -> None:
    done = llamaspec("run", "-t", 1, "-n", 30, "--draft-max", 7, "--compare", QUESTION)
    assert done.returncode == 0
    speculative, plain, verdict = done.stderr.splitlines()
    assert "tau" in speculative
    assert plain.startswith("llamaspec: plain: 30 tokens in ")
    assert plain.endswith("no draft")
    assert verdict.startswith("llamaspec: outputs identical, ")
    assert "x plain decoding" in verdict


def test_compare_as_json_has_both_completions() -> None:
    found = complete("-n", 30, "--draft-max", 7, "--compare", QUESTION)
    assert found["identical"] is True
    assert told(found) == told(found["plain"])
    assert found["stats"]["drafted"] > 0 == found["plain"]["stats"]["drafted"]


def test_compare_reports_a_difference(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], session: Session
) -> None:
    from llamaspec.cli.run import _execute, _Job

    generate = Session.generate

    def differing(self: Session, *arguments: Any, **settings: Any) -> Completion:  # noqa: ANN401
        if settings["draft_max"] == 0:
            settings["max_tokens"] -= 1
        return generate(self, *arguments, **settings)

    monkeypatch.setattr(Session, "generate", differing)
    job = _Job(IN_CHAT, GenerateOptions(max_tokens=10))
    _execute(session, job, compare=True, as_json=False)
    assert "outputs DIFFER" in capsys.readouterr().err
    _execute(session, job, compare=True, as_json=True)
    assert json.loads(capsys.readouterr().out)["identical"] is False


def test_the_prompt_comes_from_stdin_where_there_is_none(session: Session) -> None:
    for prompt in (QUESTION, "Was heißt 日本 🎉?\n", "two\nlines"):
        message = [{"role": "user", "content": prompt}]
        expected = session.generate(message, max_tokens=12)
        assert told(complete("-n", 12, stdin=prompt.encode())) == result(expected)


def test_chat_and_raw(session: Session, tmp_path: Path) -> None:
    chat, raw = session.generate(IN_CHAT, max_tokens=12), session.generate(QUESTION, max_tokens=12)
    assert chat.token_ids != raw.token_ids
    assert told(complete("-n", 12, QUESTION)) == result(chat)
    assert told(complete("-n", 12, "--chat", QUESTION)) == result(chat)
    assert told(complete("-n", 12, "--raw", QUESTION)) == result(raw)
    bare = rewrite(TARGET, tmp_path / "bare.gguf", {"tokenizer.chat_template": None})
    assert told(complete("-n", 12, "-m", bare, "-d", DRAFT, QUESTION)) == result(raw)
    line = refusal(llamaspec("run", "-t", 1, "-m", bare, "--chat", QUESTION))
    assert "bare.gguf has no chat template" in line


@pytest.mark.parametrize("form", ["{}", "[{}]"], ids=["words", "json"])
def test_prompt_ids(session: Session, tmp_path: Path, form: str) -> None:
    ids = session.tokenize(IN_CHAT).tolist()
    path = tmp_path / "ids"
    path.write_text(form.format((", " if "[" in form else "\n").join(map(str, ids))) + "\n")
    found = complete("-n", 12, "--prompt-ids", path)
    assert told(found) == result(session.generate(IN_CHAT, max_tokens=12))
    assert found["stats"]["prompt_tokens"] == len(ids)


def test_stop_may_be_repeated(session: Session) -> None:
    whole = session.generate(IN_CHAT).text
    found = complete("--stop", "never seen", "--stop", "answer", QUESTION)
    assert found["text"] == whole[: whole.index("answer")]
    assert found["finish_reason"] == "stop"


def test_options_reach_the_loop(session: Session) -> None:
    found = complete("-n", 24, "--draft-max", 2, "--head", "python", "-ngl", 0, "-c", 64, QUESTION)
    assert told(found) == result(session.generate(IN_CHAT, max_tokens=24))
    assert max(len(record["draft"]) for record in found["rounds"]) == 2
    assert complete("-c", 64, ENDLESS)["stats"]["completion_tokens"] == 64 - len(
        session.tokenize([{"role": "user", "content": ENDLESS}])
    )
    seeded = ("-n", 16, "--temp", 0.8, "--seed", 7, QUESTION)
    drawn = session.generate(IN_CHAT, max_tokens=16, temperature=0.8, seed=7)
    assert told(complete(*seeded)) == told(complete(*seeded, "--plain")) == result(drawn)


def test_sampling_options_reach_the_samplers(session: Session, tmp_path: Path) -> None:
    settings: dict[str, Any] = {
        "max_tokens": 24,
        "temperature": 1.1,
        "seed": 5,
        "top_k": 30,
        "top_p": 0.9,
        "min_p": 0.01,
        "typical_p": 0.9,
        "repeat_penalty": 1.2,
        "repeat_last_n": 40,
        "presence_penalty": 0.3,
        "frequency_penalty": 0.2,
        "dry_multiplier": 0.7,
        "dry_base": 1.5,
        "dry_allowed_length": 1,
        "dry_penalty_last_n": -1,
        "logprobs": 2,
    }
    renamed = {"temperature": "temp", "typical_p": "typical"}
    words = []
    for name, value in settings.items():
        words += ["--" + renamed.get(name, name).replace("_", "-"), str(value)]
    words += ["--dry-sequence-breaker", ".", "--dry-sequence-breaker", "!"]
    found = complete(*words, "--logit-bias", "300=-inf", "--logit-bias", "13=-1", QUESTION)
    done = session.generate(
        IN_CHAT,
        dry_sequence_breakers=[".", "!"],
        logit_bias={300: -math.inf, 13: -1.0},
        **settings,
    )
    assert told(found) == result(done)
    assert done.logprobs is not None
    assert [token["token_id"] for token in found["logprobs"]] == found["token_ids"]
    assert found["logprobs"][0]["top"] == [list(pair) for pair in done.logprobs[0].top]
    schema = tmp_path / "schema.json"
    schema.write_text('{"type": "array", "items": {"type": "boolean"}, "minItems": 2}')
    for given in (f"@{schema}", schema.read_text()):
        values = json.loads(complete("--json-schema", given, "--temp", 1, QUESTION)["text"])
        assert len(values) >= 2
        assert {type(value) for value in values} == {bool}


def test_a_comparison_draws_with_one_seed() -> None:
    found = complete("--compare", "--temp", 1.5, "-n", 24, QUESTION)
    assert found["identical"]
    assert found["text"] == found["plain"]["text"]


def test_verbose_shows_what_llama_cpp_says() -> None:
    quiet = llamaspec("run", "-t", 1, "-n", 2, QUESTION)
    loud = llamaspec("run", "-t", 1, "-n", 2, "-v", QUESTION)
    assert quiet.stdout == loud.stdout
    assert len(quiet.stderr.splitlines()) == 1
    assert "llama_model_loader" in loud.stderr


def start(*arguments: object) -> "subprocess.Popen[bytes]":
    """A command under way, which Ctrl-C interrupts whatever this process does about it."""
    return subprocess.Popen(
        [*COMMAND, *map(str, arguments)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(),
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )


def output(pipe: IO[bytes] | None) -> IO[bytes]:
    assert pipe is not None
    return pipe


@pytest.mark.parametrize("options", [(), ("--plain",), ("--head", "python")], ids=str)
def test_ctrl_c_in_the_middle_is_exit_code_130(options: tuple[str, ...]) -> None:
    with start("run", "-t", 1, "-n", 4000, *options, ENDLESS) as running:
        begun = output(running.stdout).read(20)
        running.send_signal(signal.SIGINT)
        rest, errors = running.communicate(timeout=SECONDS)
    assert running.returncode == 130
    assert errors.strip() == b""
    assert begun.startswith(b"CWSW")
    assert len(begun + rest) < 4000


def test_text_streams_as_it_is_accepted() -> None:
    with start("run", "-t", 1, "-n", 4000, ENDLESS) as running:
        assert output(running.stdout).read(3) == b"CWS"
        assert running.poll() is None
        running.kill()


def test_a_reader_that_leaves_is_no_error() -> None:
    for form in ((), ("--json",)):
        with start("run", "-t", 1, "-n", 300, *form, ENDLESS) as running:
            output(running.stdout).read(5 if not form else 0)
            output(running.stdout).close()
            errors = output(running.stderr).read()
            assert running.wait(SECONDS) == 0
        assert errors == b""


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
def test_a_full_disk_is_one_line() -> None:
    generating = ("run", "-t", "1", "-n", "5", QUESTION)
    for command in (generating, (*generating, "--json"), ("inspect", str(TARGET)), ("doctor",)):
        words = [*COMMAND, *command]
        with Path("/dev/full").open("wb") as full:
            done = subprocess.run(words, stdout=full, stderr=subprocess.PIPE, env=environment())
        assert done.returncode == 2
        assert done.stderr.decode().splitlines() == [
            "llamaspec: the output cannot be written (No space left on device)"
        ]


def test_an_input_that_cannot_be_read_is_one_line(tmp_path: Path) -> None:
    words = " ".join([*COMMAND, "run", "-t", "1", f"0>{tmp_path / 'file'}"])
    done = subprocess.run(["sh", "-c", words], capture_output=True, text=True, env=environment())
    assert refusal(done) == "stdin cannot be read (Bad file descriptor)"


LACKING = """
import sys, llamaspec.session
def load_pair(*_):
    raise MemoryError("no memory for a batch")
llamaspec.session.load_pair = load_pair
sys.argv = ["llamaspec", "run", "hi"]
from llamaspec.cli import main
main()
"""


def test_too_little_memory_is_one_line() -> None:
    words = [sys.executable, "-c", LACKING]
    done = subprocess.run(words, capture_output=True, text=True, env=environment())
    assert refusal(done) == "there is not enough memory (no memory for a batch)"


@pytest.mark.parametrize("closed", ["0", "1", "2"])
def test_a_closed_standard_stream_is_no_crash(closed: str) -> None:
    words = " ".join([*COMMAND, "run", "-t", "1", "-n", "5", f"{closed}>&-"])
    done = subprocess.run(["sh", "-c", words], capture_output=True, env=environment())
    assert (done.returncode, b"Traceback" in done.stderr) == (0, False)


def test_an_output_that_lacks_characters_shows_others(tmp_path: Path, session: Session) -> None:
    ids = session.tokenize(IN_CHAT).tolist()
    first = session.generate(ids, max_tokens=1).token_ids[0]
    tokens = gguf.GGUFReader(TARGET).fields["tokenizer.ggml.tokens"].contents()
    tokens[first] = "¡" * 3  # three bytes that are no UTF-8
    path = rewrite(TARGET, tmp_path / "t.gguf", {"tokenizer.ggml.tokens": tokens})
    listed = tmp_path / "ids"
    listed.write_text(json.dumps(ids))
    for encoding, shown in (("latin-1", "???"), ("utf-8", "\ufffd" * 3)):
        done = llamaspec(
            *("run", "-t", 1, "-n", 1, "-m", path, "--prompt-ids", listed),
            env=environment(PYTHONIOENCODING=encoding),
        )
        assert (done.returncode, done.stdout) == (0, shown + "\n")


def test_inspect_says_what_the_bundled_pair_is() -> None:
    both = llamaspec("inspect", TARGET, DRAFT)
    assert both.returncode == 0
    for words in ("generates text by itself", "DSpark draft for a target of width 256", "They fit"):
        assert words in both.stdout
    found = json.loads(llamaspec("inspect", "--json", DRAFT).stdout)
    assert found["draft"]["taps"] == [2, 5, 9]
    swapped = llamaspec("inspect", DRAFT, TARGET)
    assert (swapped.returncode, "They fit" in swapped.stdout) == (0, True)


def test_inspect_of_what_does_not_fit_or_cannot_be_read(tmp_path: Path) -> None:
    other = rewrite(DRAFT, tmp_path / "d.gguf", {"dflash.target_layers": [2, 5, 12]})
    misfit = llamaspec("inspect", TARGET, other)
    assert misfit.returncode == 1
    assert "They do not fit" in misfit.stdout
    assert "[12]" in misfit.stdout
    assert "no such file" in refusal(llamaspec("inspect", tmp_path / "absent.gguf"))
    assert "one or two" in refusal(llamaspec("inspect", TARGET, DRAFT, other))


def test_doctor_proves_that_decoding_works() -> None:
    found = json.loads(llamaspec("doctor", "--json").stdout)
    assert found["llamaspec"] == __version__
    assert found["expected"] == LLAMA_CPP_COMMIT
    assert found["check"]["identical"] is True
    assert found["check"]["tau"] > 3
    assert "cpu" in {device["kind"] for device in found["devices"]}
    shown = llamaspec("doctor")
    assert shown.returncode == 0
    assert "with and without the draft the same tokens" in shown.stdout
