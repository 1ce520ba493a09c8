#pragma once

#include <string>
#include <vector>

namespace lockstep::cuda {

/// Note [Libraries of CUDA]
/// cuBLASLt, cuDNN and NCCL are opened when the first function of theirs is asked for, not linked: a program that was
/// built with CUDA starts, and trains on the CPU, where none of them is installed. A library is looked for in
///   1. the folders of LOCKSTEP_CUDA_LIBRARY_PATH (separated by colons),
///   2. where the loader looks: LD_LIBRARY_PATH, the system's cache of libraries,
///   3. the library folder of the toolkit that lockstep was built with.
/// A folder of 1 or 3 may also hold the pip wheels' tree: DIR/nvidia/*/lib, as in a Python's site-packages.
/// They are opened by full path where one is known, so that cuDNN finds the parts that lie beside it.
class DynamicLibrary {
 public:
  /// `file`: such as "libcudnn.so.9". `package`: what to install, for the error message. `first`: a library that is
  /// opened before this one if it can be, since this one looks for it too; or null.
  DynamicLibrary(std::string file, std::string package, DynamicLibrary* first = nullptr);
  DynamicLibrary(const DynamicLibrary&) = delete;

  /// The function's address as its real type, e.g. `library.function<decltype(&ncclAllReduce)>("ncclAllReduce")`.
  /// Opens the library if that has not been done. Throws Error, saying what was looked for where and what to do, if
  /// there is no such library or function. Thread-safe.
  template <typename F>
  F function(const char* name) {
    return reinterpret_cast<F>(address(name));
  }

  /// Opens it; false if that cannot be done. Never throws.
  bool is_available() noexcept;
  /// What an attempt to open it would throw; empty if it can be opened.
  std::string why_unavailable();
  /// The file that was opened, opening it if need be. Throws as function().
  std::string path();

 private:
  void* address(const char* name);
  void* open(std::string* error);

  std::string file_;
  std::string package_;
  DynamicLibrary* first_;
  void* handle_ = nullptr;
};

/// The major versions are those of the headers that lockstep was built with.
DynamicLibrary& cublaslt_library();
DynamicLibrary& cudnn_library();
DynamicLibrary& nccl_library();

}  // namespace lockstep::cuda

/// The address of a function of the library's header: `LOCKSTEP_FUNCTION_OF(cublaslt_library(), cublasLtCreate)`.
#define LOCKSTEP_FUNCTION_OF(library, name) (library).function<decltype(&::name)>(#name)
