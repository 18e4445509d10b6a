"""What callers give as a prompt, as token ids."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from llamaspec.errors import OptionError
from llamaspec.runtime.arrays import IntArray
from llamaspec.runtime.gguf_file import GGUFFile
from llamaspec.runtime.vocab import Vocab
from llamaspec.text.chat import ChatTemplate

Message = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Chat:
    """Chat messages with what else the model's template is to see: JSON schemas of tools that it
    may call, and more names, such as enable_thinking.
    """

    messages: Sequence[Message]
    tools: Sequence[Mapping[str, Any]] | None = None
    variables: Mapping[str, Any] | None = None


Prompt = str | Sequence[int] | Sequence[Message] | Chat | IntArray


class PromptReader:
    """Reads prompts for one target; its chat template is compiled when first used."""

    def __init__(self, vocab: Vocab, target: Path) -> None:
        self._vocab = vocab
        self._target = target
        self._template: ChatTemplate | None = None

    def tokenize(self, prompt: Prompt) -> IntArray:
        """Return the token ids [n] of text, of token ids, or of chat messages by the template.

        Raises OptionError for anything else, and for messages without a usable template.
        """
        if isinstance(prompt, str):
            return self._encoded(prompt)
        if isinstance(prompt, Sequence) and len(prompt) and isinstance(prompt[0], Mapping):
            prompt = Chat(list(prompt))  # type: ignore[arg-type]
        if isinstance(prompt, Chat):
            rendered = self.template.render(
                prompt.messages, tools=prompt.tools, variables=prompt.variables
            )
            return self._encoded(rendered, templated=True)
        return self._checked_ids(prompt)

    def _encoded(self, text: str, *, templated: bool = False) -> IntArray:
        vocab = self._vocab
        # most templates write the beginning-of-text token themselves
        has_bos = templated and bool(vocab.bos_text) and text.startswith(vocab.bos_text)
        return vocab.tokenize(text, add_special=not has_bos)

    def _checked_ids(self, prompt: object) -> IntArray:
        try:
            ids = np.asarray(prompt)
        except ValueError:  # lists of unequal length
            ids = np.empty((0, 0))
        if ids.ndim != 1 or (ids.size and not np.issubdtype(ids.dtype, np.integer)):
            raise OptionError(
                f"the prompt is a {type(prompt).__name__} and none of: text, a flat list of token "
                "ids, a list of chat messages"
            )
        size = self._vocab.size
        if ids.size and not (ids.min() >= 0 and ids.max() < size):
            bad = int(ids.min()) if ids.min() < 0 else int(ids.max())
            raise OptionError(f"token id {bad} lies outside the vocabulary of {size}")
        # a copy, which the caller cannot change
        return np.array(ids, np.int32)

    @property
    def template(self) -> ChatTemplate:
        """The target's chat template. Raises ModelLoadError where there is none to use."""
        if self._template is None:
            with GGUFFile.open(self._target) as file:
                self._template = ChatTemplate.from_gguf(file)
        return self._template
