"""Every test file is part of a test: the CMakeLists.txt of its folder, or of one above, names it or takes all there are."""

import os
import re
import unittest

import sources

RECIPES = "tests/recipes/"  # whose CMakeLists.txt makes the names from a document


def is_built(path):
    folder = os.path.dirname(path)
    while folder:
        lists = os.path.join(folder, "CMakeLists.txt")
        if (sources.ROOT / lists).is_file():
            text = re.sub(r"#.*", "", sources.read(lists))
            if re.search(r"(?<![\w/])" + re.escape(os.path.relpath(path, folder)) + r"(?!\w)", text):
                return True
            if os.path.dirname(path) == folder and re.search(r"file\(GLOB .*\*_test\.cpp", text):
                return True
        folder = os.path.dirname(folder)
    return False


class Tests(unittest.TestCase):
    def test_all_are_built(self):
        files = [path for path in sources.files(("_test.cpp", "_test.cu"))
                 if path.startswith("tests/") and not path.startswith(RECIPES)]
        self.assertGreater(len(files), 200)
        self.assertEqual([path for path in files if not is_built(path)], [])


if __name__ == "__main__":
    unittest.main()
