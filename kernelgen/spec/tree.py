"""YAML text as a tree in which every text, list and mapping knows its place in the file.

The tree is built from PyYAML's parser events, which carry the same marks as composed nodes; unlike `yaml.compose`
they show anchors and aliases, which a spec does not use, and need no recursion, so nesting cannot exhaust the stack.
Scalars stay text: what `no` or `1e-3` means depends on what is expected there, not on YAML 1.1.
"""

from __future__ import annotations

import re

import yaml

from kernelgen.spec.model import Place

Finding = tuple[Place, str]
"""A mistake before it is tied to a file."""

MAX_DEPTH = 16
"""A right spec nests to a depth of 5."""

MAX_CHARACTERS = 1 << 20

_NULLS = ("", "~", "null", "Null", "NULL")


class Text(str):
    """A scalar as it was written."""

    place: Place
    style: str
    """'' for a plain scalar, else the quote or block character."""

    def __new__(cls, text: str, place: Place, style: str = "") -> Text:
        self = super().__new__(cls, text)
        self.place, self.style = place, style
        return self

    @property
    def is_null(self) -> bool:
        """Nothing was written, or YAML's word for nothing."""
        return not self.style and self in _NULLS


class Seq(list["Tree"]):
    """A list; `place` is its first character."""

    def __init__(self, place: Place) -> None:
        super().__init__()
        self.place = place


class Map(dict[Text, "Tree"]):
    """A mapping; its keys are `Text` and so have places of their own."""

    def __init__(self, place: Place) -> None:
        super().__init__()
        self.place = place

    def key_place(self, name: str) -> Place:
        """Where the key `name` stands; the mapping itself where it has no such key."""
        return next((key.place for key in self if key == name), self.place)

    def text(self, name: str) -> Text | None:
        """The scalar under `name`, None where there is none."""
        value = self.get(name)  # type: ignore[call-overload]  # a Text hashes and compares as its str
        return value if isinstance(value, Text) and not value.is_null else None

    def entries(self, name: str) -> list[Tree]:
        """The list under `name`, empty where there is none."""
        value = self.get(name)  # type: ignore[call-overload]
        return value if isinstance(value, Seq) else []

    def child(self, name: str) -> Map:
        """The mapping under `name`, empty where there is none."""
        value = self.get(name)  # type: ignore[call-overload]
        return value if isinstance(value, Map) else Map(self.place)


Tree = Text | Seq | Map


def kind(tree: Tree) -> str:
    """What a value is, for "needs a list, got ..."."""
    if isinstance(tree, Map):
        return "a mapping"
    if isinstance(tree, Seq):
        return "a list"
    return "nothing" if tree.is_null else f"'{shorten(tree)}'"


def shorten(text: str, limit: int = 60) -> str:
    """One line of at most `limit` characters for a message."""
    line = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    return line if len(line) <= limit else line[: limit - 1] + "…"


def read(text: str) -> tuple[Map | None, list[Finding]]:
    """The mapping a spec consists of, None where there is none, and every mistake of YAML itself."""
    if len(text) > MAX_CHARACTERS:
        return None, [(Place(1, 1), f"a spec of {len(text):,} characters; at most {MAX_CHARACTERS:,} are read")]
    if odd := re.search("[\x85\u2028\u2029]", text):
        return None, [(place_at(text, odd.start()), f"line separator U+{ord(odd[0]):04X}; end lines with a newline")]
    builder = _Builder()
    try:
        for event in yaml.parse(text, Loader=yaml.SafeLoader):
            if builder.add(event):
                break
    except yaml.reader.ReaderError as error:
        where = place_at(text, error.position)
        return None, [*builder.findings, (where, f"character U+{_codepoint(error):04X} is not allowed in YAML")]
    except yaml.MarkedYAMLError as error:
        return None, [*builder.findings, _syntax(text, error)]
    except yaml.YAMLError as error:
        return None, [*builder.findings, (Place(1, 1), f"not YAML: {shorten(str(error))}")]
    except (ValueError, OverflowError):
        # PyYAML turns `\U00110000` and `%YAML 99…9.0` into Python numbers without looking
        return None, [*builder.findings, (Place(1, 1), "not YAML: an escape or a number is out of range")]
    return builder.finish()


