#pragma once

#include <string>
#include <vector>

namespace lockstep::cpu {

/// Vector instructions that kernels are compiled for beside the build's own. A kernel that is chosen at run time gives
/// the same bits with each of them.
enum class InstructionSet : unsigned char { avx2, avx512, neon };

/// "avx2", "avx512", "neon": the values of LOCKSTEP_CPU.
const char* name(InstructionSet set);

/// Those that this build has kernels for and this processor can execute, the widest first; may be empty.
const std::vector<InstructionSet>& instruction_sets();

/// True if instruction_sets() holds `set`.
bool has_instruction_set(InstructionSet set);

/// The one in use: the value of the environment variable LOCKSTEP_CPU, read once, else the first of instruction_sets().
/// Throws Error if LOCKSTEP_CPU names none that this processor and build have, or if there is none at all.
InstructionSet instruction_set();

namespace detail {
/// instruction_set() for a value of LOCKSTEP_CPU (null: not set), among `available`. Throws Error.
InstructionSet choose_instruction_set(const char* wanted, const std::vector<InstructionSet>& available);
/// "avx512, avx2"; "none".
std::string names(const std::vector<InstructionSet>& sets);
}  // namespace detail

}  // namespace lockstep::cpu
