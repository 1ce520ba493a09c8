#pragma once

#include <concepts>
#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lockstep/nn/module.h"

namespace lockstep::nn {

namespace detail {
void check_element(const char* list, std::size_t i, std::size_t size);

/// A module of its own from the arguments of its constructor. A class whose constructor takes parent and name before
/// them, as those of members do, is given none.
template <typename M, typename... Args>
std::unique_ptr<M> make_module(Args&&... args) {
  if constexpr (!std::constructible_from<M, Args...> && std::constructible_from<M, Module*, std::string_view, Args...>)
    return std::make_unique<M>(static_cast<Module*>(nullptr), std::string_view(), std::forward<Args>(args)...);
  else
    return std::make_unique<M>(std::forward<Args>(args)...);
}
}  // namespace detail

/// Owns modules of type M (or derived from it) under the names "0", "1", ... What forward() does with them is the
/// business of the module that holds the list.
///
///   nn::ModuleList<Block> blocks{this, "blocks"};
///   for (int i = 0; i < depth; ++i) blocks.add(width);
///   for (Block& block : blocks) x = block(x, mask);
template <typename M = Module>
class ModuleList : public Module {
 public:
  using Module::Module;

  /// Constructs an element of type Derived (by default M) from the arguments.
  template <typename Derived = M, typename... Args>
  Derived& add(Args&&... args) {
    return push_back(detail::make_module<Derived>(std::forward<Args>(args)...));
  }
  template <std::derived_from<M> Derived>
  Derived& push_back(std::unique_ptr<Derived> module) {
    Derived& element = *module;
    register_module(std::to_string(elements_.size()), element);
    elements_.push_back(std::move(module));
    return element;
  }

  std::size_t size() const { return elements_.size(); }
  /// Throws Error if there is none.
  M& operator[](std::size_t i) const {
    detail::check_element("ModuleList", i, size());
    return *elements_[i];
  }

  /// Over the elements, as references.
  class Iterator {
   public:
    explicit Iterator(const std::unique_ptr<M>* at) : at_(at) {}
    M& operator*() const { return **at_; }
    Iterator& operator++() {
      ++at_;
      return *this;
    }
    bool operator==(const Iterator&) const = default;

   private:
    const std::unique_ptr<M>* at_;
  };
  Iterator begin() const { return Iterator(elements_.data()); }
  Iterator end() const { return Iterator(elements_.data() + elements_.size()); }

 private:
  std::vector<std::unique_ptr<M>> elements_;
};

/// Modules that run one after the other, owned by it, under the names "0", "1", ...
///
///   nn::Sequential net;
///   net.add<nn::Linear>(784, 128).add<nn::ReLU>().add<nn::Linear>(128, 10);
class Sequential : public Module {
 public:
  Sequential() = default;
  Sequential(Module* parent, std::string_view name) : Module(parent, name) {}
  /// Takes modules that exist: Sequential net(std::make_unique<nn::Linear>(2, 3), std::make_unique<nn::ReLU>()).
  template <std::derived_from<Module>... Ms>
  requires(sizeof...(Ms) > 0) explicit Sequential(std::unique_ptr<Ms>... modules) {
    (push_back(std::move(modules)), ...);
  }

  /// Constructs the next module from the arguments. Returns *this, to go on.
  template <std::derived_from<Module> M, typename... Args>
  Sequential& add(Args&&... args) {
    return push_back(detail::make_module<M>(std::forward<Args>(args)...));
  }
  Sequential& push_back(std::unique_ptr<Module> module);

  Tensor forward(Tensor x) override;

  std::size_t size() const { return modules_.size(); }
  /// Throws Error if there is none.
  Module& operator[](std::size_t i) const {
    detail::check_element("Sequential", i, size());
    return *modules_[i];
  }

