"""Every exception that llamaspec raises on purpose; all derive from LlamaSpecError."""


class LlamaSpecError(Exception):
    """Base of all llamaspec errors. Its text is one line that says what conflicts and what to
    do.
    """


class BuildMismatchError(LlamaSpecError, ImportError):
    """The compiled extension is missing, or was built for another version or llama.cpp commit."""


class OptionError(LlamaSpecError, ValueError):
    """An option or argument has a value that cannot be used."""


class ModelLoadError(LlamaSpecError):
    """A file is missing, empty, truncated, malformed or not of the kind that was asked for."""


class IncompatibleDraftError(LlamaSpecError):
    """A draft does not fit its target; the text names both values."""


class ContextFullError(LlamaSpecError):
    """A prompt does not fit the context."""


class QueueFullError(LlamaSpecError):
    """More requests wait for a place than the queue holds."""


class ClosedError(LlamaSpecError):
    """A session, model or context was used after it was closed."""


class SamplingError(LlamaSpecError):
    """No token can be chosen: a grammar or logit_bias excludes every one."""


class DecodeError(LlamaSpecError):
    """llama.cpp could not decode a batch.

    Attributes:
        code: the native return code (1: no KV slot, 2: aborted, negative: failure).
    """

    def __init__(self, message: str, code: int = 0) -> None:
        super().__init__(message)
        self.code = code
