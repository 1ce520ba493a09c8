"""A light parser of public headers: which declarations a user sees, and whether a comment (///) explains them.

It knows the C++ that the public headers are written in, not all of it. What counts: classes, enums, functions, public
methods and constructors, public members, constants and type aliases, outside of namespaces called detail. What does not,
because it says nothing of its own: destructors, copies and moves, deleted and defaulted functions, overrides (explained
where they are first declared), forward and friend declarations, and names that mean what they mean in the standard
library (STANDARD).

A comment explains the declaration below it, and with it overloads, a setter below its getter, a class's constructors,
and, for functions that stand in a namespace, all that follow line on line: "the larger (smaller) of both" above maximum() and minimum()."""

import re
from dataclasses import dataclass

SILENT = re.compile(r"= (?:delete|default)$|\boverride\b|^~|^friend\b|^using \w+::\w+(?:::\w+)*$|^using namespace\b|"
                    r"^(?:static_assert|extern \"C\")|\boperator=\s*\(|^template class\b|^extern template\b")
STANDARD = {"begin", "end", "size", "empty", "data", "back", "push_back", "reserve", "resize", "clear", "insert", "erase",
            "get", "reset", "what", "operator[]", "operator*", "operator->", "operatorbool", "operator==", "operator!=",
            "operator++", "operatorstd", "operatornew", "operatordelete", "iterator_category", "value_type",
            "difference_type", "pointer", "reference"}


@dataclass
class Declaration:
    path: str
    line: int
    name: str
    documented: bool


@dataclass
class Text:
    """A header without comments and literals, and where its comments were: lines are kept."""
    code: str
    above: set  # lines that hold nothing but a /// comment
    beside: set  # lines with a ///< comment behind the code


def strip(text):
    above, beside, lines = set(), set(), []
    for number, line in enumerate(text.split("\n")):
        if re.match(r"\s*///", line):
            above.add(number)
        elif "///<" in line:
            beside.add(number)
        line = re.sub(r'"(?:\\.|[^"\\])*"', '""', line)
        line = re.sub(r"'(?:\\.|[^'\\])'", "0", line)
        line = re.sub(r"//.*$", "", line)
        lines.append("" if line.lstrip().startswith("#") or (lines and lines[-1] == "\\") else line)
    return Text("\n".join(lines), above, beside)


def closing(code, at):
    """Position of the brace that closes the one at `at`."""
    depth = 0
    for i in range(at, len(code)):
        depth += (code[i] == "{") - (code[i] == "}")
        if depth == 0:
            return i
    raise ValueError("a brace is not closed")


def is_body(head):
    """Whether a brace after `head` opens a function's body: not an initialiser, not one member's in a constructor's list."""
    flat = head
    while re.search(r"\([^()]*\)", flat):
        flat = re.sub(r"\([^()]*\)", "\0", flat)
    if "\0" not in flat or re.search(r"=\s*$|\breturn\s*$", flat):
        return False
    starts = re.search(r"\0[^:]*[^:]:(?!:)", flat)
    return not (starts and re.search(r"[\w>]\s*$", flat[starts.end():]))


def name_of(head):
    """The declared name: what stands before the parameters, or before the initialiser."""
    head = re.sub(r"^template\s*<.*?>\s*(?=[\w:\[])", "", head)
    head = re.sub(r"\[\[.*?\]\]\s*", "", head)
    special = re.search(r"\boperator\s*(\(\)|[^\s(]+|\s*\w+)\s*\(", head)
    if special:
        return "operator" + special.group(1).strip()
    kind = re.match(r"(?:class|struct|union|enum(?: class)?)\s+(\w+)", head)
    if kind:
        return kind.group(1)
    alias = re.match(r"using (\w+)\s*=", head)
    if alias:
        return alias.group(1)
    before = re.split(r"[({=;]|\[\d|(?<!:):(?!:)", re.sub(r"(?<=\w)<[^<>()]*(?:<[^<>()]*(?:<[^<>]*>[^<>()]*)*>[^<>()]*)*>", "", head), maxsplit=1)[0]
    words = re.findall(r"~?\w+", before)
    return words[-1] if words else ""


def declarations(path, text):
    stripped = strip(text)
    code, found, explained = stripped.code, [], set()

    def line_at(position):
        return code.count("\n", 0, position)

    def add(head, begin, end, scope, group, inside):
        """One declaration from begin to end. Returns what a next one right below it may share its comment with."""
        flat = " ".join(head.split())
        name = name_of(flat)
        first, last = line_at(begin), line_at(end)
        own = first - 1 in stripped.above or any(n in stripped.beside for n in range(first, last + 1))
        if not own and group and group[1] == first - 1:
            function = "(" in flat and not re.match(r"(?:class|struct|enum|using)\b", flat)
            own = group[2] and (name == group[0] or name == "set_" + group[0] or (function and not inside))
        own = own or bool(inside and name == scope[-1] and "::".join(scope) in explained)
        if own and re.match(r"(?:template\s*<.*?>\s*)?(?:class|struct)\b", flat):
            explained.add("::".join([*scope, name]))
        copies = re.match(rf"(?:constexpr |explicit )*{name}\((?:const )?{name}\s*&&?[^,]*\)", flat)
        if name and not SILENT.search(flat) and not copies and not (inside and name in STANDARD):
            found.append(Declaration(path, first + 1, "::".join([*scope, name]), own))
        return (name, last, own)

    def parse(at, end, scope, kind, visible):
        group = None
        while at < end:
            label = re.compile(r"\s*(public|private|protected)\s*:(?!:)").match(code, at, end)
            if label and kind == "class":
                visible, at = label.group(1) == "public", label.end()
                continue
            begin = at + re.compile(r"[\s;]*").match(code, at, end).end() - at
            if begin >= end:
                return
            at, parens = begin, 0
            while at < end:
                c = code[at]
                if c in "([":
                    parens += 1
                elif c in ")]":
                    parens -= 1
                elif c == ";" and parens == 0:
                    head = code[begin:at]
                    forward = re.fullmatch(r"\s*(?:template\s*<[^;]*>\s*)?(?:class|struct|union|enum(?: class)?)\s+\w+(?:\s*:\s*[\w:]+)?\s*", head)
                    if visible and not forward:
                        group = add(head, begin, at, scope, group, kind == "class")
                    at += 1
                    break
                elif c == "{":
                    head, close = code[begin:at], closing(code, at)
                    flat = " ".join(re.sub(r"^\s*template\s*<.*?>\s*(?=struct|class|union)", "", head, flags=re.S).split())
                    if parens == 0 and re.match(r"(?:inline )?namespace\b", flat):
                        names = flat.split()[-1]
                        if flat != "namespace" and "detail" not in names.split("::"):
                            parse(at + 1, close, scope, "namespace", True)
                        at = close + 1
                        break
                    type_head = re.match(r"(class|struct|union|enum)\b(?: class)?(?: \[\[\w+\]\])? (\w+)(?: final)?(?: ?:[^(]*)?$", flat)
                    if parens == 0 and type_head:
                        if visible:
                            group = add(flat, begin, at, scope, group, kind == "class")
                            if type_head.group(1) != "enum":
                                parse(at + 1, close, [*scope, type_head.group(2)], "class", type_head.group(1) != "class")
                        at = close + 1
                        at += re.compile(r"[^;]*;").match(code, at).end() - at
                        break
                    if parens == 0 and is_body(head):
                        if visible:
                            group = add(head, begin, at, scope, group, kind == "class")
                        at = close + 1
                        break
                    at = close
                at += 1

    parse(0, len(code), [], "namespace", True)
    return found
