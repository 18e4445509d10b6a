"""What requests may say. Every field is honoured or refused; none is passed over in silence."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints

from llamaspec.options import MAX_BIAS, MAX_INT, MAX_LOGPROBS
from llamaspec.serve.settings import MAX_CHOICES

Finite = Annotated[float, Field(allow_inf_nan=False)]
Name = Annotated[str, StringConstraints(min_length=1, max_length=64, pattern=r"^[a-zA-Z0-9_.-]+$")]
Token = Annotated[int, Field(ge=0, le=MAX_INT)]
JsonObject = dict[str, Any]
_MAX_SEED = 2**63 - 1


class Fields(BaseModel):
    """Base of all: what is not named is refused, and so is a number in quotes."""

    model_config = ConfigDict(extra="forbid", strict=True, protected_namespaces=())


class StreamOptions(Fields):
    """stream_options of a stream."""

    include_usage: bool = False
    include_obfuscation: Literal[False] = False


class Decoding(Fields):
    """How to decode: what both kinds of completions share. The names are OpenAI's, and beyond those
    llama-server's and llamaspec's own."""

    model: Annotated[str, StringConstraints(max_length=256)] | None = Field(
        None, description="Accepted as it is: one model is served, and the reply names it."
    )
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: Annotated[int, Field(ge=1, le=MAX_CHOICES)] | None = None
    max_tokens: Annotated[int, Field(ge=1, le=MAX_INT)] | None = None
    temperature: Annotated[Finite, Field(ge=0, le=100)] | None = None
    top_p: Annotated[Finite, Field(ge=0, le=1)] | None = None
    seed: Annotated[int, Field(ge=-_MAX_SEED - 1, le=_MAX_SEED)] | None = None
    stop: str | Annotated[list[str], Field(max_length=16)] | None = None
    presence_penalty: Annotated[Finite, Field(ge=-100, le=100)] | None = None
    frequency_penalty: Annotated[Finite, Field(ge=-100, le=100)] | None = None
    logit_bias: (
        dict[
            Annotated[str, StringConstraints(pattern=r"^[0-9]{1,10}$")],
            Annotated[Finite, Field(ge=-MAX_BIAS, le=MAX_BIAS)],
        ]
        | None
    ) = None
    user: str | None = Field(None, description="Of no effect on the text.")

    top_k: Annotated[int, Field(ge=0, le=MAX_INT)] | None = None
    min_p: Annotated[Finite, Field(ge=0, le=1)] | None = None
    typical_p: Annotated[Finite, Field(ge=0, le=1)] | None = None
    repeat_penalty: Annotated[Finite, Field(ge=0.01, le=100)] | None = None
    repeat_last_n: Annotated[int, Field(ge=-1, le=MAX_INT)] | None = None
    dry_multiplier: Annotated[Finite, Field(ge=0, le=100)] | None = None
    dry_base: Annotated[Finite, Field(ge=1, le=100)] | None = None
    dry_allowed_length: Annotated[int, Field(ge=1, le=MAX_INT)] | None = None
    dry_penalty_last_n: Annotated[int, Field(ge=-1, le=MAX_INT)] | None = None
    dry_sequence_breakers: Annotated[list[str], Field(max_length=64)] | None = None
    grammar: str | None = Field(None, description="GBNF with a rule named root.")
    draft_max: Annotated[int, Field(ge=0, le=MAX_INT)] | None = Field(
        None, description="Most proposals a round; 0 for plain decoding, null for as many as pay."
    )
    accept: Literal["match", "residual", "block"] | None = None
    cache_prompt: bool | None = None
    priority: Annotated[int, Field(ge=-MAX_INT, le=MAX_INT)] | None = Field(
        None, description="Of requests that wait, higher ones get a place first."
    )
    return_tokens: bool | None = Field(
        None, description="Stream chunks carry token ids, and how many were accepted proposals."
    )


class SchemaFormat(Fields):
    """response_format.json_schema."""

    name: Name
    description: str | None = None
    schema_: JsonObject | None = Field(None, alias="schema")
    strict: bool | None = None


class ResponseFormat(Fields):
    """response_format: text, any JSON object, or JSON by a schema."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: SchemaFormat | None = None
    schema_: JsonObject | None = Field(None, alias="schema")


class Function(Fields):
    """A function that the model may call."""

    name: Name
    description: str | None = None
    parameters: JsonObject | None = None
    strict: bool | None = None


class Tool(Fields):
    """One of `tools`."""

    type: Literal["function"]
    function: Function


class Named(Fields):
    """The name of a function."""

    name: Name


class NamedTool(Fields):
    """tool_choice, where it names a function."""

    type: Literal["function"]
    function: Named


class CalledFunction(Fields):
    """A call that the model made before."""

    name: Annotated[str, StringConstraints(max_length=64)]
    arguments: str


class ToolCall(Fields):
    """One of an assistant message's tool_calls."""

    id: str | None = None
    type: Literal["function"] = "function"
    function: CalledFunction
    index: int | None = None


class TextPart(Fields):
    """A part of a content. Other kinds, such as images, are refused: models here read text."""

    type: Literal["text"]
    text: str


def _without_nulls(value: object) -> object:
    # assistants' messages come back as clients dumped them, with many fields that say nothing
    if isinstance(value, dict):
        return {k: v for k, v in value.items() if v is not None and v != []}
    return value


class ChatMessage(Fields):
    """One of `messages`."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[TextPart] | None = None
    name: str | None = None
    refusal: str | None = None
    reasoning_content: str | None = None
    tool_calls: Annotated[list[ToolCall], Field(max_length=256)] | None = None
    tool_call_id: str | None = None


Message = Annotated[ChatMessage, BeforeValidator(_without_nulls)]


class ChatRequest(Decoding):
    """Body of POST /v1/chat/completions."""

    messages: Annotated[list[Message], Field(min_length=1, max_length=10_000)]
    max_completion_tokens: Annotated[int, Field(ge=1, le=MAX_INT)] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS)] | None = None
    response_format: ResponseFormat | None = None
    tools: Annotated[list[Tool], Field(max_length=256)] | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedTool | None = None
    parallel_tool_calls: bool | None = None
    chat_template_kwargs: JsonObject | None = Field(
        None, description="More names for the model's template, such as enable_thinking."
    )
    metadata: dict[str, str] | None = Field(None, description="Of no effect on the text.")
    store: Literal[False] | None = None
    service_tier: Literal["auto", "default"] | None = None


class CompletionRequest(Decoding):
    """Body of POST /v1/completions."""

    prompt: (
        str
        | Annotated[list[Token], Field(min_length=1)]
        | Annotated[list[str], Field(min_length=1, max_length=MAX_CHOICES)]
        | Annotated[
            list[Annotated[list[Token], Field(min_length=1)]],
            Field(min_length=1, max_length=MAX_CHOICES),
        ]
    )
    logprobs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS)] | None = None
    json_schema: JsonObject | None = None
    echo: Literal[False] | None = None
    best_of: Literal[1] | None = None
    suffix: Literal[""] | None = None


class TokenizeRequest(Fields):
    """Body of POST /tokenize: text, or messages for the model's template."""

    content: str | None = None
    messages: Annotated[list[Message], Field(min_length=1, max_length=10_000)] | None = None
    add_special: bool = False
    with_pieces: bool = False


class DetokenizeRequest(Fields):
    """Body of POST /detokenize."""

    tokens: list[Token]
