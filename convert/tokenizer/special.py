"""Which tokens mark begin, end and the like, and which of them a prompt gets.

The rules are those of gguf.SpecialVocab (gguf-py/gguf/vocab.py), which reads the post-processor of
tokenizer.json, then tokenizer_config.json, then config.json; what comes first stays.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from llamaspec.convert.tokenizer.definition import Outline
from llamaspec.convert.tokenizer.files import Fields, content, fields, items, whole
from llamaspec.convert.tokenizer.table import Metadata

_KINDS = ("bos", "eos", "unk", "sep", "pad", "cls", "mask")
# "seperator" is how the format spells it
_ID_KEYS = {
    "bos": "bos",
    "eos": "eos",
    "unk": "unknown",
    "sep": "seperator",
    "pad": "padding",
    "mask": "mask",
    "eot": "eot",
    "eom": "eom",
}
# llama.cpp's converter gives every GLM these, conversion/base.py, _set_vocab_glm
_GLM = {"bos": "[gMASK]", "eot": "<|user|>", "unk": "<|endoftext|>", "eom": "<|observation|>"}
_ADDABLE = ("bos", "eos", "sep")


@dataclass(frozen=True)
class Settings:
    """tokenizer_config.json, None where it is missing, and the model's config.json."""

    tokenizer: Fields | None
    model: Fields


class _Roles:
    """What the post-processor says: token per role, whether it is added, and further roles."""

    def __init__(self, settings: Fields) -> None:
        self.tokens: dict[str, object] = {k: settings.get(f"{k}_token") for k in _KINDS}
        self.added: dict[str, bool] = {}
        self.kinds = list(_KINDS)
        for role, stand_in in (("bos", "cls"), ("eos", "sep")):
            self.tokens[role] = self.tokens[role] or self.tokens[stand_in]

    def process(self, processor: Fields) -> None:
        match processor.get("type"):
            case "ByteLevel":
                self.added.setdefault("bos", False)
                self.added.setdefault("eos", False)
            case "RobertaProcessing":
                self.added |= {"bos": True, "eos": True, "sep": True}
                for role in ("cls", "sep"):
                    given = items(processor.get(role))
                    self.tokens[role] = self.tokens[role] or (given[0] if given else None)
            case "TemplateProcessing":
                self._template(items(processor.get("single")), items(processor.get("pair")))

    def _template(self, single: list[object], pair: list[object]) -> None:
        first = _special(single[0]) if len(single) > 1 else None
        last = _special(single[-1]) if len(single) > 1 else None
        if first:
            if first not in (self.tokens["bos"], self.tokens["cls"]):
                self.tokens["bos"] = self.tokens["bos"] or first
                self.tokens["cls"] = self.tokens["cls"] or first
            self.added["bos"] = first in (self.tokens["bos"], self.tokens["cls"])
        if last:
            self._ends_with(last)
            self.added["eos"] = True
        self._between(pair, first, last)

    def _ends_with(self, last: str) -> None:
        """A prompt's last token becomes EOS; a former EOS stays as end of turn or of message."""
        if last == self.tokens["eos"]:
            return
        for role in ("eot", "eom"):
            if role not in self.kinds:
                self.kinds.append(role)
                self.tokens[role] = self.tokens["eos"]
                break
        self.tokens["eos"] = last

    def _between(self, pair: list[object], first: str | None, last: str | None) -> None:
        """Whether two texts get a separator: `A [sep] [eos] B`, begin and end apart."""
        start = 1 if pair and first and _special(pair[0]) == first else 0
        stop = -1 if pair and last and _special(pair[-1]) == last else None
        inner = pair[start:stop]
        if len(inner) < 3 or (_text(inner[0]), _text(inner[-1])) != ("A", "B"):
            return
        separators = (self.tokens["sep"], self.tokens["eos"])
        middle = [_special(item) for item in inner[1:-1]]
        adds = middle[0] is not None and middle[0] in separators and not last
        if len(middle) == 2 and middle[1] is not None:
            adds = adds or middle[1] in separators
        self.added["sep"] = adds
        if adds:
            self.tokens["sep"] = self.tokens["sep"] or self.tokens["eos"]


def special_metadata(
    outline: Outline | None, settings: Settings, n_vocab: int, known: tuple[str, ...] = ()
) -> Metadata:
    """Return the `*_token_id` and `add_*_token` keys; ids outside [0, n_vocab) are left out.

    known: roles whose token llama.cpp knows of itself; no other is added without an id.
    """
    roles = _Roles(settings.tokenizer or {})
    for processor in outline.post_processors if outline else []:
        roles.process(processor)
    texts = {token.content: token.id for token in outline.added} if outline else {}
    ids = _from_tokenizer(texts, settings.tokenizer, roles, n_vocab)
    text_config = fields(settings.model.get("text_config"))
    for kind in roles.kinds:
        given = settings.model.get(f"{kind}_token_id")
        token = whole(text_config.get(f"{kind}_token_id") if given is None else given)
        if token is not None and 0 <= token < n_vocab:
            ids.setdefault(kind, token)
    for kind, text in _GLM.items() if "[gMASK]" in texts else ():
        if texts.get(text, n_vocab) < n_vocab:
            ids.setdefault(kind, texts[text])
    result: Metadata = {
        f"tokenizer.ggml.{_ID_KEYS[k]}_token_id": token for k, token in ids.items() if k in _ID_KEYS
    }
    # without an id llama.cpp would add token 11, or end the process
    usable = {*ids, *known}
    flags = {k: flag and k in usable for k, flag in roles.added.items() if k in _ADDABLE}
    return result | {f"tokenizer.ggml.add_{k}_token": flag for k, flag in flags.items()}


def _from_tokenizer(
    texts: Mapping[str, int], settings: Fields | None, roles: _Roles, n_vocab: int
) -> dict[str, int]:
    """Ids of the roles' tokens; without tokenizer_config.json there are none."""
    ids: dict[str, int] = {}
    if settings is None:
        return ids
    for kind in roles.kinds:
        flag = settings.get(f"add_{kind}_token")
        if isinstance(flag, bool):
            # where they differ, the post-processor is what the tokenizer does
            roles.added.setdefault(kind, flag)
        token = texts.get(content(roles.tokens.get(kind)) or "")
        if token is not None and token < n_vocab:
            ids[kind] = token
    return ids


def role_texts(settings: Fields) -> set[str]:
    """The tokens that tokenizer_config.json gives a role; transformers makes each a special one."""
    named = [value for key, value in settings.items() if key.endswith("_token")]
    for key in ("extra_special_tokens", "additional_special_tokens"):
        named += [*items(settings.get(key)), *fields(settings.get(key)).values()]
    return {text for text in map(content, named) if text}


def _special(item: object) -> str | None:
    name = fields(fields(item).get("SpecialToken")).get("id")
    return name if isinstance(name, str) and name else None


def _text(item: object) -> object:
    return fields(fields(item).get("Sequence")).get("id")
