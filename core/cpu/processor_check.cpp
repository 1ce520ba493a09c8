// Note [Processor check]
// The library is compiled for processors with AVX2 (LOCKSTEP_CPU_ARCH). One without would end the program with "Illegal
// instruction" wherever the compiler has used it first: in a static initialiser, or in an inline function of the
// standard library. So this file alone is compiled for every x86-64 processor, and runs before all other code of the
// library: initialisers of a shared library run before those of what depends on it, everything of ours depends on core,
// and the priority puts this one before core's others. In a program that is linked statically it runs before all of the
// program's; the link option --undefined takes it in although nobody calls it.
//
// There is nobody to throw to, and no code of the caller's that is sure to run, so this is the one place of the library
// that ends the process. It calls the system alone: a function of the standard library's headers might be taken, at
// link time, from a file that was compiled for AVX2.
#include <unistd.h>

namespace {

struct Line {
  char text[512] = {};
  unsigned size = 0;

  void add(const char* part) {
    while (*part && size + 1 < sizeof text) text[size++] = *part++;
  }
};

}  // namespace

extern "C" __attribute__((constructor(101))) void lockstep_check_processor() {
  Line missing;
  __builtin_cpu_init();
#define LOCKSTEP_NEEDS(feature) \
  if (!__builtin_cpu_supports(feature)) missing.add(" " feature);
  LOCKSTEP_CPU_FEATURES
#undef LOCKSTEP_NEEDS
  if (missing.size == 0) return;

  Line line;
  line.add("lockstep: this processor lacks");
  line.add(missing.text);
  line.add(", for which the library was compiled (-march=" LOCKSTEP_CPU_ARCH
           "); build it with -D LOCKSTEP_CPU_ARCH=x86-64 for every x86-64 processor\n");
  // There is no other place to say it if stderr is closed.
  [[maybe_unused]] const auto written = write(STDERR_FILENO, line.text, line.size);
  _exit(1);
}
