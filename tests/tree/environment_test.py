"""docs/environment.md has a row for every environment variable that libraries, programs, tests and scripts name, and none
for others."""

import re
import unittest

import sources

# A string that is a variable's name: FAMILY_NAME, or one word where the environment is asked for it.
FAMILY = re.compile(r'"([A-Z][A-Z0-9]+_[A-Z0-9_]+|OMPI_MCA_\w+)"')
WORD = re.compile(r'(?:getenv|environment\w*|has|number|text|variable|text_of|number_of)\(\s*(?:environment,\s*)?"([A-Z]+)"')
ASKED = re.compile(r'(?:getenv|amount)\(\s*"(\w+)"')
SHELL = re.compile(r"\$\{?(LOCKSTEP_[A-Z_]+)\b")
PYTHON = re.compile(r"""environ(?:ment)?(?:\[|\.get\(|\.setdefault\()"(LOCKSTEP_[A-Z_]+)\"""")


def variables_of(path, text):
    """What one file names. Programs and libraries pass names on, so there every string counts that looks like one."""
    if path.endswith(".sh"):
        assigned = set(re.findall(r"^\s*(LOCKSTEP_[A-Z_]+)=", text, re.M))
        return set(SHELL.findall(text)) - (assigned if path.startswith("tests/") else set())
    if path.endswith(".py"):
        return set(PYTHON.findall(text))
    if path.startswith(("tests/", "bench/")):
        return set(ASKED.findall(text))
    code = re.sub(r"^\s*//.*$", "", text, flags=re.M)
    return set(FAMILY.findall(code)) | set(WORD.findall(code))


def variables_in_use():
    found = {}
    for path in sources.files(sources.CODE + (".sh", ".py")):
        if not path.startswith("tests/tree/"):
            for name in variables_of(path, sources.read(path)):
                found.setdefault(name, set()).add(path)
    return found


def documented():
    cells = re.findall(r"^\| (`.*?) \|", sources.read("docs/environment.md"), re.M)
    return [name for cell in cells for name in re.findall(r"`(\w+)`", cell)]


class Environment(unittest.TestCase):
    def test_names_are_found(self):
        code = 'std::getenv("HOME"); number("RANK"); has("LOCAL_RANK"); print("FAILED", "LOCKSTEP_X=ON");\n  // "NOT_IT"\n'
        self.assertEqual(variables_of("core/log.cpp", code), {"HOME", "RANK", "LOCAL_RANK"})
        self.assertEqual(variables_of("tests/a_test.cpp", 'getenv("A_B"); expect("C_D")'), {"A_B"})
        self.assertEqual(variables_of("scripts/a.sh", 'x=${LOCKSTEP_JOBS:-1}'), {"LOCKSTEP_JOBS"})

    def test_every_variable_has_a_row(self):
        rows = documented()
        self.assertEqual({name: sorted(paths) for name, paths in variables_in_use().items() if name not in rows}, {})

    def test_every_row_has_a_variable(self):
        in_use = variables_in_use()
        self.assertEqual([name for name in documented() if name not in in_use], [])

    def test_rows_are_distinct(self):
        rows = documented()
        self.assertEqual(sorted(set(rows)), sorted(rows))

    def test_readers_find_it(self):
        for path in ("README.md", "CONTRIBUTING.md"):
            self.assertTrue("docs/environment.md" in sources.read(path), path)


if __name__ == "__main__":
    unittest.main()
