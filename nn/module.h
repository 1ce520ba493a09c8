#pragma once

#include <atomic>
#include <concepts>
#include <cstdint>
#include <functional>
#include <iosfwd>
#include <memory>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "lockstep/core/profile.h"
#include "lockstep/core/tensor.h"

namespace lockstep::nn {

class Module;

/// A name and the tensor it stands for: "conv1.weight".
struct NamedTensor {
  std::string name;  ///< with those of the modules above it, divided by dots
  Tensor tensor;     ///< a handle on the module's own

  const std::string& key() const { return name; }  ///< as libtorch calls it
  const Tensor& value() const { return tensor; }   ///< as libtorch calls it
};

/// Tensors in the order of their declaration, to be found by name too: `net.named_parameters()["fc1.weight"]`.
class NamedTensors : public std::vector<NamedTensor> {
 public:
  using std::vector<NamedTensor>::vector;
  using std::vector<NamedTensor>::operator[];
  const Tensor* find(std::string_view name) const;                              ///< null if there is none of that name
  bool contains(std::string_view name) const { return find(name) != nullptr; }  ///< whether find() finds one
  /// Throws Error if there is none of that name.
  const Tensor& operator[](std::string_view name) const;
  std::vector<std::string> keys() const;  ///< the names
  std::vector<Tensor> values() const;     ///< the tensors
};

/// A tensor that a module learns: a Tensor that requires gradients and that its module finds by name.
///
///   nn::Parameter weight{this, "weight", randn({out, in})};
///
/// An undefined value registers nothing (a layer without bias). A value that another parameter already holds shares it
/// (tied weights). Pinned; `Tensor w = weight` takes a handle on the same tensor.
class Parameter : public Tensor {
 public:
  /// Throws Error for a bad or taken name, and for a value that is not a floating-point leaf.
  Parameter(Module* owner, std::string_view name, Tensor value);
  Parameter(const Parameter&) = delete;
  Parameter& operator=(const Parameter&) = delete;
};

/// A tensor that belongs to a module's state but is not learned, such as a running mean. Otherwise like Parameter.
class Buffer : public Tensor {
 public:
  Buffer(Module* owner, std::string_view name, Tensor value);
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
};

/// Note [Modules]
namespace detail {
class Follower;
/// The step at which a checkpoint that was loaded has put a module's training, and how many were.
struct Resumption {
  std::uint64_t step = 0;
  std::uint64_t loads = 0;
};
/// A call of a module: runs its call hook, and while this lives, what is profiled belongs to the module.
class ProfiledCall {
 public:
  explicit ProfiledCall(const Module& module);
  ~ProfiledCall() {
    if (begun_) [[unlikely]]
      end();
  }
  ProfiledCall(const ProfiledCall&) = delete;
  ProfiledCall& operator=(const ProfiledCall&) = delete;

 private:
  void begin(const Module& module);
  void end();

  bool begun_ = false;
  const char* outer_ = nullptr;
};
}  // namespace detail

/// Base of every layer and model. A module is a plain class whose parameters, buffers and child modules are ordinary
/// members that register with `this` and a name, in declaration order:
///
///   struct Net : nn::Module {
///     nn::Linear fc1{this, "fc1", 784, 128};
///     nn::Linear fc2{this, "fc2", 128, 10};
///     Tensor forward(Tensor x) override { return fc2(relu(fc1(x))); }
///   };
///
/// A class that is itself to be a member takes `(Module* parent, std::string_view name)` first and hands both to Module
/// (`using Module::Module;` will do where it takes nothing else).
///
/// Modules are pinned: neither copied nor moved, so that members can know their owner. Put them on the stack, in a
/// std::unique_ptr, or in a parent. Handles from parameters() stay valid for good: to() and load() replace the memory
/// behind a tensor, never the tensor. Not thread-safe, but distinct modules may be used on distinct threads.
class Module {
 public:
  /// A module of its own.
  Module() = default;
  /// A child of `parent`, found there as `name`; a null parent makes a module of its own. Throws Error if the name is
  /// taken, empty or contains a '.'.
  Module(Module* parent, std::string_view name);
  /// Takes it out of its parent.
  virtual ~Module();
  Module(const Module&) = delete;
  Module& operator=(const Module&) = delete;

  /// What the module computes. Override it; a class whose forward() takes other arguments is a ModuleOf. The one here
  /// throws Error naming the class.
  virtual Tensor forward(Tensor x);
  /// forward(). The first call on a module that has no parent logs a warning if forward() computes with tensors that
  /// require gradients and are none of parameters(): a member that was made without `this`.
  Tensor operator()(Tensor x) {
    const bool plain = (parent_ || called_.load(std::memory_order_relaxed)) && !hooks_ && !profile::enabled();
    return plain ? forward(std::move(x)) : watched_call(std::move(x));
  }

