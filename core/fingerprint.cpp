#include "lockstep/core/fingerprint.h"

#include <elf.h>
#include <fmt/core.h>
#include <link.h>

#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>
#include <string_view>

#include "lockstep/core/cpu/gemm/gemm.h"
#include "lockstep/core/sha256.h"

namespace lockstep {
namespace {

// Libraries whose code computes.
constexpr std::string_view kComputing[] = {"libdnnl.", "libopenblas", "libblas.", "libmkl", "libm.", "libmvec."};
constexpr std::string_view kComputingOnCuda[] = {"libcublas.", "libcublasLt.", "libcudnn.", "libcuda."};
// Settings that select kernels, of lockstep and CUDA's libraries, and of those that LOCKSTEP_KERNELS=libraries uses.
constexpr const char* kSettings[] = {"LOCKSTEP_REFERENCE", "LOCKSTEP_KERNELS", "NVIDIA_TF32_OVERRIDE",
                                     "CUBLAS_WORKSPACE_CONFIG"};
constexpr const char* kLibrarySettings[] = {
    "ONEDNN_MAX_CPU_ISA",         "DNNL_MAX_CPU_ISA",         "ONEDNN_CPU_ISA_HINTS", "DNNL_CPU_ISA_HINTS",
    "ONEDNN_DEFAULT_FPMATH_MODE", "DNNL_DEFAULT_FPMATH_MODE", "OPENBLAS_CORETYPE",    "MKL_CBWR",
    "MKL_ENABLE_INSTRUCTIONS",    "MKL_DEBUG_CPU_TYPE",       "BLIS_ARCH_TYPE",       "GLIBC_TUNABLES"};

// The build id in a loaded object's notes, in hex; empty: it has none.
std::string build_id(const dl_phdr_info& info) {
  for (int h = 0; h < info.dlpi_phnum; ++h) {
    const auto& header = info.dlpi_phdr[h];
    if (header.p_type != PT_NOTE) continue;
    const auto* at = reinterpret_cast<const unsigned char*>(info.dlpi_addr + header.p_vaddr);
    const auto* end = at + header.p_memsz;
    while (end - at >= static_cast<std::ptrdiff_t>(sizeof(ElfW(Nhdr)))) {
      ElfW(Nhdr) note;
      std::memcpy(&note, at, sizeof(note));
      const auto padded = [](std::size_t n) { return (n + 3) / 4 * 4; };
      const unsigned char* name = at + sizeof(note);
      const unsigned char* value = name + padded(note.n_namesz);
      if (end - value < static_cast<std::ptrdiff_t>(note.n_descsz)) break;
      if (note.n_type == NT_GNU_BUILD_ID && note.n_namesz == 4 && std::memcmp(name, "GNU", 4) == 0) {
        static const char* digits = "0123456789abcdef";
        std::string hex;
        for (std::size_t i = 0; i < note.n_descsz; ++i) {
          hex += digits[value[i] >> 4];
          hex += digits[value[i] & 15];
        }
        return hex;
      }
      at = value + padded(note.n_descsz);
    }
  }
  return {};
}

struct Objects {
  std::map<std::string, std::string> own;  // file name to build id
  std::map<std::string, std::string> computing;
  std::map<std::string, std::string> computing_on_cuda;
  std::string program;
};

int visit(dl_phdr_info* info, std::size_t, void* data) {
  auto& objects = *static_cast<Objects*>(data);
  const std::string_view path = info->dlpi_name ? info->dlpi_name : "";
  if (path.empty()) {
    if (objects.program.empty()) objects.program = build_id(*info);
    return 0;
  }
  const std::string_view file = path.substr(path.rfind('/') + 1);
  if (file.starts_with("liblockstep")) objects.own.emplace(file, build_id(*info));
  for (const std::string_view name : kComputing)
    if (file.starts_with(name)) objects.computing.emplace(file, build_id(*info));
  for (const std::string_view name : kComputingOnCuda)
    if (file.starts_with(name)) objects.computing_on_cuda.emplace(file, build_id(*info));
  return 0;
}

// Libraries choose their kernels by these, and a virtual machine may hide some of them.
constexpr std::string_view kExtensions[] = {"avx2", "fma", "avx512f", "avx512_vnni", "avx512_bf16", "amx_tile"};

// " avx2 fma": those of kExtensions among the flags, which are words.
std::string extensions(const std::string& flags) {
  const std::string words = " " + flags + " ";
  std::string found;
  for (const std::string_view name : kExtensions)
    if (words.find(fmt::format(" {} ", name)) != std::string::npos) found += fmt::format(" {}", name);
  return found;
}

// "AMD EPYC (family 25, model 1, avx2 fma)": names alone do not tell generations apart.
std::string processor() {
  std::ifstream file("/proc/cpuinfo");
  std::string name = "unknown";
  std::string family = "?";
  std::string model = "?";
  std::string flags;
  for (std::string line; std::getline(file, line) && !line.empty();) {  // of the first processor
    const std::size_t colon = line.find(": ");
    if (colon == std::string::npos) continue;
    const std::string value = line.substr(colon + 2);
    if (line.starts_with("model name")) name = value;
    if (line.starts_with("cpu family")) family = value;
    if (line.starts_with("model\t")) model = value;
    if (line.starts_with("flags")) flags = extensions(value);
  }
  return fmt::format("{} (family {}, model {}{}{})", name, family, model, flags.empty() ? "" : ",", flags);
}

std::string short_id(const std::string& id) {
  return id.empty() ? "without a build id" : id.substr(0, 12);
}

}  // namespace

std::string numeric_fingerprint(bool cuda) {
  const bool libraries = cpu::kernels() == cpu::Kernels::libraries;
  if (libraries) cpu::gemm_library();  // what computes must be loaded to be seen
  Objects objects;
  dl_iterate_phdr(visit, &objects);
  std::string own = objects.program;
  if (!objects.own.empty()) {
    Sha256 hash;
    for (const auto& [file, id] : objects.own) {
      const std::string entry = file + " " + id + "\n";
      hash.update(entry.data(), entry.size());
    }
    own = to_hex(hash.finish());
  }
  // Note [What bits depend on]
  // With our own kernels neither the processor nor a library enters: sums have one order, elementary functions are
  // ours. With the libraries' kernels both do, as these choose block sizes by processor and version.
  std::string text = (libraries ? "cpu " + processor() + "; " : std::string()) + "lockstep " + short_id(own);
  const auto add_settings = [&](const auto& names) {
    for (const char* name : names)
      if (const char* value = std::getenv(name)) text += std::string("; ") + name + "=" + value;
  };
  if (libraries)
    for (const auto& [file, id] : objects.computing) text += "; " + file + " " + short_id(id);
  if (cuda)
    for (const auto& [file, id] : objects.computing_on_cuda) text += "; " + file + " " + short_id(id);
  add_settings(kSettings);
  if (libraries) add_settings(kLibrarySettings);
  return text;
}

}  // namespace lockstep
