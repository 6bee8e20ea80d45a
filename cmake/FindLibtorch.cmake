# SPDX-License-Identifier: Apache-2.0
# Finds the parts of the PyPI wheels that tools/setup.sh unpacked: libc10, libtorch_cpu and the headers, and oneDNN.
# The wheel's own CMake files require CUDA, so they are not used.
#
# Sets Libtorch_FOUND and the targets Libtorch::cpu and Libtorch::onednn. Looks in TESSERA_LIBTORCH, then in the cache folders
# that tools/setup.sh uses, in its order.
set(_libtorch_version 2.11.0)
set(TESSERA_LIBTORCH "" CACHE PATH "Folder that holds torch/lib and torch/include; empty: the cache of tools/setup.sh")
set(_libtorch_places)
if(TESSERA_LIBTORCH)
  list(APPEND _libtorch_places ${TESSERA_LIBTORCH})
endif()
if(DEFINED ENV{TESSERA_CACHE})
  list(APPEND _libtorch_places $ENV{TESSERA_CACHE}/libtorch-${_libtorch_version})
endif()
if(DEFINED ENV{XDG_CACHE_HOME})
  list(APPEND _libtorch_places $ENV{XDG_CACHE_HOME}/tessera/libtorch-${_libtorch_version})
endif()
list(APPEND _libtorch_places $ENV{HOME}/.cache/tessera/libtorch-${_libtorch_version}
     ${CMAKE_CURRENT_LIST_DIR}/../.cache/libtorch-${_libtorch_version})

foreach(_place IN LISTS _libtorch_places)
  if(EXISTS ${_place}/torch/lib/libtorch_cpu.so AND EXISTS ${_place}/onednn/lib/libdnnl.so.3)
    set(Libtorch_ROOT_DIR ${_place})
    break()
  endif()
endforeach()

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(Libtorch
  REQUIRED_VARS Libtorch_ROOT_DIR
  REASON_FAILURE_MESSAGE "libtorch ${_libtorch_version} is not in the cache: run tools/setup.sh, or set TESSERA_LIBTORCH")

# The targets are global, because a project that adds tessera as a subdirectory links them too.
if(Libtorch_FOUND AND NOT TARGET Libtorch::cpu)
  set(_lib ${Libtorch_ROOT_DIR}/torch/lib)
  add_library(Libtorch::c10 SHARED IMPORTED GLOBAL)
  set_target_properties(Libtorch::c10 PROPERTIES IMPORTED_LOCATION ${_lib}/libc10.so)
  # Use libtorch's own OpenMP runtime: in a file compiled without OpenMP, at::parallel_for runs on one thread, and
  # a second runtime would start twice as many threads as there are cores.
  add_library(Libtorch::gomp SHARED IMPORTED GLOBAL)
  set_target_properties(Libtorch::gomp PROPERTIES IMPORTED_LOCATION ${_lib}/libgomp.so.1)
  add_library(Libtorch::cpu SHARED IMPORTED GLOBAL)
  set_target_properties(Libtorch::cpu PROPERTIES
    IMPORTED_LOCATION ${_lib}/libtorch_cpu.so
    INTERFACE_LINK_LIBRARIES "Libtorch::c10;Libtorch::gomp"
    INTERFACE_COMPILE_OPTIONS -fopenmp
    INTERFACE_COMPILE_DEFINITIONS NDEBUG  # without it, its classes have additional members that the library does not have
    INTERFACE_LINK_OPTIONS "LINKER:-rpath-link,${_lib}:${Libtorch_ROOT_DIR}/nvidia/cu13/lib"
    INTERFACE_INCLUDE_DIRECTORIES
      "${Libtorch_ROOT_DIR}/torch/include;${Libtorch_ROOT_DIR}/torch/include/torch/csrc/api/include")
  # libtorch does not export its own copy of oneDNN, and the matrix products of older releases are not slower. oneDNN uses
  # libtorch's OpenMP runtime, which is loaded under the same name.
  add_library(Libtorch::onednn SHARED IMPORTED GLOBAL)
  set_target_properties(Libtorch::onednn PROPERTIES
    IMPORTED_LOCATION ${Libtorch_ROOT_DIR}/onednn/lib/libdnnl.so.3
    INTERFACE_LINK_LIBRARIES Libtorch::gomp
    INTERFACE_INCLUDE_DIRECTORIES ${Libtorch_ROOT_DIR}/onednn/include)
endif()
