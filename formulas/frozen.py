"""Frozen, keyword-only dataclasses that cost little to define, to make and to change.

The module ``dataclasses`` takes longer to import than most plans take to work out, and compiles methods anew for each class. Here
all classes share their methods, and ``dataclasses`` is asked only when another tool wants to see a dataclass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cached_property
from operator import itemgetter
from threading import RLock
from typing import Any, Final, TypeVar, dataclass_transform

__all__ = ["Field", "field", "fields", "frozen", "is_frozen", "record", "replace"]

T = TypeVar("T")

_MISSING: Final[Any] = object()
_put: Final = object.__setattr__


class Field:
    """One field of a class. ``type`` is its annotation, as text."""

    __slots__ = ("compare", "default", "default_factory", "init", "late", "name", "repr", "type")

    name: str
    type: str

    def __init__(self, *, default: Any, default_factory: Any, init: bool, repr: bool, compare: bool, late: Any) -> None:  # noqa: A002
        self.default = default
        self.default_factory = default_factory
        self.init = init
        self.repr = repr
        self.compare = compare
        self.late = late

    @property
    def is_required(self) -> bool:
        """Whether it has no default."""
        return self.default is _MISSING and self.default_factory is _MISSING


def field(
    *,
    default: Any = _MISSING,
    default_factory: Callable[[], Any] = _MISSING,
    init: bool = True,
    repr: bool = True,  # noqa: A002
    compare: bool = True,
    late: Callable[[Any], Any] | None = None,
) -> Any:
    """What a field needs beyond its default, as :func:`dataclasses.field` has it.

    ``late`` works out the value when it is first read, of a :func:`record` that was made without it: from what the record keeps beside
    its fields, since :func:`replace` may change those.
    """
    return Field(default=default, default_factory=default_factory, init=init, repr=repr, compare=compare, late=late)


@dataclass_transform(frozen_default=True, kw_only_default=True, eq_default=True, field_specifiers=(field,))
def frozen(cls: type[T]) -> type[T]:
    """``dataclass(frozen=True, kw_only=True)``. What comes out is a dataclass to every other tool.

    Methods that the class defines itself stay. Its module must import ``annotations`` from ``__future__``.

    >>> @frozen
    ... class Point:
    ...     x: int
    ...     y: int = 0
    >>> Point(x=1) == Point(x=1, y=0), Point(x=1)
    (True, Point(x=1, y=0))
    """
    made: Any = cls
    # Fields with more than a default leave the class at once; all else waits for the first value, which most classes never have.
    given = cls.__dict__
    made.__frozen__ = _Fields(cls) if Field in map(type, given.values()) else _UNREAD
    for name, method in _SHARED.items():
        if name not in given:
            setattr(cls, name, method)
    # A base that keeps its hash does so for its subclasses.
    if cls.__hash__ is object.__hash__:
        made.__hash__ = _hash
    made.__dataclass_fields__, made.__dataclass_params__ = _AS_DATACLASS
    made.__signature__ = _SIGNATURE
    return cls


def is_frozen(value: object) -> bool:
    """Whether ``value`` is of a class that :func:`frozen` made."""
    return hasattr(type(value), "__frozen__")


def fields(of: object) -> tuple[Field, ...]:
    """The fields of a class or of a value, in their order."""
    found: _Fields = of.__frozen__  # type: ignore[attr-defined]
    return found.all


def replace(record: T, /, **change: Any) -> T:
    """The same with other values in some fields, as :func:`dataclasses.replace` does it."""
    known: _Fields = record.__frozen__  # type: ignore[attr-defined]
    values, cls = record.__dict__, type(record)
    if not (known.plain and change.keys() <= known.names):
        return cls(**{name: getattr(record, name) for name in known.set} | change)
    if len(values) > len(known.names):
        # What the record has worked out for itself is not that of another one.
        values = {name: getattr(record, name) for name in known.set}
    made = cls.__new__(cls)
    _put(made, "__dict__", values | change)
    return made


def record(cls: type[T], values: dict[str, Any]) -> T:
    """A record of a class without a check of its own, from the values of all its fields, by name: unchecked, for where very many are made."""
    made = cls.__new__(cls)
    made.__dict__.update(values)
    return made


class _Fields:
    """The fields of a class, those of its bases first, and what the shared methods need of them."""

    __slots__ = (
        "_every",
        "checked",
        "cls",
        "compared",
        "defaults",
        "factories",
        "given",
        "names",
        "plain",
        "set",
        "unset",
        "values_of",
    )

    def __init__(self, cls: type) -> None:
        self.cls = cls
        self.checked = hasattr(cls, "__post_init__")
        values = _own_values(cls)
        if Field in map(type, values.values()) or any("__frozen__" in base.__dict__ for base in cls.__mro__[1:-1]):
            self._read_all()
        else:
            # Most classes have annotations and defaults alone: what else could be said of a field is made when it is asked for.
            self._every: tuple[tuple[Field, ...], tuple[Field, ...]] | None = None
            self.set = self.compared = tuple(values)
            self.names = values.keys()
            self.unset: frozenset[str] = frozenset()
            self.defaults = {name: value for name, value in values.items() if value is not _MISSING}
            self.factories: tuple[tuple[str, Callable[[], Any]], ...] = ()
        self.given = None if self.unset else self.set
        self.values_of = _getter(self.compared)
        self.plain = not (self.checked or self.unset) and cls.__dict__.get("__init__", _init) is _init

    def _read_all(self) -> None:
        every, _ = self._read()
        self.names = {each.name: each for each in every}.keys()
        self.set = tuple(each.name for each in every if each.init)
        self.unset = frozenset(each.name for each in every if not each.init)
        self.defaults = {each.name: each.default for each in every if each.default is not _MISSING}
        self.factories = tuple((each.name, each.default_factory) for each in every if each.default_factory is not _MISSING)
        self.compared = tuple(each.name for each in every if each.compare)

    def _read(self) -> tuple[tuple[Field, ...], tuple[Field, ...]]:
        """All fields, and those of the class itself."""
        own = tuple(_own_fields(self.cls))
        bases = (base for base in reversed(self.cls.__mro__[1:]) if "__frozen__" in base.__dict__)
        found = {each.name: each for each in (*(each for base in bases for each in fields(base)), *own)}
        self._every = tuple(found.values()), own
        return self._every

    @property
    def all(self) -> tuple[Field, ...]:
        """The fields, those of bases first."""
        return (self._every or self._read())[0]

    @property
    def own(self) -> tuple[Field, ...]:
        """Those of the class itself."""
        return (self._every or self._read())[1]


def _getter(names: tuple[str, ...]) -> Callable[[dict[str, Any]], tuple[object, ...]]:
    """Reads these fields from the values of a record, as a tuple: the library's own function makes none of a single one."""
    return itemgetter(*names) if len(names) > 1 else lambda values: tuple([values[name] for name in names])


