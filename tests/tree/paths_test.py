"""Files and notes that comments and documents name exist: core/tensor.h, Note [Tensor]."""

import fnmatch
import os
import re
import unittest

import sources

SUFFIXES = ("h", "cpp", "cu", "cuh", "cmake", "md", "sh", "py", "txt")
# A name with a folder, core/tensor.h; stars stand for any text.
NAME = re.compile(r"(?<![\w$<>{}/.%~*-])([\w.*-]+(?:/[\w.*<>-]+)*/[\w.*<>-]+\.(?:" + "|".join(SUFFIXES) + r"))\b(?![\w/(])")
LINK = re.compile(r"\w\]\(([^)#:\s]+)(?:#[^)]*)?\)")
BARE = re.compile(r"(?<![\w$<>{}/.%~*-])(\w[\w-]*\.(?:h|cpp|cu|cuh|cmake|md|sh|py))\b(?![\w/(])")
NOTE = re.compile(r"Note \[([^\]\n]+)\]")
# Not of this tree: made by a build or by a program, of another project, or an example.
ELSEWHERE = ("build/", "autograd/ops.h", "lockstep/autograd/ops.h", "lockstep-gpu-check/", "torch/")
EXAMPLES = re.compile(r"isru|running_sum|<\w+>|DEVICE|^(no_)?x\.|\.\.\.")


def prose(path, text):
    """The lines of a file that are written for readers: all of a document, the comments of code."""
    marks = {".py": "#", ".sh": "#", ".txt": "#", ".cmake": "#"}
    suffix = os.path.splitext(path)[1]
    if suffix == ".md":
        return list(enumerate(text.split("\n"), 1))
    mark = marks.get(suffix, "//")
    return [(n, line[line.index(mark):]) for n, line in enumerate(text.split("\n"), 1)
            if mark in line and not line.lstrip().startswith("#include")]


def resolves(name, path, everything):
    """Whether a file of that name is there: from the root, beside the file that names it, or after installation."""
    if "/" not in name:  # named without its folder
        return any(path == name or path.endswith("/" + name) for path in everything)
    places = [name, os.path.normpath(os.path.join(os.path.dirname(path), name)), name.removeprefix("lockstep/"),
              "scripts/" + name, "tests/" + name]
    return any(fnmatch.filter(everything, place) for place in places)


def missing(path, text, everything):
    found = []
    for number, line in prose(path, text):
        names = NAME.findall(line) + BARE.findall(line) + (LINK.findall(line) if path.endswith(".md") else [])
        found += [f"{path}:{number}: {name}" for name in names
                  if not name.startswith(ELSEWHERE) and not EXAMPLES.search(name)
                  and not resolves(name.rstrip("/"), path, everything)]
    return found


class Paths(unittest.TestCase):
    maxDiff = None

    def test_no_file_holds_both_sides_of_a_merge(self):
        sides = re.compile(r"^(?:<{7} |>{7} )", re.M)
        self.assertEqual([p for p in sources.files(tuple("." + s for s in SUFFIXES)) if sides.search(sources.read(p))], [])

    def test_missing_files_are_found(self):
        tree = ["core/tensor.h", "docs/DESIGN.md", "docs"]
        text = "// See core/tensor.h, lockstep/core/tensor.h, core/*.h and core/gone.h; https://x.org/core/far.h.\nint a;  // b/c.cpp\n"
        self.assertEqual(missing("core/a.h", text, tree), ["core/a.h:1: core/gone.h", "core/a.h:2: b/c.cpp"])
        self.assertEqual(missing("README.md", "[a](docs/DESIGN.md#tensors) [b](docs/) [c](docs/NO.md)", tree),
                         ["README.md:1: docs/NO.md", "README.md:1: docs/NO.md"])

    def test_named_files_exist(self):
        everything = sources.files("")
        everything += sorted({os.path.dirname(path) for path in everything})
        readable = tuple("." + suffix for suffix in SUFFIXES)
        self.assertEqual([hit for path in everything if path.endswith(readable)
                          and path != "tests/tree/paths_test.py" for hit in missing(path, sources.read(path), everything)], [])


class Notes(unittest.TestCase):
    def test_each_stands_once(self):
        stands, named = {}, {}
        for path in sources.files(sources.CODE + (".cmake", ".txt", ".md", ".sh", ".py")):
            if path == "tests/tree/paths_test.py":
                continue
            for line in sources.read(path).split("\n"):
                for note in NOTE.findall(line):
                    heading = re.fullmatch(r"\s*(?://+|#)?\s*Note \[[^\]]+\]\s*", line)
                    (stands if heading else named).setdefault(note, []).append(path)
        self.assertGreater(len(stands), 40)
        self.assertEqual({note: paths for note, paths in named.items() if note not in stands and note != "Name"}, {})
        self.assertEqual({note: paths for note, paths in stands.items() if len(paths) > 1}, {})


if __name__ == "__main__":
    unittest.main()
