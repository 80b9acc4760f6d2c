# Programs of other libraries in front of the doors. Those that are built outside of this build would have to be built with the
# sanitizer, too: under one they are left out.

# The C interface from C, against the shared library.
add_executable(c11_test interop/c/c11_test.c)
set_target_properties(c11_test PROPERTIES C_STANDARD 11 C_STANDARD_REQUIRED ON C_EXTENSIONS OFF)
target_compile_options(c11_test PRIVATE -Wall -Wextra -Wpedantic -Werror)
target_link_libraries(c11_test PRIVATE stretto Threads::Threads)
add_test(NAME interop.c11_test COMMAND c11_test)

if(NOT STRETTO_SANITIZE)
  add_test(NAME install.readme_program_links
    COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/install/link_test.sh ${PROJECT_SOURCE_DIR} ${PROJECT_BINARY_DIR} ${CMAKE_CXX_COMPILER} ${CMAKE_C_COMPILER})
endif()

# The NCCL door, over the stand-ins for a GPU and for NCCL; and the library itself, in front of NCCL without a GPU.
if(TARGET stretto-nccl)
  file(GLOB nccl_door_sources CONFIGURE_DEPENDS interop/nccl/*_test.cpp interop/nccl/stand_in.cpp)
  add_test_program(nccl_door_tests ${nccl_door_sources})
  target_link_libraries(nccl_door_tests PRIVATE nccl_door)
  add_test_shards(nccl_door_tests 2)
  add_executable(nccl_program interop/nccl/nccl_program.cpp)
  target_include_directories(nccl_program SYSTEM PRIVATE ${NCCL_INCLUDE_DIR} ${CUDAToolkit_INCLUDE_DIRS})
  target_link_libraries(nccl_program PRIVATE ${NCCL_LIBRARY} stretto_options)
  if(Python3_FOUND AND NOT STRETTO_SANITIZE)
    add_python_test(interop.preload_test interop/nccl DOOR=$<TARGET_FILE:stretto-nccl> PROGRAM=$<TARGET_FILE:nccl_program>
      NCCL_LIBRARY=${NCCL_LIBRARY} NCCL_INCLUDE_DIR=${NCCL_INCLUDE_DIR} SOURCE=${PROJECT_SOURCE_DIR}/src/interop/nccl)
  endif()
endif()

# The PyTorch door, by the Python that it is built for.
if(TARGET stretto_torch)
  get_target_property(torch_python stretto_torch STRETTO_PYTHON)
  file(GLOB torch_tests CONFIGURE_DEPENDS RELATIVE ${CMAKE_CURRENT_SOURCE_DIR}/interop/torch interop/torch/*_test.py)
  foreach(file ${torch_tests})
    get_filename_component(name ${file} NAME_WE)
    add_test(NAME torch.${name} COMMAND ${torch_python} -B ${file} -v WORKING_DIRECTORY ${CMAKE_CURRENT_SOURCE_DIR}/interop/torch)
    set_tests_properties(torch.${name} PROPERTIES LABELS torch TIMEOUT 300 ENVIRONMENT
      "PYTHONPATH=${PROJECT_BINARY_DIR}/torch;OMP_NUM_THREADS=1;$<$<TARGET_EXISTS:stretto-perf>:PERF_PROGRAM=${PROJECT_BINARY_DIR}/bin/stretto-perf>")
  endforeach()
else()
  add_test(NAME torch.door COMMAND ${CMAKE_COMMAND} -E echo "skipped: this build has no PyTorch door")
  set_tests_properties(torch.door PROPERTIES LABELS torch SKIP_REGULAR_EXPRESSION "skipped: ")
endif()

set(mpi_random_calls_sources interop/mpi/mpi_random_calls.c)
set(mpi_random_starts_sources interop/mpi/mpi_random_starts.c)
file(GLOB mpi_situations_sources CONFIGURE_DEPENDS interop/mpi/situations/*.c)
foreach(mpi ${STRETTO_MPIS})
  foreach(program mpi_random_calls mpi_random_starts mpi_situations)
    add_executable(${program}_${mpi} ${${program}_sources})
    target_link_libraries(${program}_${mpi} PRIVATE mpi_${mpi})
    # No name of the program's may take the place of one of the MPI's.
    set_target_properties(${program}_${mpi} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_CURRENT_BINARY_DIR} C_VISIBILITY_PRESET hidden)
  endforeach()
  if(Python3_FOUND AND NOT STRETTO_SANITIZE)
    add_test(NAME interop.mpi_door_${mpi} COMMAND ${Python3_EXECUTABLE} -B mpi_door_test.py -v
      WORKING_DIRECTORY ${CMAKE_CURRENT_SOURCE_DIR}/interop/mpi)
    set_tests_properties(interop.mpi_door_${mpi} PROPERTIES TIMEOUT 600 ENVIRONMENT
      "MPI=${mpi};DOOR=$<TARGET_FILE:stretto-mpi-${mpi}>;LAUNCHER=${STRETTO_LAUNCHER_${mpi}};RANDOM_CALLS=$<TARGET_FILE:mpi_random_calls_${mpi}>;RANDOM_STARTS=$<TARGET_FILE:mpi_random_starts_${mpi}>;SITUATIONS=$<TARGET_FILE:mpi_situations_${mpi}>")
  endif()
endforeach()
