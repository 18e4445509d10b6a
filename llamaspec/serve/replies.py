"""What replies say. The types are checked here and describe the replies in the OpenAPI document."""

from typing import Literal, NotRequired

from typing_extensions import TypedDict

Finish = Literal["stop", "length", "tool_calls"]


class PromptDetails(TypedDict):
    """Of a prompt's tokens."""

    cached_tokens: int


class Usage(TypedDict):
    """Tokens."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptDetails


class Timings(TypedDict):
    """What was computed, by llama-server's names, and how many rounds it took. The fields of drafts
    are absent where nothing could be drafted."""

    cache_n: int
    prompt_n: int
    prompt_ms: float
    prompt_per_token_ms: float
    prompt_per_second: float
    predicted_n: int
    predicted_ms: float
    predicted_per_token_ms: float
    predicted_per_second: float
    draft_n: NotRequired[int]
    draft_n_accepted: NotRequired[int]
    draft_rounds: NotRequired[int]


class Span(TypedDict):
    """A stretch of a text: proposals of the draft that the target accepted, or its own tokens."""

    text: str
    accepted: bool


class Extra(TypedDict):
    """llamaspec's own. token_ids, accepted, spans: of a piece of a stream: its ids, how many of
    them were accepted proposals, and its text by that, but not where functions may be called.
    accept_by_position: how often a proposal was accepted, by its place, of the rounds that verified
    one there. queue_ms: waiting.
    """

    token_ids: NotRequired[list[int]]
    accepted: NotRequired[int]
    spans: NotRequired[list[Span]]
    accept_by_position: NotRequired[list[float]]
    queue_ms: NotRequired[float]


class TopToken(TypedDict):
    """A likely token."""

    token: str
    logprob: float
    bytes: list[int]


class ChatToken(TopToken):
    """A token of the text."""

    top_logprobs: list[TopToken]


class ChatLogprobs(TypedDict):
    """Of a chat's text."""

    content: list[ChatToken]
    refusal: None


class TextLogprobs(TypedDict):
    """Of a completion's text."""

    tokens: list[str]
    token_logprobs: list[float]
    top_logprobs: list[dict[str, float]]
    text_offset: list[int]


class Called(TypedDict):
    """A function and its arguments, as JSON text."""

    name: str
    arguments: str


class CallReply(TypedDict):
    """One call."""

    id: str
    type: Literal["function"]
    function: Called


class CallDelta(CallReply):
    """One call in a stream, whole."""

    index: int


class AssistantMessage(TypedDict):
    """The answer."""

    role: Literal["assistant"]
    content: str | None
    refusal: None
    tool_calls: NotRequired[list[CallReply]]


class ChatChoice(TypedDict):
    """One answer."""

    index: int
    message: AssistantMessage
    logprobs: ChatLogprobs | None
    finish_reason: Finish


class TextChoice(TypedDict):
    """One text."""

    index: int
    text: str
    logprobs: TextLogprobs | None
    finish_reason: Literal["stop", "length"]


class ChatReply(TypedDict):
    """Reply of POST /v1/chat/completions."""

    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    system_fingerprint: str
    choices: list[ChatChoice]
    usage: Usage
    timings: Timings
    llamaspec: Extra


class TextReply(TypedDict):
    """Reply of POST /v1/completions."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    system_fingerprint: str
    choices: list[TextChoice]
    usage: Usage
    timings: Timings
    llamaspec: Extra


class ModelMeta(TypedDict):
    """Of a served pair."""

    n_ctx: int
    n_vocab: int
    max_sequences: int
    draft_max: int


class ModelReply(TypedDict):
    """The served model."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    meta: ModelMeta


class ModelsReply(TypedDict):
    """Reply of GET /v1/models."""

    object: Literal["list"]
    data: list[ModelReply]


class TokenPiece(TypedDict):
    """A token with its text, or with its bytes where they are no text."""

    id: int
    piece: str | list[int]


class TokenizeReply(TypedDict):
    """Reply of POST /tokenize."""

    tokens: list[int] | list[TokenPiece]


class DetokenizeReply(TypedDict):
    """Reply of POST /detokenize."""

    content: str


class HealthReply(TypedDict):
    """Reply of GET /health."""

    status: Literal["ok"]


class Problem(TypedDict):
    """What was wrong."""

    message: str
    type: str
    param: str | None
    code: str | None


class ProblemReply(TypedDict):
    """Reply of a refused request."""

    error: Problem
