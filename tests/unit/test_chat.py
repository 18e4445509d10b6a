"""Chat templates render as they do for Hugging Face, and hostile ones end in a clear error."""

import json
import resource
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
from jinja2.sandbox import ImmutableSandboxedEnvironment

from llamaspec.errors import ModelLoadError, OptionError
from llamaspec.runtime.gguf_file import GGUFFile
from llamaspec.text import chat
from llamaspec.text.chat import ChatTemplate
from llamaspec.text.sandbox import TemplateLimitError
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


LONG = "{% set x = [0] * 9000000 %}{% for i in range(9999) %}%s{% endfor %}"
TEXT = "{% set a = 'x' * 12000000 %}{% set b = 'x' * 12000000 %}"
SLOW = [
    "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
    "{% set r = range(99999) %}{% for i in r %}{% for j in r %}{% endfor %}{% endfor %}",
    "{% set r = range(99999) %}{% for i in r %}{% for j in r if false %}{% endfor %}{% endfor %}",
    "{% for j in ('x' * 30000000) if false %}{% endfor %}",
    "{% for j in ('x' * 9000000) if true %}{% if loop.length %}{% endif %}{% endfor %}",
    "{% for i in range(99999) recursive %}{{ loop(range(99999)) if loop.depth < 9 }}{% endfor %}",
    "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}",
    "{% macro f() %}{% for i in range(99999) %}{% endfor %}{% endmacro %}"
    "{% for i in range(9999) %}{% set x = f() %}{% endfor %}",
    "{% for i in range(99999) %}{{ self.b() }}{% endfor %}"
    "{% block b %}{% for j in range(99999) %}{% endfor %}{% endblock %}",
    GROW % "{% set ns.s = [ns.s, ns.s] %}",
    (GROW % "{% set ns.s = [ns.s, ns.s] %}").replace("{{ ns.s }}", "{{ ns.s | tojson }}"),
    LONG.replace("%s", "{% set y = x | sort %}"),
    LONG.replace("%s", "{% set y = x | map('string') | select('eq', '1') | first %}"),
    LONG.replace("%s", "{% set y = x | select | first %}"),
    LONG.replace("%s", "{% set y = x | unique | list %}"),
    LONG.replace("%s", "{% set y = x | map(attribute='y') | list %}"),
    *("{{ slow | " + walk + " | list }}" for walk in ("select", "unique", "batch(9)")),
    "{{ ['x'] | map(attribute='0.' * 9000000) | list }}",
    TEXT + "{% if a == b %}{% endif %}" * 15000,
    TEXT + "{% if a is eq(b) %}{% endif %}" * 15000,
    TEXT + "{% if 'xy' in a %}{% endif %}" * 15000,
    "{% set n = 7 ** 20000 %}{% set d = 7 ** 9999 %}" + "{% set m = n // d %}" * 9000,
]


class SlowList(list[int]):
    """Thousands of items that take a minute to walk through."""

    def __iter__(self) -> Iterator[int]:
        for index in range(len(self)):
            time.sleep(0.01)
            yield self[index]


def ended(work: Callable[[], object]) -> BaseException | None:
    """What the work raises, which it must do within half a minute."""
    failures: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except Exception as error:  # compared by the test
            failures.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(30)
    assert not thread.is_alive(), "still at work"
    return failures[0] if failures else None


