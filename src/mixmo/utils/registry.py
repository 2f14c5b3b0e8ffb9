"""Components by name: a mask, a data set or a network family is one function, registered where it is written."""

from collections.abc import Callable, Collection, Iterator
from typing import Generic, TypeVar

from mixmo.utils.errors import UserError, unknown

T = TypeVar("T")


class Registry(Generic[T]):
    """A dictionary of components; an unknown name is an error that suggests the nearest one.

    >>> shapes: Registry[int] = Registry("shape")
    >>> shapes.add("square")(4)
    4
    >>> shapes["square"], list(shapes)
    (4, ['square'])
    """

    def __init__(self, kind: str, taken: Collection[str] = ()) -> None:
        self.kind, self.taken = kind, taken  # for error messages; names that have another meaning
        self._things: dict[str, T] = {}

    def add(self, name: str) -> Callable[[T], T]:
        """Return a decorator that registers a component as `name`."""

        def put(thing: T) -> T:
            if name in self._things or name in self.taken:
                raise UserError(f"there is a {self.kind} '{name}' already; give yours another name")
            self._things[name] = thing
            return thing

        return put

    def __getitem__(self, name: str) -> T:
        if name not in self._things:
            raise unknown(self.kind, name, self._things)
        return self._things[name]

    def __contains__(self, name: object) -> bool:
        return name in self._things

    def __len__(self) -> int:
        return len(self._things)

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self._things))
