"""A Jinja2 environment for templates that come from a downloaded file and are not to be trusted.

Jinja2's sandbox keeps a template from reaching Python; it does not keep it from eating time and
memory. Here what a template builds is charged to a budget of characters and items, operations that
build much from little are measured before they run, and a render that takes too long is stopped.
What stays open is time inside a single call into C, such as comparing hugely nested lists.
"""

import ctypes
import re
import threading
from collections.abc import Callable, Iterable
from functools import wraps
from typing import Any, TypeVar

from jinja2 import nodes
from jinja2.compiler import CodeGenerator, Frame
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

T = TypeVar("T")

BUDGET = 64 << 20
MAX_WIDTH = 10_000
MAX_INTEGER_BITS = 1 << 16
_GRACE_S = 0.5
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
_WIDE_FORMAT = re.compile(r"%[-#0 +]*(\d{5}|\*|\d*\.(\d{5}|\*))|\{[^{}]*:[^{}]*(\d{5}|\{)")


class TemplateLimitError(Exception):
    """A template asked for more time or memory than any chat needs."""


class _Interrupt(SystemExit):
    """Raised inside the thread of a render that has run out of time; threads end on it silently."""


class _Generator(CodeGenerator):
    """Routes the `~` operator, which a sandbox cannot intercept otherwise, through the budget."""

    def visit_Concat(self, node: nodes.Concat, frame: Frame) -> None:
        """Emit a call of `joined` for `a ~ b ~ c`."""
        self.write("environment.joined((")
        for part in node.nodes:
            self.visit(part, frame)
            self.write(", ")
        self.write("))")


class LimitedSandbox(ImmutableSandboxedEnvironment):
    """The sandbox with a budget, which every thread that renders has for itself."""

    intercepted_binops = frozenset({"*", "**", "%", "+"})
    code_generator_class = _Generator

    def __init__(self, **options: Any) -> None:  # noqa: ANN401
        super().__init__(finalize=self.measured, **options)
        self._local = threading.local()
        # Jinja2 joins the buffers of macros and set blocks through this attribute
        self.concat = self.joined  # type: ignore[method-assign]
        for name in _LEFT_OUT:
            self.filters.pop(name, None)
            self.globals.pop(name, None)
        for name, function in self.filters.items():
            self.filters[name] = self.limited(name, function)

    def charge(self, amount: int) -> None:
        """Take characters or items off the budget. Raises TemplateLimitError when it is used up."""
        self._local.left = getattr(self._local, "left", BUDGET) - amount
        if self._local.left < 0:
            raise TemplateLimitError(f"builds more than {BUDGET >> 20} million characters or items")

    def measured(self, value: T) -> T:
        """Charge a value by all that is nested in it, and return it."""
        if isinstance(value, str):
            self.charge(len(value))
            return value
        stack: list[object] = [value]
        while stack:
            item = stack.pop()
            if isinstance(item, (list, tuple)):
                stack.extend(item)
            elif isinstance(item, dict):
                stack.extend(item)
                stack.extend(item.values())
            self.charge(len(item) if isinstance(item, str) else 1)
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
                self.measured(values)
            self._check_call(name, values)
            return self._weighed(function(*args, **kwargs))

        return call

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        """Call a function or method, checked as a filter is."""
        method = getattr(__obj, "__wrapped__", __obj)
        owner = getattr(method, "__self__", None)
        if isinstance(owner, str):
            values = (owner, *args, *kwargs.values())
            __self._check_call(getattr(method, "__name__", ""), values)
        return __self._weighed(super().call(__context, __obj, *args, **kwargs))

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:  # noqa: ANN401
        """Run `*`, `**`, `%` or `+` after checking what it would build."""
        if operator in ("*", "**"):
            self._check_product(operator, left, right)
        elif operator == "%" and isinstance(left, str):
            self._check_call("format", (left, right))
        return self._weighed(super().call_binop(context, operator, left, right))

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

    def _weighed(self, value: T) -> T:
        if isinstance(value, (str, list, tuple, dict)):
            self.charge(len(value))
        return value


def run_limited(work: Callable[[], T], seconds: float) -> T:
    """Do the work in a thread of its own and return its result, or raise what it raised.

    Raises:
        TemplateLimitError: it took longer than `seconds`; it is interrupted at the next bytecode.
    """
    outcome: list[T] = []
    failure: list[BaseException] = []

    def run() -> None:
        try:
            outcome.append(work())
        except BaseException as error:  # handed to the caller below
            failure.append(error)

    thread = threading.Thread(target=run, name="llamaspec-template", daemon=True)
    thread.start()
    try:
        thread.join(seconds)
    finally:
        if thread.is_alive():
            ident = ctypes.c_ulong(thread.ident or 0)
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ident, ctypes.py_object(_Interrupt))
            thread.join(_GRACE_S)
    if outcome:
        return outcome[0]
    if failure and not isinstance(failure[0], _Interrupt):
        raise failure[0]
    raise TemplateLimitError(f"takes longer than {seconds:g} s")
