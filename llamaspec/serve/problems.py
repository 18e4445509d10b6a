"""What goes wrong, in the shape in which OpenAI's clients expect to hear of it."""

from typing import Any

from llamaspec.errors import (
    ClosedError,
    ContextFullError,
    LlamaSpecError,
    ModelLoadError,
    OptionError,
    QueueFullError,
    SamplingError,
)

INVALID = "invalid_request_error"
RETRY_S = 1
_LONGEST = 2000


class ApiError(Exception):
    """A refusal. status: of HTTP. kind, code, param: `type`, `code` and `param` of the reply."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        kind: str = INVALID,
        code: str | None = None,
        param: str | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message if len(message) <= _LONGEST else message[:_LONGEST] + " ..."
        self.kind = kind
        self.code = code
        self.param = param

    @property
    def body(self) -> dict[str, Any]:
        """The reply's JSON."""
        # half a character of a request must not keep the reply from being written
        message = self.message.encode("utf-8", "replace").decode()
        param = self.param and self.param.encode("utf-8", "replace").decode()
        return {"error": {"message": message, "type": self.kind, "param": param, "code": self.code}}

    @property
    def headers(self) -> dict[str, str]:
        """Headers that go with it."""
        if self.status == 401:
            return {"www-authenticate": 'Bearer, Basic realm="llamaspec"'}
        return {"retry-after": str(RETRY_S)} if self.status in (429, 503) else {}


def context_length(n_ctx: int, tokens: int, param: str) -> ApiError:
    """The refusal of a prompt that is too long, in the words that clients look for."""
    what = "messages" if param == "messages" else "prompt"
    return ApiError(
        400,
        f"This model's maximum context length is {n_ctx} tokens. However, your {what} resulted in "
        f"{tokens} tokens, and one at least must stay free. Please reduce the length of the "
        f"{what}.",
        code="context_length_exceeded",
        param=param,
    )


def problem_of(error: Exception) -> ApiError:
    """What to answer when an exception ends a request."""
    if isinstance(error, ApiError):
        return error
    text = " ".join(str(error).split())
    if isinstance(error, QueueFullError):
        return ApiError(429, f"{text}", kind="rate_limit_error", code="queue_full")
    if isinstance(error, ContextFullError):
        return ApiError(400, text, code="context_length_exceeded")
    if isinstance(error, OptionError):
        return ApiError(400, text, code="invalid_value")
    if isinstance(error, SamplingError):
        return ApiError(400, text, code="no_token_left")
    if isinstance(error, ModelLoadError):
        # of what a request can cause, only the chat template's limits
        return ApiError(400, text, code="chat_template")
    if isinstance(error, ClosedError):
        return ApiError(503, "the server is shutting down", kind="server_error", code="closing")
    if isinstance(error, TimeoutError):
        return ApiError(
            503,
            "the request took longer than the server allows",
            kind="server_error",
            code="timeout",
        )
    kind = text if isinstance(error, LlamaSpecError) else type(error).__name__
    return ApiError(500, f"the request failed: {kind}", kind="server_error", code="failed")
