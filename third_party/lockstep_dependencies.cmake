# How every dependency is found. Nothing is downloaded or copied.
# Each optional one sets LOCKSTEP_HAS_<NAME> and adds a row to the table that configure prints.

set_property(GLOBAL PROPERTY LOCKSTEP_SUMMARY "")
function(lockstep_report name value)
  string(LENGTH "${name}" length)
  math(EXPR pad "14 - ${length}")
  string(REPEAT " " ${pad} spaces)
  set_property(GLOBAL APPEND PROPERTY LOCKSTEP_SUMMARY "  ${name}${spaces}${value}")
endfunction()

function(lockstep_print_summary)
  get_property(rows GLOBAL PROPERTY LOCKSTEP_SUMMARY)
  message(STATUS "lockstep ${PROJECT_VERSION}: what was found")
  foreach(row IN LISTS rows)
    message(STATUS "${row}")
  endforeach()
endfunction()

# lockstep_optional(<NAME> <found> <description> <package>): honours LOCKSTEP_<NAME> = AUTO | ON | OFF.
macro(lockstep_optional name found description package)
  if("${LOCKSTEP_${name}}" STREQUAL "OFF")
    set(LOCKSTEP_HAS_${name} OFF)
    lockstep_report(${name} "off (LOCKSTEP_${name}=OFF)")
  elseif(${found})
    set(LOCKSTEP_HAS_${name} ON)
    lockstep_report(${name} "${description}")
  elseif("${LOCKSTEP_${name}}" STREQUAL "ON")
    message(FATAL_ERROR "LOCKSTEP_${name}=ON, but it was not found. Install ${package}, or set LOCKSTEP_${name}=OFF.")
  else()
    set(LOCKSTEP_HAS_${name} OFF)
    lockstep_report(${name} "not found (package ${package})")
  endif()
endmacro()

lockstep_report(Compiler "${CMAKE_CXX_COMPILER_ID} ${CMAKE_CXX_COMPILER_VERSION}, ${CMAKE_BUILD_TYPE}, -march=${LOCKSTEP_CPU_ARCH}")

find_package(Threads REQUIRED)
find_package(fmt REQUIRED)
find_package(spdlog REQUIRED)
find_package(nlohmann_json REQUIRED)
find_package(ZLIB REQUIRED)
find_package(Eigen3 REQUIRED NO_MODULE)
lockstep_report(Eigen "${Eigen3_VERSION}")

include(find_onednn)
include(find_blas)
include(find_gloo)
include(find_cuda)
