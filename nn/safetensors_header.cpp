#include "lockstep/nn/safetensors_header.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "lockstep/core/check.h"
#include "lockstep/core/json.h"

namespace lockstep::nn::detail {
namespace {

using Json = nlohmann::json;  // finds keys in logarithmic time; the order of a header's keys means nothing

struct DTypeName {
  DType dtype;
  const char* name;
};
constexpr DTypeName kDTypeNames[] = {{kFloat64, "F64"}, {kFloat32, "F32"}, {kFloat16, "F16"}, {kBFloat16, "BF16"},
                                     {kInt64, "I64"},   {kInt32, "I32"},   {kUInt8, "U8"},    {kBool, "BOOL"}};

const char* dtype_name(DType dtype) {
  for (const DTypeName& entry : kDTypeNames)
    if (entry.dtype == dtype) return entry.name;
  LOCKSTEP_ASSERT(false, "dtype {} has no safetensors name", name(dtype));
}

std::optional<DType> parse_dtype(const std::string& text) {
  for (const DTypeName& entry : kDTypeNames)
    if (text == entry.name) return entry.dtype;
  return std::nullopt;
}

/// Looks for a key that comes twice in one object, of which the parser alone would keep the last. An event handler of
/// its own: the parser's callback looks through all that the enclosing object holds at each end of an object in it.
class RepeatedKey final : public nlohmann::json_sax<Json> {
 public:
  /// The first such key; empty: none.
  const std::string& name() const { return name_; }

  bool null() override { return true; }
  bool boolean(bool) override { return true; }
  bool number_integer(number_integer_t) override { return true; }
  bool number_unsigned(number_unsigned_t) override { return true; }
  bool number_float(number_float_t, const string_t&) override { return true; }
  bool string(string_t&) override { return true; }
  bool binary(binary_t&) override { return true; }
  bool start_object(std::size_t) override {
    keys_.emplace_back();
    return true;
  }
  bool key(string_t& key) override {
    if (!keys_.back().insert(key).second && name_.empty()) name_ = key;
    return true;
  }
  bool end_object() override {
    keys_.pop_back();
    return true;
  }
  bool start_array(std::size_t) override { return true; }
  bool end_array() override { return true; }
  bool parse_error(std::size_t, const std::string&, const nlohmann::detail::exception&) override { return false; }

 private:
  std::vector<std::set<std::string>> keys_;
  std::string name_;
};

/// Parses (Note [JSON from outside]), and refuses a key that comes twice in one object.
Json parse_header(const std::string& path, std::string_view text) {
  Json header = parse_json<Json>(text, fmt::format("[safetensors] {}: the header at offset 8", path), 8);
  RepeatedKey repeated;
  Json::sax_parse(text, &repeated);
  LOCKSTEP_CHECK(repeated.name().empty(), "[safetensors] {}: the header at offset 8 has '{}' twice", path,
                 repeated.name());
  LOCKSTEP_CHECK(header.is_object(), "[safetensors] {}: the header at offset 8 is JSON but not an object", path);
  return header;
}

struct EntryParser {
  const std::string& path;
  const std::string& name;

  [[noreturn]] void fail(const std::string& what) const {
    lockstep::detail::throw_error(
        fmt::format("[safetensors] {}: tensor '{}' in the header at offset 8: {}", path, name, what));
  }

