#include "lockstep/data/resident_dataset.h"

#include <algorithm>
#include <numeric>
#include <vector>

#include "lockstep/core/copy.h"
#include "lockstep/core/cuda/gather_rows.h"
#include "lockstep/core/factories.h"

namespace lockstep::data {
namespace {

constexpr std::int64_t kPiece = 4096;

Shape with_rows(Shape sizes, std::int64_t rows) {
  sizes[0] = rows;
  return sizes;
}

Tensor gathered(const Tensor& source, const Tensor& indices) {
  const Tensor out = empty(with_rows(source.sizes(), indices.numel()), options_of(source));
  cuda::gather_rows(source, indices, out);
  return out;
}

}  // namespace

ResidentDataset::ResidentDataset(const Dataset& dataset, Device device) : device_(device) {
  const std::int64_t size = dataset.size();
  for (std::int64_t begin = 0; begin < size || begin == 0; begin += kPiece) {
    std::vector<std::int64_t> indices(static_cast<std::size_t>(std::min(kPiece, size - begin)));
    std::iota(indices.begin(), indices.end(), begin);
    const Batch piece = dataset.get_batch(indices);
    if (begin == 0)
      samples_ = piece.map([&](const Tensor& tensor) {
        return empty(with_rows(tensor.sizes(), size), {.dtype = tensor.dtype(), .device = device});
      });
    piece.for_each([&](const char* name, const Tensor& tensor) {
      copy_values(tensor, rows(samples_[name], begin, tensor.size(0)));
    });
  }
}

Tensor ResidentDataset::upload(std::span<const std::int64_t> indices) const {
  return move_values(tensor(std::vector<std::int64_t>(indices.begin(), indices.end())), device_);
}

Batch ResidentDataset::get_batch(const Tensor& indices) const {
  Batch batch = samples_.map([&](const Tensor& tensor) { return gathered(tensor, indices); });
  batch.global_size = indices.numel();
  return batch;
}

}  // namespace lockstep::data
