"""The tree as text: its files, what they include, and the rooms that CMake's lockstep_add_layer() calls make of it."""

import os
import pathlib
import re

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
CODE = (".h", ".cpp", ".cu", ".cuh")
NOT_OURS = {"build", "third_party"}


def files(suffixes=CODE, root=ROOT):
    """Paths below root, without hidden folders and what a build leaves, as 'core/tensor.h', in order."""
    found = []
    for folder, below, names in os.walk(root):
        below[:] = sorted(d for d in below if not d.startswith((".", "_")) and d not in NOT_OURS)
        found += [os.path.relpath(os.path.join(folder, n), root) for n in names if n.endswith(suffixes)]
    return sorted(found)


def read(path, root=ROOT):
    return (root / path).read_text(encoding="utf-8")


def operations():
    """Folders of autograd/ops with a header of their own name: what autograd/ops.h includes."""
    folders = (path.parent.name for path in (ROOT / "autograd/ops").glob("*/*.h") if path.stem == path.parent.name)
    return sorted(set(folders))


def includes(path, text):
    """What a file includes of ours, as paths from the root. The generated header of all operations counts as them."""
    found = []
    for bracket, name in re.findall(r'^\s*#\s*include\s+([<"])([^>"]+)[>"]', text, re.M):
        if name == "lockstep/autograd/ops.h":
            found += [f"autograd/ops/{op}/{op}.h" for op in operations()]
        elif name.startswith("lockstep/"):
            found.append(name.removeprefix("lockstep/"))
        elif name.startswith(("apps/", "tests/", "bench/")):
            found.append(name)
        elif bracket == '"':
            beside = os.path.normpath(os.path.join(os.path.dirname(path), name))
            if (ROOT / beside).is_file():
                found.append(beside)
    return found


def include_graph():
    return {path: includes(path, read(path)) for path in files()}


def closure(graph, roots):
    """Everything that the roots include, directly or not, and the roots."""
    reached, waiting = set(roots), list(roots)
    while waiting:
        for other in graph[waiting.pop()]:
            if other not in reached:
                reached.add(other)
                waiting.append(other)
    return reached


def public_headers(graph):
    """What is installed: the closure of lockstep.h and of cmake/public_headers.txt."""
    named = [line for line in read("cmake/public_headers.txt").splitlines() if line and not line.startswith("#")]
    return closure(graph, ["lockstep.h", *named])


def offered_headers(graph):
    """Public headers that are offered by name: by lockstep.h, by headers that do nothing but include (nn/nn.h), and by
    cmake/public_headers.txt. The other public headers are pieces that those are made of."""
    named = [line for line in read("cmake/public_headers.txt").splitlines() if line and not line.startswith("#")]
    offered, waiting = set(), ["lockstep.h", *named]
    while waiting:
        header = waiting.pop()
        offered.add(header)
        if not re.sub(r"^\s*(#.*|//.*)?$", "", read(header), flags=re.M).strip():
            waiting += graph[header]
    return offered


def rooms():
    """{folder: folders that its files may include}, from CMake. A folder may include itself. emulated/<layer> belongs to
    the layer of that name: it may include the same, and those above may include it."""
    folder_of, depends = {}, {}
    call = re.compile(r"lockstep_add_layer\(\s*NAME\s+(\w+)\s+PATH\s+(\S+?)(?:\s+DEPENDS\s+([\w\s]+?))?\s+SOURCES\b")
    for path in files("CMakeLists.txt"):
        for name, folder, others in call.findall(read(path)):
            folder_of[name], depends[name] = folder, others.split()

    def below(name, seen):
        if name not in seen:
            seen.add(name)
            for other in depends[name]:
                below(other, seen)
        return seen

    stand_ins = {name: f"emulated/{name}" for name in folder_of if (ROOT / "emulated" / name).is_dir()}
    found = {}
    for name in folder_of:
        known = below(name, set())
        may = {folder_of[n] for n in known} | {stand_ins[n] for n in known if n in stand_ins and n != name}
        found[folder_of[name]] = may
        if name in stand_ins:
            found[stand_ins[name]] = may | {stand_ins[name]}
    return found
