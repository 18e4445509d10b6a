"""What one benchmark found: everything that tables and reports show, and nothing computed yet."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from llamaspec.bench import typed
from llamaspec.bench.figures import Verdict
from llamaspec.errors import OptionError

FORMAT = "llamaspec bench 1"
DEFINITIONS = {
    "decode t/s": (
        "tokens after the first / seconds after the first token was known; of llama-server its "
        "predicted_per_second, which is that; llama-speculative-simple decodes the prompt's last "
        "token together with its first proposals, so of it all tokens / all seconds of decoding"
    ),
    "request t/s": (
        "tokens / seconds of the whole request, prompt included; of llama-server by the client's "
        "clock, of llama-speculative-simple encoding and decoding without its start"
    ),
    "speedup": (
        "paired by prompt and repeat against the base arm, medians over repeats, then prompts; "
        "the interval is a bootstrap over prompts (95%, fixed seed)"
    ),
    "tau": (
        "tokens after the first / rounds, the target's own tokens included; the tools do not say "
        "their rounds: of llama-server the larger of tokens - 1 - accepted and drafted / width is "
        "taken; of llama-speculative-simple tokens - accepted"
    ),
    "accept": "accepted / drafted proposals, all positions and rounds together",
    "draft, verify, other": (
        "shares of the whole request: inside native calls of the draft, of the target (prompt "
        "included), and the rest"
    ),
    "same": (
        "token ids as of the base arm; of llama-speculative-simple the text, which may go beyond "
        "the limit by a block"
    ),
}


@dataclass(frozen=True, slots=True)
class Asked:
    """A prompt of the workload; tokens: of the rendered text, as all arms were given it."""

    category: str
    id: str
    text: str
    tokens: int


@dataclass(frozen=True, slots=True)
class Sample:
    """One prompt, generated once by one arm. Rates in tokens/s, 0 where there is none.

    prompt: its index. rounds: 0 where the arm does not say. draft_s, verify_s, other_s: None
    likewise. identical: the output is the base arm's; None where that is no question.
    """

    arm: str
    prompt: int
    repeat: int
    tokens: int
    decode_rate: float
    request_rate: float
    latency_s: float
    rounds: int
    drafted: int
    accepted: int
    draft_s: float | None
    verify_s: float | None
    other_s: float | None
    digest: str | None
    text_digest: str | None
    identical: bool | None


@dataclass(frozen=True, slots=True)
class Traced:
    """The rounds of an arm on a prompt, of the first repeat."""

    arm: str
    prompt: int
    rounds: tuple[Verdict, ...]


@dataclass(frozen=True, slots=True)
class Arm:
    """An arm as it ran; argv: of a tool, the command."""

    name: str
    argv: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Result:
    """A whole run. about: versions, machine, files. settings: what was asked for. load: the
    machine's load average (one minute) before each repeat and at the end. left_out: prompts that
    did not fit the context.
    """

    format: str
    about: dict[str, str]
    settings: dict[str, str]
    definitions: dict[str, str]
    base: str
    synthetic: bool
    arms: tuple[Arm, ...]
    prompts: tuple[Asked, ...]
    left_out: int
    load: tuple[float, ...]
    samples: tuple[Sample, ...]
    traces: tuple[Traced, ...]

    def of(self, arm: str, category: str | None = None) -> list[Sample]:
        """An arm's samples, of one category or of all."""
        return [
            s
            for s in self.samples
            if s.arm == arm and category in (None, self.prompts[s.prompt].category)
        ]

    @property
    def categories(self) -> list[str]:
        """In the order of the workload."""
        return list(dict.fromkeys(prompt.category for prompt in self.prompts))

    def save(self, path: Path) -> None:
        """Write the result as JSON. Raises OptionError where that cannot be."""
        text = json.dumps(asdict(self), allow_nan=False)
        try:
            path.write_text(text + "\n", "utf-8")
        except OSError as error:
            raise OptionError(f"{path}: cannot be written ({error.strerror})") from None


def load(path: Path) -> Result:
    """Read a result. Raises OptionError for a file that is none, or does not agree with itself."""
    found = typed.read_object(path)
    if found.get("format") != FORMAT:
        raise OptionError(f'{path}: its "format" is not "{FORMAT}"; give what bench run wrote')
    result = typed.of_json(Result, found, str(path))
    names = {arm.name for arm in result.arms}
    for sample in result.samples:
        if sample.arm not in names or not 0 <= sample.prompt < len(result.prompts):
            raise OptionError(
                f"{path}: a sample is of arm {sample.arm[:40]!r} and prompt {sample.prompt}, "
                "which the file does not list"
            )
    for trace in result.traces:
        if any(not 0 <= r.accepted <= r.drafted <= 1000 for r in trace.rounds):
            raise OptionError(f"{path}: a round accepts more proposals than it drafted")
    if result.base not in names:
        raise OptionError(f"{path}: its base arm {result.base[:40]!r} is not among its arms")
    return result
