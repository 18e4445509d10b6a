"""Chat templates: the messages of a conversation as the text that the model was trained on."""

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, NoReturn, Self, TypeVar

from jinja2 import TemplateError, nodes, pass_environment
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension
from jinja2.ext import loopcontrols as loop_controls
from jinja2.parser import Parser

from llamaspec.errors import ModelLoadError, OptionError
from llamaspec.runtime.gguf_file import GGUFFile
from llamaspec.text.sandbox import LimitedSandbox, TemplateLimitError

T = TypeVar("T")
Message = Mapping[str, Any]

MAX_TEMPLATE = 1 << 20
MAX_OUTPUT = 32 << 20
RENDER_SECONDS = 5.0
NO_TEMPLATE = "has no chat template; pass the prompt as text (on the command line: --raw)"


class _RaisedByTemplateError(Exception):
    """The template called `raise_exception`."""


class _Generation(Extension):
    """Accepts `{% generation %}`, which marks what a model was trained on; it renders its body."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> list[nodes.Node]:
        """Parse up to endgeneration."""
        next(parser.stream)
        return list(parser.parse_statements(("name:endgeneration",), drop_needle=True))


class ChatTemplate:
    """A model's chat template, compiled once; rendering is safe for a template nobody has read.

    It sees what Hugging Face's own rendering gives it: `messages`, `tools`,
    `add_generation_prompt`, `bos_token`, `eos_token`, `raise_exception`, `strftime_now`, the
    `tojson` filter without HTML escapes, and loop controls.
    """

    def __init__(
        self, source: str, *, bos_token: str = "", eos_token: str = "", origin: str = "the model"
    ) -> None:
        """Compile a template.

        Args:
            source: Jinja2 text, at most 1 MiB.
            bos_token: text of the token that begins a sequence.
            eos_token: text of the token that ends one.
            origin: what errors name as the owner of the template.

        Raises:
            ModelLoadError: there is no template, it is too long, or it does not compile.
        """
        if not source:
            raise ModelLoadError(f"{origin} {NO_TEMPLATE}")
        if len(source) > MAX_TEMPLATE:
            raise ModelLoadError(
                f"{origin} has a chat template of {len(source)} characters, "
                f"the limit is {MAX_TEMPLATE}; pass the prompt as text"
            )
        self.source = source
        self._origin = origin
        self._tokens = {"bos_token": bos_token, "eos_token": eos_token}
        self._environment = _environment()
        self._template = self._guarded(
            lambda: self._environment.from_string(source), compiling=True
        )

    @classmethod
    def from_gguf(cls, file: GGUFFile) -> Self:
        """The template of an open GGUF. Raises ModelLoadError where it has none, as `__init__`."""
        source = file.metadata.get("tokenizer.chat_template", "")
        return cls(
            source if isinstance(source, str) else "",
            bos_token=_token_text(file, "tokenizer.ggml.bos_token_id"),
            eos_token=_token_text(file, "tokenizer.ggml.eos_token_id"),
            origin=file.path.name,
        )

    def render(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        variables: Mapping[str, Any] | None = None,
    ) -> str:
        """The prompt for a conversation; special tokens stand in it as text.

        Args:
            messages: mappings with a "role", usually a "content", in order.
            tools: JSON schemas of functions that the model may call.
            add_generation_prompt: end with the opening of the assistant's turn.
            variables: more names for the template, such as `enable_thinking`.

        Raises:
            OptionError: the messages are malformed, or the template refuses them.
            ModelLoadError: the template breaks the sandbox or its limits.
        """
        values: dict[str, Any] = {
            **self._tokens,
            **(variables or {}),
            "messages": [_checked(index, message) for index, message in enumerate(messages)],
            "tools": list(tools) if tools else None,
            "add_generation_prompt": add_generation_prompt,
        }
        return self._guarded(lambda: self._render(values), compiling=False)

    def _render(self, values: dict[str, Any]) -> str:
        chunks: list[str] = []
        length = 0
        # not `generate`, which rewrites the traceback of an error that only its message outlives
        for chunk in self._template.root_render_func(self._template.new_context(values)):
            length += len(chunk)
            if length > MAX_OUTPUT:
                raise TemplateLimitError(f"writes more than {MAX_OUTPUT >> 20} million characters")
            chunks.append(chunk)
        return "".join(chunks)

    def _guarded(self, work: Callable[[], T], *, compiling: bool) -> T:
        whose = f"the chat template of {self._origin}"
        try:
            return self._environment.bounded(work, RENDER_SECONDS)
        except _RaisedByTemplateError as error:
            raise OptionError(f"{whose} refuses these messages: {_line(error)}") from None
        except TemplateLimitError as error:
            raise ModelLoadError(f"{whose} {error}; pass the prompt as text") from None
        except SecurityError as error:
            raise ModelLoadError(f"{whose} is not safe: {_line(error)}") from None
        except (Exception, MemoryError) as error:
            if compiling:
                kind = "" if isinstance(error, TemplateError) else f"{type(error).__name__}: "
                raise ModelLoadError(f"{whose} does not compile: {kind}{_line(error)}") from None
            raise OptionError(
                f"{whose} fails on these messages: {type(error).__name__}: {_line(error)}"
            ) from None


def _environment() -> LimitedSandbox:
    environment = LimitedSandbox(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loop_controls]
    )
    environment.filters["tojson"] = environment.limited("tojson", tojson)
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment


@pass_environment
def tojson(
    environment: LimitedSandbox,
    value: object,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON for a prompt: unlike Jinja2's own filter it leaves <, > and & as they are."""
    encoder = json.JSONEncoder(
        ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )
    if indent is None:
        return encoder.encode(value)
    # indented JSON is written in Python, which takes its time
    return "".join(environment.ticking(encoder.iterencode(value)))


def _raise_exception(message: str) -> NoReturn:
    raise _RaisedByTemplateError(message)


def _strftime_now(form: str) -> str:
    if len(form) > 100 or any(char.isdigit() for char in form):
        raise TemplateLimitError(f"asks for the date in the form {form[:40]!r}")
    return datetime.now().astimezone().strftime(form)


def _token_text(file: GGUFFile, key: str) -> str:
    token, tokens = file.metadata.get(key), file.metadata.get("tokenizer.ggml.tokens")
    if not isinstance(token, int) or isinstance(tokens, bool | int | float | str | None):
        return ""
    return str(tokens[token]) if 0 <= token < len(tokens) else ""


def _checked(index: int, message: Message) -> dict[str, Any]:
    if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
        shown = repr(message)[:60]
        raise OptionError(
            f'message {index} is {shown}; it must be like {{"role": "user", "content": "..."}}'
        )
    return dict(message)


def _line(error: BaseException) -> str:
    return " ".join(str(error).split())[:300]
