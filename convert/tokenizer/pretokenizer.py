"""llama.cpp's name of a pre-tokenizer, from the steps that tokenizer.json gives.

The regular expressions are those of the published tokenizer.json files; src/llama-vocab.cpp, the
constructor of `llm_tokenizer_bpe`, has for each name the one that llama.cpp runs in its place.
"""

from llamaspec.convert.tokenizer.definition import Definition
from llamaspec.convert.tokenizer.files import Fields, fields, shown
from llamaspec.errors import ModelLoadError

_SHORT = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_WORD = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_SIGNS = r" ?[^\s\p{L}\p{N}]+[\r\n]*"
_SPACE = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_CASED = rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+", rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*"
_CASED_SIGNS = r" ?[^\s\p{L}\p{N}]+[\r\n/]*"
_GPT_4O = "|".join(
    (f"{_CASED[0]}{_SHORT}?", f"{_CASED[1]}{_SHORT}?", r"\p{N}{1,3}", _CASED_SIGNS, _SPACE)
)
_LONG_SPACE = "".join(rf"\s{{{n}}}(?!\S)|" for n in (512, 256, 128, 64, 32, 16, 8, 4))
_HAN = "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"
_DEEPSEEK_HAN = "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"
_DEEPSEEK_V3 = (
    "[!\"#$%&'()"
    r"*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+|"
    r" ?[\p{P}\p{S}]+[\r\n]*|" + _SPACE
)
_DEEPSEEK_SIGNS = "\\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+"
_DEEPSEEK_LETTERS = (
    "\\s?["
    "A-Za-z\xb5\xc0-\xd6\xd8-\xf6\xf8-\u01ba\u01bc-\u01bf\u01c4-\u0293\u0295-\u02af\u0370-"
    "\u0373\u0376\u0377\u037b-\u037d\u037f\u0386\u0388-\u038a\u038c\u038e-\u03a1\u03a3-"
    "\u03f5\u03f7-\u0481\u048a-\u052f\u0531-\u0556\u10a0-\u10c5\u13a0-\u13f5\u13f8-\u13fd"
    "\u1c90-\u1cba\u1cbd-\u1cbf\u1d00-\u1d2b\u1d6b-\u1d77\u1d79-\u1d9a\u1e00-\u1f15\u1f18-"
    "\u1f1d\u1f20-\u1f45\u1f48-\u1f4d\u1f50-\u1f57\u1f59\u1f5b\u1f5d\u1f5f-\u1f7d\u1f80-"
    "\u1fb4\u1fb6-\u1fbc\u1fbe\u1fc2-\u1fc4\u1fc6-\u1fcc\u1fd0-\u1fd3\u1fd6-\u1fdb\u1fe0-"
    "\u1fec\u1ff2-\u1ff4\u1ff6-\u1ffc\u2102\u2107\u210a-\u2113\u2115\u2119-\u211d\u2124"
    "\u2126\u2128\u212a-\u212d\u212f-\u2134\u2139\u213c-\u213f\u2145-\u2149\u214e\u2183"
    "\u2184\u2c00-\u2c7b\u2c7e-\u2ce4\u2ceb-\u2cee\u2cf2\u2cf3\ua640-\ua66d\ua680-\ua69b"
    "\ua722-\ua76f\ua771-\ua787\ua78b-\ua78e\uab70-\uabbf\ufb00-\ufb06\ufb13-\ufb17\uff21-"
    "\uff3a\uff41-\uff5a\U00010400-\U0001044f\U000104b0-\U000104d3\U000104d8-\U000104fb"
    "\U00010c80-\U00010cb2\U00010cc0-\U00010cf2\U000118a0-\U000118df\U0001e900-\U0001e943"
    "]+"
)

# what ByteLevel and Digits split by themselves
_GPT_2, _DIGIT, _DIGITS = "gpt-2", "a digit", "digits"
_DEEPSEEK_LLM = (r"[\r\n]", _DEEPSEEK_LETTERS, _DEEPSEEK_SIGNS, r"\s+$", _DEEPSEEK_HAN)
_LLAMA_3 = (f"{_SHORT}|{_WORD}|\\p{{N}}{{1,3}}|{_SIGNS}|{_SPACE}",)