  // --- what it holds: everything below it too, in declaration order, each tensor once ----------------------------
  std::vector<Tensor> parameters() const;  ///< what an optimizer takes
  NamedTensors named_parameters() const;   ///< the same under their names
  std::vector<Tensor> buffers() const;     ///< such as running means
  NamedTensors named_buffers() const;      ///< the same under their names
  /// Those of this module alone unless `recurse`.
  std::vector<Tensor> parameters(bool recurse) const;
  /// The same under their names, behind `prefix` and a '.' if there is one.
  NamedTensors named_parameters(std::string_view prefix, bool recurse = true) const;
  /// A template, so that no text is taken for a bool.
  template <std::same_as<bool> Flag>
  NamedTensors named_parameters(Flag recurse) const {
    return named_parameters({}, recurse);
  }
  /// Parameters and buffers under their names: what save() writes. A tied tensor comes once, under its first name,
  /// unless `remove_duplicate` is false.
  std::vector<NamedTensor> state(bool remove_duplicate = true) const;
  /// Direct children.
  std::vector<std::pair<std::string, Module*>> named_children() const;
  std::vector<Module*> children() const;  ///< the same without their names
  /// This module, then all below it.
  std::vector<Module*> modules();
  /// The same with their names: "" for this one, then such as "h.3.attn".
  std::vector<std::pair<std::string, Module*>> named_modules();
  /// Elements of all parameters.
  std::int64_t num_parameters() const;
  /// Bytes of all parameters and buffers.
  std::int64_t num_bytes() const;

  // --- what can be done to it -------------------------------------------------------------------------------------
  /// Calls fn on every module below this one, then on this one.
  void apply(const std::function<void(Module&)>& fn);
  /// Sets training (dropout drops, batch norm takes the batch's statistics) or evaluation mode, here and below.
  void train(bool on = true);
  void eval() { train(false); }                   ///< evaluation mode, here and below
  bool is_training() const { return training_; }  ///< mode of this module
  /// Switches gradients of all parameters on or off; off freezes them.
  void set_requires_grad(bool value);
  void requires_grad_(bool value = true) { set_requires_grad(value); }  ///< the same, as torch calls it
  /// Drops every gradient, so that an optimizer leaves alone what the next backward() does not reach: frozen and unused
  /// parameters, which a gradient of zeros would still move by momentum and weight decay. As torch.nn.Module's.
  /// set_to_none false: sets them to zero in their memory.
  void zero_grad(bool set_to_none = true);
  /// Moves parameters, buffers and gradients. Handles stay valid, but state that an optimizer already made stays where
  /// it was: move first, then construct the optimizer.
  void to(Device device);
  /// Casts floating-point parameters, buffers and gradients; leaves integer buffers alone.
  void to(DType dtype);
  void to(Device device, DType dtype);  ///< both
  /// Device of the first parameter (of the first buffer, if there is none); the first CPU for an empty module.
  Device device() const;

  /// Calls `hook(*this, x)` before each forward(x) of this module that operator() calls, in the order in which they
  /// were added; what it assigns to x is computed with. Returns a key for remove_hook(). Throws Error for an empty
  /// hook, and for a ModuleOf, whose forward() may take anything.
  std::uint64_t register_forward_pre_hook(std::function<void(Module&, Tensor& x)> hook);
  /// The same after forward(), with its result: what is assigned to `out` takes its place. So features are kept:
  ///   net.conv3.register_forward_hook([&](auto&, const auto&, const auto& out) { features = out; });
  std::uint64_t register_forward_hook(std::function<void(Module&, const Tensor& x, Tensor& out)> hook);
  /// The same for hooks that return what takes the place of x or of the result, if it is defined, as PyTorch's do.
  template <typename F>
  requires std::convertible_to<std::invoke_result_t<F&, Module&, Tensor&>, Tensor> std::uint64_t
  register_forward_pre_hook(F hook) {
    std::function<void(Module&, Tensor&)> assigning;
    if (!TensorHook::is_empty(hook))
      assigning = [hook](Module& module, Tensor& x) mutable {
        if (Tensor other = hook(module, x); other.defined()) x = std::move(other);
      };
    return register_forward_pre_hook(std::move(assigning));
  }
  template <typename F>
  requires std::convertible_to<std::invoke_result_t<F&, Module&, const Tensor&, Tensor&>, Tensor> std::uint64_t
  register_forward_hook(F hook) {
    std::function<void(Module&, const Tensor&, Tensor&)> assigning;
    if (!TensorHook::is_empty(hook))
      assigning = [hook](Module& module, const Tensor& x, Tensor& out) mutable {
        if (Tensor other = hook(module, x, out); other.defined()) out = std::move(other);
      };
    return register_forward_hook(std::move(assigning));
  }
  /// Calls `hook(*this, grad_input, grad_output)` in each backward() through a forward(x) that operator() called while
  /// recording: with the gradients of x and of its result. What it assigns to grad_input goes on as the gradient of x.
  /// If x needs no gradient, grad_input is undefined. The module must live until then. Returns a key and throws Error
  /// as register_forward_hook().
  std::uint64_t register_full_backward_hook(
      std::function<void(Module&, Tensor& grad_input, const Tensor& grad_output)> hook);
  void remove_hook(std::uint64_t key);  ///< of any kind; nothing happens if it is gone