 private:
  std::vector<std::unique_ptr<Module>> modules_;
};

namespace detail {
[[noreturn]] void throw_no_member(const std::string& name);
}  // namespace detail

/// Owns modules of type M (or derived from it) under names of the program's choice.
///
///   nn::ModuleDict<> heads{this, "heads"};
///   heads.add<nn::Linear>("price", 64, 1);
///   y = heads["price"](x);
template <typename M = Module>
class ModuleDict : public Module {
 public:
  using Module::Module;

  /// Constructs the module of this name from the arguments. Throws Error if the name is taken.
  template <typename Derived = M, typename... Args>
  Derived& add(const std::string& name, Args&&... args) {
    auto module = detail::make_module<Derived>(std::forward<Args>(args)...);
    Derived& element = *module;
    register_module(name, element);
    elements_.emplace_back(name, std::move(module));
    return element;
  }

  std::size_t size() const { return elements_.size(); }
  /// Null if there is none of that name.
  M* find(const std::string& name) const {
    for (const auto& [key, module] : elements_)
      if (key == name) return module.get();
    return nullptr;
  }
  /// Throws Error if there is none of that name.
  M& operator[](const std::string& name) const {
    M* const module = find(name);
    if (!module) detail::throw_no_member(name);
    return *module;
  }

 private:
  std::vector<std::pair<std::string, std::unique_ptr<M>>> elements_;
};

/// Parameters under the names "0", "1", ...
class ParameterList : public Module {
 public:
  using Module::Module;

  /// Adds one more. Throws Error as Parameter does.
  Tensor push_back(Tensor value);
  Tensor append(Tensor value) { return push_back(std::move(value)); }  ///< PyTorch's name for it
  std::size_t size() const { return elements_.size(); }
  /// A handle on the i-th. Throws Error if there is none.
  Tensor operator[](std::size_t i) const {
    detail::check_element("ParameterList", i, size());
    return *elements_[i];
  }

 private:
  std::vector<std::unique_ptr<Parameter>> elements_;
};

/// Parameters under names of the program's choice.
class ParameterDict : public Module {
 public:
  using Module::Module;

  /// One more. Throws Error if the name is taken, and as Parameter does.
  Tensor insert(const std::string& name, Tensor value);
  std::size_t size() const { return elements_.size(); }
  bool contains(const std::string& name) const;  ///< there is one of that name
  /// A handle on it. Throws Error if there is none of that name.
  Tensor operator[](const std::string& name) const;

 private:
  std::vector<std::pair<std::string, std::unique_ptr<Parameter>>> elements_;
};

/// What `module` computes of x, but for backward only x is kept: what the module's operations would have saved is
/// computed once more then. Chen et al., "Training deep nets with sublinear memory cost" (2016); PyTorch's
/// torch.utils.checkpoint. Values and gradients have the bits that they have without, since random numbers are drawn
/// from the same keys (Note [Random keys]) and autocasting is as it was. `function`, if given, is called instead of
/// the module; its hooks run both times. Gradients go to x and to the parameters of `module`; another tensor that
/// requires gradients and is read is an Error in backward(). What forward() leaves in a member, such as a loss of its
/// own, has no graph: return it, with cat() say. Batch norm layers count the batch once: their running statistics are
/// what they are without.
///
/// The module must outlive the graph, must compute the same thing each time (a buffer that forward() of a module of the
/// program's own changes is changed twice), and its parameters must not change in between, nor what is frozen or in
/// training mode, which throws Error in backward().
Tensor recompute(Module& module, const Tensor& x, std::function<Tensor(const Tensor&)> function = {});

/// The same of a module, or of several as members of one, that takes several tensors, which are kept:
/// `recompute(block, {x, mask}, [&](const std::vector<Tensor>& in) { return block(in[0], in[1]); })`. An undefined
/// input stays so.
Tensor recompute(Module& module, const std::vector<Tensor>& inputs,
                 std::function<Tensor(const std::vector<Tensor>&)> function);

/// The same of a function without parameters: gradients go to the inputs alone.
Tensor recompute(const std::vector<Tensor>& inputs, std::function<Tensor(const std::vector<Tensor>&)> function);

}  // namespace lockstep::nn