class _Unread:
    """Stands for the fields of a class until they are asked for."""

    def __get__(self, record: object, owner: type) -> _Fields:
        made: Any = next(each for each in owner.__mro__ if "__frozen__" in each.__dict__)
        found = made.__frozen__ = _Fields(made)
        return found


_UNREAD: Final = _Unread()


def _own_values(cls: type) -> dict[str, Any]:
    """What the class gives to the fields that it has itself."""
    given = cls.__dict__
    return {name: given.get(name, _MISSING) for name, kind in cls.__annotations__.items() if not kind.startswith("ClassVar")}


def _own_fields(cls: type) -> Iterator[Field]:
    """The fields that the class itself has. As in a dataclass, a default stays behind as the attribute of the class."""
    for name, value in _own_values(cls).items():
        found = value if isinstance(value, Field) else field(default=value)
        if found.late is not None:
            late = cached_property(found.late)
            late.__set_name__(cls, name)
            setattr(cls, name, late)
        elif found is value and found.default is _MISSING:
            delattr(cls, name)
        elif found is value:
            setattr(cls, name, found.default)
        found.name, found.type = name, cls.__annotations__[name]
        yield found


def _init(self: Any, /, **values: Any) -> None:
    known: _Fields = self.__frozen__
    # Most values are made with all of their fields, in their order.
    if tuple(values) != known.given:
        given, values = values, known.defaults | values
        for name, make in known.factories:
            if name not in values:
                values[name] = make()
        if values.keys() != known.names or (known.unset and not known.unset.isdisjoint(given)):
            raise _wrong_names(known, type(self).__qualname__, given)
    attributes = self.__dict__
    attributes |= values
    if known.checked:
        self.__post_init__()


