# Target gpu_check: everything that scripts/gpu_check.sh runs on a GPU machine, and gpu_check/programs.json in the build
# folder, which tells it where that is. Targets that this build does not have are left out.
get_property(gpu_tests GLOBAL PROPERTY LOCKSTEP_CUDA_TESTS)
get_property(gpu_ops GLOBAL PROPERTY LOCKSTEP_OPS)
set(entries "")
set(targets "")
foreach(target IN LISTS gpu_tests)
  set(filter "*")
  if(target STREQUAL "test_ops")
    set(filter "Ops/Golden*")
  endif()
  list(APPEND entries "    {\"name\": \"${target}\", \"program\": \"$<TARGET_FILE:${target}>\", \"filter\": \"${filter}\"}")
  list(APPEND targets ${target})
endforeach()
list(JOIN entries ",\n" tests)
set(entries "")
foreach(target mnist_train lockstep_run lockstep_doctor cuda_throughput cuda_ddp)
  if(TARGET ${target})
    list(APPEND entries "    \"${target}\": \"$<TARGET_FILE:${target}>\"")
    list(APPEND targets ${target})
  endif()
endforeach()
list(JOIN entries ",\n" programs)
set(plugin "")
if(TARGET test_plugin)
  set(plugin "$<TARGET_FILE:test_plugin>")
endif()
set(emulated false)
set(cuda_major "${CUDAToolkit_VERSION_MAJOR}")
if(LOCKSTEP_CUDA_EMULATED)
  set(emulated true)
endif()
list(JOIN gpu_ops "\", \"" ops)
file(GENERATE OUTPUT ${PROJECT_BINARY_DIR}/gpu_check/programs.json CONTENT "{
  \"source\": \"${PROJECT_SOURCE_DIR}\",
  \"emulated\": ${emulated},
  \"build\": \"${CMAKE_CXX_COMPILER_ID} ${CMAKE_CXX_COMPILER_VERSION}, ${CMAKE_BUILD_TYPE}, CUDA ${CUDAToolkit_VERSION}, architectures ${LOCKSTEP_CUDA_ARCHITECTURES}\",
  \"cuda_major\": \"${cuda_major}\",
  \"plugin\": \"${plugin}\",
  \"ops\": [\"${ops}\"],
  \"tests\": [
${tests}
  ],
  \"programs\": {
${programs}
  }
}
")
add_custom_target(gpu_check DEPENDS ${targets})
