"""The layers hold file by file: no include leads to a room that the including room may not know, and there is no circle."""

import os
import unittest

import sources


def room_of(path, rooms):
    """The innermost room that a file lies in; None for programs, tests and lockstep.h, which may include all."""
    inside = [folder for folder in rooms if path.startswith(folder + "/")]
    return max(inside, key=len) if inside else None


def upward(graph, rooms):
    """Includes that lead from a lower room to a higher one, or from any room into a program or a test."""
    found = []
    for path, others in graph.items():
        room = room_of(path, rooms)
        found += [f"{path} includes {other}" for other in others if room and room_of(other, rooms) not in rooms[room]]
    return found


def circles(graph):
    """The groups of nodes that reach each other (Tarjan's strongly connected components of more than one node)."""
    number, low, stack, found = {}, {}, [], []

    def visit(node):
        number[node] = low[node] = len(number)
        stack.append(node)
        for other in graph.get(node, ()):
            if other not in number:
                visit(other)
                low[node] = min(low[node], low[other])
            elif other in stack:
                low[node] = min(low[node], number[other])
        if low[node] == number[node]:
            group = stack[stack.index(node):]
            del stack[stack.index(node):]
            if len(group) > 1 or node in graph.get(node, ()):
                found.append(sorted(group))

    for node in graph:
        if node not in number:
            visit(node)
    return found


def public_units(graph, public):
    """A graph of units, x.h with x.cpp, that keeps the includes of the given public headers. What stands above a unit
    includes its header, so a circle here is a source that uses what stands above it. Other headers are left out: they are
    pieces of a unit, and its source and they may know each other."""
    units = {}
    for path, others in graph.items():
        unit = os.path.splitext(path)[0]
        if unit + ".h" in public:
            above = {os.path.splitext(other)[0] for other in others if other in public}
            units.setdefault(unit, set()).update(above - {unit})
    return units


class Checks(unittest.TestCase):
    """What the functions above find in trees with a fault."""

    ROOMS = {"core": {"core"}, "core/cuda": {"core", "core/cuda"}, "nn": {"core", "nn"}}

    def test_upward_include(self):
        graph = {"nn/linear.h": ["core/tensor.h"], "core/tensor.h": ["nn/linear.h"], "lockstep.h": ["nn/linear.h"],
                 "core/copy.h": ["core/cuda/copy.h"], "nn/init.h": ["apps/cli.h"]}
        self.assertEqual(upward(graph, self.ROOMS), ["core/tensor.h includes nn/linear.h",
                                                     "core/copy.h includes core/cuda/copy.h",
                                                     "nn/init.h includes apps/cli.h"])

    def test_circle(self):
        graph = {"a.h": ["b.h"], "b.h": ["c.h"], "c.h": ["a.h"], "d.h": ["a.h"], "e.h": ["e.h"]}
        self.assertEqual(circles(graph), [["a.h", "b.h", "c.h"], ["e.h"]])

    def test_source_that_uses_what_stands_above_it(self):
        graph = {"file.h": [], "file.cpp": ["file.h", "training.h"], "training.h": ["file.h"], "training.cpp": []}
        self.assertEqual(circles(public_units(graph, {"file.h", "training.h"})), [["file", "training"]])
        self.assertEqual(circles(public_units(graph, {"file.h"})), [])


class Tree(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.rooms, cls.graph = sources.rooms(), sources.include_graph()

    def test_is_read(self):
        self.assertGreaterEqual(len(self.rooms), 10)
        self.assertEqual(self.rooms["core"], {"core"})
        self.assertIn("autograd", self.rooms["distributed/parallel"])
        self.assertIn("core/tensor.h", self.graph["lockstep.h"])
        self.assertIn("autograd/ops/matmul/matmul.h", self.graph["lockstep.h"])

    def test_includes_files_that_exist(self):
        self.assertEqual([f"{path} includes {other}" for path, others in self.graph.items() for other in others
                          if other not in self.graph], [])

    def test_every_file_has_a_room(self):
        outside = ("apps/", "bench/", "cmake/", "tests/", "docs/", "lockstep.h")
        self.assertEqual([path for path in self.graph if not room_of(path, self.rooms) and not path.startswith(outside)], [])

    def test_no_include_leads_upward(self):
        self.assertEqual(upward(self.graph, self.rooms), [])

    def test_rooms_make_no_circle(self):
        self.assertEqual(circles({room: others - {room} for room, others in self.rooms.items()}), [])

    def test_files_make_no_circle(self):
        self.assertEqual(circles(self.graph), [])

    def test_no_source_uses_what_stands_above_it(self):
        offered = sources.offered_headers(self.graph)
        self.assertLessEqual({"nn/checkpoint.h", "nn/safetensors.h", "data/mnist.h", "autograd/record.h"}, offered)
        self.assertEqual(circles(public_units(self.graph, offered)), [])


if __name__ == "__main__":
    unittest.main()