def _wrong_names(known: _Fields, name: str, values: dict[str, Any]) -> TypeError:
    strange = [given for given in values if given not in known.names - known.unset]
    if strange:
        return TypeError(f"{name}.__init__() got an unexpected keyword argument {strange[0]!r}")
    missing = ", ".join(repr(each.name) for each in known.all if each.is_required and each.name not in values)
    return TypeError(f"{name}.__init__() missing required keyword arguments: {missing}")


def _values(record: Any) -> tuple[object, ...]:
    known: _Fields = record.__frozen__
    try:
        return known.values_of(record.__dict__)
    except KeyError:
        # A late field that nobody has read yet.
        return known.values_of({name: getattr(record, name) for name in known.compared})


def _state(self: object) -> dict[str, Any]:
    """What a pickle or a copy takes along: the fields, late ones too. What is kept beside them may not go into another process."""
    return {name: getattr(self, name) for name in self.__frozen__.names}  # type: ignore[attr-defined]


def _set(self: object, name: str, value: object) -> None:
    from dataclasses import FrozenInstanceError

    raise FrozenInstanceError(f"cannot assign to field {name!r}")


def _delete(self: object, name: str) -> None:
    from dataclasses import FrozenInstanceError

    raise FrozenInstanceError(f"cannot delete field {name!r}")


def _equal(self: object, other: object) -> bool:
    if self is other:
        return True
    return _values(self) == _values(other) if type(self) is type(other) else NotImplemented


def _hash(self: object) -> int:
    return hash((type(self), _values(self)))


def _text(self: object) -> str:
    shown = (f"{each.name}={getattr(self, each.name)!r}" for each in fields(self) if each.repr)
    return f"{type(self).__qualname__}({', '.join(shown)})"


_SHARED: Final = {
    "__init__": _init,
    "__setattr__": _set,
    "__delattr__": _delete,
    "__eq__": _equal,
    "__repr__": _text,
    "__getstate__": _state,
    "__replace__": replace,
}


class _AsDataclass:
    """An attribute by which other tools know a dataclass: ``dataclasses`` makes it when it is first asked for."""

    _lock: Final = RLock()

    def __init__(self, name: str) -> None:
        self.name = name

    def __get__(self, record: object, owner: type) -> Any:
        import dataclasses

        cls: Any = next(each for each in owner.__mro__ if self.name in each.__dict__)

        def told(each: Field) -> Any:
            default = {"default": each.default} if each.default is not _MISSING else {}
            factory = {"default_factory": each.default_factory} if each.default_factory is not _MISSING else {}
            return dataclasses.field(**default, **factory, init=each.init, repr=each.repr, compare=each.compare)

        with self._lock:
            if cls.__dict__[self.name] is self:
                own = cls.__frozen__.own
                # A class beside this one, whose attributes other threads may read: a late field is one.
                words = {"__module__": cls.__module__, "__annotations__": {each.name: each.type for each in own}}
                twin: Any = type(cls.__name__, cls.__bases__, {**words, **{each.name: told(each) for each in own}})
                dataclasses.dataclass(kw_only=True, init=False, repr=False, eq=False)(twin)
                for name in ("__dataclass_fields__", "__dataclass_params__"):
                    setattr(cls, name, getattr(twin, name))
        return getattr(cls, self.name)


_AS_DATACLASS: Final = _AsDataclass("__dataclass_fields__"), _AsDataclass("__dataclass_params__")


class _Signature:
    """What ``help`` and editors show of the shared ``__init__``."""

    def __get__(self, record: object, owner: type) -> Any:
        from inspect import Parameter, Signature

        def parameter(each: Field) -> Parameter:
            default = Parameter.empty if each.is_required else ... if each.default is _MISSING else each.default
            return Parameter(each.name, Parameter.KEYWORD_ONLY, default=default, annotation=each.type)

        known: _Fields = owner.__frozen__  # type: ignore[attr-defined]
        return Signature([parameter(each) for each in known.all if each.init])


_SIGNATURE: Final = _Signature()
