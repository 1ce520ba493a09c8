// Bytes of any length between ranks: a collective of their sizes, then one of the bytes, on the CPU.

#include <cstdint>
#include <cstring>

#include "lockstep/core/check.h"
#include "lockstep/core/factories.h"
#include "lockstep/distributed/operation/operation.h"
#include "lockstep/distributed/process_group/all_gather_integers.h"

namespace lockstep::distributed {
namespace {

constexpr std::int64_t kMostBytes = std::int64_t{1} << 30;

using Counts = std::vector<std::int64_t>;

// What the caller has said that it is for, if anything.
LabelScope object_scope() {
  static const OperationLabel label("object");
  const OperationLabel outer = LabelScope::current();
  return LabelScope(outer.empty() ? label : outer);
}

void check_size(std::int64_t bytes, const char* what) {
  LOCKSTEP_CHECK(bytes >= 0 && bytes <= kMostBytes, "[{}] an object has {} bytes; expected {} at most", what, bytes,
                 kMostBytes);
}

Tensor bytes_tensor(std::int64_t size) {
  return empty({size}, {.dtype = kUInt8});
}

char* chars_of(const Tensor& bytes) {
  const LibraryAccess access;
  return static_cast<char*>(bytes.raw_data());
}

Tensor tensor_of(std::string_view object) {
  Tensor bytes = bytes_tensor(static_cast<std::int64_t>(object.size()));
  if (!object.empty()) std::memcpy(chars_of(bytes), object.data(), object.size());
  return bytes;
}

std::string string_of(const Tensor& bytes) {
  return bytes.numel() == 0 ? std::string() : std::string(chars_of(bytes), static_cast<std::size_t>(bytes.numel()));
}

std::vector<std::string> cut(const Tensor& all, const Counts& counts) {
  const std::string text = string_of(all);
  std::vector<std::string> parts;
  std::size_t at = 0;
  for (const std::int64_t count : counts) {
    parts.push_back(text.substr(at, static_cast<std::size_t>(count)));
    at += static_cast<std::size_t>(count);
  }
  return parts;
}

std::int64_t total(const Counts& counts) {
  std::int64_t sum = 0;
  for (const std::int64_t count : counts) sum += count;
  return sum;
}

}  // namespace

std::vector<std::string> ProcessGroup::all_gather_object(std::string_view object) {
  const LabelScope scope = object_scope();
  // An object that is too large is an error on all ranks: none waits for its bytes.
  const Counts counts = all_gather_integers(static_cast<std::int64_t>(object.size()), *this);
  for (const std::int64_t count : counts) check_size(count, "all_gather_object");
  const Tensor all = bytes_tensor(total(counts));
  all_gather_uneven(all, tensor_of(object), counts)->wait();
  return cut(all, counts);
}

std::string ProcessGroup::broadcast_object(std::string_view object, int root) {
  const LabelScope scope = object_scope();
  const Tensor size = tensor({static_cast<std::int64_t>(object.size())});
  broadcast(size, root)->wait();
  const auto bytes = size.item<std::int64_t>();
  check_size(bytes, "broadcast_object");
  const Tensor all = rank() == root ? tensor_of(object) : bytes_tensor(bytes);
  broadcast(all, root)->wait();
  return string_of(all);
}

std::vector<std::string> ProcessGroup::gather_object(std::string_view object, int root) {
  check_rank(root, "root", OperationKind::gather);
  const LabelScope scope = object_scope();
  const Counts counts = all_gather_integers(static_cast<std::int64_t>(object.size()), *this);
  for (const std::int64_t count : counts) check_size(count, "gather_object");
  const auto world = static_cast<std::size_t>(world_size()), at = static_cast<std::size_t>(root);
  Counts to(world), from(world);
  to[at] = counts[static_cast<std::size_t>(rank())];
  if (rank() == root) from = counts;
  const Tensor all = bytes_tensor(total(from));
  all_to_all_uneven(all, tensor_of(object), from, to)->wait();
  return rank() == root ? cut(all, counts) : std::vector<std::string>();
}

std::string ProcessGroup::scatter_object(const std::vector<std::string>& objects, int root) {
  check_rank(root, "root", OperationKind::scatter);
  const LabelScope scope = object_scope();
  const auto world = static_cast<std::size_t>(world_size());
  LOCKSTEP_CHECK(rank() != root || objects.size() == world,
                 "[scatter_object] {} object(s) are given; expected one for each of {} ranks", objects.size(), world);
  Counts sizes(world);
  std::string bytes;
  if (rank() == root)
    for (std::size_t r = 0; r < world; ++r) {
      sizes[r] = static_cast<std::int64_t>(objects[r].size());
      bytes += objects[r];
    }
  const Tensor told = tensor(sizes);
  broadcast(told, root)->wait();
  const Counts counts = told.to_vector<std::int64_t>();
  for (const std::int64_t count : counts) check_size(count, "scatter_object");
  Counts to(world), from(world);
  if (rank() == root) to = counts;
  from[static_cast<std::size_t>(root)] = counts[static_cast<std::size_t>(rank())];
  const Tensor own = bytes_tensor(from[static_cast<std::size_t>(root)]);
  all_to_all_uneven(own, tensor_of(bytes), from, to)->wait();
  return string_of(own);
}

}  // namespace lockstep::distributed
