#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "apps/gpt/config.h"
#include "lockstep/core/tensor.h"

namespace lockstep::gpt {

/// Keys and values of the positions that a model has seen, so that a further token costs one position's work.
class KeyValueCache {
 public:
  /// For `batch` texts of up to config.context tokens.
  KeyValueCache(const Config& config, std::int64_t batch, Device device = {});

  /// Positions that are held.
  std::int64_t length() const { return length_; }
  std::int64_t capacity() const { return layers_.front().key.size(2); }
  /// Forgets all positions.
  void clear() { length_ = 0; }

  /// Puts keys and values [batch, heads, T, D] of a layer behind those that are held; returns all of them. Throws Error
  /// if there is no room.
  std::pair<Tensor, Tensor> append(std::int64_t layer, const Tensor& key, const Tensor& value);
  /// All layers have got `count` positions.
  void advance(std::int64_t count) { length_ += count; }

 private:
  struct Layer {
    Tensor key, value;  // [batch, heads, capacity, D]
  };
  std::vector<Layer> layers_;
  std::int64_t length_ = 0;
};

/// Where in a model's cache a block finds its part.
struct CacheSlot {
  KeyValueCache* cache = nullptr;  ///< null: there is no cache
  std::int64_t layer = 0;
};

/// Attention of new positions to themselves, those before them, and what the slot's cache holds: query [N, H, T, D],
/// key and value [N, G, T, D]. Gives [N, T, H * D].
Tensor attend(const Tensor& query, const Tensor& key, const Tensor& value, CacheSlot slot, double dropout);

}  // namespace lockstep::gpt
