# The plugin libtessera_cuda.so, the kernels for GPUs of NVIDIA. `tools/build.sh release tessera_cuda` builds it where nvcc is;
# it is a part of `all` in the preset cuda. Kernels are compiled for A100, H100 and B200, and as PTX for later GPUs.
option(TESSERA_CUDA_PLUGIN "Build and install the plugin of CUDA kernels" OFF)
find_program(TESSERA_NVCC nvcc HINTS /usr/local/cuda/bin)
mark_as_advanced(TESSERA_NVCC)

# tessera_cuda_plugin(FOLDER): the target tessera_cuda of the sources in a folder.
function(tessera_cuda_plugin folder)
  if(NOT TESSERA_NVCC)
    if(TESSERA_CUDA_PLUGIN)
      message(FATAL_ERROR "TESSERA_CUDA_PLUGIN needs nvcc of CUDA 13: install the CUDA toolkit, or set TESSERA_NVCC to its path")
    endif()
    return()
  endif()
  if(TESSERA_CUDA_PLUGIN)
    execute_process(COMMAND ${TESSERA_NVCC} --version OUTPUT_VARIABLE version ERROR_QUIET)
    if(NOT version MATCHES "release ([0-9]+)(\\.[0-9]+)?")
      message(FATAL_ERROR "TESSERA_CUDA_PLUGIN needs nvcc of CUDA 13, and ${TESSERA_NVCC} does not say its version: "
                          "install the CUDA toolkit, or set TESSERA_NVCC to its path")
    elseif(NOT CMAKE_MATCH_1 EQUAL 13)
      message(FATAL_ERROR "TESSERA_CUDA_PLUGIN needs nvcc of CUDA 13, and ${TESSERA_NVCC} is of CUDA ${CMAKE_MATCH_1}${CMAKE_MATCH_2}: "
                          "install that toolkit, or set TESSERA_NVCC to the path of its nvcc")
    endif()
  endif()
  set(codes)
  foreach(code 80 90 100)
    list(APPEND codes -gencode=arch=compute_${code},code=sm_${code})
  endforeach()
  list(APPEND codes -gencode=arch=compute_100,code=compute_100)
  file(GLOB kernels CONFIGURE_DEPENDS ${folder}/*.cu)
  file(GLOB headers CONFIGURE_DEPENDS ${folder}/*.h)
  set(objects)
  foreach(kernel IN LISTS kernels)
    get_filename_component(name ${kernel} NAME_WE)
    set(object ${CMAKE_CURRENT_BINARY_DIR}/cuda/${name}.o)
    add_custom_command(OUTPUT ${object}
      COMMAND ${CMAKE_COMMAND} -E make_directory ${CMAKE_CURRENT_BINARY_DIR}/cuda
      COMMAND ${TESSERA_NVCC} -std=c++20 -O3 --extended-lambda --expt-relaxed-constexpr -fmad=false -Xcompiler=-fPIC
              ${codes} -I${PROJECT_SOURCE_DIR} -c ${kernel} -o ${object}
      DEPENDS ${kernel} ${headers} ${PROJECT_SOURCE_DIR}/tessera/ops/rules.inc
      COMMENT "Compiling CUDA kernels: ${name}.cu" VERBATIM)
    list(APPEND objects ${object})
  endforeach()
  add_library(tessera_cuda MODULE ${folder}/backend.cpp ${folder}/heads.cpp ${folder}/plugin.cpp ${objects})
  target_include_directories(tessera_cuda PRIVATE ${PROJECT_SOURCE_DIR})
  # The runtime of libtorch, which is the one that the program has loaded; nvcc may be a script far from its toolkit.
  target_link_libraries(tessera_cuda PRIVATE Libtorch::cpu fmt::fmt ${Libtorch_ROOT_DIR}/nvidia/cu13/lib/libcudart.so.13)
  # It uses the symbols of the program's libtessera.so, or of a test program, which are there when it is opened.
  set_target_properties(tessera_cuda PROPERTIES LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/lib)
  if(TESSERA_CUDA_PLUGIN)
    install(TARGETS tessera_cuda LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
  else()
    set_target_properties(tessera_cuda PROPERTIES EXCLUDE_FROM_ALL ON)
  endif()
endfunction()
