# No object of a library that computes calls one of the C library's elementary functions: their last bits depend on its
# version. Device code (.cu) is left out: a GPU has functions of its own, and the emulated device takes the C library's.
# Called with nm and build_dir.
cmake_policy(VERSION 3.22)
set(functions acos acosh asin asinh atan atan2 atanh cbrt cos cosh erf erfc exp exp10 exp2 expm1 hypot lgamma log log10 log1p
  log2 pow sin sincos sinh tan tanh tgamma)
list(JOIN functions "|" pattern)

set(count 0)
set(found "")
file(GLOB_RECURSE objects ${build_dir}/*.o)
list(FILTER objects INCLUDE REGEX "/lockstep_(core|autograd|nn|data|parallel|train)\\.dir/")
# Tests that build programs have folders of their own, where objects come and go.
list(FILTER objects EXCLUDE REGEX "\\.cu\\.o$|/emulated/|/tests/")
foreach(object IN LISTS objects)
  math(EXPR count "${count} + 1")
  execute_process(COMMAND ${nm} -u ${object} OUTPUT_VARIABLE symbols RESULT_VARIABLE status ERROR_VARIABLE error)
  if(NOT status EQUAL 0)
    message(FATAL_ERROR "${nm} -u ${object}: ${error}")
  endif()
  string(REGEX MATCHALL " U _?_?(${pattern})[fl]?(_finite)?\n" calls "${symbols}")
  if(calls)
    string(REGEX REPLACE "[\n;]| U " " " calls "${calls}")
    string(APPEND found "  ${object}:${calls}\n")
  endif()
endforeach()
if(count LESS 100)
  message(FATAL_ERROR "expected the objects of the libraries below ${build_dir}, found ${count}")
endif()
if(found)
  message(FATAL_ERROR "these call elementary functions of the C library; core/double_math.h and core/vector_math.h have the like:\n${found}")
endif()
message(STATUS "${count} object(s) call none")
