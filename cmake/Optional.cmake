# SPDX-License-Identifier: Apache-2.0
# What is optional may be missing, half installed, too old or broken. It is tried in a folder or project of its own before it
# is used, and if it does not work it costs its own feature and one line that says so, never the build.

# Prints one line if an optional part is left out, the first time only.
function(_tessera_left_out name reason consequence fix)
  if(NOT "${_TESSERA_LEFT_OUT_${name}}" STREQUAL "${reason}")
    message(NOTICE "-- ${name} ${reason}: ${consequence}${fix}")
    set(_TESSERA_LEFT_OUT_${name} "${reason}" CACHE INTERNAL "why ${name} is left out")
  endif()
endfunction()

# tessera_optional_tool(VARIABLE PROGRAM CONSEQUENCE COMMAND...): sets VARIABLE to the path of PROGRAM if the command, in which
# @tool@ is that path and @folder@ the folder it runs in, succeeds on a small probe.cpp; otherwise to "". A tool that is not
# installed is no news; one that is installed and fails is told with CONSEQUENCE.
function(tessera_optional_tool variable program consequence)
  find_program(${variable}_PROGRAM ${program})
  mark_as_advanced(${variable}_PROGRAM)
  set(tool ${${variable}_PROGRAM})
  set(${variable} "" PARENT_SCOPE)
  if(NOT tool)
    return()
  endif()
  set(folder ${PROJECT_BINARY_DIR}/CMakeFiles/probes/${program})
  file(MAKE_DIRECTORY ${folder})
  file(WRITE ${folder}/probe.cpp "int main() { return 0; }\n")
  string(REPLACE "@tool@" "${tool}" command "${ARGN}")
  string(REPLACE "@folder@" "${folder}" command "${command}")
  execute_process(COMMAND ${command} WORKING_DIRECTORY ${folder} RESULT_VARIABLE failed OUTPUT_VARIABLE said ERROR_VARIABLE said
                  TIMEOUT 60)
  if(failed STREQUAL "0")
    set(${variable} ${tool} PARENT_SCOPE)
    return()
  endif()
  string(STRIP "${said}" said)
  string(REGEX REPLACE "\n.*" "" said "${said}")
  _tessera_left_out(${program} "does not work (${tool}: ${said})" "${consequence}" "")
endfunction()

# tessera_optional_package(OUT NAME CONSEQUENCE PACKAGE CODE): sets OUT to whether CODE, the part of a CMakeLists.txt that
# finds a package and builds with it, works in a project of its own. There, errors that would end a configuration (a package
# file that is damaged, a compiler wrapper without its headers, a target with folders that do not exist) cost nothing.
# PACKAGE is the Debian package that brings it.
function(tessera_optional_package out name consequence package code)
  set(folder ${PROJECT_BINARY_DIR}/CMakeFiles/probes/${name})
  file(MAKE_DIRECTORY ${folder})
  file(CONFIGURE OUTPUT ${folder}/CMakeLists.txt @ONLY CONTENT
"cmake_minimum_required(VERSION 3.25)
project(probe LANGUAGES CXX)
set(CMAKE_CXX_STANDARD 20)
${code}
")
  file(REMOVE_RECURSE ${folder}/build)
  execute_process(
    COMMAND ${CMAKE_COMMAND} -G ${CMAKE_GENERATOR} -S ${folder} -B ${folder}/build -DCMAKE_CXX_COMPILER=${CMAKE_CXX_COMPILER}
            -DCMAKE_MAKE_PROGRAM=${CMAKE_MAKE_PROGRAM} -DCMAKE_PREFIX_PATH=${CMAKE_PREFIX_PATH}
    RESULT_VARIABLE failed OUTPUT_VARIABLE said ERROR_VARIABLE said TIMEOUT 120)
  if(failed STREQUAL "0")
    execute_process(COMMAND ${CMAKE_COMMAND} --build ${folder}/build
                    RESULT_VARIABLE failed OUTPUT_VARIABLE said ERROR_VARIABLE said TIMEOUT 120)
  endif()
  if(failed STREQUAL "0")
    set(${out} TRUE PARENT_SCOPE)
    return()
  endif()
  set(${out} FALSE PARENT_SCOPE)
  file(WRITE ${folder}/why.log "${said}")
  _tessera_left_out(${name} "does not work (${folder}/why.log)" "${consequence}" "; Debian's package is ${package}")
endfunction()
