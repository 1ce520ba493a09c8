# Run by ctest. Given: build_dir, source_dir, work_dir, compiler, generator, libdir, cuda, configuration, cpu_arch, python (may be empty).
cmake_minimum_required(VERSION 3.22)
set(prefix ${work_dir}/prefix)
file(REMOVE_RECURSE ${work_dir})
file(MAKE_DIRECTORY ${work_dir})

function(run what)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE status OUTPUT_VARIABLE out ERROR_VARIABLE err)
  if(NOT status EQUAL 0)
    message(FATAL_ERROR "${what} failed (${status}): ${ARGN}\n${out}\n${err}")
  endif()
  string(STRIP "${out}" out)
  string(STRIP "${err}" err)
  set(out "${out}" PARENT_SCOPE)
  set(err "${err}" PARENT_SCOPE)
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
if(NOT cuda AND configuration STREQUAL "Release" AND bytes GREATER 24000000)
  message(FATAL_ERROR "the installed libraries take ${kilobytes} kB; the limit without CUDA is 24000 kB")
endif()

file(STRINGS ${prefix}/${libdir}/pkgconfig/lockstep.pc lines REGEX "(${source_dir}|${build_dir}|${prefix})")
if(lines)
  message(FATAL_ERROR "lockstep.pc holds an absolute path: ${lines}")
endif()

# Moved, it still works.
file(RENAME ${prefix} ${work_dir}/moved)
set(prefix ${work_dir}/moved)

