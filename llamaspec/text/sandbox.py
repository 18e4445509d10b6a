"""A Jinja2 environment for templates that come from a downloaded file and are not to be trusted.

Jinja2's sandbox keeps a template from reaching Python; it does not keep it from eating time and
memory. Here what a template builds is charged to a budget of characters and items, operations that
build much from little are measured before they run, and a render that takes too long is stopped:
every loop, call, filter, test and operator whose cost a template can choose looks at the clock, in
the thread of the caller. What stays open is time inside a single call into C, such as comparing
hugely nested lists.
"""

import re
import threading
from collections.abc import Callable, Iterable, Iterator
from functools import wraps
from math import inf
from time import monotonic
from typing import Any, TypeVar

from jinja2 import nodes
from jinja2.compiler import CodeGenerator, Frame
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

T = TypeVar("T")

BUDGET = 64 << 20
MAX_WIDTH = 10_000
MAX_INTEGER_BITS = 1 << 16
MAX_SLOW = 1 << 18
MAX_COMPARISONS = 20
MAX_BRANCHED_NAMES = 1 << 22
_LONG = 1000
_LEFT_OUT = ("lipsum", "urlize", "wordwrap")
# filters and str methods that turn a number into that many characters or items
_WIDENING = frozenset(
    {
        "batch",
        "center",
        "expandtabs",
        "format",
        "indent",
        "ljust",
        "rjust",
        "slice",
        "tojson",
        "zfill",
    }
)
# filters that look at a container without writing out what is in it
_SHALLOW_NAMES = """
attr batch count d default dictsort first groupby items last length list map max min random
reject rejectattr reverse select selectattr slice sort sum unique
"""
_SHALLOW = frozenset(_SHALLOW_NAMES.split())
# filters that walk through their first argument in Python and may yield nothing for long
_WALKING_NAMES = (
    "batch groupby map max min reject rejectattr select selectattr slice sort sum unique"
)
_WALKING = frozenset(_WALKING_NAMES.split())
# filters that take microseconds for each character or item, or go through all of them repeatedly
_SLOW = frozenset({"pprint", "striptags", "title", "urlencode", "xmlattr"})
# functions and methods with a check of their own
_CHECKED = _WIDENING | {"format_map", "replace", "join", "expandtabs"}
# tests that look at the type of a value or at its head, whatever its size
_INSTANT_NAMES = """
boolean callable defined false filter float integer iterable mapping none number sameas sequence
string test true undefined
"""
_INSTANT = frozenset(_INSTANT_NAMES.split())
_OF_DICT = frozenset(dir({}))
_ABSENT = object()
_WIDE_FORMAT = re.compile(r"%[-#0 +]*(\d{5}|\*|\d*\.(\d{5}|\*))|\{[^{}]*:[^{}]*(\d{5}|\{)")


class TemplateLimitError(Exception):
    """A template asked for more time or memory than any chat needs."""


class _Limits(threading.local):
    """What the render of this thread may still build, and until when."""

    left = BUDGET
    deadline = inf
    seconds = inf


