"""Public declarations are explained by a comment (///), 98 of 100 at least. --list prints those that are not."""

import sys
import unittest

import sources
from declarations import declarations

BAR = 0.98

HEADER = """#pragma once
namespace lockstep {
/// Explained.
struct Options {
  int a = 1;  ///< explained
  int b = 2;
};
/// The larger (smaller).
Tensor maximum(const Tensor& a, const std::vector<int>& b = {1, 2});
Tensor minimum(const Tensor& a);

void alone();
namespace detail {
void hidden();
}
class Forward;
/// Explained.
template <typename T>
class Box : public Base<T> {
 public:
  explicit Box(int n) : n_{n}, m_(n) { go(); }
  Box(const Box&) = delete;
  ~Box() { stop(); }
  int size() const { return n_; }
  /// Explained.
  bool on() const;
  void set_on(bool value);
  std::string text(std::function<void(int)> f = [] { return 1; }) const;
  void forward() override;

 private:
  int n_ = 0;
};
enum class Kind : int { one, two };
using List = std::vector<int>;
inline constexpr int kMax = 8;
}  // namespace lockstep
"""


def public_declarations():
    graph = sources.include_graph()
    return [d for path in sorted(sources.public_headers(graph)) for d in declarations(path, sources.read(path))]


class Documented(unittest.TestCase):
    def test_parser(self):
        found = {d.name: d.documented for d in declarations("box.h", HEADER)}
        self.assertEqual(found, {
            "Options": True, "Options::a": True, "Options::b": False, "maximum": True, "minimum": True, "alone": False,
            "Box": True, "Box::Box": True, "Box::on": True, "Box::set_on": True, "Box::text": False, "Kind": False,
            "List": False, "kMax": False})

    def test_public_headers_are_explained(self):
        everything = public_declarations()
        missing = [d for d in everything if not d.documented]
        share = 1 - len(missing) / len(everything)
        print(f"public declarations: {len(everything)}, explained: {100 * share:.1f} %")
        self.assertGreater(len(everything), 1000)
        self.assertGreaterEqual(share, BAR, "not explained: " + ", ".join(f"{d.path}:{d.line} {d.name}" for d in missing))


if __name__ == "__main__":
    if sys.argv[1:] == ["--list"]:
        for d in public_declarations():
            if not d.documented:
                print(f"{d.path}:{d.line}: {d.name}")
    else:
        unittest.main()
