#pragma once

namespace own {
struct Module {
  int part = 4;
};
}  // namespace own
