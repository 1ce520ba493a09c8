# Configures without oneDNN and BLAS, and compiles the files that are then chosen; the others are the same with them.
# Called by ctest with -D source_dir, work_dir, compiler, generator.
file(REMOVE_RECURSE ${work_dir})
execute_process(COMMAND ${CMAKE_COMMAND} -S ${source_dir} -B ${work_dir} -G ${generator} -D CMAKE_CXX_COMPILER=${compiler}
    -D CMAKE_BUILD_TYPE=Release -D LOCKSTEP_CUDA=OFF -D LOCKSTEP_ONEDNN=OFF -D LOCKSTEP_BLAS=OFF -D LOCKSTEP_GLOO=OFF
    -D LOCKSTEP_MPI=OFF -D LOCKSTEP_BUILD_TESTS=OFF -D LOCKSTEP_BUILD_APPS=OFF -D LOCKSTEP_PRECOMPILED_HEADERS=OFF
  OUTPUT_VARIABLE output ERROR_VARIABLE output RESULT_VARIABLE status)
if(NOT status EQUAL 0)
  message(FATAL_ERROR "configuring without oneDNN and BLAS failed:\n${output}")
endif()
set(objects
  core/CMakeFiles/lockstep_core.dir/cpu/gemm/library_eigen.cpp.o
  core/CMakeFiles/lockstep_core.dir/cpu/gemm/no_library_onednn.cpp.o
  autograd/CMakeFiles/lockstep_autograd.dir/ops/conv2d/conv2d_cpu.cpp.o)
execute_process(COMMAND ${CMAKE_COMMAND} --build ${work_dir} --target ${objects}
  OUTPUT_VARIABLE output ERROR_VARIABLE output RESULT_VARIABLE status)
if(NOT status EQUAL 0)
  message(FATAL_ERROR "compiling without oneDNN and BLAS failed:\n${output}")
endif()
