"""Lists of modules whose kind a type checker knows: `nn.ModuleList` says of its modules only that they are some."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Generic, TypeVar, overload

from torch import nn

Kind = TypeVar("Kind", bound=nn.Module)

if TYPE_CHECKING:

    class ModuleListOf(nn.ModuleList, Generic[Kind]):
        """An `nn.ModuleList` of modules of one kind."""

        def __init__(self, modules: Iterable[Kind]): ...

        @overload
        def __getitem__(self, idx: slice) -> ModuleListOf[Kind]: ...

        @overload
        def __getitem__(self, idx: int) -> Kind: ...

        def __getitem__(self, idx: int | slice) -> Kind | ModuleListOf[Kind]: ...

        def __iter__(self) -> Iterator[Kind]: ...

else:
    ModuleListOf = nn.ModuleList
