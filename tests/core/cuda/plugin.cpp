// A library for dynamic_library_test.cpp to find.
extern "C" int lockstep_test_answer();
extern "C" int lockstep_test_answer() {
  return 42;
}
