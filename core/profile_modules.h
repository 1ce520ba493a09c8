#pragma once

// Which part of a program a profiled operation belongs to, and the table that is printed at the end. See Note
// [Profile]. For the library's .cpp files only.

#include <cstdint>
#include <string>
#include <vector>

namespace lockstep::profile {

/// Note [Profile by module]
/// While a profile is recorded, each event carries the path of the module that the thread is in, such as "h.3.attn".
/// What is computed later than it was called, a pending value or a backward function, belongs to the module of the
/// call: its address is remembered with the path, until something else of that address is remembered.

/// From here on this thread is in the module of that path, which must outlive the process; null: in none. Returns where
/// it was.
const char* enter_module(const char* path);

/// Where this thread is; null: in no module.
const char* current_module();

/// The module of this thread from construction to destruction.
class ModuleScope {
 public:
  /// `path`: from intern() or module_of().
  explicit ModuleScope(const char* path) : outer_(enter_module(path)) {}
  ~ModuleScope() { enter_module(outer_); }
  ModuleScope(const ModuleScope&) = delete;
  ModuleScope& operator=(const ModuleScope&) = delete;

 private:
  const char* outer_;
};

/// A copy of the text that is never freed; equal texts share one.
const char* intern(const std::string& text);
/// This thread's module belongs to `thing`.
void remember_module(const void* thing);
/// What remember_module() was told last of `thing`; null: nothing, or no module.
const char* module_of(const void* thing);

/// An event, as far as the table needs it.
struct TableEvent {
  const char* module;  ///< null: none
  const char* name;
  const char* label;  ///< may be null
  bool counted;       ///< one that has a row: a kernel or an optimizer's step
  std::int64_t start_ns, duration_ns, bytes;
  double flops = 0.0;
};

/// The rows with the most time, 20 at most: module, operation, calls, milliseconds without those of counted events
/// inside, share of `total_ns`, GFLOP/s of products and GB/s of the operands; then what is left. `tracks`: the events
/// of each thread.
std::string make_table(std::vector<std::vector<TableEvent>> tracks, std::int64_t total_ns);

}  // namespace lockstep::profile
