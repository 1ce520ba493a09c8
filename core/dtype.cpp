#include "lockstep/core/dtype.h"

#include "lockstep/core/check.h"
#include "lockstep/core/dispatch.h"

namespace lockstep {

std::string_view name(DType dtype) {
  switch (dtype) {
    case DType::float32:
      return "float32";
    case DType::float64:
      return "float64";
    case DType::float16:
      return "float16";
    case DType::bfloat16:
      return "bfloat16";
    case DType::int64:
      return "int64";
    case DType::int32:
      return "int32";
    case DType::uint8:
      return "uint8";
    case DType::bool8:
      return "bool";
  }
  return "unknown dtype";
}

DType promote_types(DType a, DType b) {
  if (a == b) return a;
  if (is_floating_point(a) != is_floating_point(b)) return is_floating_point(a) ? a : b;
  if (is_floating_point(a)) {
    if (a == kFloat64 || b == kFloat64) return kFloat64;
    return kFloat32;  // float32 with a half type, or the two half types
  }
  if (a == kBool) return b;
  if (b == kBool) return a;
  return element_size(a) > element_size(b) ? a : b;
}

namespace detail {
void throw_unsupported_dtype(const char* op, DType dtype) {
  throw_error(fmt::format("[{}] is not defined for {} tensors", op, name(dtype)));
}
}  // namespace detail

}  // namespace lockstep