  /// Runs `hook` before every forward() of this module that operator() calls; null takes it away. There is one at most,
  /// which a training step that divides the parameters sets.
  void set_call_hook(std::function<void()> hook);

  /// What load_checkpoint() tells the steps that train this module: they number their random keys from there on.
  void resume_at(std::int64_t step) { resumption_ = {static_cast<std::uint64_t>(step), resumption_.loads + 1}; }
  const detail::Resumption& resumption() const { return resumption_; }  ///< see resume_at()

  /// "lockstep::nn::Linear": the class, for messages.
  std::string type_name() const;

  /// This module as the type that it is, or null: `if (auto* conv = m.as<nn::Conv2d>())`.
  template <typename M>
  M* as() {
    return dynamic_cast<M*>(this);
  }

 protected:
  /// Adds a parameter or buffer that is kept as a Tensor; see Parameter and Buffer, which register themselves. Returns
  /// the tensor.
  Tensor register_parameter(std::string_view name, Tensor value, bool requires_grad = true);
  Tensor register_buffer(std::string_view name, Tensor value);
  /// Adds a child that is not a member, such as an element of a container. It must outlive this module or be dropped
  /// by its own destructor.
  void register_module(std::string_view name, Module& child);

 private:
  friend class Parameter;
  friend class Buffer;

  enum class Kind : std::uint8_t { parameter, buffer, module };
  struct Member {
    std::string name;
    Kind kind;
    Tensor tensor;
    Module* module = nullptr;
  };

  friend class detail::Follower;
  friend class detail::ProfiledCall;
  template <typename Derived>
  friend class ModuleOf;

  struct Hooks {
    std::function<void()> on_call;
    std::vector<std::pair<std::uint64_t, std::function<void(Module&, Tensor&)>>> before;
    std::vector<std::pair<std::uint64_t, std::function<void(Module&, const Tensor&, Tensor&)>>> after;
    std::vector<std::pair<std::uint64_t, std::function<void(Module&, Tensor&, const Tensor&)>>> backward;
    std::uint64_t next_key = 1;
  };
  Hooks& hooks_for(bool given, const char* function);
  void run_hooks_before(Tensor& x);
  void run_hooks_after(const Tensor& x, Tensor& out);
  /// Puts the hooks for backward between the module and x, and between it and the result.
  Tensor forward_with_backward_hooks(Tensor x);

  /// The first call of a module that has no parent, each call of one with hooks, and each while a profile is recorded.
  Tensor watched_call(Tensor x);
  /// What that does of the first call, for ModuleOf.
  bool is_first_call() const { return !parent_ && !called_.load(std::memory_order_relaxed); }
  static std::uint64_t begin_first_call();
  void end_first_call(const std::vector<Tensor>& outputs, const std::vector<Tensor>& inputs, std::uint64_t began);
  std::string path() const;  ///< from the module above all others: "h.3.attn"
  void add_member(std::string_view name, Kind kind, Tensor tensor, Module* module);
  void collect(std::vector<NamedTensor>& out, const std::string& prefix, bool parameters, bool buffers,
               bool recurse = true) const;
  void collect_modules(const std::string& name, std::vector<std::pair<std::string, Module*>>& out);
  void print(std::ostream& out, const std::string& indent) const;
  friend std::ostream& operator<<(std::ostream& out, const Module& module);
  template <typename Convert>
  void convert_all(Convert&& convert);

