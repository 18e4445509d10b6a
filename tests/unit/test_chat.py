"""Chat templates render as they do for Hugging Face, and hostile ones end in a clear error."""

import resource
import threading
import time
from pathlib import Path

import pytest

from llamaspec.errors import ModelLoadError, OptionError
from llamaspec.runtime.gguf_file import GGUFFile
from llamaspec.text import chat
from llamaspec.text.chat import ChatTemplate
from tests.miniature import write_target

ASK = [{"role": "user", "content": "2 < 3 & é?"}]


def render(source: str, **variables: object) -> str:
    template = ChatTemplate(source, bos_token="<s>", eos_token="</s>", origin="m.gguf")
    return template.render(ASK, variables=variables)


def test_the_trained_target(ggufs: Path) -> None:
    with GGUFFile.open(ggufs / "tiny-target-f32.gguf") as file:
        template = ChatTemplate.from_gguf(file)
    prompt = "<|im_start|>user\n2 < 3 & é?<|im_end|>\n"
    assert template.render(ASK) == prompt + "<|im_start|>assistant\n"
    assert template.render(ASK, add_generation_prompt=False) == prompt


def test_special_tokens_come_from_the_file(tmp_path: Path) -> None:
    source = "{{ bos_token }}|{{ eos_token }}"
    path = write_target(tmp_path / "t.gguf", {"tokenizer.chat_template": source})
    with GGUFFile.open(path) as file:
        assert ChatTemplate.from_gguf(file).render(ASK) == "t1é|t2é"
    beyond = {"tokenizer.ggml.bos_token_id": 9999, "tokenizer.ggml.eos_token_id": None}
    path = write_target(tmp_path / "t.gguf", {"tokenizer.chat_template": source} | beyond)
    with GGUFFile.open(path) as file:
        assert ChatTemplate.from_gguf(file).render(ASK) == "|"


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("{{ bos_token }}{{ messages[0].role }}{{ messages[0]['role'] }}", "<s>useruser"),
        ("a\n  {% if true %}\n  b\n  {% endif %}\nc", "a\n  b\nc"),
        ("{% for i in range(9) %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}", "01"),
        ("{% for i in [1,2] %}{% if i == 1 %}{% continue %}{% endif %}{{ i }}{% endfor %}", "2"),
        ("{{ messages[0].content | tojson }}", '"2 < 3 & é?"'),
        ("{{ {'b': 1, 'a': '<é>'} | tojson(indent=1) }}", '{\n "b": 1,\n "a": "<é>"\n}'),
        ("{{ messages[0].content }}", "2 < 3 & é?"),
        ("{% generation %}{{ 1 }}{% endgeneration %}", "1"),
        ("{{ tools is none }}{{ missing is defined }}{{ thinking }}", "TrueFalseyes"),
        ("{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 5 %}"
         "{% endfor %}{{ ns.n }}", "5"),
        ("{% macro f(x) %}[{{ x }}]{% endmacro %}{{ f('q') ~ f(2) }}", "[q][2]"),
        ("{{ ' a '.strip() + 'b-c'.split('-')[1] + 'x'.replace('x', 'yy') }}", "acyy"),
        ("{{ '%s-%03d' % ('a', 7) }}{{ '{:>3}'.format('z') }}", "a-007  z"),
        ("{{ messages | map(attribute='role') | join(',') }}", "user"),
        ("{{ 'x\ny' | indent(2) }}{{ '%s' | format('w') }}", "x\n  yw"),
        ("{{ messages | selectattr('role', 'equalto', 'user') | list | length }}", "1"),
        ("{{ messages[0].items() | list | length }}{{ ['b', 'a'] | sort }}", "2['a', 'b']"),
        ("{{ 'a' * 3 }}{{ 2 ** 10 }}{{ 7 % 4 }}{{ [1] + [2] }}", "aaa10243[1, 2]"),
    ],
)  # fmt: skip
def test_renders(source: str, text: str) -> None:
    assert render(source, thinking="yes") == text


def test_dates_and_tools() -> None:
    assert render("{{ strftime_now('%Y') }}") in (
        time.strftime("%Y"),
        str(int(time.strftime("%Y")) + 1),
    )
    template = ChatTemplate("{% for t in tools %}{{ t.function.name }}{% endfor %}")
    tools = [{"type": "function", "function": {"name": "add"}}]
    assert template.render(ASK, tools=tools) == "add"


def test_without_a_template(tmp_path: Path) -> None:
    path = write_target(tmp_path / "plain.gguf", {"tokenizer.chat_template": None})
    with GGUFFile.open(path) as file, pytest.raises(ModelLoadError, match=r"plain\.gguf.*as text"):
        ChatTemplate.from_gguf(file)


@pytest.mark.parametrize("message", [{"content": "x"}, "hello", {"role": 5}, None])
def test_malformed_messages(message: object) -> None:
    template = ChatTemplate("{{ messages[0].role }}")
    with pytest.raises(OptionError, match="message 1 is"):
        template.render([*ASK, message])  # type: ignore[list-item]


