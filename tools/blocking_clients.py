"""Writes rocketpy/sync/methods.py: blocking forms of the methods of the asyncio clients.

    python -m tools.blocking_clients --check    fails if the file is out of date
    python -m tools.blocking_clients --write    writes the file, unformatted: run ruff format afterwards

Each asyncio class gets a counterpart with the same base classes, parameters, types and attributes. A method
that the classes in rocketpy/sync define by hand is left to them.
"""

from __future__ import annotations

import ast
import builtins
import inspect
import sys
import textwrap
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import cast

import rocketpy
from tools.import_map import ROOT

TARGET = ROOT / "rocketpy/sync/methods.py"
CLIENTS: tuple[type, ...] = (
    rocketpy.Producer,
    rocketpy.PushConsumer,
    rocketpy.LitePullConsumer,
    rocketpy.PullConsumer,
    rocketpy.SimpleConsumer,
    rocketpy.AdminClient,
)
ELSEWHERE = {
    "GroupConsumer.member": "for rocketpy itself",
    "Producer.drain": "`send` and `send_oneway` wait",
    "Producer.request_nowait": "`request_async`",
    "Producer.send_nowait": "`send_async`",
    "Producer.transactions": "for wrappers, which need an event loop",
    "PushConsumer.running_properties": "for rocketpy itself",
    "LitePullConsumer.running_properties": "for rocketpy itself",
    "SimpleConsumer.running_properties": "for rocketpy itself",
}
"""Methods without a counterpart of this name, and what there is instead."""
FUTURES = ("pull", "pull_records")
"""Methods of which another form returns the future of the result: `pull_async`."""
RUNNERS = {"assign": "_configure", "close": "_close", "subscribe": "_configure", "unsubscribe": "_configure"}
"""Methods that may be called before the start -> the method of `Blocking` that runs them."""
_HEAD = '''"""The methods of the asyncio clients, in classes that wait for their results.

Written by python -m tools.blocking_clients --write; do not edit.
"""

from __future__ import annotations

'''
_WIDTH = 110
_ITERATOR = "AsyncIterator"

Method = ast.AsyncFunctionDef | ast.FunctionDef


def generate(clients: Sequence[type], by_hand: Mapping[str, Collection[str]]) -> str:
    """Return the text of the module. by_hand: the methods that classes of rocketpy/sync define."""
    module = _Module(by_hand)
    for client in clients:
        module.add_client(client)
    return module.text()


def methods_by_hand() -> dict[str, set[str]]:
    """Return the methods that each class in rocketpy/sync defines, besides those in the generated module."""
    texts = [path.read_text("utf-8") for path in TARGET.parent.glob("*.py") if path != TARGET]
    classes = [node for text in texts for node in ast.parse(text).body if isinstance(node, ast.ClassDef)]
    return {node.name: {method.name for method in _methods(node)} for node in classes}


def is_current(text: str, wanted: str) -> bool:
    """Return whether two modules have the same code, whatever their formatting and comments."""
    return _shape(text) == _shape(wanted)


def main(arguments: list[str]) -> int:
    """Check or write the module; return the exit status."""
    if arguments not in (["--check"], ["--write"]):
        print(__doc__)
        return 2
    wanted = generate(CLIENTS, methods_by_hand())
    if TARGET.exists() and is_current(TARGET.read_text("utf-8"), wanted):
        return 0
    if arguments == ["--write"]:
        TARGET.write_text(wanted, "utf-8")
        return 0
    print(f"{TARGET.relative_to(ROOT)} is out of date; run: python -m tools.blocking_clients --write")
    return 1


