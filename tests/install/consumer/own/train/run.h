#pragma once

namespace own {
struct Run {
  int part = 16;
};
}  // namespace own
