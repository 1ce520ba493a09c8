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

ResidentDataset::ResidentDataset(const Dataset& dataset, Device device) {
  const std::int64_t size = dataset.size();
  for (std::int64_t begin = 0; begin < size || begin == 0; begin += kPiece) {
    std::vector<std::int64_t> indices(static_cast<std::size_t>(std::min(kPiece, size - begin)));
    std::iota(indices.begin(), indices.end(), begin);
    const Batch piece = dataset.get_batch(indices);
    if (begin == 0) {
      x_ = empty(with_rows(piece.x.sizes(), size), {.dtype = piece.x.dtype(), .device = device});
      y_ = empty(with_rows(piece.y.sizes(), size), {.dtype = piece.y.dtype(), .device = device});
    }
    copy_values(piece.x, rows(x_, begin, piece.size()));
    copy_values(piece.y, rows(y_, begin, piece.size()));
  }
}

Tensor ResidentDataset::upload(std::span<const std::int64_t> indices) const {
  return move_values(tensor(std::vector<std::int64_t>(indices.begin(), indices.end())), x_.device());
}

Batch ResidentDataset::get_batch(const Tensor& indices) const {
  return {gathered(x_, indices), gathered(y_, indices), indices.numel()};
}

}  // namespace lockstep::data
