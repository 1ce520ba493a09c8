#pragma once

namespace own {
struct Data {
  int part = 2;
};
}  // namespace own
