# Gloo: CPU collectives over TCP. Target gloo.
if(NOT LOCKSTEP_GLOO STREQUAL "OFF")
  find_package(Gloo CONFIG QUIET)
endif()
lockstep_optional(GLOO Gloo_FOUND "${Gloo_VERSION}" libgloo-dev)
