# CUDA toolkit. The binary links the static runtime, so it starts on a machine without a driver.
set(lockstep_cuda_found OFF)
if(NOT LOCKSTEP_CUDA STREQUAL "OFF")
  include(CheckLanguage)
  check_language(CUDA)
  if(CMAKE_CUDA_COMPILER)
    enable_language(CUDA)
    find_package(CUDAToolkit QUIET)
    set(lockstep_cuda_found ${CUDAToolkit_FOUND})
  endif()
endif()
lockstep_optional(CUDA lockstep_cuda_found
  "${CUDAToolkit_VERSION}, architectures ${LOCKSTEP_CUDA_ARCHITECTURES}" nvidia-cuda-toolkit)
