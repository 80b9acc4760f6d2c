#include "core/lazy_library.hpp"

#include <dlfcn.h>

#include "core/fail.hpp"

namespace stretto {

void* LazyLibrary::function(const char* name) {
  void* handle = handle_.load(std::memory_order_acquire);
  if (handle == nullptr) {  // threads that come here at once get the same handle
    handle = dlopen(soname_, RTLD_NOW | RTLD_LOCAL);
    if (handle == nullptr) {
      fail(ErrorCode::unavailable,
           "{} need {}, which cannot be loaded: {}; install it, or put its folder into LD_LIBRARY_PATH.", purpose_, soname_,
           dlerror());
    }
    handle_.store(handle, std::memory_order_release);
  }
  void* const found = dlsym(handle, name);
  if (found == nullptr) {
    fail(ErrorCode::unavailable,
         "{} need {}, whose copy on this machine has no {}; install the version that Stretto was built with.", purpose_,
         soname_, name);
  }
  return found;
}

}  // namespace stretto