@pytest.mark.parametrize("source", SLOW)
def test_templates_that_eat_time(source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # what compiling computes of constants takes slow machines long
    monkeypatch.setattr(chat, "RENDER_SECONDS", 60.0)
    template = ChatTemplate(source, origin="m.gguf")
    monkeypatch.setattr(chat, "RENDER_SECONDS", 0.3)
    error = ended(lambda: template.render(ASK, variables={"slow": SlowList([0] * 6000)}))
    assert isinstance(error, ModelLoadError), error
    assert "m.gguf takes longer than 0.3 s; pass the prompt as text" in str(error)


def test_indented_json_looks_at_the_clock() -> None:
    environment = chat._environment()
    work = partial(chat.tojson, environment, SlowList([0] * 6000), indent=1)
    assert isinstance(ended(lambda: environment.bounded(work, 0.3)), TemplateLimitError)


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("{% set x = 'x' * 30000000 %}" + "{% set y = x[1:] %}" * 300, "64 million"),
        ("{{ ('<!---->' * 1000000) | striptags }}", "calls striptags on more than 262144"),
        ("{{ ([[1, 2]] * 1000000) | pprint }}", "calls pprint on more than 262144"),
        ("{{ ('{0}' * 2000000).format(1) }}", "formats more values"),
    ],
)
def test_slow_steps_are_refused(source: str, words: str) -> None:
    error = ended(lambda: render(source))
    assert isinstance(error, ModelLoadError), error
    assert words in str(error)


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("{% for a in b %}" * 90 + "{{a}}" * 4000 + "{% endfor %}" * 90, "takes longer than 0.3 s"),
        ("".join(f"{{%if a%}}{{%set b{i}=1%}}{{%endif%}}" for i in range(3000)), "3000 branches"),
        ("{% if " + "==".join("a" * 1000) + " %}{% endif %}", "chains 999 comparisons"),
    ],
)
def test_templates_that_take_long_to_compile(
    source: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if words.startswith("takes"):
        monkeypatch.setattr(chat, "RENDER_SECONDS", 0.3)
    error = ended(lambda: ChatTemplate(source, origin="m.gguf"))
    assert isinstance(error, ModelLoadError), error
    assert words in str(error)


def test_the_caller_s_thread_renders() -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    assert render("{{ f() }}", f=threading.get_ident) == str(threading.get_ident())
    with pytest.raises(KeyboardInterrupt):
        render("{% for i in [1] %}{{ f() }}{% endfor %}", f=interrupt)


def test_threads_have_budgets_of_their_own() -> None:
    template = ChatTemplate("{{ wait() }}{% set x = 'x' * 20000000 %}{{ wait() }}{{ x|length }}")
    together = threading.Barrier(3, timeout=20)
    texts: list[str] = []

    def wait() -> str:
        together.wait()
        return ""

    def work() -> None:
        texts.append(template.render(ASK, variables={"wait": wait}))

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert texts == ["20000000"] * 3


def plain() -> ImmutableSandboxedEnvironment:
    """The environment that Hugging Face renders chat templates in."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = lambda value, ensure_ascii=False, **options: json.dumps(
        value, ensure_ascii=ensure_ascii, **options
    )
    return environment


LOOP = (
    "{{ loop.index }}{{ loop.index0 }}{{ loop.revindex }}{{ loop.revindex0 }}{{ loop.length }}"
    "{{ loop.first }}{{ loop.last }}{{ loop.previtem }}{{ loop.nextitem }}{{ loop.depth }}"
    "{{ loop.cycle('a', 'b') }}{{ loop.changed(x // 2) }};"
)


@pytest.mark.parametrize(
    "source",
    [
        *(
            "{% for x in " + values + " %}" + LOOP + "{% else %}none{% endfor %}"
            for values in (
                "[3, 4, 5]",
                "range(3)",
                "[]",
                "missing",
                "range(9) if x % 2",
                "range(9) if x > 9",
                "[1, 2] | map('int')",
                "{4: 1, 5: 2}",
                "range(3000) | list | select('divisibleby', 700)",
            )
        ),
        "{% for x in [[1, [2]], [[3]]] recursive %}{{ loop.depth0 }}{{ loop.index }}"
        "{{ loop(x) if x is iterable else x }}{{ loop.last }}{% endfor %}",
        "{% for x in [[1, 0, [2, 0]], 0] if x recursive %}{{ loop.length }}{{ loop.revindex }}"
        "{{ loop(x) if x is iterable else x }}{% else %}-{% endfor %}",
        "{% for x in range(9) if x != 4 %}{% if x == 2 %}{% continue %}{% endif %}{{ loop.last }}"
        "{% if loop.length - x < 3 %}{% break %}{% endif %}{{ x }}{% else %}none{% endfor %}",
        "{% for k in 'ab' %}{% for k in 'xy' %}{{ loop.last }}{% endfor %}{{ k }}{% endfor %}",
        "{% macro f(xs) %}{% for x in xs %}{{ caller(x) }}{{ loop.last }}{% endfor %}{% endmacro %}"
        "{% call(y) f([1, 2]) %}<{{ y }}>{% endcall %}",
        "{% set n = namespace(t=0) %}{% for x in 'abc' %}{% set t = loop.index %}"
        "{% set n.t = n.t + t %}{% endfor %}{{ n.t }}{{ t }}",
        "{% for x in [1, 2] %}{% block b scoped %}{{ x }}{{ loop.last }}{% endblock %}{% endfor %}",
        "{% for m in messages[::-1] %}{{ m.role }}{{ m['content'][:3] }}{{ m.none }}{% endfor %}",
        "{{ range(2000) | list | sort(reverse=true) | unique | batch(700) | map('sum') | list }}",
        "{{ range(1500) | map('string') | list | groupby(0) | map('first') | list }}",
        "{{ range(1500) | list | reject | list }}{{ range(1500) | list | select('odd') | sum }}",
        "{{ 1 < 2 < 3 }}{{ 3 > 2 > 2 }}{{ 'a' in 'abc' }}{{ 1 not in [1] }}{{ 1 == 1.0 }}",
        "{{ messages | tojson(indent=2) }}{{ {'b': '<é>', 'a': []} | tojson(sort_keys=true) }}",
        "{{ 7 - 2 }}{{ 7 / 2 }}{{ 7 // 2 }}{{ -7 % 3 }}{{ -(2 - 5) }}{{ 'abc'[1:][::-1] }}",
        "{{ 3 is odd }}{{ 3 is eq 3 }}{{ 'a' is in ['a'] }}{{ 'a' is lower }}{{ x is defined }}",
    ],
)
def test_renders_as_a_plain_environment(source: str) -> None:
    assert render(source) == plain().from_string(source).render(messages=ASK) != ""


def test_budgets_are_for_each_render() -> None:
    template = ChatTemplate("{{ 'x' * 20000000 }}")
    for _ in range(5):
        assert len(template.render(ASK)) == 20_000_000