  SafetensorsEntry parse(const Json& json, std::uint64_t base, std::uint64_t data_bytes) const {
    if (!json.is_object() || !json.contains("dtype") || !json["dtype"].is_string() || !json.contains("shape") ||
        !json["shape"].is_array() || !json.contains("data_offsets") || !json["data_offsets"].is_array() ||
        json["data_offsets"].size() != 2)
      fail("expected dtype, shape and two data_offsets");
    const auto dtype = parse_dtype(json["dtype"].get<std::string>());
    if (!dtype)
      fail(fmt::format("dtype {} is not supported; expected F64, F32, F16, BF16, I64, I32, U8 or BOOL",
                       json["dtype"].get<std::string>()));
    if (json["shape"].size() > static_cast<std::size_t>(Shape::kMaxDims))
      fail(fmt::format("{} dimensions, expected at most {}", json["shape"].size(), Shape::kMaxDims));
    Shape shape;
    std::uint64_t bytes = element_size(*dtype);
    std::int64_t extent = 1;  // with empty dimensions counted as 1, so that strides cannot overflow either
    for (const Json& size : json["shape"]) {
      if (!size.is_number_unsigned()) fail("a size in its shape is not a whole number >= 0");
      const auto value = size.get<std::uint64_t>();
      if (__builtin_mul_overflow(extent, std::max<std::uint64_t>(value, 1), &extent) ||
          __builtin_mul_overflow(bytes, value, &bytes))
        fail(fmt::format("shape {} has more than 2^63 elements", json["shape"].dump()));
      shape.push_back(static_cast<std::int64_t>(value));
    }
    const Json& offsets = json["data_offsets"];
    if (!offsets[0].is_number_unsigned() || !offsets[1].is_number_unsigned())
      fail("its data_offsets are not whole numbers >= 0");
    const auto begin = offsets[0].get<std::uint64_t>(), end = offsets[1].get<std::uint64_t>();
    if (begin > end || end > data_bytes)
      fail(
          fmt::format("data_offsets [{}, {}] lie outside the {} bytes of data that follow at offset {}; the file is "
                      "cut short or damaged",
                      begin, end, data_bytes, base));
    if (end - begin != bytes)
      fail(fmt::format("data_offsets [{}, {}] hold {} bytes, but {} of shape {} needs {}", begin, end, end - begin,
                       json["dtype"].get<std::string>(), to_string(shape), bytes));
    return {name, *dtype, shape, base + begin, bytes};
  }
};

}  // namespace

void parse_safetensors_header(const std::string& path, std::string_view text, std::uint64_t base,
                              std::uint64_t data_bytes, std::vector<SafetensorsEntry>& entries, Metadata& metadata) {
  const Json header = parse_header(path, text);
  for (const auto& [key, value] : header.items()) {
    if (key != "__metadata__") {
      entries.push_back(EntryParser{path, key}.parse(value, base, data_bytes));
      continue;
    }
    LOCKSTEP_CHECK(value.is_object(), "[safetensors] {}: __metadata__ in the header at offset 8 is not an object",
                   path);
    for (const auto& [name, text_value] : value.items()) {
      LOCKSTEP_CHECK(text_value.is_string(),
                     "[safetensors] {}: __metadata__ '{}' in the header at offset 8 is not a string", path, name);
      metadata.emplace(name, text_value.get<std::string>());
    }
  }
  // Empty tensors in one place as lay_out_safetensors() has them: by width, then (the order of `header`) by name.
  std::ranges::stable_sort(entries, [](const SafetensorsEntry& a, const SafetensorsEntry& b) {
    if (a.offset != b.offset) return a.offset < b.offset;
    return a.bytes != b.bytes ? a.bytes < b.bytes : element_size(a.dtype) > element_size(b.dtype);
  });
  std::uint64_t next = base;
  for (const SafetensorsEntry& entry : entries) {
    LOCKSTEP_CHECK(entry.offset >= next, "[safetensors] {}: tensor '{}' overlaps the one before it at offset {}", path,
                   entry.name, entry.offset);
    LOCKSTEP_CHECK(entry.offset == next,
                   "[safetensors] {}: the {} bytes at offset {}, before tensor '{}', belong to none", path,
                   entry.offset - next, next, entry.name);
    next += entry.bytes;
  }
  LOCKSTEP_CHECK(next == base + data_bytes,
                 "[safetensors] {}: the {} bytes from offset {} to the end belong to no tensor", path,
                 base + data_bytes - next, next);
}

std::string make_safetensors_header(const std::vector<NamedTensor>& tensors, const Metadata& metadata) {
  std::vector<SafetensorsEntry> entries;
  std::uint64_t offset = 0;
  for (const NamedTensor& t : tensors) {
    const auto bytes = static_cast<std::uint64_t>(t.tensor.numel()) * element_size(t.tensor.dtype());
    entries.push_back({t.name, t.tensor.dtype(), t.tensor.sizes(), offset, bytes});
    offset += bytes;
  }
  return make_safetensors_header(entries, metadata);
}

std::string make_safetensors_header(const std::vector<SafetensorsEntry>& entries, const Metadata& metadata) {
  // In the order of the tensors, which an object would not keep.
  std::string text = "{";
  const auto add = [&](const std::string& key, const std::string& value) {
    if (text.size() > 1) text += ',';
    text += Json(key).dump() + ":" + value;
  };
  std::uint64_t offset = 0;
  try {
    if (!metadata.empty()) add("__metadata__", Json(metadata).dump());
    for (const SafetensorsEntry& entry : entries) {
      Json shape = Json::array();
      for (std::int64_t size : entry.shape) shape.push_back(size);
      const std::uint64_t end = offset + entry.bytes;
      add(entry.name, fmt::format(R"({{"dtype":"{}","shape":{},"data_offsets":[{},{}]}})", dtype_name(entry.dtype),
                                  shape.dump(), offset, end));
      offset = end;
    }
  } catch (const Json::type_error&) {
    lockstep::detail::throw_error("[safetensors] a tensor's name or a metadata string is not valid UTF-8");
  }
  text += '}';
  text.resize((text.size() + 7) / 8 * 8, ' ');
  LOCKSTEP_CHECK(text.size() <= kMaxSafetensorsHeader, "[safetensors] the header takes {} bytes, of at most {}",
                 text.size(), kMaxSafetensorsHeader);
  static_assert(std::endian::native == std::endian::little, "the format is little-endian");
  const auto length = static_cast<std::uint64_t>(text.size());
  std::string out(sizeof length, '\0');
  std::memcpy(out.data(), &length, sizeof length);
  return out + text;
}

std::size_t place_of_checksums(std::string_view header) {
  const std::string before = fmt::format("\"{}\":\"", kChecksumsKey);
  const std::size_t found = header.find(before);
  return found == std::string_view::npos ? found : found + before.size();
}

}  // namespace lockstep::nn::detail
