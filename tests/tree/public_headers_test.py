"""What is installed: no more than the closure of lockstep.h and cmake/public_headers.txt, and little of it.

public_headers_test.py --installed FOLDER compares FOLDER, an installation's include/lockstep, with that closure."""

import pathlib
import re
import sys
import unittest

import sources

LIMIT = 123
GENERATED = {"autograd/ops.h"}


class PublicHeaders(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.public = sources.public_headers(sources.include_graph()) | GENERATED

    def test_are_few(self):
        print(f"public headers: {len(self.public)}")
        self.assertLessEqual(len(self.public), LIMIT, "a public header includes internals; declare classes, or split it: "
                             + " ".join(sorted(self.public)))

    def test_include_the_standard_library_alone(self):
        foreign = [f"{header} includes <{name}>" for header in sorted(self.public - GENERATED)
                   for name in re.findall(r"^\s*#\s*include\s+<([^>]+)>", sources.read(header), re.M)
                   if not re.fullmatch(r"[a-z_0-9]+", name)]
        self.assertEqual(foreign, [])

    def test_are_no_internals(self):
        self.assertEqual([h for h in sorted(self.public - GENERATED) if "For .cpp files only" in sources.read(h)
                          or h.endswith("_kernels.h")], [])

    def test_hold_what_the_documents_show(self):
        for header in ("autograd/autocast.h", "core/profile.h", "nn/module.h", "autograd/gradcheck.h", "data/cifar.h"):
            self.assertIn(header, self.public)


def compare(folder):
    found = {str(path.relative_to(folder)) for path in pathlib.Path(folder).rglob("*") if path.is_file()}
    expected = sources.public_headers(sources.include_graph()) | GENERATED
    print(f"installed headers: {len(found)}")
    if found != expected:
        sys.exit(f"installed beyond the public headers: {sorted(found - expected)}; missing: {sorted(expected - found)}")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--installed"]:
        compare(sys.argv[2])
    else:
        unittest.main()
