"""From the fields of a request to what the engine is asked for."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from llamaspec.options import MAX_SEED, GenerateSettings
from llamaspec.serve.fields import (
    ChatMessage,
    ChatRequest,
    CompletionRequest,
    Decoding,
    NamedTool,
    ResponseFormat,
)
from llamaspec.serve.problems import ApiError
from llamaspec.serve.tools import CallReader, Style, call_grammar, check_names
from llamaspec.text.prompt import Chat, Prompt

logger = logging.getLogger("llamaspec")

_SAME = (
    *("presence_penalty", "frequency_penalty", "top_p", "top_k", "min_p", "typical_p"),
    *("repeat_penalty", "repeat_last_n", "dry_multiplier", "dry_base", "dry_allowed_length"),
    *("dry_penalty_last_n", "dry_sequence_breakers", "grammar", "draft_max", "accept"),
    *("cache_prompt", "priority"),
)


@dataclass(frozen=True, slots=True)
class Tools:
    """The functions that a text may call, and how its model writes a call."""

    style: Style
    names: tuple[str, ...]
    many: bool

    def reader(self) -> CallReader:
        """For one text."""
        return CallReader(self.style, self.names, many=self.many)


@dataclass(frozen=True, slots=True)
class Asked:
    """A request in the engine's words. prompts: each is completed n times. settings: all but the
    seed.
    """

    chat: bool
    prompts: tuple[Prompt, ...]
    settings: GenerateSettings
    n: int = 1
    seed: int | None = None
    stream: bool = False
    usage: bool = False
    tokens: bool = False
    tools: Tools | None = None

    def options(self, index: int) -> GenerateSettings:
        """Of the text `index` of all; the seeds of several differ."""
        seed = None if self.seed is None else (self.seed + index % self.n) % (MAX_SEED + 1)
        return {**self.settings, "seed": seed}


def ask_completion(request: CompletionRequest, temperature: float, n_ctx: int) -> Asked:
    """Raises ApiError for fields that do not go together."""
    settings = _settings(request, temperature, n_ctx)
    if request.logprobs is not None:
        settings["logprobs"] = request.logprobs
    if request.json_schema is not None:
        settings["json_schema"] = request.json_schema
    prompt = request.prompt
    several = isinstance(prompt, list) and not isinstance(prompt[0], int)
    prompts: Sequence[Any] = prompt if several and isinstance(prompt, list) else [prompt]
    return Asked(chat=False, prompts=tuple(prompts), settings=settings, **_shape(request))


def ask_chat(request: ChatRequest, temperature: float, n_ctx: int, style: Style | None) -> Asked:
    """style: how the model calls functions, None where its template does not read tools. Raises
    ApiError for fields that do not go together.
    """
    settings = _settings(request, temperature, n_ctx)
    _set_limit(settings, request)
    if request.logprobs:
        settings["logprobs"] = request.top_logprobs or 0
    elif request.top_logprobs is not None:
        raise ApiError(400, "top_logprobs needs logprobs to be true", param="top_logprobs")
    if request.response_format is not None:
        _set_format(settings, request.response_format)
    tools = _tools(request, settings, style)
    shown = [tool.model_dump(exclude_none=True) for tool in request.tools or ()] if tools else None
    chat = Chat(plain_messages(request.messages), shown, request.chat_template_kwargs)
    return Asked(chat=True, prompts=(chat,), settings=settings, tools=tools, **_shape(request))


def plain_messages(messages: Sequence[ChatMessage]) -> list[dict[str, Any]]:
    """Messages as templates expect them: text as one string, arguments of calls as objects."""
    return [_plain(message) for message in messages]


def _plain(message: ChatMessage) -> dict[str, Any]:
    from llamaspec.serve.body import load_json

    found = message.model_dump(exclude_none=True, exclude={"refusal"})
    # the newer name of the same thing, which templates do not know
    found["role"] = "system" if message.role == "developer" else message.role
    if not isinstance(message.content, str):
        found["content"] = "".join(part.text for part in message.content or ())
    for call in found.get("tool_calls", ()):
        call.pop("index", None)
        try:
            arguments = load_json(call["function"]["arguments"].encode())
        except ApiError:
            continue
        if isinstance(arguments, dict):
            call["function"]["arguments"] = arguments
    return found


def _settings(request: Decoding, temperature: float, n_ctx: int) -> GenerateSettings:
    given: dict[str, Any] = {
        name: value for name in _SAME if (value := getattr(request, name)) is not None
    }
    asked = request.temperature
    given["temperature"] = temperature if asked is None else asked
    given["max_tokens"] = n_ctx if request.max_tokens is None else request.max_tokens
    if request.stop:
        given["stop"] = [request.stop] if isinstance(request.stop, str) else request.stop
    if request.logit_bias:
        given["logit_bias"] = {int(token): bias for token, bias in request.logit_bias.items()}
    if request.stream_options is not None and not request.stream:
        raise ApiError(400, "stream_options needs stream to be true", param="stream_options")
    settings: GenerateSettings = given  # type: ignore[assignment]
    return settings


def _shape(request: Decoding) -> dict[str, Any]:
    return {
        "n": request.n or 1,
        "seed": request.seed,
        "stream": bool(request.stream),
        "usage": request.stream_options is not None and request.stream_options.include_usage,
        "tokens": bool(request.return_tokens),
    }


def _set_limit(settings: GenerateSettings, request: ChatRequest) -> None:
    newer, older = request.max_completion_tokens, request.max_tokens
    if newer is None:
        return
    if older is not None and older != newer:
        raise ApiError(
            400,
            f"max_tokens is {older} and max_completion_tokens {newer}; give one of them",
            param="max_completion_tokens",
        )
    settings["max_tokens"] = newer


def _set_format(settings: GenerateSettings, wanted: ResponseFormat) -> None:
    if wanted.type == "text":
        return
    if settings.get("grammar") is not None:
        raise ApiError(400, "grammar and response_format exclude each other", param="grammar")
    schema = wanted.schema_
    if wanted.type == "json_schema":
        if wanted.json_schema is None:
            raise ApiError(
                400,
                "response_format of type json_schema needs json_schema",
                param="response_format.json_schema",
            )
        schema = wanted.json_schema.schema_
    settings["json_schema"] = {"type": "object"} if schema is None else schema


def _tools(request: ChatRequest, settings: GenerateSettings, style: Style | None) -> Tools | None:
    choice = request.tool_choice
    if not request.tools:
        if choice not in (None, "none", "auto"):
            raise ApiError(
                400, "tool_choice asks for a call and there are no tools", param="tool_choice"
            )
        return None
    functions = {tool.function.name: tool.function.parameters for tool in request.tools}
    check_names([tool.function.name for tool in request.tools])
    if choice == "none":
        return None
    forced = choice == "required" or isinstance(choice, NamedTool)
    if style is None:
        if forced:
            raise ApiError(
                400,
                "the chat template of this model does not read tools, so that it cannot call them; "
                "leave tool_choice at auto, or use a model with a template for tools",
                code="tools_unsupported",
                param="tool_choice",
            )
        logger.warning("the model's chat template does not read tools; they were left out")
        return None
    many = request.parallel_tool_calls is not False
    if forced:
        if settings.get("grammar") is not None or settings.get("json_schema") is not None:
            raise ApiError(
                400,
                "tool_choice asks for a call, and response_format or grammar for another text; "
                "give one of them",
                param="tool_choice",
            )
        if isinstance(choice, NamedTool):
            name = choice.function.name
            if name not in functions:
                raise ApiError(
                    400,
                    f"tool_choice names {name!r}, which is none of the tools",
                    param="tool_choice",
                )
            functions = {name: functions[name]}
            many = False
        settings["grammar"] = call_grammar(style, list(functions.items()), many=many)
    return Tools(style, tuple(functions), many)
