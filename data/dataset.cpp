#include "lockstep/data/dataset.h"

#include <cstddef>
#include <cstring>
#include <utility>

#include "lockstep/core/check.h"
#include "lockstep/core/copy.h"
#include "lockstep/core/factories.h"

namespace lockstep::data {

namespace {

// Rows of a contiguous tensor.
Tensor take_rows(const Tensor& source, std::span<const std::int64_t> indices) {
  Shape sizes = source.sizes();
  sizes[0] = static_cast<std::int64_t>(indices.size());
  Tensor rows = empty(sizes, options_of(source));
  if (rows.numel() == 0) return rows;
  const std::size_t row_bytes = source.nbytes() / static_cast<std::size_t>(source.size(0));
  const auto* from = static_cast<const std::byte*>(source.raw_data());
  auto* to = static_cast<std::byte*>(rows.raw_data());
  for (const std::int64_t index : indices) {
    std::memcpy(to, from + static_cast<std::size_t>(index) * row_bytes, row_bytes);
    to += row_bytes;
  }
  return rows;
}

void check_source(const Tensor& tensor, const char* name) {
  LOCKSTEP_CHECK(tensor.defined(), "[TensorDataset] {} is undefined; expected a tensor with samples along dimension 0",
                 name);
  LOCKSTEP_CHECK(tensor.dim() > 0, "[TensorDataset] {} has no dimension; expected samples along dimension 0", name);
  LOCKSTEP_CHECK(tensor.device().type == DeviceType::cpu, "[TensorDataset] {} is on {}; expected a tensor on the CPU",
                 name, to_string(tensor.device()));
}

}  // namespace

void check_indices(std::span<const std::int64_t> indices, std::int64_t size, const char* dataset) {
  for (const std::int64_t index : indices)
    LOCKSTEP_CHECK(index >= 0 && index < size, "[{}] index {} is out of range; expected 0 to {}", dataset, index,
                   size - 1);
}

TensorDataset::TensorDataset(Tensor x, Tensor y) {
  check_source(x, "x");
  check_source(y, "y");
  LOCKSTEP_CHECK(x.size(0) == y.size(0), "[TensorDataset] x has {} samples and y has {}; expected the same number",
                 x.size(0), y.size(0));
  x_ = as_contiguous(x.detach());
  y_ = as_contiguous(y.detach());
}

Batch TensorDataset::get_batch(std::span<const std::int64_t> indices) const {
  check_indices(indices, size(), "TensorDataset");
  return {.x = take_rows(x_, indices),
          .y = take_rows(y_, indices),
          .global_size = static_cast<std::int64_t>(indices.size())};
}

}  // namespace lockstep::data
