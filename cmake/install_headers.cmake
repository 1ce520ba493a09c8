# Installs the public headers: lockstep.h, those that public_headers.txt names, and what they include, directly or not.
# Nothing else of the tree is for users. Public headers need the standard library alone; any other include is an error
# here. Set by the caller: source_dir, generated_dir, include_dir.
cmake_policy(VERSION 3.22)

file(STRINGS ${CMAKE_CURRENT_LIST_DIR}/public_headers.txt waiting REGEX "^[^#]")
list(PREPEND waiting lockstep.h)
set(public "")
while(waiting)
  list(POP_FRONT waiting header)
  if(header IN_LIST public)
    continue()
  endif()
  list(APPEND public ${header})
  set(file ${source_dir}/${header})
  if(NOT EXISTS ${file})
    set(file ${generated_dir}/lockstep/${header})
  endif()
  file(STRINGS ${file} includes REGEX "^ *# *include ")
  foreach(line IN LISTS includes)
    if(line MATCHES "\"lockstep/(.+)\"")
      list(APPEND waiting ${CMAKE_MATCH_1})
    elseif(NOT line MATCHES "<[a-z_0-9]+>")  # <vector>, and not <fmt/core.h>
      message(FATAL_ERROR "${header} is public and has the line '${line}'; public headers include the standard library's "
        "headers and \"lockstep/...\"")
    endif()
  endforeach()
  get_filename_component(folder ${header} DIRECTORY)
  file(INSTALL ${file} DESTINATION ${include_dir}/${folder})
endwhile()
