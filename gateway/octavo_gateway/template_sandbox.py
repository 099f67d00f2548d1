"""A jinja2 sandbox whose renderings are bounded in steps and in size, so that no template can stop the process.

jinja2's ImmutableSandboxedEnvironment keeps templates off unsafe attributes and mutation. It does not bound work, so:
- steps: every line of compiled template code that runs is counted through sys.settrace, which reaches empty loops too;
- size: `+`, `*`, `%`, `~`, and the calls and filters that can grow a value are checked before or right after they run.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from types import FrameType
from typing import Any, Final

import jinja2
from jinja2 import meta, nodes
from jinja2.compiler import CodeGenerator, Frame
from jinja2.exceptions import SecurityError
from jinja2.sandbox import ImmutableSandboxedEnvironment

MAX_CHARS: Final = 2_000_000
"""Longest string, and most elements of a list, that a template may make."""
MAX_WIDTH: Final = 256
"""Largest padding, indent or field width."""
_TEMPLATE_NAME: Final = "<chat template>"
_FORMAT_WIDTH: Final = re.compile(r"%[^a-zA-Z%]*?(\d{4,}|\*)")
_BRACE_WIDTH: Final = re.compile(r"\{[^{}]*:[^{}]*(\d{4,}|\{)")
_WIDTH_METHODS: Final = frozenset({"center", "ljust", "rjust", "zfill", "expandtabs"})


class TemplateLimit(Exception):
    """A template used more steps or made a larger value than it may."""


class _ConcatChecker(CodeGenerator):
    """Checks the result of every `~`, which the sandbox does not intercept."""

    def visit_Concat(self, node: nodes.Concat, frame: Frame) -> None:
        self.write("environment.sized(")
        super().visit_Concat(node, frame)
        self.write(")")


class BoundedEnvironment(ImmutableSandboxedEnvironment):
    """The sandbox with size checks, and what Hugging Face's chat templates expect (tojson, raise_exception, ...)."""

    code_generator_class = _ConcatChecker
    intercepted_binops = frozenset({"+", "*", "%", "**"})

    def __init__(self) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"])
        self.filters["tojson"] = _tojson
        for name in ("center", "indent", "format", "replace", "join", "wordwrap"):
            self.filters[name] = _sized_filter(name, self.filters[name])
        self.globals["raise_exception"] = _raise_exception
        self.globals["strftime_now"] = _strftime_now

    def sized(self, value: Any) -> Any:
        """`value`; TemplateLimit when it is a string or list beyond the bound."""
        if isinstance(value, (str, list, tuple)) and len(value) > MAX_CHARS:
            raise TemplateLimit(f"a value of {len(value)} elements; at most {MAX_CHARS} are allowed")
        return value

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        if operator == "**":
            raise SecurityError("the operator ** is not allowed")
        if operator == "*":
            _check_repeat(left, right)
        elif operator == "%" and isinstance(left, str):
            _check_format(left)
        return self.sized(super().call_binop(context, operator, left, right))

    def wrap_str_format(self, value: Any) -> Any:
        wrapped = super().wrap_str_format(value)
        if wrapped is not None and _BRACE_WIDTH.search(value.__self__):
            raise TemplateLimit(f"a format width beyond {MAX_WIDTH}")
        return wrapped

    def call(self, context: Any, obj: Any, /, *args: Any, **kwargs: Any) -> Any:
        owner = getattr(obj, "__self__", None)
        if isinstance(owner, str):
            _check_str_method(owner, getattr(obj, "__name__", ""), args, kwargs)
        return self.sized(super().call(context, obj, *args, **kwargs))


def _check_repeat(left: Any, right: Any) -> None:
    for value, times in ((left, right), (right, left)):
        if isinstance(value, (str, list, tuple)) and isinstance(times, int) and len(value) * times > MAX_CHARS:
            raise TemplateLimit(f"a repetition of {len(value) * times} elements; at most {MAX_CHARS} are allowed")
    if isinstance(left, int) and isinstance(right, int) and left.bit_length() + right.bit_length() > 4096:
        raise TemplateLimit("an integer beyond 4096 bits")


