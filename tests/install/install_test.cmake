# Run by ctest. Given: build_dir, source_dir, work_dir, compiler, generator, libdir, cuda, configuration.
cmake_minimum_required(VERSION 3.22)
set(prefix ${work_dir}/prefix)
file(REMOVE_RECURSE ${work_dir})
file(MAKE_DIRECTORY ${work_dir})

function(run what)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE status OUTPUT_VARIABLE out ERROR_VARIABLE err)
  if(NOT status EQUAL 0)
    message(FATAL_ERROR "${what} failed (${status}): ${ARGN}\n${out}\n${err}")
  endif()
  set(out "${out}" PARENT_SCOPE)
endfunction()

run("install" ${CMAKE_COMMAND} --install ${build_dir} --prefix ${prefix} --strip)

# The package can be moved: nothing in its files names a place of this machine.
file(GLOB package_files ${prefix}/${libdir}/cmake/lockstep/*.cmake)
list(LENGTH package_files count)
if(count LESS 4)
  message(FATAL_ERROR "expected the package's Config, Version and Targets files, found: ${package_files}")
endif()
foreach(file IN LISTS package_files)
  file(STRINGS ${file} lines)
  foreach(line IN LISTS lines)
    if(line MATCHES "[\"; =](/usr/|/home/|/opt/|/root/|/tmp/|/work/)" OR line MATCHES "${source_dir}|${build_dir}|${prefix}")
      message(FATAL_ERROR "${file} holds an absolute path: ${line}")
    endif()
  endforeach()
endforeach()

# Size of the libraries, without the links beside them.
set(bytes 0)
file(GLOB libraries ${prefix}/${libdir}/liblockstep*)
foreach(library IN LISTS libraries)
  if(NOT IS_SYMLINK ${library})
    file(SIZE ${library} size)
    math(EXPR bytes "${bytes} + ${size}")
  endif()
endforeach()
math(EXPR kilobytes "${bytes} / 1000")
message("installed libraries: ${kilobytes} kB")
if(bytes EQUAL 0)
  message(FATAL_ERROR "no library was installed in ${prefix}/${libdir}")
endif()
if(NOT cuda AND configuration STREQUAL "Release" AND bytes GREATER 10000000)
  message(FATAL_ERROR "the installed libraries take ${kilobytes} kB; the limit without CUDA is 10000 kB")
endif()

# Moved, it still works.
file(RENAME ${prefix} ${work_dir}/moved)
set(prefix ${work_dir}/moved)

file(GLOB_RECURSE headers RELATIVE ${prefix}/include ${prefix}/include/lockstep/*.h)
list(LENGTH headers count)
if(count LESS 40 OR NOT EXISTS ${prefix}/include/lockstep/lockstep.h OR NOT EXISTS
                                                                       ${prefix}/include/lockstep/autograd/ops.h)
  message(FATAL_ERROR "headers are missing from ${prefix}/include/lockstep; found ${headers}")
endif()
set(text "// Every installed header.\n")
foreach(header IN LISTS headers)
  string(APPEND text "#include <${header}>\n")
endforeach()
file(WRITE ${work_dir}/consumer/every_header.cpp "${text}")
message("installed headers: ${count}")

run("configure" ${CMAKE_COMMAND} -G ${generator} -S ${source_dir}/tests/install/consumer -B ${work_dir}/consumer
  -D CMAKE_PREFIX_PATH=${prefix} -D CMAKE_CXX_COMPILER=${compiler} -D CMAKE_BUILD_TYPE=Release)
run("build" ${CMAKE_COMMAND} --build ${work_dir}/consumer)
run("consumer" ${work_dir}/consumer/consumer)
message("${out}")
run("consumer on two processes" ${prefix}/bin/lockstep-run --nproc-per-node 2 -- ${work_dir}/consumer/consumer)
message("${out}")
run("mnist_train --help" ${prefix}/bin/mnist_train --help)

# What a user waits for: the whole program above, optimised, on one core. The aim is 3 s; the limit leaves room for a
# machine that does other things meanwhile.
execute_process(COMMAND date +%s%N OUTPUT_VARIABLE begin)
run("compile" ${compiler} -std=c++20 -O2 -I${prefix}/include -I${prefix}/include/lockstep
  -c ${source_dir}/tests/install/consumer/main.cpp -o ${work_dir}/main.o)
execute_process(COMMAND date +%s%N OUTPUT_VARIABLE end)
math(EXPR milliseconds "(${end} - ${begin}) / 1000000")
message("a program that defines and trains lenet compiles in ${milliseconds} ms (-O2)")
if(milliseconds GREATER 9000)
  message(FATAL_ERROR "compiling a small program took ${milliseconds} ms; something heavy got into the public headers")
endif()
