# find_package(stretto), pkg-config stretto and a Debian package (cpack -G DEB); users need no dependency of ours.
include(CMakePackageConfigHelpers)
set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/stretto)
install(TARGETS stretto stretto_proof EXPORT strettoTargets LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(DIRECTORY include/stretto DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(EXPORT strettoTargets NAMESPACE stretto:: DESTINATION ${package_dir})
configure_package_config_file(cmake/strettoConfig.cmake.in ${PROJECT_BINARY_DIR}/strettoConfig.cmake
  INSTALL_DESTINATION ${package_dir})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/strettoConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/strettoConfig.cmake ${PROJECT_BINARY_DIR}/strettoConfigVersion.cmake
  DESTINATION ${package_dir})
# Finds the prefix from where the file lies, so that an installed tree can be moved.
file(RELATIVE_PATH to_prefix /prefix/${CMAKE_INSTALL_LIBDIR}/pkgconfig /prefix)
configure_file(cmake/stretto.pc.in ${PROJECT_BINARY_DIR}/stretto.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/stretto.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)

if(PROJECT_IS_TOP_LEVEL)
  set(CPACK_GENERATOR DEB)
  set(CPACK_PACKAGE_NAME stretto)
  set(CPACK_PACKAGE_VENDOR "The Stretto authors")
  set(CPACK_PACKAGE_CONTACT "The Stretto authors")
  set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "${PROJECT_DESCRIPTION}")
  set(CPACK_PACKAGE_DESCRIPTION "The library with its headers, for C++20, C11, CMake and pkg-config.")
  set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
  set(CPACK_STRIP_FILES ON)
  # Without the doors: each needs another MPI or NCCL, and a package would need all of them.
  set(CPACK_INSTALL_CMAKE_PROJECTS "${PROJECT_BINARY_DIR};stretto;Unspecified;/")
  set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
  set(CPACK_DEBIAN_PACKAGE_SECTION libdevel)
  # Of libraries that no package owns, as NVIDIA's installer leaves CUDA, it can name none.
  set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
  # Nor can it see what is loaded when it is first used.
  set(recommended libdnnl2 libopenblas0)
  if(STRETTO_HAVE_UCX)
    list(APPEND recommended libucx0)
  endif()
  list(JOIN recommended ", " CPACK_DEBIAN_PACKAGE_RECOMMENDS)
  include(CPack)
endif()