_NAMES: dict[tuple[str, ...], str] = {
    (_GPT_2,): "gpt-2",
    (_DIGIT, _GPT_2): "smollm",
    (f"{_SHORT}|{_WORD}|\\p{{N}}|{_SIGNS}|{_SPACE}",): "qwen2",
    (
        rf"{_SHORT}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}|"
        rf" ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{_SPACE}",
    ): "qwen35",
    _LLAMA_3: "llama-bpe",
    (
        f"{_SHORT}|{_WORD}|\\p{{N}}{{1,3}}|{_SIGNS}|"
        + r"\s*[\r\n]+|"
        + _LONG_SPACE
        + r"\s{1,2}(?!\S)|\s{1}",
    ): "jais-2",
    (r"\p{N}{1,3}", _HAN, _DEEPSEEK_V3): "deepseek-v3",
    (*_DEEPSEEK_LLM, _DIGITS): "deepseek-llm",
    # as good: trained digit by digit, a vocabulary has no token of two
    (*_DEEPSEEK_LLM, _DIGIT): "deepseek-llm",
    (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _DEEPSEEK_HAN, _DIGIT): "deepseek-coder",
    (_GPT_4O,): "gpt-4o",
    ("|".join((*_CASED, r"\p{N}", _CASED_SIGNS, _SPACE)),): "tekken",
    (r"\p{N}{1,3}", f"{_SHORT}|{_WORD}|\\p{{N}}+|{_SIGNS}|{_SPACE}"): "minicpm5",
    (rf"{_SHORT}|{_WORD}|\p{{N}}{{1}}| ?[^\s\p{{L}}\p{{N}}\r\n]+|{_SPACE}",): "seed-coder",
    (
        r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|"
        r"\s*[\r\n]|\s+(?!\S)|\s+",
    ): "bailingmoe",
    (
        rf"{_SHORT}|[^\r\n\p{{L}}\p{{N}}]?(?:\p{{L}}\p{{M}}*(?: \p{{L}}\p{{M}}*)*)+|\p{{N}}|"
        r" ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+",
    ): "exaone-moe",
    (f"{_WORD}|\\p{{N}}|{_SIGNS}|{_SPACE}",): "ufakzeka",
}


def pre_name(definition: Definition) -> str:
    """Return `tokenizer.ggml.pre` of a byte-level BPE.

    Names that llama.cpp treats alike share one: the first published, or the one whose marker token
    is there. Raises ModelLoadError for steps that no name stands for; the text has the regular
    expression.
    """
    path = definition.path
    for step in definition.normalizers:
        # llama.cpp does not compose either; its converter passes over this one, too
        if step.get("type") != "NFC":
            raise ModelLoadError(f"{path}: normalizer {shown(step)} is unknown to llama.cpp")
    steps = [part for step in definition.pre_tokenizers for part in _parts(definition, step)]
    if not any(step.get("type") == "ByteLevel" for step in definition.pre_tokenizers):
        raise ModelLoadError(f"{path}: neither byte-level nor byte_fallback, unknown to llama.cpp")
    name = _NAMES.get(tuple(steps))
    if name is None:
        text = " then ".join(map(repr, steps))[:600] or "no split"
        raise ModelLoadError(f"{path}: llama.cpp has no pre-tokenizer for {text}")
    if name == "smollm" and definition.normalizers:
        return "command-r"
    return _like_llama_3(definition) if name == "llama-bpe" else name


def _like_llama_3(definition: Definition) -> str:
    whole_words = definition.model.get("ignore_merges") is True
    texts = {token.content for token in definition.added}
    if "[gMASK]" in texts:
        return "glm4" if whole_words else "chatglm-bpe"
    if "<|startoftext|>" in texts:
        return "lfm2"
    return "llama-bpe" if whole_words else "smaug-bpe"


def _parts(definition: Definition, step: Fields) -> list[str]:
    match step.get("type"):
        case "ByteLevel" if step.get("add_prefix_space") is not True:
            return [_GPT_2] if step.get("use_regex", True) is True else []
        case "Digits":
            return [_DIGIT if step.get("individual_digits") is True else _DIGITS]
        case "Split":
            regex = fields(step.get("pattern")).get("Regex")
            if isinstance(regex, str) and _isolated(step, regex):
                return [regex.replace("\r", r"\r").replace("\n", r"\n")]
    raise ModelLoadError(f"{definition.path}: pre-tokenizer {shown(step)} is unknown to llama.cpp")


def _isolated(step: Fields, regex: str) -> bool:
    if step.get("behavior") == "Isolated":
        return True
    # to keep only the matches is the same where every character is in one
    keeps = step.get("behavior") == "Removed" and step.get("invert") is True
    return keeps and regex.endswith((r"|\s+", r"|\s{1}"))
