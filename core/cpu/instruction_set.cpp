#include "lockstep/core/cpu/instruction_set.h"

#include <algorithm>
#include <cstdlib>
#include <string_view>

#include "lockstep/core/check.h"

namespace lockstep::cpu {
namespace {

std::vector<InstructionSet> find_instruction_sets() {
  std::vector<InstructionSet> found;
#if defined(__x86_64__)
  __builtin_cpu_init();
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  const bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
                      __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl");
  if (avx2 && avx512) found.push_back(InstructionSet::avx512);
  if (avx2) found.push_back(InstructionSet::avx2);
#elif defined(__aarch64__)
  found.push_back(InstructionSet::neon);
#endif
  return found;
}

}  // namespace

const char* name(InstructionSet set) {
  switch (set) {
    case InstructionSet::avx2:
      return "avx2";
    case InstructionSet::avx512:
      return "avx512";
    case InstructionSet::neon:
      return "neon";
  }
  return "unknown";
}

const std::vector<InstructionSet>& instruction_sets() {
  static const std::vector<InstructionSet> sets = find_instruction_sets();
  return sets;
}

bool has_instruction_set(InstructionSet set) {
  return std::ranges::find(instruction_sets(), set) != instruction_sets().end();
}

InstructionSet instruction_set() {
  static const InstructionSet chosen = detail::choose_instruction_set(std::getenv("LOCKSTEP_CPU"), instruction_sets());
  return chosen;
}

namespace detail {

InstructionSet choose_instruction_set(const char* wanted, const std::vector<InstructionSet>& available) {
  if (wanted && *wanted) {
    for (const InstructionSet set : available)
      if (std::string_view(name(set)) == wanted) return set;
    throw lockstep::Error(
        fmt::format("LOCKSTEP_CPU is '{}'; this processor and build have: {}", wanted, names(available)));
  }
  LOCKSTEP_CHECK(!available.empty(),
                 "this processor has none of the instruction sets that kernels were compiled for (AVX2 with FMA, "
                 "AVX-512, NEON); set LOCKSTEP_KERNELS=libraries");
  return available.front();
}

std::string names(const std::vector<InstructionSet>& sets) {
  std::string text;
  for (const InstructionSet set : sets) text += (text.empty() ? "" : ", ") + std::string(name(set));
  return text.empty() ? "none" : text;
}

}  // namespace detail

}  // namespace lockstep::cpu