class _Generator(CodeGenerator):
    """Emits looks at the clock, and charges to the budget where a sandbox cannot intercept."""

    def visit(self, node: nodes.Node, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        """Look at the clock of the compilation itself, then emit the node."""
        assert isinstance(self.environment, LimitedSandbox)
        self.environment.tick()
        return super().visit(node, *args, **kwargs)

    def visit_Template(self, node: nodes.Template, frame: Frame | None = None) -> None:
        """Refuse what Jinja2 would take minutes for: it copies all names at every branch."""
        names = {name.name for name in node.find_all(nodes.Name)}
        branches = sum(1 for _ in node.find_all(nodes.If))
        if len(names) * branches > MAX_BRANCHED_NAMES:
            raise TemplateLimitError(f"has {branches} branches over {len(names)} names")
        super().visit_Template(node, frame)

    def visit_For(self, node: nodes.For, frame: Frame) -> None:
        """Emit a loop that looks at the clock in each iteration and in each test of its filter."""
        node.body.insert(0, nodes.ExprStmt(_internal("tick"), lineno=node.lineno))
        if node.test:
            node.test = _internal("checked", node.test)
        super().visit_For(node, frame)

    def visit_Call(self, node: nodes.Call, frame: Frame, forward_caller: bool = False) -> None:
        """Emit calls of the environment's own methods directly, all others through its `call`."""
        if not isinstance(node.node, nodes.EnvironmentAttribute):
            super().visit_Call(node, frame, forward_caller=forward_caller)
            return
        self.write(f"environment.{node.node.name}(")
        for part in node.args:
            self.visit(part, frame)
        self.write(")")

    def visit_Compare(self, node: nodes.Compare, frame: Frame) -> None:
        """Emit a comparison that looks at the clock, unless a constant keeps it short."""
        if len(node.ops) > MAX_COMPARISONS:
            self.fail(f"chains {len(node.ops)} comparisons", node.lineno)
        sides = [node.expr, *(operand.expr for operand in node.ops)]
        searches = any(operand.op in ("in", "notin") for operand in node.ops)
        if not searches and len(sides) == 2 and any(isinstance(s, nodes.Const) for s in sides):
            super().visit_Compare(node, frame)
            return
        self.write("environment.checked(")
        super().visit_Compare(node, frame)
        self.write(")")

    def visit_Getitem(self, node: nodes.Getitem, frame: Frame) -> None:
        """Emit a subscript; a slice, which copies, is charged."""
        if not isinstance(node.arg, nodes.Slice):
            super().visit_Getitem(node, frame)
            return
        self.write("environment.weighed(")
        super().visit_Getitem(node, frame)
        self.write(")")

    def visit_Concat(self, node: nodes.Concat, frame: Frame) -> None:
        """Emit a call of `joined` for `a ~ b ~ c`."""
        self.write("environment.joined((")
        for part in node.nodes:
            self.visit(part, frame)
            self.write(", ")
        self.write("))")


def _internal(method: str, *args: nodes.Node) -> nodes.Call:
    """A call of a method of the environment, which no template text can express."""
    return nodes.Call(nodes.EnvironmentAttribute(method), args, [], None, None)


class LimitedSandbox(ImmutableSandboxedEnvironment):
    """The sandbox with a budget, which every thread that renders has for itself."""

    intercepted_binops = frozenset({"*", "**", "%", "+", "-", "/", "//"})
    code_generator_class = _Generator

    def __init__(self, **options: Any) -> None:  # noqa: ANN401
        super().__init__(finalize=self.measured, **options)
        self._limits = _Limits()
        # Jinja2 joins the buffers of macros and set blocks through this attribute
        self.concat = self.joined  # type: ignore[method-assign]
        for name in _LEFT_OUT:
            self.filters.pop(name, None)
            self.globals.pop(name, None)
        for name, function in self.filters.items():
            self.filters[name] = self.limited(name, function)
        for name, test in self.tests.items():
            if name not in _INSTANT:
                self.tests[name] = self._timed(test)

    def bounded(self, work: Callable[[], T], seconds: float) -> T:
        """Do the work with a fresh budget, in this thread, and return its result.

        Raises:
            TemplateLimitError: it builds too much, or took longer than `seconds`.
        """
        limits = self._limits
        before = limits.left, limits.deadline, limits.seconds
        limits.left, limits.deadline, limits.seconds = BUDGET, monotonic() + seconds, seconds
        try:
            return work()
        finally:
            limits.left, limits.deadline, limits.seconds = before

    def tick(self) -> None:
        """Look at the clock. Raises TemplateLimitError when the time is over."""
        if monotonic() > self._limits.deadline:
            raise TemplateLimitError(f"takes longer than {self._limits.seconds:g} s")

    def checked(self, value: T) -> T:
        """Look at the clock after an expression, whose value this returns."""
        self.tick()
        return value

    def ticking(self, values: Iterable[T]) -> Iterator[T]:
        """The values, with a look at the clock before each."""
        for value in values:
            self.tick()
            yield value

    def charge(self, amount: int) -> None:
        """Take characters or items off the budget. Raises TemplateLimitError when it is used up."""
        limits = self._limits
        limits.left = left = limits.left - amount
        if left < 0:
            raise TemplateLimitError(f"builds more than {BUDGET >> 20} million characters or items")
        if monotonic() > limits.deadline:
            self.tick()

    def measured(self, value: T) -> T:
        """Charge a value by all that is nested in it, and return it."""
        if isinstance(value, str):
            self.charge(len(value))
            return value
        stack: list[object] = [value]
        amount = 0
        while stack:
            item = stack.pop()
            amount += len(item) if isinstance(item, str) else 1
            if isinstance(item, (list, tuple)):
                stack.extend(item)
            elif isinstance(item, dict):
                stack.extend(item)
                stack.extend(item.values())
            if amount > _LONG:
                self.charge(amount)
                amount = 0
        self.charge(amount)
        return value

    def joined(self, parts: Iterable[object]) -> str:
        """The parts as one string, charged before it is built."""
        return "".join([str(self.measured(part)) for part in parts])

    def limited(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """A filter whose arguments are measured before it runs, and its result after."""
        skip = hasattr(function, "jinja_pass_arg")

        @wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
            values = (*args[skip:], *kwargs.values())
            if name not in _SHALLOW:
                self._check_slow(name, values)
            if name in _CHECKED:
                self._check_call(name, values)
            if name in _WALKING and len(args) > skip:
                args = (*args[:skip], self._slowly(args[skip]), *args[skip + 1 :])
            return self.weighed(function(*args, **kwargs))

        return call

    def _timed(self, test: Any) -> Any:  # noqa: ANN401
        @wraps(test)
        def call(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
            self.tick()
            return test(*args, **kwargs)

        return call

    def _slowly(self, value: object) -> object:
        if isinstance(value, (str, list, tuple)) and len(value) > _LONG:
            return self.ticking(value)
        return value

    def getattr(self, obj: Any, attribute: str) -> Any:  # noqa: ANN401
        """Look up an attribute; the keys of messages, most of all, without a failed try first."""
        if type(obj) is dict and attribute not in _OF_DICT:
            value = obj.get(attribute, _ABSENT)
            return self.undefined(obj=obj, name=attribute) if value is _ABSENT else value
        return super().getattr(obj, attribute)

    def getitem(self, obj: Any, argument: Any) -> Any:  # noqa: ANN401
        """Subscribe an object; filters do it for every part of an attribute of every item."""
        self.tick()
        return super().getitem(obj, argument)

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        """Call a function or method, checked as a filter is."""
        method = getattr(__obj, "__wrapped__", __obj)
        owner = getattr(method, "__self__", None)
        if isinstance(owner, str) and (name := getattr(method, "__name__", "")) in _CHECKED:
            __self._check_call(name, (owner, *args, *kwargs.values()))
        return __self.weighed(super().call(__context, __obj, *args, **kwargs))

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:  # noqa: ANN401
        """Run an operator after checking what it would build."""
        if operator in ("*", "**"):
            self._check_product(operator, left, right)
        elif operator == "%" and isinstance(left, str):
            self._check_call("format", (left, right))
        return self.weighed(self.binop_table[operator](left, right))

    def _check_product(self, operator: str, left: object, right: object) -> None:
        if isinstance(left, int) and isinstance(right, int):
            bits = left.bit_length() + right.bit_length()
            if operator == "**":
                bits = left.bit_length() * abs(right)
            if bits > MAX_INTEGER_BITS:
                raise TemplateLimitError(f"computes an integer of {bits} bits")
        for many, times in ((left, right), (right, left)):
            if isinstance(many, (str, list, tuple)) and isinstance(times, int):
                self.charge(len(many) * max(0, times))

    def _check_call(self, name: str, values: tuple[object, ...]) -> None:
        if name in _WIDENING or name == "format_map":
            self._check_widening(name, values)
        texts = [value for value in values if isinstance(value, str)]
        if name == "replace" and len(texts) > 2:
            self.charge(texts[0].count(texts[1]) * len(texts[2]))
        elif name == "join":
            sizes = [len(value) for value in values if isinstance(value, (str, list, tuple, dict))]
            self.charge(max(sizes, default=0) * max(map(len, texts), default=0))
        elif name == "indent" and texts:
            width = max([len(text) for text in texts[1:]], default=0)
            numbers = [value for value in values if isinstance(value, int)]
            self.charge(texts[0].count("\n") * max([4, width, *numbers]))
        elif name == "expandtabs" and texts:
            self.charge(texts[0].count("\t") * MAX_WIDTH)

    def _check_widening(self, name: str, values: tuple[object, ...]) -> None:
        for value in values:
            if isinstance(value, int) and abs(value) > MAX_WIDTH:
                raise TemplateLimitError(f"calls {name} with the number {value}")
        form = values[0] if values else None
        if name.startswith("format"):
            self.measured(values)
            if isinstance(form, str) and _WIDE_FORMAT.search(form):
                raise TemplateLimitError("formats a value wider than any chat needs")
            if isinstance(form, str) and form.count("{") > MAX_WIDTH:
                raise TemplateLimitError("formats more values than any chat needs")

    def _check_slow(self, name: str, values: tuple[object, ...]) -> None:
        before = self._limits.left
        self.measured(values)
        if name in _SLOW and before - self._limits.left > MAX_SLOW:
            raise TemplateLimitError(f"calls {name} on more than {MAX_SLOW} characters or items")

    def weighed(self, value: T) -> T:
        """Charge a value by its own length, look at the clock, and return it."""
        if isinstance(value, (str, list, tuple, dict)):
            self.charge(len(value))
        else:
            self.tick()
        return value
