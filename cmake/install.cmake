# find_package(stretto) and pkg-config stretto; users need no dependency of ours.
include(CMakePackageConfigHelpers)
install(TARGETS stretto EXPORT strettoTargets LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(DIRECTORY include/stretto DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(EXPORT strettoTargets NAMESPACE stretto:: DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/stretto)
configure_package_config_file(cmake/strettoConfig.cmake.in ${PROJECT_BINARY_DIR}/strettoConfig.cmake
  INSTALL_DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/stretto)
write_basic_package_version_file(${PROJECT_BINARY_DIR}/strettoConfigVersion.cmake COMPATIBILITY SameMinorVersion)
configure_file(cmake/stretto.pc.in ${PROJECT_BINARY_DIR}/stretto.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/strettoConfig.cmake ${PROJECT_BINARY_DIR}/strettoConfigVersion.cmake
  DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/stretto)
install(FILES ${PROJECT_BINARY_DIR}/stretto.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