# What messages send a reader to is there.
file(GLOB_RECURSE documents RELATIVE ${prefix} ${prefix}/share/doc/*)
foreach(name README.md docs/porting.md docs/lockstep.md docs/cluster/README.md)
  if(NOT documents MATCHES "share/doc/[a-z]+/${name}")
    message(FATAL_ERROR "${name} was not installed under share/doc, which has ${documents}")
  endif()
endforeach()

# lockstep/ is all there is under include/, and holds the public headers alone.
file(GLOB beside RELATIVE ${prefix}/include ${prefix}/include/*)
if(NOT beside STREQUAL "lockstep")
  message(FATAL_ERROR "expected nothing but lockstep/ in ${prefix}/include, found: ${beside}")
endif()
file(GLOB_RECURSE headers RELATIVE ${prefix}/include ${prefix}/include/lockstep/*.h)
list(LENGTH headers count)
if(python)
  run("public headers" ${python} -B ${source_dir}/tests/tree/public_headers_test.py --installed ${prefix}/include/lockstep)
endif()
# A program may load the libraries while it runs, as an extension of Python does. Some of their variables need memory that
# glibc keeps for that and does not have much of.
if(python AND EXISTS ${prefix}/${libdir}/liblockstep_train.so)
  run("loading the libraries later" ${python} -c "import ctypes, sys; ctypes.CDLL(sys.argv[1])"
    ${prefix}/${libdir}/liblockstep_train.so)
endif()
set(text "// Every installed header.\n")
foreach(header IN LISTS headers)
  string(APPEND text "#include <${header}>\n")
endforeach()
file(WRITE ${work_dir}/every_header.cpp "${text}")
message("installed headers: ${count}")

# The program of docs/operations.md, as it stands there.
file(READ ${source_dir}/docs/operations.md page)
if(NOT page MATCHES "```cpp\n(.*)\n```\n")
  message(FATAL_ERROR "docs/operations.md has no program")
endif()
file(WRITE ${work_dir}/operation.cpp "${CMAKE_MATCH_1}\n")

run("configure" ${CMAKE_COMMAND} -G ${generator} -S ${source_dir}/tests/install/consumer -B ${work_dir}/consumer
  -D CMAKE_PREFIX_PATH=${prefix} -D CMAKE_CXX_COMPILER=${compiler} -D CMAKE_BUILD_TYPE=Release
  -D OPERATION=${work_dir}/operation.cpp -D EVERY_HEADER=${work_dir}/every_header.cpp -D CMAKE_EXPORT_COMPILE_COMMANDS=ON)
run("build" ${CMAKE_COMMAND} --build ${work_dir}/consumer)
file(READ ${work_dir}/consumer/compile_commands.json commands)
string(REGEX MATCHALL "-(I|isystem) ?[^ \"]+" include_path "${commands}")
list(REMOVE_DUPLICATES include_path)
string(REGEX REPLACE "-(I|isystem) ?" "" include_path "${include_path}")
if(NOT include_path STREQUAL "${source_dir}/tests/install/consumer/own;${prefix}/include")
  message(FATAL_ERROR "the consumer's include path is '${include_path}', expected its own folder and ${prefix}/include")
endif()
run("consumer" ${work_dir}/consumer/consumer)
message("${out}")
run("an operation of one's own" ${work_dir}/consumer/operation)
message("${out}")
run("consumer on two processes" ${prefix}/bin/lockstep-run --nproc-per-node 2 -- ${work_dir}/consumer/consumer)
message("${out}")
# Note [Processor check], in a program that is not lockstep's.
find_program(emulator qemu-x86_64)
if(emulator AND cpu_arch STREQUAL "x86-64-v3")
  execute_process(COMMAND ${emulator} -cpu Nehalem ${work_dir}/consumer/consumer RESULT_VARIABLE status ERROR_VARIABLE err)
  if(NOT status EQUAL 1 OR NOT err MATCHES "^lockstep: this processor lacks ")
    message(FATAL_ERROR "on a processor without AVX2, expected a sentence and status 1, found status ${status}: ${err}")
  endif()
else()
  message("not tried: the consumer on a processor without AVX2 (qemu-x86_64 is not here, or the build is not for AVX2)")
endif()

# Without CMake, by pkg-config.
find_program(pkg_config NAMES pkg-config pkgconf)
if(pkg_config)
  file(WRITE ${work_dir}/plain.cpp "#include <lockstep/lockstep.h>
int main() {
  const auto job = lockstep::distributed::init();
  const lockstep::Tensor x = lockstep::ones({2});
  job.process_group()->all_reduce(x)->wait();
  return x.sum().item() == 2 * job.world_size() ? 0 : 1;
}
")
  set(ENV{PKG_CONFIG_PATH} ${prefix}/${libdir}/pkgconfig)
  run("pkg-config" ${pkg_config} --cflags --libs lockstep)
  separate_arguments(flags UNIX_COMMAND "${out}")
  run("a program by pkg-config" ${compiler} ${work_dir}/plain.cpp -o ${work_dir}/plain ${flags})
  set(library_path "$ENV{LD_LIBRARY_PATH}")
  set(ENV{LD_LIBRARY_PATH} ${prefix}/${libdir}:${library_path})
  run("on two processes" ${prefix}/bin/lockstep-run --nproc-per-node 2 -- ${work_dir}/plain)
  set(ENV{LD_LIBRARY_PATH} ${library_path})
else()
  message("not tried: a program by pkg-config, which is not here")
endif()
run("mnist_train --help" ${prefix}/bin/mnist_train --help)

run("the forms that people type" ${work_dir}/consumer/forms)
message("${out}")

# They compile without a warning, link and run with each compiler in each language version; the README's programs compile.
file(GLOB programs ${build_dir}/tests/readme/readme_*.cpp)
find_program(gcc NAMES g++)
find_program(clang NAMES clang++ clang++-14 clang++-15 clang++-16 clang++-17 clang++-18)
foreach(each IN ITEMS gcc clang)
  if(NOT ${each})
    message("not tried: the forms with ${each}, which is not here")
    continue()
  endif()
  set(forms ${work_dir}/forms_${each})
  run("configure for ${each}" ${CMAKE_COMMAND} -G ${generator} -S ${source_dir}/tests/install/consumer -B ${forms}
    -D FORMS_ONLY=ON -D CMAKE_PREFIX_PATH=${prefix} -D CMAKE_CXX_COMPILER=${${each}} -D CMAKE_EXPORT_COMPILE_COMMANDS=ON)
  run("users' programs with ${each}" ${CMAKE_COMMAND} --build ${forms})
  file(READ ${forms}/compile_commands.json commands)
  if(commands MATCHES "-isystem")
    message(FATAL_ERROR "the headers were compiled as a system's, whose warnings do not count: ${commands}")
  endif()
  foreach(version IN ITEMS 20 23)
    run("the forms with ${each} in C++${version}" ${forms}/forms_${version})
    message("${each}, C++${version}: ${out}")
  endforeach()
endforeach()
if(clang)
  run("the README's programs with clang" ${clang} -std=c++20 -Wall -Wextra -Wpedantic -Wconversion -Wsign-conversion -Wshadow
    -Woverloaded-virtual -Werror -fsyntax-only -I${prefix}/include ${programs})
endif()

# What a user waits for: the whole program above, optimised, on one core. The aim is 3 s of processor time; the limit
# leaves room for a slower machine.
set(flags "-std=c++20 -O2 -I${source_dir}/tests/install/consumer/own -I${prefix}/include")
foreach(try RANGE 1 3) # other work on the machine may slow one
  run("compile" bash -c "TIMEFORMAT='%U %S' && time '${compiler}' ${flags} \
    -c '${source_dir}/tests/install/consumer/main.cpp' -o '${work_dir}/main.o'")
  message("a program that defines and trains lenet compiles in this many seconds (user, system; -O2): ${err}")
  if(NOT err MATCHES "^([0-9]+)\\.")
    message(FATAL_ERROR "the compiler's time was not measured: ${err}")
  endif()
  if(CMAKE_MATCH_1 LESS 6)
    break()
  endif()
endforeach()
if(CMAKE_MATCH_1 GREATER_EQUAL 6)
  message(FATAL_ERROR "compiling a small program took ${err} s; something heavy got into the public headers")
endif()

# As a subdirectory of the user's project (or by FetchContent), it is configured and the program compiles; the libraries
# are the ones built above.
run("configure as a subdirectory" ${CMAKE_COMMAND} -G ${generator} -S ${source_dir}/tests/install/consumer
  -B ${work_dir}/subdirectory -D LOCKSTEP_SOURCE=${source_dir} -D CMAKE_CXX_COMPILER=${compiler}
  -D CMAKE_BUILD_TYPE=Release)
if(generator STREQUAL "Ninja")
  run("compile in a subdirectory's include path" ${CMAKE_COMMAND} --build ${work_dir}/subdirectory
    --target CMakeFiles/consumer.dir/main.cpp.o)
endif()