@pytest.mark.parametrize(
    ("source", "words"),
    [
        (
            "{{ raise_exception('roles must\nalternate') }}",
            "refuses these messages: roles must alt",
        ),
        ("{{ messages[9].role }}", "fails on these messages: UndefinedError"),
        ("{{ 1 / 0 }}", "ZeroDivisionError"),
        ("{{ missing | tojson }}", "TypeError"),
        ("{% include 'x' %}", "TypeError"),
        ("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "RecursionError"),
        ("{% for i in range(100001) %}{% endfor %}", "Range too big"),
        ("{{ lipsum() }}", "UndefinedError"),
    ],
)
def test_failures_on_these_messages(source: str, words: str) -> None:
    with pytest.raises(OptionError) as caught:
        render(source)
    assert words in str(caught.value)
    assert "m.gguf" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "source",
    [
        "{{ 1",
        "{% if %}",
        "{{ 'a' | nofilter }}",
        "{% if 1 %}" * 300 + "{% endif %}" * 300,
        "{{" + "(" * 5000 + "1" + ")" * 5000 + "}}",
        "{{ a" + ".b" * 3000 + " }}",
    ],
)
def test_templates_that_do_not_compile(source: str) -> None:
    with pytest.raises(ModelLoadError, match=r"m\.gguf does not compile"):
        render(source)


def test_a_template_that_is_too_long() -> None:
    with pytest.raises(ModelLoadError, match="1048577 characters, the limit is 1048576"):
        ChatTemplate("x" * (chat.MAX_TEMPLATE + 1))


@pytest.mark.parametrize(
    "source",
    [
        "{{ ().__class__.__base__.__subclasses__() }}",
        "{{ cycler.__init__.__globals__.os.popen('id').read() }}",
        "{{ messages[0].__init__.__globals__ }}",
        "{{ messages.append(1) }}",
        "{{ '{0.__class__.__mro__}'.format(1) }}",
        "{{ (messages | attr('__class__')).mro() }}",
        "{% set x = namespace.__init__.__globals__ %}{{ x }}",
    ],
)
def test_templates_that_reach_for_python(source: str) -> None:
    with pytest.raises(ModelLoadError, match="not safe"):
        render(source)


GROW = "{%% set ns = namespace(s='ab') %%}{%% for i in range(60) %%}%s{%% endfor %%}{{ ns.s }}"
HOSTILE = [
    "{{ 'a' * 10 ** 10 }}",
    "{{ [1] * 10 ** 10 }}",
    "{{ 9 ** (10 ** 9) }}",
    "{{ 'a' | center(10 ** 9) }}",
    "{{ 'a'.center(10 ** 9) }}",
    "{{ 'a'.zfill(10 ** 9) }}",
    "{{ ('\t' * 1000000).expandtabs(9999) }}",
    "{{ '%999999999d' % 1 }}",
    "{{ '%*d' % (999999999, 1) }}",
    "{{ '%.999999999f' | format(1.5) }}",
    "{{ '{:999999999}'.format(1) }}",
    "{{ '{:{}}'.format(1, 999999999) }}",
    "{{ '{0:{1[w]}}'.format(1, {'w': 999999999}) }}",
    "{{ ('a' * 1000000).replace('a', 'b' * 1000000) }}",
    "{{ ('a' * 1000000) | replace('a', 'b' * 1000000) }}",
    "{{ (' ' * 1000000).join(range(99999) | map('string') | list) }}",
    "{{ range(99999) | map('string') | list | join(' ' * 1000000) }}",
    "{{ ('\n' * 100000) | indent(9999) }}",
    "{{ [1] | tojson(indent=999999999) }}",
    "{{ [1, 2] | batch(999999999, 0) | list }}",
    "{{ strftime_now('%999999999d') }}",
    GROW % "{% set ns.s = ns.s ~ ns.s %}",
    GROW % "{% set ns.s = ns.s + ns.s %}",
    GROW % "{% set ns.s %}{{ ns.s }}{{ ns.s }}{% endset %}",
    "{% for i in range(99999) %}{{ 'x' * 999 }}{% endfor %}",
    "{% for i in range(99999) %}" + "x" * 9999 + "{% endfor %}",
    "{% set x %}{% for i in range(99999) %}" + "x" * 9999 + "{% endfor %}{% endset %}",
]


@pytest.mark.parametrize("source", HOSTILE)
def test_templates_that_eat_memory(source: str) -> None:
    before, start = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.perf_counter()
    with pytest.raises(ModelLoadError, match=r"m\.gguf .*pass the prompt as text"):
        render(source)
    assert time.perf_counter() - start < 4
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 512 << 10


@pytest.mark.parametrize(
    "source",
    [
        "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
        (GROW % "{% set ns.s = [ns.s, ns.s] %}"),
        (GROW % "{% set ns.s = [ns.s, ns.s] %}").replace("{{ ns.s }}", "{{ ns.s | tojson }}"),
    ],
)
def test_templates_that_eat_time(source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat, "RENDER_SECONDS", 0.3)
    start = time.perf_counter()
    with pytest.raises(ModelLoadError, match=r"takes longer than 0\.3 s"):
        render(source)
    assert time.perf_counter() - start < 3
    assert not [t for t in threading.enumerate() if t.name == "llamaspec-template"]


def test_budgets_are_for_each_render() -> None:
    template = ChatTemplate("{{ 'x' * 20000000 }}")
    for _ in range(5):
        assert len(template.render(ASK)) == 20_000_000
