# MPI: messages between ranks that mpirun has started. Target MPI::MPI_CXX.
set(lockstep_mpi_found OFF)
if(NOT LOCKSTEP_MPI STREQUAL "OFF")
  set(MPI_CXX_SKIP_MPICXX ON)
  find_package(MPI QUIET COMPONENTS CXX)
  set(lockstep_mpi_found ${MPI_CXX_FOUND})
endif()
lockstep_optional(MPI lockstep_mpi_found "MPI ${MPI_CXX_VERSION}, ${MPIEXEC_EXECUTABLE}" "libopenmpi-dev openmpi-bin")
