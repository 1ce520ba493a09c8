# Note [Layers]
# Every folder is one target, and a target sees only the headers of its own folder and of the targets that it names
# under DEPENDS. Headers are included under the project's name ("lockstep/core/tensor.h"), in the tree and
# after installation; a plain include directory at the root would let core include nn. So each target's include directory
# is a folder of the build tree that holds a folder lockstep/ with one symbolic link, to that target's folder. An include that the layer table forbids does not compile.

# Most of the time that a small file takes to compile goes into the standard library's headers.
# lockstep_precompile(<target> <layer>): a precompiled header for the layer's C++ files. Every file still includes what
# it uses: the presets ubsan and tsan build without. Not with ccache, which would cache nothing then.
option(LOCKSTEP_PRECOMPILED_HEADERS "lockstep: precompiled headers for the libraries" ON)
function(lockstep_precompile target layer)
  if(NOT LOCKSTEP_PRECOMPILED_HEADERS OR CMAKE_CXX_COMPILER_LAUNCHER MATCHES "ccache")
    return()
  endif()
  if(layer STREQUAL "core")
    set(header ${PROJECT_SOURCE_DIR}/cmake/precompiled_core.h)
  else()
    set(header ${PROJECT_SOURCE_DIR}/cmake/precompiled.h)
  endif()
  target_precompile_headers(${target} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:${header}>)
endfunction()

# lockstep_add_layer(NAME <name> PATH <folder> [DEPENDS <layer>...] SOURCES <file>...)
# Makes target lockstep_<name> with alias lockstep::<name>.
function(lockstep_add_layer)
  cmake_parse_arguments(ARG "" "NAME;PATH" "DEPENDS;SOURCES" ${ARGN})
  set(target lockstep_${ARG_NAME})
  set(include_dir ${PROJECT_BINARY_DIR}/layers/${ARG_NAME})
  cmake_path(GET ARG_PATH PARENT_PATH parent)
  file(MAKE_DIRECTORY ${include_dir}/lockstep/${parent})
  file(CREATE_LINK ${PROJECT_SOURCE_DIR}/${ARG_PATH} ${include_dir}/lockstep/${ARG_PATH} SYMBOLIC)

  add_library(${target} ${ARG_SOURCES})
  add_library(lockstep::${ARG_NAME} ALIAS ${target})
  set_target_properties(${target} PROPERTIES EXPORT_NAME ${ARG_NAME} VERSION ${PROJECT_VERSION}
    SOVERSION ${PROJECT_VERSION_MAJOR})
  target_include_directories(${target} PUBLIC
    $<BUILD_INTERFACE:${include_dir}>
    $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
  target_compile_features(${target} PUBLIC cxx_std_20)
  target_link_libraries(${target} PRIVATE $<BUILD_INTERFACE:lockstep_flags>)
  foreach(layer IN LISTS ARG_DEPENDS)
    target_link_libraries(${target} PUBLIC lockstep_${layer})
  endforeach()
  lockstep_precompile(${target} ${ARG_NAME})
  set_property(GLOBAL APPEND PROPERTY LOCKSTEP_LAYERS ${target})
endfunction()

# lockstep_stand_ins(<layer> <file>...): what stands in for CUDA's libraries on the emulated device (Note [Emulated
# device]) lies in one folder, emulated/, by the layer that it serves: emulated/<layer>/ is compiled into that layer, with
# what it may include, and seen by those above.
function(lockstep_stand_ins layer)
  set(include_dir ${PROJECT_BINARY_DIR}/layers/${layer}/lockstep/emulated)
  file(MAKE_DIRECTORY ${include_dir})
  file(CREATE_LINK ${PROJECT_SOURCE_DIR}/emulated/${layer} ${include_dir}/${layer} SYMBOLIC)
  list(TRANSFORM ARGN PREPEND ${PROJECT_SOURCE_DIR}/emulated/${layer}/)
  target_sources(lockstep_${layer} PRIVATE ${ARGN})
endfunction()
