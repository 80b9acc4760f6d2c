#pragma once
#if defined(__cplusplus) && __cplusplus <= 201703L
#error "Stretto's headers need C++20: compile with -std=c++20, or in CMake set CMAKE_CXX_STANDARD to 20."
#endif
// STRETTO_API marks the declarations of the interface. All other symbols are hidden.
#define STRETTO_API __attribute__((visibility("default")))
// STRETTO_HIDDEN marks internal types nested in an exported class. They are not part of the interface.
#define STRETTO_HIDDEN __attribute__((visibility("hidden")))
