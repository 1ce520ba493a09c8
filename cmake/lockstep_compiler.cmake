# Compiler settings shared by every target.
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_CUDA_ARCHITECTURES ${LOCKSTEP_CUDA_ARCHITECTURES})
set(CMAKE_INSTALL_RPATH "$ORIGIN;$ORIGIN/../${CMAKE_INSTALL_LIBDIR}")

# Files *_avx512.cpp are compiled for F, BW, DQ and VL, whatever LOCKSTEP_CPU_ARCH is; see Note [One instruction set a file].
set(LOCKSTEP_AVX512_FLAGS -mavx2 -mfma -mavx512f -mavx512bw -mavx512dq -mavx512vl)

if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
  set(LOCKSTEP_CPU_ARCH x86-64-v3 CACHE STRING "lockstep: value of -march for the CPU kernels (empty: compiler default)")
else()
  set(LOCKSTEP_CPU_ARCH "" CACHE STRING "lockstep: value of -march for the CPU kernels (empty: compiler default)")
endif()

# One interface target carries the flags, so that nothing leaks into a consumer's build.
add_library(lockstep_flags INTERFACE)
target_compile_options(lockstep_flags INTERFACE
  $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra>
  $<$<AND:$<COMPILE_LANGUAGE:CXX>,$<BOOL:${LOCKSTEP_WERROR}>>:-Werror>
  $<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=-Wall,-Wextra>
  $<$<AND:$<COMPILE_LANGUAGE:CUDA>,$<BOOL:${LOCKSTEP_WERROR}>>:-Werror=all-warnings>)
# GCC 12 sees overlapping and endless copies in std::string's own code (GCC bug 105329 and its like).
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
  target_compile_options(lockstep_flags INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-Wno-restrict -Wno-stringop-overflow>)
endif()
if(LOCKSTEP_CPU_ARCH)
  target_compile_options(lockstep_flags INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-march=${LOCKSTEP_CPU_ARCH}>)
  # __builtin_prefetch(p, 1) becomes prefetchw, which processors that do not know it ignore, instead of a plain prefetch.
  if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
    target_compile_options(lockstep_flags INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-mprfchw>)
  endif()
endif()
# errno and trapping semantics keep sqrt and friends from vectorising; nothing here reads either.
target_compile_options(lockstep_flags INTERFACE
  $<$<COMPILE_LANGUAGE:CXX>:-fno-math-errno -fno-trapping-math -fno-semantic-interposition>)

# A multiplication and an addition become a fused one where the source says std::fma and nowhere else: which ones a
# compiler would join depends on the compiler and on how far it optimises, and the bits with it.
target_compile_options(lockstep_flags INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-ffp-contract=off>
  $<$<COMPILE_LANGUAGE:CUDA>:--fmad=false>)

# A program without shared libraries leaves out what it does not call.
if(LOCKSTEP_STATIC_PROGRAMS)
  target_compile_options(lockstep_flags INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-ffunction-sections -fdata-sections>)
  target_link_options(lockstep_flags INTERFACE -Wl,--gc-sections)
endif()

# numeric_fingerprint() tells builds apart by these.
target_link_options(lockstep_flags INTERFACE -Wl,--build-id=sha1)

if(LOCKSTEP_SANITIZE)
  if(NOT LOCKSTEP_SANITIZE MATCHES "^(address|undefined|thread)$")
    message(FATAL_ERROR "LOCKSTEP_SANITIZE is '${LOCKSTEP_SANITIZE}'; expected address, undefined, thread or empty")
  endif()
  target_compile_options(lockstep_flags INTERFACE
    $<$<COMPILE_LANGUAGE:CXX>:-fsanitize=${LOCKSTEP_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all>)
  target_link_options(lockstep_flags INTERFACE -fsanitize=${LOCKSTEP_SANITIZE})
  # Checks of large functions as calls: written out, those of the product kernels alone take GCC 12 ten minutes.
  if(LOCKSTEP_SANITIZE STREQUAL "address" AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    target_compile_options(lockstep_flags INTERFACE
      "$<$<COMPILE_LANGUAGE:CXX>:SHELL:--param asan-instrumentation-with-call-threshold=150>")
  endif()
  # Kernels of an instruction set that this machine does not have will not run: they are only to compile, quickly.
  if(EXISTS /proc/cpuinfo)
    file(STRINGS /proc/cpuinfo has_avx512 REGEX "^flags.* avx512f( |$)" LIMIT_COUNT 1)
    if(NOT has_avx512)
      list(APPEND LOCKSTEP_AVX512_FLAGS -O0 -fno-sanitize=all)
    endif()
  endif()
endif()

# See tests/fuzz/CMakeLists.txt.
if(LOCKSTEP_FUZZ)
  if(NOT CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
    message(FATAL_ERROR "LOCKSTEP_FUZZ=ON needs Clang with libFuzzer; found ${CMAKE_CXX_COMPILER_ID}. Set "
      "CMAKE_CXX_COMPILER=clang++, or run scripts/fuzz.sh")
  endif()
  target_compile_options(lockstep_flags INTERFACE
    $<$<COMPILE_LANGUAGE:CXX>:-fsanitize=fuzzer-no-link,address,undefined -fno-omit-frame-pointer -fno-sanitize-recover=all -Wno-pass-failed>)
  target_link_options(lockstep_flags INTERFACE -fsanitize=address,undefined)
endif()
