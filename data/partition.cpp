#include "lockstep/data/partition.h"

#include <algorithm>

#include "lockstep/core/check.h"

namespace lockstep::data {

Range partition(std::int64_t count, std::int64_t parts, std::int64_t part) {
  LOCKSTEP_CHECK(count >= 0, "[partition] count must not be negative, found {}", count);
  LOCKSTEP_CHECK(parts > 0 && part >= 0 && part < parts, "[partition] part {} of {} does not exist; expected 0 to {}",
                 part, parts, parts - 1);
  const std::int64_t small = count / parts;
  const std::int64_t larger = count % parts;
  const std::int64_t begin = part * small + std::min(part, larger);
  return {begin, begin + small + (part < larger ? 1 : 0)};
}

Range batch_range(std::int64_t count, std::int64_t batch_size, std::int64_t step) {
  LOCKSTEP_CHECK(step >= 0 && step < batch_count(count, batch_size, false),
                 "[batch_range] step {} lies outside an epoch of {} samples in batches of {}", step, count, batch_size);
  const std::int64_t begin = step * batch_size;
  return {begin, std::min(count, begin + batch_size)};
}

std::int64_t batch_count(std::int64_t count, std::int64_t batch_size, bool drop_last) {
  LOCKSTEP_CHECK(count >= 0, "[batch_count] count must not be negative, found {}", count);
  LOCKSTEP_CHECK(batch_size > 0, "[batch_count] batch size must be at least 1, found {}", batch_size);
  return count / batch_size + (!drop_last && count % batch_size != 0 ? 1 : 0);
}

}  // namespace lockstep::data
