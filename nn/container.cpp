#include "lockstep/nn/container.h"

#include <algorithm>

#include "lockstep/core/check.h"

namespace lockstep::nn {

Sequential& Sequential::push_back(std::unique_ptr<Module> module) {
  LOCKSTEP_CHECK(module, "[nn::Sequential] expected a module, found a null pointer");
  register_module(std::to_string(modules_.size()), *module);
  modules_.push_back(std::move(module));
  return *this;
}

Tensor Sequential::forward(Tensor x) {
  for (std::size_t i = 0; i < modules_.size(); ++i) x = (*modules_[i])(std::move(x));  // a hook may add some
  return x;
}

namespace detail {
void check_element(const char* list, std::size_t i, std::size_t size) {
  LOCKSTEP_CHECK(i < size, "[nn::{}] there is no element {}; the list has {}", list, i, size);
}

void throw_no_member(const std::string& name) {
  ::lockstep::detail::throw_error("[nn::ModuleDict] there is no module \"" + name + "\"");
}
}  // namespace detail

Tensor ParameterList::push_back(Tensor value) {
  elements_.push_back(std::make_unique<Parameter>(this, std::to_string(elements_.size()), std::move(value)));
  return *elements_.back();
}

Tensor ParameterDict::insert(const std::string& name, Tensor value) {
  auto parameter = std::make_unique<Parameter>(this, name, std::move(value));
  elements_.emplace_back(name, std::move(parameter));
  return *elements_.back().second;
}

bool ParameterDict::contains(const std::string& name) const {
  return std::any_of(elements_.begin(), elements_.end(), [&](const auto& element) { return element.first == name; });
}

Tensor ParameterDict::operator[](const std::string& name) const {
  for (const auto& [key, parameter] : elements_)
    if (key == name) return *parameter;
  ::lockstep::detail::throw_error("[nn::ParameterDict] there is no parameter \"" + name + "\"");
}

}  // namespace lockstep::nn
