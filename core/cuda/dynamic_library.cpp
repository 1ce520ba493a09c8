#include "lockstep/core/cuda/dynamic_library.h"

#include <dlfcn.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <mutex>
#include <system_error>

#include "lockstep/core/check.h"

namespace lockstep::cuda {
namespace {

constexpr const char* kVariable = "LOCKSTEP_CUDA_LIBRARY_PATH";

// One for all: a library may open another one first.
std::recursive_mutex& open_mutex() {
  static std::recursive_mutex mutex;
  return mutex;
}

std::vector<std::string> folders_of(const char* list) {
  std::vector<std::string> folders;
  std::string rest = list ? list : "";
  while (!rest.empty()) {
    const std::size_t colon = rest.find(':');
    if (colon != 0) folders.push_back(rest.substr(0, colon));
    rest = colon == std::string::npos ? "" : rest.substr(colon + 1);
  }
  return folders;
}

// The folder itself, then what lies in a tree of wheels beneath it, in alphabetical order.
std::vector<std::filesystem::path> places(const std::string& folder) {
  std::vector<std::filesystem::path> found;
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator(std::filesystem::path(folder) / "nvidia", ignored))
    if (std::filesystem::is_directory(entry.path() / "lib", ignored)) found.push_back(entry.path() / "lib");
  std::sort(found.begin(), found.end());
  found.insert(found.begin(), folder);
  return found;
}

// Null, and a note of why, if no file there can be opened.
void* open_in(const std::string& folder, const std::string& file, std::string& notes) {
  std::error_code ignored;
  for (const std::filesystem::path& place : places(folder)) {
    const std::filesystem::path path = place / file;
    if (!std::filesystem::exists(path, ignored)) continue;
    if (void* handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL)) return handle;
    notes += fmt::format("; {}", dlerror());
  }
  return nullptr;
}

}  // namespace

DynamicLibrary::DynamicLibrary(std::string file, std::string package, DynamicLibrary* first)
    : file_(std::move(file)), package_(std::move(package)), first_(first) {}

void* DynamicLibrary::open(std::string* error) {
  const std::lock_guard lock(open_mutex());
  if (handle_) return handle_;
  if (first_) first_->open(nullptr);
  std::string notes, searched;
  for (const std::string& folder : folders_of(std::getenv(kVariable))) {
    searched += folder + " (" + kVariable + "), ";
    if ((handle_ = open_in(folder, file_, notes))) return handle_;
  }
  searched += "the loader's folders (LD_LIBRARY_PATH, ldconfig)";
  if ((handle_ = dlopen(file_.c_str(), RTLD_NOW | RTLD_LOCAL))) return handle_;
  const std::string loader_says = dlerror();
  // A file that is there but cannot be loaded is worth telling.
  if (loader_says.find("No such file") == std::string::npos) notes += "; " + loader_says;
  const std::string toolkit = LOCKSTEP_CUDA_LIBRARY_DIR;
  if (!toolkit.empty()) {
    searched += ", " + toolkit + " (this build's toolkit)";
    if ((handle_ = open_in(toolkit, file_, notes))) return handle_;
  }
  if (error)
    *error = fmt::format(
        "the library {} cannot be opened; looked in {}{}; install {}, or set {} to a folder that has the library or "
        "holds nvidia/*/lib, or use device cpu",
        file_, searched, notes, package_, kVariable);
  return nullptr;
}

void* DynamicLibrary::address(const char* name) {
  std::string error;
  void* handle = open(&error);
  LOCKSTEP_CHECK(handle, "{}", error);
  void* found = dlsym(handle, name);
  LOCKSTEP_CHECK(found,
                 "the library {} has no function {}: it is older than the headers lockstep was built with; install {}",
                 path(), name, package_);
  return found;
}

bool DynamicLibrary::is_available() noexcept {
  try {
    return open(nullptr) != nullptr;
  } catch (...) {  // out of memory
    return false;
  }
}

std::string DynamicLibrary::why_unavailable() {
  std::string error;
  open(&error);
  return error;
}

std::string DynamicLibrary::path() {
  std::string error;
  void* handle = open(&error);
  LOCKSTEP_CHECK(handle, "{}", error);
  // RTLD_DI_LINKMAP needs <link.h>; the directory is enough with the name.
  std::string origin(4096, '\0');
  if (dlinfo(handle, RTLD_DI_ORIGIN, origin.data()) != 0) return file_;
  origin.resize(origin.find('\0'));
  return origin + "/" + file_;
}

// Never destroyed: they may be used while the program ends.
DynamicLibrary& cublaslt_library() {
  static auto* library = new DynamicLibrary("libcublasLt.so." LOCKSTEP_CUDA_MAJOR, "cuBLAS " LOCKSTEP_CUDA_MAJOR);
  return *library;
}
DynamicLibrary& cudnn_library() {
  static auto* library =
      new DynamicLibrary("libcudnn.so.9", "cuDNN 9 for CUDA " LOCKSTEP_CUDA_MAJOR, &cublaslt_library());
  return *library;
}
DynamicLibrary& nccl_library() {
  static auto* library = new DynamicLibrary("libnccl.so.2", "NCCL 2");
  return *library;
}

}  // namespace lockstep::cuda
