# cmake --install: headers, libraries, programs and the package files of find_package(lockstep CONFIG).
include(CMakePackageConfigHelpers)
set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/lockstep)

get_property(layers GLOBAL PROPERTY LOCKSTEP_LAYERS)
install(TARGETS ${layers} lockstep EXPORT lockstepTargets
  ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR}
  LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}
  RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
target_include_directories(lockstep INTERFACE $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
get_property(programs GLOBAL PROPERTY LOCKSTEP_PROGRAMS)
if(programs)
  install(TARGETS ${programs} RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
endif()

# Which headers are for users follows from what lockstep.h includes; see install_headers.cmake.
install(CODE "
  set(source_dir \"${PROJECT_SOURCE_DIR}\")
  set(generated_dir \"${PROJECT_BINARY_DIR}/generated\")
  set(include_dir \"\${CMAKE_INSTALL_PREFIX}/${CMAKE_INSTALL_INCLUDEDIR}/lockstep\")")
install(SCRIPT ${CMAKE_CURRENT_LIST_DIR}/install_headers.cmake)

# Shared libraries keep their dependencies to themselves; static ones hand them on. Those whose targets are ours or hold
# absolute paths are found again on the user's machine.
set(LOCKSTEP_STATIC_DEPENDENCIES "")
set(LOCKSTEP_STATIC_LINKS "")
macro(lockstep_static_dependency layer find target)
  string(APPEND LOCKSTEP_STATIC_DEPENDENCIES "  ${find}\n")
  string(APPEND LOCKSTEP_STATIC_LINKS
    "set_property(TARGET lockstep::${layer} APPEND PROPERTY INTERFACE_LINK_LIBRARIES ${target})\n")
endmacro()
if(NOT BUILD_SHARED_LIBS)
  if(LOCKSTEP_HAS_ONEDNN)
    lockstep_static_dependency(core "find_library(LOCKSTEP_ONEDNN_LIBRARY NAMES dnnl REQUIRED)"
      "\${LOCKSTEP_ONEDNN_LIBRARY}")
  endif()
  if(LOCKSTEP_HAS_GLOO)
    lockstep_static_dependency(gloo "find_dependency(Gloo CONFIG)" gloo)
  endif()
  if(LOCKSTEP_HAS_MPI)
    lockstep_static_dependency(mpi "find_dependency(MPI COMPONENTS CXX)" MPI::MPI_CXX)
  endif()
  if(LOCKSTEP_HAS_CUDA)
    lockstep_static_dependency(core "find_dependency(CUDAToolkit)" CUDA::cudart_static)
  endif()
endif()
install(EXPORT lockstepTargets NAMESPACE lockstep:: DESTINATION ${package_dir})
configure_package_config_file(${CMAKE_CURRENT_LIST_DIR}/lockstepConfig.cmake.in
  ${PROJECT_BINARY_DIR}/package/lockstepConfig.cmake INSTALL_DESTINATION ${package_dir} NO_SET_AND_CHECK_MACRO)
write_basic_package_version_file(${PROJECT_BINARY_DIR}/package/lockstepConfigVersion.cmake
  COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/package/lockstepConfig.cmake ${PROJECT_BINARY_DIR}/package/lockstepConfigVersion.cmake
  DESTINATION ${package_dir})

# The same for pkg-config: libraries by name, those that need others before them.
function(lockstep_install_pkg_config)
  get_property(layers GLOBAL PROPERTY LOCKSTEP_LAYERS)
  set(libraries ${layers})
  list(REVERSE libraries)
  list(TRANSFORM libraries PREPEND -l)
  if(NOT BUILD_SHARED_LIBS)
    # Those that the CMake package finds again, too.
    if(LOCKSTEP_HAS_GLOO)
      list(APPEND libraries -lgloo)
    endif()
    if(LOCKSTEP_HAS_MPI)
      foreach(library IN LISTS MPI_CXX_LIB_NAMES)
        list(APPEND libraries -l${library})
      endforeach()
    endif()
    if(LOCKSTEP_HAS_ONEDNN)
      list(APPEND libraries -ldnnl)
    endif()
    if(LOCKSTEP_HAS_CUDA AND NOT LOCKSTEP_CUDA_EMULATED)
      list(APPEND libraries -L${CUDAToolkit_LIBRARY_DIR} -lcudart_static -lrt)
    endif()
    if(NOT LOCKSTEP_STATIC_PROGRAMS)  # else the layers have their code
      list(APPEND libraries -lspdlog -lfmt)
    endif()
    list(APPEND libraries -lcrypto -lz ${CMAKE_DL_LIBS})
    list(TRANSFORM libraries REPLACE "^dl$" -ldl)
  endif()
  list(JOIN libraries " " libraries)
  file(RELATIVE_PATH up ${CMAKE_INSTALL_FULL_LIBDIR}/pkgconfig ${CMAKE_INSTALL_PREFIX})
  string(REGEX REPLACE "/$" "" up ${up})
  configure_file(${CMAKE_CURRENT_FUNCTION_LIST_DIR}/lockstep.pc.in ${PROJECT_BINARY_DIR}/package/lockstep.pc @ONLY)
  install(FILES ${PROJECT_BINARY_DIR}/package/lockstep.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
endfunction()
lockstep_install_pkg_config()

# Messages and headers send their readers to the documents.
install(FILES ${PROJECT_SOURCE_DIR}/LICENSE ${PROJECT_SOURCE_DIR}/README.md ${PROJECT_SOURCE_DIR}/CONTRIBUTING.md
  DESTINATION ${CMAKE_INSTALL_DOCDIR})
install(DIRECTORY ${PROJECT_SOURCE_DIR}/docs DESTINATION ${CMAKE_INSTALL_DOCDIR} PATTERN "*.json" EXCLUDE)
