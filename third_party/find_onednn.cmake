# oneDNN: convolution, pooling and normalisation primitives on the CPU. Target DNNL::dnnl.
if(NOT LOCKSTEP_ONEDNN STREQUAL "OFF")
  find_package(dnnl CONFIG QUIET)
endif()
lockstep_optional(ONEDNN dnnl_FOUND "${dnnl_VERSION}" libdnnl-dev)
