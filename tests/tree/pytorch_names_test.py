"""docs/pytorch.md names every test that bears a name of PyTorch's, and none that is not there."""

import re
import unittest

import sources

MACRO = re.compile(r"TEST\(DistributedTest, (\w+)##op\)")
USES = re.compile(r"^LOCKSTEP_REDUCTIONS\((\w+)\)", re.M)
PLAIN = re.compile(r"TEST\(DistributedTest, (\w+)\)")


def tests_in(text):
    plain = [name for name in PLAIN.findall(text)]
    return set(plain) | {stem + op for stem in MACRO.findall(text) for op in USES.findall(text)}


class PytorchNames(unittest.TestCase):
    def test_the_search_finds_both_kinds(self):
        text = "TEST(DistributedTest, a) {}\nTEST(DistributedTest, b_##op) {}\nLOCKSTEP_REDUCTIONS(sum)\n"
        self.assertEqual(tests_in(text), {"a", "b_sum"})

    def test_the_page_lists_the_tests(self):
        page = sources.read("docs/pytorch.md")
        section = page.split("## Under PyTorch's names")[1].split("\n\n")[2]
        listed = set(re.findall(r"`(\w+)`", section))
        there = set()
        for path in sources.files((".cpp",)):
            if path.startswith("tests/distributed/"):
                there |= tests_in(sources.read(path))
        self.assertEqual(listed - there, set(), "listed, but there is no such test")
        self.assertEqual(there - listed, set(), "there, but not listed")
        self.assertIn(f"{len(there)} tests here bear PyTorch's names", " ".join(page.split()))


if __name__ == "__main__":
    unittest.main()