class _Module:
    """The generated module while it grows."""

    def __init__(self, by_hand: Mapping[str, Collection[str]]) -> None:
        self._by_hand = by_hand
        self._imports = {("typing", "Final"), ("typing", "TypeVar")}
        self._classes: dict[type, str] = {}

    def text(self) -> str:
        imports = [f"from {module} import {name}" for module, name in sorted(self._imports)]
        return _HEAD + "\n".join([*imports, *self._classes.values()]) + "\n"

    def add_client(self, client: type) -> None:
        """Add the counterpart of a client, after those of its parts, with a constructor."""
        body = _definition(client).body
        init = next(node for node in body if isinstance(node, Method) and node.name == "__init__")
        lines = [
            f"    def __init__({ast.unparse(init.args)}) -> None:",
            f"        super().__init__({self._path(client)}({', '.join(_passed(init.args))}))",
        ]
        self._import_names(client, init)
        for name, (owner, annotation) in _attributes(client).items():
            if annotation == "Final":
                lines.append(f"        self.{name}: Final = self._inner.{name}")
            else:
                part = getattr(sys.modules[owner.__module__], annotation)
                self._add(part, "BlockingPart")
                lines.append(
                    f"        self.{name}: {annotation} = {annotation}(self._inner.{name}, self._loop_thread)"
                )
        self._add(client, "Blocking", lines)

    def _add(self, cls: type, base: str, constructor: Sequence[str] = ()) -> list[str]:
        """Add the counterpart of a class, after those of its base classes; return what has its methods.

        base: the base class where the class itself has none.
        """
        bases = [name for one in cls.__bases__ if _is_ours(one) for name in self._add(one, base)]
        by_hand = {*self._by_hand.get(base, ()), *self._by_hand.get(cls.__name__, ())}
        methods = [
            method
            for method in _methods(_definition(cls))
            if method.name not in by_hand and f"{cls.__name__}.{method.name}" not in ELSEWHERE
        ]
        if not methods and not constructor:
            return bases
        if cls not in self._classes:
            lines, path = [], self._path(cls)
            if base == "Blocking" and not constructor:  # several clients share it
                lines.append(f'_{cls.__name__} = TypeVar("_{cls.__name__}", bound={path})')
                path = f"_{cls.__name__}"
            self._imports.add(("rocketpy.sync.blocking", base))
            lines += [
                f"class {cls.__name__}({', '.join(f'{name}[{path}]' for name in bases or [base])}):",
                f'    """The methods of `{cls.__module__}.{cls.__name__}`, which describes them in full."""',
                *constructor,
            ]
            for method in methods:
                self._import_names(cls, method)
                lines += self._counterparts(method)
            self._classes[cls] = "\n".join(lines)
        return [cls.__name__]

    def _counterparts(self, method: Method) -> Iterator[str]:
        """Yield the methods that wait for this one, or return its future."""
        name, passed = method.name, ", ".join(_passed(method.args))
        result = "None" if method.returns is None else ast.unparse(method.returns)
        runner = RUNNERS.get(name, "_run")
        if isinstance(method, ast.AsyncFunctionDef) or _is_iterator(method):
            work = f"self._inner.{name}({passed})"
        else:
            self._imports.add(("rocketpy.sync.loop_thread", "as_coroutine"))
            is_property = "property" in map(ast.unparse, method.decorator_list)
            call = f"lambda: self._inner.{name}" if is_property else f"self._inner.{name}"
            work = f"as_coroutine({', '.join(filter(None, (call, passed)))})"
        if _is_iterator(method):
            self._imports.add(("collections.abc", "Iterator"))
            result, runner = result.removeprefix("Async"), "_iterate"
        head = f"def {{name}}({ast.unparse(method.args)}) -> {{result}}:"
        body = ("" if result == "None" else "return ") + f"self.{runner}({work})"
        yield _text(head.format(name=name, result=result), _summary(method), body)
        if name in FUTURES:
            self._imports.add(("concurrent.futures", "Future"))
            head = head.format(name=f"{name}_async", result=f"Future[{result}]")
            doc = f"Do the same as `{name}`, but return the future of the result."
            yield _text(head, doc, f"return self._loop_thread().submit({work})")

    def _path(self, cls: type) -> str:
        """Return the name of an asyncio class in the generated module."""
        package, _, module = cls.__module__.rpartition(".")
        self._imports.add((package, module))
        return f"{module}.{cls.__name__}"

    def _import_names(self, cls: type, method: Method) -> None:
        """Import what the signature of a method refers to."""
        known = {
            alias.name: found.module or ""
            for found in ast.walk(ast.parse(inspect.getsource(sys.modules[cls.__module__])))
            if isinstance(found, ast.ImportFrom)
            for alias in found.names
        }
        signature = [method.args, *([] if method.returns is None else [method.returns])]
        for name in (
            found.id for tree in signature for found in ast.walk(tree) if isinstance(found, ast.Name)
        ):
            if name != _ITERATOR and not hasattr(builtins, name):
                self._imports.add((known.get(name, cls.__module__), name))


def _is_ours(cls: type) -> bool:
    return cls.__module__ not in {"builtins", "typing"}


def _definition(cls: type) -> ast.ClassDef:
    (definition,) = ast.parse(textwrap.dedent(inspect.getsource(cls))).body
    return cast("ast.ClassDef", definition)


def _methods(definition: ast.ClassDef) -> Iterator[Method]:
    """Yield the public methods and properties that a class implements."""
    for node in definition.body:
        if not isinstance(node, Method) or node.name.startswith("_"):
            continue
        if ast.unparse(node.body[-1]) != "raise NotImplementedError":
            yield node


def _attributes(client: type) -> dict[str, tuple[type, str]]:
    """Return the public attributes of a client, with the class that sets each and its annotation."""
    return {
        node.target.attr: (owner, ast.unparse(node.annotation))
        for owner in reversed(client.__mro__)
        if _is_ours(owner)
        for node in ast.walk(_definition(owner))
        if isinstance(node, ast.AnnAssign) and isinstance(node.annotation, ast.Name)
        if isinstance(node.target, ast.Attribute) and not node.target.attr.startswith("_")
    }


def _is_iterator(method: Method) -> bool:
    result = method.returns
    return isinstance(result, ast.Subscript) and ast.unparse(result.value) == _ITERATOR


def _passed(arguments: ast.arguments) -> Iterator[str]:
    positional = [*arguments.posonlyargs, *arguments.args][1:]
    yield from (argument.arg for argument in positional)
    if arguments.vararg is not None:
        yield f"*{arguments.vararg.arg}"
    yield from (f"{argument.arg}={argument.arg}" for argument in arguments.kwonlyargs)
    if arguments.kwarg is not None:
        yield f"**{arguments.kwarg.arg}"


def _summary(method: Method) -> str:
    """Return the first sentence of a docstring."""
    paragraph = " ".join((ast.get_docstring(method) or "").partition("\n\n")[0].split())
    return paragraph.partition(". ")[0].removesuffix(".") + "."


def _text(head: str, doc: str, body: str) -> str:
    """Return the text of a method, with its docstring in lines that are not too long."""
    indent = " " * 8
    doc = textwrap.fill(f'{indent}"""{doc}', _WIDTH - len('"""'), subsequent_indent=indent)
    end = f"\n{indent}" if "\n" in doc else ""
    return f'    {head}\n{doc}{end}"""\n{indent}{body}\n'


def _shape(text: str) -> tuple[set[tuple[str | None, str]], list[str]]:
    body = ast.parse(text).body
    imports = {
        (node.module, alias.name) for node in body if isinstance(node, ast.ImportFrom) for alias in node.names
    }
    return imports, [ast.dump(node) for node in body if not isinstance(node, ast.ImportFrom)]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
