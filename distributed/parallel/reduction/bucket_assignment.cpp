#include "lockstep/distributed/parallel/reduction/bucket_assignment.h"

#include <algorithm>
#include <utility>

namespace lockstep::distributed {

std::vector<std::vector<std::size_t>> assign_buckets(const std::vector<BucketItem>& items,
                                                     std::size_t first_bucket_bytes, std::size_t bucket_bytes) {
  struct Open {
    BucketItem kind;  // bytes: so far
    std::vector<std::size_t> indices;
  };
  std::vector<Open> open;  // one for each (dtype, device), oldest first
  std::vector<std::vector<std::size_t>> buckets;
  for (std::size_t i = items.size(); i-- > 0;) {
    const BucketItem& item = items[i];
    auto found = std::find_if(open.begin(), open.end(), [&](const Open& bucket) {
      return bucket.kind.dtype == item.dtype && bucket.kind.device == item.device;
    });
    if (found == open.end()) found = open.insert(open.end(), Open{{0, item.dtype, item.device}, {}});
    found->indices.push_back(i);
    found->kind.bytes += item.bytes;
    if (found->kind.bytes >= (buckets.empty() ? first_bucket_bytes : bucket_bytes)) {
      buckets.push_back(std::move(found->indices));
      open.erase(found);
    }
  }
  for (Open& bucket : open) buckets.push_back(std::move(bucket.indices));
  return buckets;
}

OperationLabel bucket_label(std::size_t bucket, const std::vector<std::string>& names) {
  std::string text = "bucket " + std::to_string(bucket);
  for (std::size_t i = 0; i < names.size(); ++i) text += (i == 0 ? ": " : ", ") + names[i];
  return OperationLabel(text);
}

}  // namespace lockstep::distributed
