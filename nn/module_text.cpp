#include <ostream>

#include "lockstep/nn/module.h"

namespace lockstep::nn {
namespace {

// "Linear" of "lockstep::nn::Linear", "ModuleList<lockstep::nn::Linear>" of a list of those.
std::string short_name(const std::string& name) {
  const std::size_t colon = name.substr(0, name.find('<')).rfind("::");
  return colon == std::string::npos ? name : name.substr(colon + 2);
}

}  // namespace

void Module::print(std::ostream& out, const std::string& indent) const {
  out << short_name(type_name()) << '(';
  const char* separator = "";
  bool has_children = false;
  for (const Member& member : members_) {
    has_children = has_children || member.module;
    if (member.module || !member.tensor.defined()) continue;
    out << separator << member.name << ": " << to_string(member.tensor.sizes());
    separator = ", ";
  }
  if (has_children) {
    for (const Member& member : members_) {
      if (!member.module) continue;
      out << '\n' << indent << "  (" << member.name << "): ";
      member.module->print(out, indent + "  ");
    }
    out << '\n' << indent;
  }
  out << ')';
}

std::ostream& operator<<(std::ostream& out, const Module& module) {
  module.print(out, "");
  return out;
}

}  // namespace lockstep::nn
