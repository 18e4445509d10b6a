"""The chat template of a checkpoint folder."""

from pathlib import Path

from llamaspec.convert.tokenizer.files import (
    MAX_SETTINGS,
    Fields,
    fields,
    items,
    read_object,
    read_text,
)
from llamaspec.convert.tokenizer.table import Metadata, check_text

_KEY = "tokenizer.chat_template"


def chat_templates(folder: Path, settings: Fields) -> Metadata:
    """Return `tokenizer.chat_template`, and a key more for each further named one.

    tokenizer_config.json comes first, then chat_template.jinja with those in the folder
    additional_chat_templates, then chat_template.json, as in gguf.SpecialVocab. Raises
    ModelLoadError.
    """
    named = _named(settings.get("chat_template"))
    if not named:
        named = _from_files(folder)
    if not named:
        raw = read_object(folder / "chat_template.json", MAX_SETTINGS) or {}
        named = _named(raw.get("chat_template"))
    check_text(folder, list(named.values()))
    result: Metadata = {}
    others = sorted(name for name in named if name != "default")
    for name in others:
        result[f"{_KEY}.{name}"] = named[name]
    if others:
        result["tokenizer.chat_templates"] = others
    if "default" in named:
        result[_KEY] = named["default"]
    return result


def _named(value: object) -> dict[str, str]:
    """Templates by name; a lone one is the default."""
    if isinstance(value, str):
        return {"default": value}
    named: dict[str, str] = {}
    for item in map(fields, items(value)):
        name, template = item.get("name"), item.get("template")
        if isinstance(name, str) and name and isinstance(template, str):
            named[_plain(name)] = template
    return named


def _from_files(folder: Path) -> dict[str, str]:
    default = read_text(folder / "chat_template.jinja", MAX_SETTINGS)
    if default is None:
        return {}
    named = {"default": default}
    for path in sorted((folder / "additional_chat_templates").glob("*.jinja"))[:100]:
        text = read_text(path, MAX_SETTINGS)
        if text is not None:
            named.setdefault(_plain(path.stem), text)
    return named


def _plain(name: str) -> str:
    return "".join(char if char.isascii() and char.isalnum() else "_" for char in name)
