"""A kind of config with every kind of field that a backend may have, for what is written from types."""

from __future__ import annotations

import datetime
import enum
from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypedDict

import msgspec
from msgspec import Meta

from pydra.admission.config_types import KnownBackend
from pydra.devices import Quantity


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Number(enum.Enum):
    ONE = 1
    TWO = 2


class Leaf(msgspec.Struct, tag_field="type", tag="leaf"):
    n: Annotated[float, Meta(gt=0, lt=1e3)] = 1.0


class Branch(msgspec.Struct, tag_field="type", tag="branch"):
    children: list[Leaf] = []


class Options(TypedDict, total=False):
    fast: bool


class Positional(msgspec.Struct, array_like=True):
    x: int


class Tree(msgspec.Struct):
    below: Tree | None = None


class Everything(msgspec.Struct, rename="camel"):
    must_be: str
    colour: Colour = Colour.RED
    number: Number = Number.ONE
    node: Leaf | Branch | None = None
    leaf: Leaf | None = None
    pair: tuple[int, str] | None = None
    names: Annotated[list[Annotated[str, Meta(min_length=1)]], Meta(max_length=3)] = []
    amounts: Mapping[str, Quantity] = {}
    options: Options | None = None
    mode: Literal["a", 1, None] = None
    even: Annotated[int, Meta(multiple_of=2)] = 2
    half: Annotated[float, Meta(multiple_of=0.5)] = 0.5
    odd: Annotated[str, Meta(pattern="^(?!x)")] = "y"
    plain: Annotated[str, Meta(pattern="^a$")] = "a"
    size: int | float | str = 1
    anything: Any = None
    until: datetime.datetime | None = None
    listed: Positional | None = None
    tree: Tree | None = None

    def __post_init__(self) -> None:
        if self.must_be == "not":
            raise ValueError("no")


EVERYTHING = KnownBackend(name="all", driver="all.example.com", types={"all.example.com/v1/Everything": Everything})
