# stb's single-file headers (package libstb-dev); sets up target lockstep_stb.
find_path(LOCKSTEP_STB_INCLUDE_DIR stb/stb_image.h)
mark_as_advanced(LOCKSTEP_STB_INCLUDE_DIR)
if(NOT LOCKSTEP_STB_INCLUDE_DIR)
  message(FATAL_ERROR "stb/stb_image.h was not found. Install libstb-dev, or set LOCKSTEP_STB_INCLUDE_DIR.")
endif()
add_library(lockstep_stb INTERFACE)
target_include_directories(lockstep_stb SYSTEM INTERFACE ${LOCKSTEP_STB_INCLUDE_DIR})
