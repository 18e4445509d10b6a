"""The options of `llamaspec run` that say how a token is chosen."""

from pathlib import Path
from typing import Annotated

import typer

from llamaspec.errors import OptionError

TopK = Annotated[int, typer.Option("--top-k", help="Keep the likeliest k; 0: all.")]
TopP = Annotated[float, typer.Option("--top-p", help="Keep the likeliest that make up p.")]
MinP = Annotated[
    float, typer.Option("--min-p", help="Keep what has at least p of the likeliest's probability.")
]
TypicalP = Annotated[
    float, typer.Option("--typical", help="Keep locally typical tokens that make up p.")
]
RepeatPenalty = Annotated[
    float, typer.Option("--repeat-penalty", help="Factor on tokens seen before; 1: none.")
]
RepeatLastN = Annotated[
    int, typer.Option("--repeat-last-n", help="How far penalties look back; -1: over everything.")
]
PresencePenalty = Annotated[
    float, typer.Option("--presence-penalty", help="Subtracted from tokens seen before.")
]
FrequencyPenalty = Annotated[
    float, typer.Option("--frequency-penalty", help="Subtracted for each time a token was seen.")
]
DryMultiplier = Annotated[
    float, typer.Option("--dry-multiplier", help="Penalty on going on with a repetition; 0: none.")
]
DryBase = Annotated[
    float, typer.Option("--dry-base", help="Its growth with each token of the repetition.")
]
DryAllowedLength = Annotated[
    int, typer.Option("--dry-allowed-length", help="Longest repetition without penalty.")
]
DryPenaltyLastN = Annotated[
    int, typer.Option("--dry-penalty-last-n", help="How far DRY looks back; -1: over everything.")
]
DrySequenceBreakers = Annotated[
    list[str] | None,
    typer.Option(
        "--dry-sequence-breaker",
        help="Text that no repetition reaches over, instead of llama.cpp's own; may be repeated.",
    ),
]
LogitBias = Annotated[
    list[str] | None,
    typer.Option(
        "--logit-bias", help="ID=BIAS, added to a token's logit, -inf excludes it; may be repeated."
    ),
]
Accept = Annotated[
    str,
    typer.Option(
        "--accept",
        help="With a temperature: match (a seed gives the text it gives without the draft), "
        "residual or block (more is accepted; texts of the same distribution).",
    ),
]
Grammar = Annotated[
    str | None, typer.Option("--grammar", help="GBNF that the text follows, or @FILE.")
]
JsonSchema = Annotated[
    str | None, typer.Option("--json-schema", help="JSON schema that the text follows, or @FILE.")
]
Logprobs = Annotated[
    int | None,
    typer.Option(
        "--logprobs", help="With --json: every token's log-probability and those of N alternatives."
    ),
]


def read_biases(given: list[str] | None) -> dict[int, float]:
    """ID=BIAS, each; of two for one token the last one counts."""
    found = {}
    for item in given or ():
        token, _, bias = item.partition("=")
        try:
            found[int(token)] = float(bias)
        except ValueError:
            raise OptionError(
                f"--logit-bias is {item!r}; it must be ID=BIAS, such as 15=-1.5 or 15=-inf"
            ) from None
    return found


def read_text(name: str, given: str | None) -> str | None:
    """A text, or that of a file where it is given as @FILE."""
    if given is None or not given.startswith("@"):
        return given
    try:
        return Path(given[1:]).read_text("utf-8")
    except UnicodeDecodeError:
        raise OptionError(f"{name} {given[1:]}: not text in UTF-8") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise OptionError(f"{name} {given[1:]}: cannot be read ({reason})") from None