def _check_format(pattern: str) -> None:
    if _FORMAT_WIDTH.search(pattern):
        raise TemplateLimit(f"a format width beyond {MAX_WIDTH}")


def _check_str_method(owner: str, name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    if name in _WIDTH_METHODS:
        for width in (*args, *kwargs.values()):
            if isinstance(width, int) and width > MAX_WIDTH:
                raise TemplateLimit(f"{name}() to a width of {width}; at most {MAX_WIDTH} is allowed")
    elif name == "replace" and len(args) >= 2:
        _check_replace(owner, *args[:2])
    elif name == "join" and args and isinstance(args[0], (list, tuple)):
        _check_join(args[0], owner)


def _check_replace(text: str, old: Any, new: Any) -> None:
    count = text.count(str(old)) if old else len(text) + 1
    if len(text) + count * len(str(new)) > MAX_CHARS:
        raise TemplateLimit(f"a replacement that makes more than {MAX_CHARS} characters")


def _check_join(items: Sequence[Any], separator: str) -> None:
    if sum(len(item) if isinstance(item, str) else 8 for item in items) + len(items) * len(separator) > MAX_CHARS:
        raise TemplateLimit(f"a join that makes more than {MAX_CHARS} characters")


def _sized_filter(name: str, inner: Callable[..., Any]) -> Callable[..., Any]:
    def checked(*args: Any, **kwargs: Any) -> Any:
        # A filter marked with pass_environment or pass_eval_context gets that first.
        given = args[1:] if hasattr(inner, "jinja_pass_arg") else args
        rest = (*given[1:], *kwargs.values())
        if name in ("center", "indent", "wordwrap") and any(isinstance(v, int) and v > MAX_WIDTH * 4 for v in rest):
            raise TemplateLimit(f"{name} to a width beyond {MAX_WIDTH * 4}")
        if name == "format":
            _check_format(str(given[0]))
        if name == "replace" and len(given) >= 3:
            _check_replace(str(given[0]), given[1], given[2])
        if name == "join" and isinstance(given[0], (list, tuple)):
            _check_join(given[0], str(rest[0]) if rest else "")
        return inner(*args, **kwargs)

    if hasattr(inner, "jinja_pass_arg"):
        checked.jinja_pass_arg = inner.jinja_pass_arg  # type: ignore[attr-defined]
    return checked


def _tojson(
    value: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False
) -> str:
    """As transformers' own: not HTML-escaped, unlike jinja2's."""
    if isinstance(indent, int) and indent > MAX_WIDTH:
        raise TemplateLimit(f"tojson with an indent of {indent}; at most {MAX_WIDTH} is allowed")
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(str(message))


def _strftime_now(pattern: str) -> str:
    return datetime.now().strftime(pattern)


def compile_template(source: str) -> jinja2.Template:
    """Compiles in a sandbox of its own. jinja2.TemplateError on a syntax error, RecursionError on absurd nesting."""
    environment = BoundedEnvironment()
    code = environment.compile(source, name=_TEMPLATE_NAME, filename=_TEMPLATE_NAME)
    return jinja2.Template.from_code(environment, code, environment.make_globals(None))


def variables_of(source: str) -> frozenset[str]:
    """What a template that compiles reads from outside."""
    return frozenset(meta.find_undeclared_variables(BoundedEnvironment().parse(source)))


def render_bounded(template: jinja2.Template, variables: Mapping[str, Any], *, max_steps: int) -> str:
    """Renders within `max_steps` lines of template code. TemplateLimit beyond; whatever the template raises otherwise."""
    left = max_steps
    size = 0

    def count_line(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal left
        if event == "line":
            left -= 1
            if left < 0:
                raise TemplateLimit(f"more than {max_steps} steps: does it loop?")
        return count_line

    def enter(frame: FrameType, event: str, argument: Any) -> Any:
        return count_line if frame.f_code.co_filename == _TEMPLATE_NAME else None

    rendered: list[str] = []
    before = sys.gettrace()
    sys.settrace(enter)
    try:
        for part in template.generate(**variables):
            size += len(part)
            if size > MAX_CHARS:
                raise TemplateLimit(f"more than {MAX_CHARS} characters of output")
            rendered.append(part)
    finally:
        sys.settrace(before)
    return "".join(rendered)
