# CUDA toolkit. The binary links the static runtime, so it starts on a machine without a driver.
set(lockstep_cuda_found OFF)
if(NOT LOCKSTEP_CUDA STREQUAL "OFF")
  include(CheckLanguage)
  check_language(CUDA)
  if(CMAKE_CUDA_COMPILER)
    enable_language(CUDA)
    if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)
      # nvcc has known C++20 since 12.0; CMake has known that since 3.25.2.
      set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION "-std=c++20")
      set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION "-std=c++20")
    endif()
    find_package(CUDAToolkit QUIET)
    set(lockstep_cuda_found ${CUDAToolkit_FOUND})
  endif()
endif()
lockstep_optional(CUDA lockstep_cuda_found
  "${CUDAToolkit_VERSION}, architectures ${LOCKSTEP_CUDA_ARCHITECTURES}" nvidia-cuda-toolkit)
