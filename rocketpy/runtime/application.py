"""The application's code and values: what its functions may raise, and texts about its values.

A function of the application may raise any exception: also one whose `repr` fails, GeneratorExit, or the
CancelledError of something that it awaited. None of them ends a component (ADR 0028).
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import threading
from typing import Any, Final

from rocketpy.errors import ConfigInvalid

TEXT_MAX: Final = 500
"""Characters of a text about a value of the application; the rest is cut."""


def shown(value: object) -> str:
    """Return the `repr` of a value of the application, bounded; the name of its type if that fails."""
    try:
        return bounded(repr(value))
    except BaseException as error:  # the application's code
        if ends_program(error):
            raise
        return f"<{_type_name(value)} whose repr fails>"


def describe(error: BaseException) -> str:
    """Return the type and the message of an exception, bounded."""
    name = _type_name(error)
    try:
        text = bounded(str(error))
    except BaseException as failed:  # the application's code
        if ends_program(failed):
            raise
        text = "<its str fails>"
    return bounded(f"{name}: {text}" if text else name)


def bounded(text: str) -> str:
    """Return a text without its end if it is longer than `TEXT_MAX`. Lone surrogates are replaced."""
    text = str.encode(text, "utf-8", "replace").decode()  # an own type of strings may do anything
    return text if len(text) <= TEXT_MAX else f"{text[: TEXT_MAX - 1]}…"


def name_of(function: object) -> str:
    """Return the name of a function or of another callable object."""
    while isinstance(function, functools.partial):
        function = function.func
    try:
        name = getattr(function, "__qualname__", None) or type(function).__qualname__
        module = getattr(function, "__module__", None) or type(function).__module__
        return bounded(f"{module}.{name}")
    except BaseException as error:  # the application's code
        if ends_program(error):
            raise
        return _type_name(function)


def _type_name(value: object) -> str:
    """Return the name of a value's type, also if a metaclass of the application overrides `__name__`."""
    name: str = type.__dict__["__name__"].__get__(type(value))
    return name


def check_callable(what: str, function: object, *arguments: str) -> None:
    """Raise ConfigInvalid unless a function of the application can be called with these arguments.

    what: names the function in the error. arguments: their names, for the error.
    """
    if not callable(function):
        raise ConfigInvalid(f"{what} is {shown(function)}, which cannot be called")
    if any(
        kind(function) or kind(getattr(function, "__call__", None))  # noqa: B004 - its kind matters
        for kind in (inspect.isgeneratorfunction, inspect.isasyncgenfunction)
    ):
        raise ConfigInvalid(f"{what} is {name_of(function)}, a generator: remove its yield")
    try:
        signature = inspect.signature(function, follow_wrapped=False)
    except (TypeError, ValueError):  # a function of C without a signature
        return
    try:
        signature.bind(*arguments)
    except TypeError as error:
        wanted = ", ".join(arguments)
        raise ConfigInvalid(
            f"{what} is {name_of(function)}{signature}; it is called with ({wanted}): {error}"
        ) from None


def ends_program(error: BaseException) -> bool:
    """Return whether an exception of a plain function ends the program: sys.exit() and Ctrl-C.

    On another thread than the main one they would end its event loop silently.
    """
    return (
        issubclass(type(error), SystemExit | KeyboardInterrupt)  # its __class__ may be a failing property
        and threading.current_thread() is threading.main_thread()
    )


def ends_task(error: BaseException, task: asyncio.Task[Any] | None) -> bool:
    """Return whether an exception of a coroutine ends `task`, which awaits it, or the program.

    A cancellation that was not requested of this task comes from something that the coroutine awaited. A
    GeneratorExit while the task runs was raised by the application; otherwise the task itself is destroyed.
    """
    kind = type(error)
    if issubclass(kind, asyncio.CancelledError):
        return task is not None and task.cancelling() > 0
    if issubclass(kind, GeneratorExit):
        return task is None or _running_task() is not task
    return ends_program(error)


def _running_task() -> asyncio.Task[Any] | None:
    try:
        return asyncio.current_task()
    except RuntimeError:  # no event loop runs
        return None
