#pragma once

// One of PyTorch's samples as a call: its arguments, by position and name.

#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <ostream>
#include <set>
#include <string>
#include <vector>

#include "lockstep/autograd/ops/support/arguments.h"
#include "lockstep/core/dtype.h"
#include "lockstep/core/tensor.h"

namespace lockstep::testing {

/// The call cannot be written here: an argument that no function takes.
struct NotExpressible {
  std::string what;
};

/// What a call gives: one tensor or several. Numbers are tensors without dimensions.
struct Results : std::vector<Tensor> {
  Results(Tensor tensor) : std::vector<Tensor>{std::move(tensor)} {}
  Results(std::vector<Tensor> tensors) : std::vector<Tensor>(std::move(tensors)) {}
};

/// The arguments of a sample. Each is asked for by position (-1: by name alone) and name; all_used() tells whether
/// anything that was given was never asked for. A getter without default throws NotExpressible if the argument is
/// missing or of another type.
class Call {
 public:
  using Json = nlohmann::json;
  /// `tensor_of` makes the tensor of an entry {"tensor": ...}, once for each.
  Call(const Json& args, const Json& kwargs, std::function<Tensor(const Json&)> tensor_of);
  ~Call();

  bool given(int position, const char* name) const;      ///< and not None
  bool is_tensor(int position, const char* name) const;  ///< given, and a tensor
  bool is_list(int position, const char* name) const;    ///< given, and a list
  int positions() const;                                 ///< number of arguments by position

  Tensor tensor(int position, const char* name);
  Tensor tensor_or_none(int position, const char* name);  ///< undefined if not given
  std::vector<Tensor> tensors(int position, const char* name);
  Scalar number(int position, const char* name);
  std::optional<double> real_or_none(int position, const char* name);
  double real(int position, const char* name, double otherwise);
  std::int64_t integer(int position, const char* name);
  std::int64_t integer(int position, const char* name, std::int64_t otherwise);
  std::optional<std::int64_t> integer_or_none(int position, const char* name);
  bool flag(int position, const char* name, bool otherwise);
  std::string text(int position, const char* name, const char* otherwise);
  std::optional<DType> dtype(int position, const char* name);
  Shape shape(int position, const char* name);           ///< a list of integers, or one; as it was given
  Shape shape_or_empty(int position, const char* name);  ///< {} if not given
  Size2d size2d(int position, const char* name, Size2d otherwise);
  const Json& json(int position, const char* name);  ///< as it was recorded
  Tensor tensor_of(const Json& entry) { return tensor_of_(entry); }

  /// Throws NotExpressible unless every argument that was given, and is neither None nor false, was asked for.
  void expect_all_used() const;

 private:
  const Json* find(int position, const char* name) const;
  const Json& use(int position, const char* name);

  const Json& args_;
  const Json& kwargs_;
  std::function<Tensor(const Json&)> tensor_of_;
  std::set<const Json*> used_;
};

/// One line an operation: PyTorch's name in op_db, and how it is called here.
struct Operation {
  const char* name;
  std::function<Results(Call&)> run;
  bool any_layout = true;  ///< also takes inputs with gaps and reversed dimensions

  friend std::ostream& operator<<(std::ostream& out, const Operation& o) { return out << o.name; }
};

/// The tables of calls_*.cpp.
std::vector<Operation> elementwise_calls();
std::vector<Operation> reduction_calls();
std::vector<Operation> layer_calls();
std::vector<Operation> shape_calls();
std::vector<Operation> loss_calls();
std::vector<Operation> rearranging_calls();
std::vector<Operation> indexing_calls();
std::vector<Operation> volume_calls();

}  // namespace lockstep::testing
