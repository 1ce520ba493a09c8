#pragma once

namespace own {
struct Job {
  int part = 8;
};
}  // namespace own
