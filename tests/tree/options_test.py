"""The table of CONTRIBUTING.md has a row for every option that CMake's files define, and none for others."""

import re
import unittest

import sources

OPTION = re.compile(r"^\s*(?:option\(|set\((?=[^\n]* CACHE (?:STRING|PATH)))(\w+)", re.M)


def defined():
    paths = [path for path in sources.files((".cmake", "CMakeLists.txt")) if not path.startswith("tests/")]
    return {name for path in paths for name in OPTION.findall(sources.read(path))}


def documented():
    table = sources.read("CONTRIBUTING.md").split("## Options of the build")[1].split("\n## ")[0]
    cells = re.findall(r"^\| (`.*?)\n", table, re.M)
    return [name for cell in cells for name in re.findall(r"`((?:LOCKSTEP|BUILD|CMAKE)_\w+)`", cell)]


class Options(unittest.TestCase):
    def test_each_has_a_row(self):
        self.assertEqual(sorted(documented()), sorted(defined()))


if __name__ == "__main__":
    unittest.main()