class _Builder:
    """Folds parser events into a tree; the stack holds the collections that are still open."""

    def __init__(self) -> None:
        self.findings: list[Finding] = []
        self.root: Tree | None = None
        self.open: list[tuple[Seq | Map, Text | None]] = []
        """Each open collection and, in a mapping, the key that still waits for its value."""
        self.documents = 0

    def add(self, event: yaml.Event) -> bool:
        """Take one event; True: the rest of the file cannot be read sensibly."""
        place = Place(event.start_mark.line + 1, event.start_mark.column + 1) if event.start_mark else Place(1, 1)
        match event:
            case yaml.DocumentStartEvent():
                self.documents += 1
                if self.documents > 1:
                    self.findings.append((place, "a second document; a spec is one document, without '---' inside"))
                    return True
            case yaml.AliasEvent():
                self.findings.append((place, f"alias '*{event.anchor}'; a spec has no anchors: write the value out"))
                self._value(Text("", place))
            case yaml.ScalarEvent():
                self._properties(event, place)
                self._value(Text(event.value, place, event.style or ""))
            case yaml.MappingStartEvent() | yaml.SequenceStartEvent():
                self._properties(event, place)
                collection = Map(place) if isinstance(event, yaml.MappingStartEvent) else Seq(place)
                self._value(collection)
                self.open.append((collection, None))
                if len(self.open) > MAX_DEPTH:
                    self.root = None  # what was read so far would only give mistakes that are none
                    self.findings.append((place, f"nested more than {MAX_DEPTH} deep"))
                    return True
            case yaml.MappingEndEvent() | yaml.SequenceEndEvent():
                self.open.pop()
        return False

    def finish(self) -> tuple[Map | None, list[Finding]]:
        """The root as a mapping, or the reason why it is none."""
        if self.root is None or (isinstance(self.root, Text) and self.root.is_null):
            return None, self.findings or [(Place(1, 1), "the file is empty; a spec starts with 'name:'")]
        if not isinstance(self.root, Map):
            message = f"a spec is a mapping that starts with 'name:', got {kind(self.root)}"
            return None, [*self.findings, (self.root.place, message)]
        return self.root, self.findings

    def _properties(self, event: yaml.NodeEvent, place: Place) -> None:
        if event.anchor is not None:
            self.findings.append((place, f"anchor '&{event.anchor}'; a spec has no anchors: write the value out"))
        if getattr(event, "tag", None) not in (None, "!"):
            self.findings.append((place, f"tag '{shorten(event.tag)}'; a spec has no tags"))  # type: ignore[attr-defined]

    def _value(self, value: Tree) -> None:
        """Put a finished scalar or a new collection where the open collection expects it."""
        if not self.open:
            self.root = value if self.root is None else self.root
            return
        parent, key = self.open[-1]
        if isinstance(parent, Seq):
            parent.append(value)
        elif key is None:
            self.open[-1] = (parent, self._key(parent, value))
        else:
            parent[key] = value
            self.open[-1] = (parent, None)

    def _key(self, parent: Map, value: Tree) -> Text:
        """A key, once it is known to be a new and plain one; a bad one gets a name that no later check reports."""
        unusable = Text(f"\0{len(parent)}", value.place)
        if not isinstance(value, Text):
            self.findings.append((value.place, f"a key is a name, got {kind(value)}"))
            return unusable
        if value.startswith("\0"):  # as unusable ones do, of which no later check speaks
            self.findings.append((value.place, "a key is a name, got one that begins with a null character"))
            return unusable
        if value == "<<" and not value.style:
            self.findings.append((value.place, "merge key '<<'; a spec has none: write the keys out"))
            return unusable
        if value in parent:
            first = parent.key_place(value)
            self.findings.append((value.place, f"duplicate key '{shorten(value)}'; first on line {first.line}"))
            return unusable
        return value


def place_at(text: str, index: int) -> Place:
    """Line and column of a character of the text."""
    before = re.sub("\r\n|\r", "\n", text[:index])
    return Place(before.count("\n") + 1, len(before) - (before.rfind("\n") + 1) + 1)


def _codepoint(error: yaml.reader.ReaderError) -> int:
    return error.character if isinstance(error.character, int) else ord(error.character[:1] or "?")


def _syntax(text: str, error: yaml.MarkedYAMLError) -> Finding:
    mark = error.problem_mark or error.context_mark
    if mark is None:
        return Place(1, 1), f"not YAML: {shorten(str(error))}"
    place = Place(mark.line + 1, mark.column + 1)
    lines = text.splitlines()
    line = lines[mark.line] if mark.line < len(lines) else ""
    if "\t" in line[: mark.column + 1]:
        return Place(place.line, line.index("\t") + 1), "a tab; YAML is indented with spaces"
    context = f" {error.context}" if error.context else ""
    opened = f" (opened on line {error.context_mark.line + 1})" if error.context_mark and error.context else ""
    return place, f"not YAML: {error.problem}{context}{opened}"