  std::vector<Member> members_;
  Module* parent_ = nullptr;
  bool training_ = true;
  std::atomic<bool> called_ = false;
  detail::Resumption resumption_;
  std::unique_ptr<Hooks> hooks_;  // null unless there are some
};

/// Writes the tree of modules as Python does: for each its name, its class and the shapes of its own tensors.
std::ostream& operator<<(std::ostream& out, const Module& module);

namespace detail {
inline ProfiledCall::ProfiledCall(const Module& module) {
  if (module.hooks_ || profile::enabled()) [[unlikely]]
    begin(module);
}

/// Adds the tensors in a value: a tensor, and what is in pairs, tuples, vectors and the like. False: there may be more,
/// in an object of another type.
template <typename T>
bool add_tensors(const T& value, std::vector<Tensor>& out) {
  if constexpr (std::is_base_of_v<Tensor, T>) {
    out.push_back(value);
    return true;
  } else if constexpr (std::is_arithmetic_v<T> || std::is_enum_v<T> || std::is_convertible_v<T, std::string_view>) {
    return true;
  } else if constexpr (requires { std::tuple_size<T>::value; }) {
    bool all = true;
    std::apply([&](const auto&... each) { ((all = add_tensors(each, out) && all), ...); }, value);
    return all;
  } else if constexpr (requires { value.has_value() ? *value : *value; }) {
    return !value.has_value() || add_tensors(*value, out);
  } else if constexpr (requires { requires !std::is_same_v<std::remove_cvref_t<decltype(*value.begin())>, T>; }) {
    bool all = true;
    for (const auto& each : value) all = add_tensors(each, out) && all;
    return all;
  } else {
    return false;
  }
}

// Compilers that warn of a forward() which hides Module's look for virtual ones in the nearest base that has any (GCC)
// or has any function of that name (Clang): the one is here, where the warning is off, the other is ModuleOf's.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Woverloaded-virtual"
class HidesForward : public Module {
 public:
  using Module::Module;

 private:
  Tensor forward(Tensor x) override { return Module::forward(std::move(x)); }
};
}  // namespace detail

/// Base of a module whose forward() has other arguments or another result than Module's; net(a, b) calls it.
///
///   struct Captions : nn::ModuleOf<Captions> {
///     nn::Linear image{this, "image", 512, 64}, text{this, "text", 300, 64};
///     Tensor forward(const Tensor& a, const Tensor& b) { return image(a) * text(b); }
///   };
///
/// A forward() of one tensor with another result takes it as `const Tensor&`: taken as `Tensor` it would override
/// Module's, whose result is a tensor.
template <typename Derived>
class ModuleOf : public detail::HidesForward {
 public:
  using HidesForward::HidesForward;
  /// Derived's forward(). Of the first call a warning as Module's, where arguments and results are tensors, numbers, or
  /// pairs, tuples and vectors of such.
  template <typename Self = Derived, typename... Args>
  auto operator()(Args&&... args) -> decltype(std::declval<Self&>().forward(std::forward<Args>(args)...)) {
    const detail::ProfiledCall profiled(*this);
    using Result = decltype(std::declval<Self&>().forward(std::forward<Args>(args)...));
    if constexpr (std::is_move_constructible_v<Result>)
      if (is_first_call()) [[unlikely]] {
        std::vector<Tensor> inputs, outputs;
        const bool all_inputs = detail::add_tensors(std::tie(args...), inputs);
        const std::uint64_t began = begin_first_call();
        Result result = static_cast<Self&>(*this).forward(std::forward<Args>(args)...);
        if (all_inputs) detail::add_tensors(result, outputs);
        end_first_call(outputs, inputs, began);
        return result;
      }
    return static_cast<Self&>(*this).forward(std::forward<Args>(args)...);
  }

 private:
  void forward() = delete;
};
#pragma GCC diagnostic pop

/// Gives `target` the value, and the memory, of `value`: shape, dtype and device may change. Every handle on target,
/// and an optimizer's or reducer's hold on it, sees the new value. A gradient is dropped if it no longer fits. Not
/// recorded. Like torch's Tensor.set_data.
void replace_value(const Tensor& target, const Tensor& value);

/// Copies values by name between two modules of the same structure, on any devices: what makes a replica equal its
/// original. Throws Error, before anything is copied, naming what is missing, unexpected or of another shape.
void copy_parameters_and_buffers(const Module& from, Module& to);

/// SHA-256, in hexadecimal, over the bytes of all parameters in the order of their names. Equal for equal weights of
/// equal dtype wherever they live: the fingerprint by which lockstep runs are compared.
std::string weights_sha256(const Module& module);
/// The same over parameters and buffers: running statistics of batch norm too.
std::string state_sha256(const Module& module);

}  // namespace lockstep::nn
