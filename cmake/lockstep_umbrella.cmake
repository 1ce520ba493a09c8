# lockstep::lockstep: every layer, and the include form <lockstep/lockstep.h> in the build tree.
add_library(lockstep INTERFACE)
add_library(lockstep::lockstep ALIAS lockstep)
get_property(lockstep_layers GLOBAL PROPERTY LOCKSTEP_LAYERS)
target_link_libraries(lockstep INTERFACE ${lockstep_layers})
file(MAKE_DIRECTORY ${PROJECT_BINARY_DIR}/include)
file(CREATE_LINK ${PROJECT_SOURCE_DIR} ${PROJECT_BINARY_DIR}/include/lockstep SYMBOLIC)
target_include_directories(lockstep INTERFACE $<BUILD_INTERFACE:${PROJECT_BINARY_DIR}/include>)
